"""Scores of new customers after a vertical run: each party reads its own file and keeps its own block."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from flwr.app import RecordDict
from safetensors.numpy import save_file
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

from apps.config import ConfigError, Scalar, parse_run_config
from apps.parties.blocks import BLOCK_FORMAT, BLOCK_VERSION, read_block, write_block
from apps.parties.score_table import check_scores_path
from apps.sites.files import FORMAT, VERSION, read_sealed
from payloads.wire import PHASE, ROUND
from problems.data import DataSpec
from problems.data.disturb import split_rows
from tests.apps.vertical_runs import CSV, EVERYBODY, KEYS, client_of, identified, own_files, play, segment_of
from tests.battery.federation import Run, Wiretap, flat_config
from tests.clients.test_party_secrecy import MASKINGS
from tests.refusals import refuses
from vertical.parties import KeptBlock, Party
from vertical.policy import PolicyError
from vertical.problem.data import load_vertical
from vertical.records import ALIGNMENT
from vertical.segment.plan import Holding, PartyState, SegmentOutcome, SegmentPlan
from vertical.turn import Turn

NEW = [f"new-{number:03}" for number in range(30)]
INTERSECTION: dict[str, Scalar] = {"vfb2.alignment": "intersection"}
Nodes = list[dict[str, Scalar]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Nodes, pd.DataFrame]:
    """A finished run on files: the folders of the parties' states, its token, its node configs and the whole table."""
    folder = tmp_path_factory.mktemp("trained")
    nodes, whole = own_files(folder, [EVERYBODY] * 3, labelled=1)
    jobs = pd.Series(["baker", "clerk", "smith"] * 20, index=whole["id"])
    second = pd.read_csv(folder / "party-1.csv")
    second["job"] = second["id"].map(jobs)
    second.to_csv(folder / "party-1.csv", index=False)
    kept = [{**node, "state-dir": str(folder / f"state-{place}")} for place, node in enumerate(nodes)]
    run, _ = play(folder / "run", {**CSV, "vfb2.intercept": "auto"}, kept)
    return folder, (run.path / "run-token").read_text(), kept, whole.assign(job=jobs.to_numpy())


def new_rows(folder: Path, kept: Nodes) -> tuple[Nodes, pd.DataFrame]:
    """Write the new rows: parties lack some rows and have different orders. Return the node configs and one table.

    Some values lie outside the range of training; party 1 has a new column and a new job.
    """
    held = [NEW[:25], NEW[3:], NEW[:10] + NEW[12:]]
    nodes, whole = own_files(folder, held, labelled=0)
    whole["job"] = ["clerk", "baker", "astronaut"] * 10
    own = pd.read_csv(folder / "party-1.csv").assign(extra=1.0)
    own["job"] = own["id"].map(whole.set_index("id")["job"])
    own[own.columns[::-1]].to_csv(folder / "party-1.csv", index=False)
    return [{"state-dir": old["state-dir"], **node} for old, node in zip(kept, nodes, strict=True)], whole


def path_of(kept: Nodes, party: int, token: str) -> str:
    """Return the path of a party's block."""
    return f"{kept[party]['state-dir']}/{token}/client-{party}/block.safetensors"


def pooled(run: Path, trained: pd.DataFrame, new: pd.DataFrame) -> np.ndarray:
    """Return (n,) z of new rows under a linear run whose server has the blocks, over all parties' columns."""
    model, (rows, _) = Run(run).model, split_rows(60, 0.2, 0, "vertical split")
    names = [f"x{column}" for column in range(9)]
    low, high = trained[names].iloc[rows].min(), trained[names].iloc[rows].max()
    scaled = (new[names] - low) / (high - low)
    assert (scaled.min() < 0).any() and (scaled.max() > 1).any()  # noqa: PT018
    jobs = np.stack([new["job"] == name for name in ("baker", "clerk", "smith")], axis=1)
    of_1 = model["weights.1"]
    *of_0, intercept = model["weights.0"]
    assert abs(intercept) > 0.01
    weights = np.concatenate([of_0, of_1[:3], model["weights.2"]])
    return intercept + scaled.to_numpy() @ weights + jobs @ of_1[3:]


