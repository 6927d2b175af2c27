"""Tests of a phone company, a bank and a lender on separate hosts; two are behind NAT, without a forwarded port."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from apps.config import Scalar
from tests.apps.vertical_runs import identified, scores_of_blocks
from tests.battery.engines import end_processes
from tests.deployment.federation import Deployment, until
from tests.deployment.hosts import PRIVATE, Internet, internet, why_not
from tests.programs import REAL, needs_real

pytestmark = pytest.mark.deployment

# the companies in the order of their partition ids; the last has the labels
HIDDEN = {"bank": True, "phone": False, "lender": True}
COLUMNS = {
    "bank": ["LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"],
    "phone": ["PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"],
    "lender": [f"{kind}_AMT{month}" for kind in ("BILL", "PAY") for month in range(1, 7)],
}
LABEL = "default"
TRAINED, NEW = 2000, 600


@dataclass(kw_only=True)
class Hosts(Deployment):
    """A deployment whose SuperLink and SuperNodes are hosts of an internet."""

    net: Internet

    def place(self, name: str) -> list[str]:
        return self.net.prefix("superlink" if name == "superlink" else list(HIDDEN)[int(name.removeprefix("site-"))])


def write_tables(folder: Path) -> tuple[list[dict[str, Scalar]], pd.DataFrame]:
    """Write each company's training and new rows, some rows missing at each company; also the new rows common to
    all."""
    table = pd.read_csv(REAL / "uci-credit" / "UCI_Credit_Card.csv.gz", nrows=TRAINED + NEW)
    table = table.rename(columns={"default.payment.next.month": LABEL})
    table["client"] = [f"c{number:05}" for number in table["ID"]]
    nodes: list[dict[str, Scalar]] = []
    for place, (name, columns) in enumerate(COLUMNS.items()):
        own, labels = table.drop(index=range(place, len(table), 97)), [LABEL] if name == "lender" else []
        paths = {"data-path": folder / f"{name}.csv", "score-path": folder / f"{name}-new.csv"}
        for path, rows, extra in zip(
            paths.values(), (own[own.index < TRAINED], own[own.index >= TRAINED]), (labels, []), strict=True
        ):
            rows[["client", *columns, *extra]].sample(frac=1, random_state=place).to_csv(path, index=False)
        nodes.append({key: str(path) for key, path in paths.items()})
        nodes[-1] |= {"scores-path": str(folder / f"{name}-scores.csv"), "labels": LABEL}
    missing = [row for row in range(len(table)) if row % 97 in range(len(COLUMNS))]
    return nodes, table.drop(index=missing).loc[TRAINED:].set_index("client")


@needs_real
def test_companies_behind_nat_train_and_score(tmp_path: Path) -> None:
    """The companies use mutual TLS with an authority each; bank and lender meet at the phone company's SuperNode."""
    if reason := why_not():
        pytest.skip(reason)
    nodes, new = write_tables(tmp_path)
    with internet() as net, TemporaryDirectory(prefix="v") as elsewhere:
        deployment = Hosts(tmp_path, len(nodes), host=net.add_public("superlink"), net=net)
        for name, hidden in HIDDEN.items():
            net.add_private(name) if hidden else net.add_public(name)
        assert not net.has_route("phone", PRIVATE)
        try:
            deployment.prepare()
            deployment.start_superlink()
            deployment.register()
            for place, (name, node) in enumerate(zip(HIDDEN, identified(tmp_path, nodes), strict=True)):
                # a separate folder for temporary files, or the company could meet the others on the same disk
                (own := Path(elsewhere) / str(place)).mkdir()
                advertise = "none" if HIDDEN[name] else f"{net.addresses[name]}:7000"
                config = {key.replace("-", "_"): value for key, value in node.items()}
                deployment.start_node(place, environment={"TMPDIR": str(own)}, advertise=advertise, **config)
            until(lambda: deployment.online() == len(nodes), "all SuperNodes are online")
            config: dict[str, Scalar] = {"strategy": "vfb2-saga", "dataset": "csv", "label-column": LABEL}
            config |= {"positive-label": "1", "vfb2.id-column": "client", "vfb2.active-parties": 1}
            config |= {"vfb2.alignment": "intersection", "vfb2.join-timeout": 120.0, "vfb2.silence-timeout": 60.0}
            config |= {"num-server-rounds": 2, "vfb2.epochs": 4, "learning-rate": 0.1}
            token = (deployment.run(tmp_path / "train", config).path / "run-token").read_text()
            deployment.run(tmp_path / "score", {**config, "vfb2.score-run": token})
            logs = deployment.logs()
        finally:
            end_processes(tmp_path)
            for process in deployment.processes.values():
                process.wait()
    assert f"the scores of {len(new)} rows are in" in logs
    assert not [name for name in ("bank", "phone") if (tmp_path / f"{name}-scores.csv").exists()]
    scores = pd.read_csv(tmp_path / "lender-scores.csv")
    assert list(scores["client"]) == list(new.index)
    z = scores_of_blocks(new, [tmp_path / f"state-{place}" for place in range(len(nodes))], token)
    np.testing.assert_allclose(scores["score"], z, rtol=0, atol=1e-9)
    # scikit-learn's LogisticRegression(C=1 / (2000 * 1e-4)), columns scaled to [0, 1], has 0.702 on rows 2000 to 2599
    assert roc_auc_score(new[LABEL], scores["probability"]) > 0.66