def words_of(grid: Wiretap) -> bytes:
    """Return all bytes that the server has sent and received."""

    def flat(content: RecordDict) -> bytes:
        parts = [array.data for record in content.array_records.values() for array in record.values()]
        records = [*content.config_records.values(), *content.metric_records.values()]
        for value in (value for record in records for value in record.values()):
            parts.append(value if isinstance(value, bytes) else repr(value).encode())
            if isinstance(value, float) or (isinstance(value, list) and value and isinstance(value[0], float)):
                parts.append(np.asarray(value).tobytes())
        return b"".join(parts)

    return b"".join(flat(one.content) for exchange in grid.exchanges for one in (exchange.message, exchange.reply))


@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize(("score_for", "recipients"), [("label-holders", [0]), ("all", [0, 1, 2])])
def test_recipients_get_the_scores_of_the_pooled_model(
    masking: str, score_for: str, recipients: list[int], trained: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, token, kept, old = trained
    nodes, new = new_rows(tmp_path, kept)
    nodes = identified(tmp_path, nodes)  # each with its own certificates and pins
    nodes = [{**node, "scores-path": str(tmp_path / f"scores-{k}.csv")} for k, node in enumerate(nodes)]
    # the keys of training may stay in the config
    config = {**CSV, **INTERSECTION, "vfb2.score-run": token, "vfb2.score-for": score_for, "vfb2.masking": masking}
    with caplog.at_level(logging.WARNING, logger="flwr"):
        run, grid = play(tmp_path / "run", config, nodes)
    common = [name for name in NEW[3:25] if name not in NEW[10:12]]
    z = pooled(folder / "run", old, new.set_index("id").loc[common].reset_index())
    assert sorted(path.name for path in tmp_path.glob("scores-*.csv")) == [f"scores-{k}.csv" for k in recipients]
    for party in recipients:
        scores = pd.read_csv(tmp_path / f"scores-{party}.csv")
        assert list(scores["id"]) == common
        np.testing.assert_allclose(scores["score"], z, rtol=0, atol=1e-9)
        np.testing.assert_allclose(scores["probability"], 1 / (1 + np.exp(-z)), rtol=0, atol=1e-9)
        assert (tmp_path / f"scores-{party}.csv").stat().st_mode & 0o077 == 0
    assert "party 1: column 'job': 1 value that the model does not know, in 9 of 27 cells" in caplog.text
    # the server has no ids, scores or blocks
    seen = words_of(grid)
    assert b"new-" not in seen
    assert (run.path / "run-token").read_bytes() in seen
    assert not any(np.float64(value).tobytes() in seen for value in [*scores["score"], *scores["probability"]])
    assert not any(
        name.startswith("weights") for exchange in grid.exchanges for name in exchange.reply.content["payload"]
    )


def test_scores_of_bins_are_those_of_the_pooled_model(tmp_path: Path) -> None:
    """The new file has values outside the range of training, and bins of its own columns would differ."""
    nodes, old = own_files(tmp_path, [[f"row-{number:03}" for number in range(640)]] * 3, labelled=1)
    nodes = [{**node, "state-dir": str(tmp_path / f"state-{place}")} for place, node in enumerate(nodes)]
    config: dict[str, Scalar] = {**CSV, "scale": "bins", "bins": 4, "learning-rate": 0.5, "vfb2.intercept": "auto"}
    run, _ = play(tmp_path / "run", config, nodes)
    (tmp_path / "new").mkdir()
    brought, new = own_files(tmp_path / "new", [NEW] * 3, labelled=0)
    paths: list[dict[str, Scalar]] = [{"score-path": node["data-path"]} for node in brought]
    nodes = [{**node, **path} for node, path in zip(nodes, paths, strict=True)]
    nodes[0]["scores-path"] = str(tmp_path / "scores.csv")
    play(tmp_path / "scored", {**config, "vfb2.score-run": (run.path / "run-token").read_text()}, nodes)

    def binned(name: str) -> np.ndarray:
        return np.eye(4)[np.searchsorted(np.quantile(old[name], [0.25, 0.5, 0.75]), new[name])]

    *of_0, intercept = run.model["weights.0"]
    weights = np.concatenate([of_0, run.model["weights.1"], run.model["weights.2"]])
    z = intercept + np.concatenate([binned(f"x{column}") for column in range(9)], axis=1) @ weights
    assert np.ptp(z) > 0.1
    np.testing.assert_allclose(pd.read_csv(tmp_path / "scores.csv")["score"], z, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("rows", "told"), [(NEW[:1], ""), ([], "the parties have 0 rows in common; at least 1 is")])
def test_one_common_row_is_enough(rows: list[str], told: str, trained: Any, tmp_path: Path) -> None:
    """Ids that one or two parties lack are left out; the scores are stored under the run's own token."""
    _, token, kept, _ = trained
    nodes, new = own_files(tmp_path, [[*rows, NEW[5]], [*rows, NEW[6], NEW[7]], [*rows, NEW[7]]], labelled=0)
    own = pd.read_csv(tmp_path / "party-1.csv").assign(job="smith")
    own.to_csv(tmp_path / "party-1.csv", index=False)
    state = tmp_path / "state"
    (state / token / "client-0").mkdir(parents=True)
    (state / token / "client-0" / "block.safetensors").write_bytes(Path(path_of(kept, 0, token)).read_bytes())
    nodes = [{"state-dir": old["state-dir"], **node} for old, node in zip(kept, nodes, strict=True)]
    nodes[0]["state-dir"] = str(state)
    config = {**CSV, **INTERSECTION, "vfb2.score-run": token}
    if told:
        with pytest.raises(RuntimeError, match=told):
            play(tmp_path / "run", config, nodes)
        return
    run, _ = play(tmp_path / "run", config, nodes)
    scores = pd.read_csv(state / (run.path / "run-token").read_text() / "client-0" / "scores.csv")
    row = new[new["id"] == NEW[0]].assign(job="smith")
    wanted = [read_block(node, token, "logistic", (k, 3)) for k, node in enumerate(kept)]
    parts = [b.preprocessing.transform(b.preprocessing.encode(row))[0] for b in wanted]
    z = sum(part @ b.weights[: len(part)] for part, b in zip(parts, wanted, strict=True)) + wanted[0].weights[3]
    assert scores["id"].tolist() == [NEW[0]]
    assert scores["score"][0] == pytest.approx(z, abs=1e-9)


def drop(name: str) -> Any:
    return lambda frame: frame.drop(columns=name)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (drop("x4"), r"^party 1: data-path: table: got no column 'x4'"),
        (drop("job"), r"^party 1: data-path: table: got no column 'job'"),
        (
            lambda frame: frame.assign(x4="much"),
            r"^party 1: data-path: column 'x4': got 27 of 27 cells that are text, the f",
        ),
        (lambda frame: frame.assign(x4=None), r"^party 1: data-path: column 'x4': got 27 of 27 .*missing"),
        (
            lambda frame: frame.assign(job=3),
            r"^party 1: data-path: column 'job': got numbers, allowed: text, as",
        ),
        (drop("id"), r"^party 1: data-path: .*no column 'id'"),
    ],
)
def test_a_file_that_is_not_as_in_training_is_refused(change: Any, told: str, trained: Any, tmp_path: Path) -> None:
    _, token, kept, _ = trained
    nodes, _ = new_rows(tmp_path, kept)
    change(pd.read_csv(tmp_path / "party-1.csv")).to_csv(tmp_path / "party-1.csv", index=False)
    with refuses(RuntimeError, told):
        play(tmp_path / "run", {**CSV, **INTERSECTION, "vfb2.score-run": token}, nodes)


@pytest.mark.parametrize(
    ("change", "config", "told"),
    [
        (
            {"state-dir": "EMPTY"},
            {},
            r"^party 1: block: got '.*/empty/.*', which does not exist, allowed: the party's block",
        ),
        ({"block": "BLOCK 0"}, {}, r"^party 1: block: got .* of party 0, allowed: party 1"),
        (
            {"block": "BLOCK 1"},
            {"vfb2.score-run": "0" * 32},
            r"block: got .* of run '\w{32}', allowed: run '0",
        ),
        ({}, {"vfb2.problem": "nonconvex-logistic"}, r"block: got .* of problem 'logistic', allowed: problem 'nonc"),
        (
            {"allow-scores-for": "nobody"},
            {},
            r"^party 1: allow-scores-for: got a run that scores rows for label",
        ),
        (
            {"allow-scores-for": "label-holders"},
            {"vfb2.score-for": "all"},
            r"^party 1: allow-scores-for: .* for all",
        ),
        ({"allow-scores-for": "me"}, {}, r"allow-scores-for: got 'me', allowed: nobody, label-holders, all"),
        ({"scores-path": 3}, {}, "node config: scores-path: got 3, allowed: a path"),
    ],
)
def test_a_block_that_is_not_the_party_s_and_a_policy_refuse(
    change: dict[str, Scalar], config: Mapping[str, Scalar], told: str, trained: Any, tmp_path: Path
) -> None:
    _, token, kept, _ = trained
    nodes, _ = new_rows(tmp_path, kept)
    if "vfb2.score-run" in config:  # the other parties find their blocks
        nodes = [{**node, "block": path_of(kept, party, token)} for party, node in enumerate(nodes)]
    made = {"EMPTY": str(tmp_path / "empty"), "BLOCK 0": path_of(kept, 0, token), "BLOCK 1": path_of(kept, 1, token)}
    nodes[1] |= {key: made.get(str(value), value) for key, value in change.items()}
    with refuses(RuntimeError, told):
        play(tmp_path / "run", {**CSV, **INTERSECTION, "vfb2.score-run": token, **config}, nodes)


def test_blocks_of_one_run_after_different_numbers_of_epochs_do_not_add_up(trained: Any, tmp_path: Path) -> None:
    _, token, kept, _ = trained
    nodes, _ = new_rows(tmp_path, kept)
    arrays, texts = read_sealed(Path(path_of(kept, 1, token)), BLOCK_FORMAT, BLOCK_VERSION)
    header = {name: json.loads(text) for name, text in texts.items() if name not in (FORMAT, VERSION)}
    assert header["epochs"] == 3
    nodes[1]["block"] = str(write_block(tmp_path / "older", arrays, {**header, "epochs": 2}))
    with pytest.raises(
        RuntimeError, match=r"partition 1 sent no valid reply.*with the other parties on: plan field first_epoch"
    ):
        play(tmp_path / "run", {**CSV, **INTERSECTION, "vfb2.score-run": token}, nodes)


def test_a_block_of_an_earlier_release_or_a_changed_one_is_refused(trained: Any, tmp_path: Path) -> None:
    _, token, kept, _ = trained
    save_file({"weights": np.zeros(3)}, tmp_path / "old", {"format": "florilegium-block"})
    (tmp_path / "changed").write_bytes(Path(path_of(kept, 1, token)).read_bytes()[:-1] + b"\1")
    for name, told in (
        ("old", "train again: blocks of release 0.1.0"),
        ("changed", "was changed after it was written"),
    ):
        with pytest.raises(ValueError, match=told):
            read_block({"block": str(tmp_path / name)}, token, "logistic", (1, 3))


@pytest.mark.parametrize(
    ("score_for", "active"), [("label-holders", (0,)), ("all", (0, 1, 2)), ("label-holders", (1,))]
)
def test_a_party_sums_for_those_it_knows_to_be_recipients_only(
    score_for: str, active: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server names party 0, but the party's block lists whose labels were used. A request to train is ignored."""
    rows = Mock(labelled=True, columns=3, block=KeptBlock(np.ones(3), active, 3))
    rows.holding.return_value, rows.ids.return_value = Holding(np.ones((2, 3))), ["1", "2"]
    client = client_of(tmp_path, Party(0, 3, lambda: rows), {"vfb2.score-run": "a" * 32, "vfb2.score-for": score_for})
    plans: list[SegmentPlan] = []

    def run(turn: Turn, plan: SegmentPlan, start: PartyState) -> SegmentOutcome:
        plans.append(plan)
        return SegmentOutcome(start.weights, scores=np.ones(2))  # type: ignore[arg-type]

    monkeypatch.setattr("vertical.taking_part.run", run)
    client.inbox = segment_of([b""] * 3, share=True)
    message = [np.zeros(0)], {ROUND: 1}
    if (score_for, active) == ("label-holders", (0,)):
        client.fit(*message)
        assert client.outbox.weights is None
        assert (plans[0].score, plans[0].epochs, plans[0].first_epoch) == (True, 0, 3)
        assert client.scores[0] == ["1", "2"]
    else:
        with refuses(PolicyError, r"party 0: vfb2.score-for: got parties \[0\] as recipients of scores"):
            client.fit(*message)
        assert not plans
    with refuses(ValueError, "payload: got Segment in phase 'alignment', allowed"):
        client.fit([np.zeros(0)], {ROUND: 0, PHASE: ALIGNMENT})


def test_a_simulation_leaves_blocks_that_score_its_data_set(tmp_path: Path) -> None:
    """The blocks are in the run directory, and score-run can name it; a party that shares nothing stores none."""
    run, _ = play(tmp_path / "train", {})
    config = {"vfb2.score-run": str(run.path), "num-server-rounds": 5, "vfb2.score-for": "all"}
    scored, _ = play(tmp_path / "score", config)
    assert len(scored.lines) == 2
    files = sorted(scored.path.rglob("scores.csv"))
    assert len(files) == 4
    data = load_vertical(DataSpec("breast-cancer"), 4)
    z = np.concatenate([data.train_features, data.test_features]) @ run.model["weights"]
    malignant = load_breast_cancer().target == 0
    for file in files:
        table = pd.read_csv(file)
        np.testing.assert_allclose(table["score"], z, rtol=0, atol=1e-9)
        assert sorted(table["id"]) == list(range(569))
        assert roc_auc_score(malignant[table["id"]], table["score"]) > 0.9
    other, _ = play(tmp_path / "other", {}, [{}, {"share-block": False}, {}, {}])
    assert len(list(other.path.rglob("block.safetensors"))) == 3
    with refuses(RuntimeError, r"^party 1: block: got .*client-1/block.safetensors', which does not exist"):
        play(tmp_path / "again", {"vfb2.score-run": str(other.path)})
    with refuses(RuntimeError, "^party 0: seed: got 3, allowed: 0, as in training"):
        play(tmp_path / "wrong", {"vfb2.score-run": str(run.path), "seed": 3})
    with refuses(RuntimeError, r"^party 0: vfb2.score-run: got '/nowhere', allowed: the 32 hexadecimal digits"):
        play(tmp_path / "none", {"vfb2.score-run": "/nowhere"})


def test_a_party_that_keeps_no_block_says_so_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    nodes[2]["share-block"] = False
    with caplog.at_level(logging.INFO, logger="flwr"):
        play(tmp_path / "run", CSV, nodes)
    lost = [record.getMessage() for record in caplog.records if "is lost when the run ends" in record.getMessage()]
    assert [text[:8] for text in lost] == ["party 2:"]
    messages = [record.getMessage() for record in caplog.records]
    assert messages.index(lost[0]) < next(n for n, text in enumerate(messages) if "round 1/3" in text)


def test_what_a_scoring_run_leaves_no_choice_about(tmp_path: Path) -> None:
    flat = flat_config(tmp_path, {**KEYS, "vfb2.score-run": "a" * 32, "checkpoint-every": 5})
    training = parse_run_config(flat).training
    assert (training.num_server_rounds, training.checkpoint_every) == (1, 0)
    assert "vfb2" not in parse_run_config(flat).warning.partition(": ")[2]
    alone = parse_run_config(flat_config(tmp_path, {**KEYS, "vfb2.score-for": "all"}))
    assert "vfb2.score-for='all'" in alone.warning


@pytest.mark.parametrize("text", ["id,age\n1,2\n", "id,score,probability\n1,0,0.5\n"])
def test_scores_replace_neither_inputs_nor_other_files(tmp_path: Path, text: str) -> None:
    target, new = tmp_path / "scores.csv", tmp_path / "new.csv"
    target.write_text(text)
    new.write_text("id\n")
    node = {"scores-path": str(target), "data-path": str(new)}
    if "score" in text:
        check_scores_path(node, "id", [new])
        check_scores_path({}, "id", [new])
    else:
        with refuses(ConfigError, "which is not a table of scores"):
            check_scores_path(node, "id", [])
    with refuses(ConfigError, "which is a file that this party reads"):
        check_scores_path(node, "id", [target])
    with refuses(ConfigError, "which is a file that this party reads"):
        check_scores_path({**node, "scores-path": f"{tmp_path}/./new.csv"}, "id", [])
