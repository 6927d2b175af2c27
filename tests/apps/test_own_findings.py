"""Sites with their own files whose rows have several labels: training, the sites' counts, and small cells."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from apps.server_app import RunFailedError
from apps.server_app import app as server_app
from apps.sites.rows import own_report, own_rows
from payloads.held_out import BINS, FindingCounts, FindingEdges
from payloads.record import PayloadError
from problems.data.findings import Findings
from problems.finding_metrics import finding_metrics
from simulations.scoring.model import load as load_model
from tests.battery.federation import Listener, Run, Wiretap, federate, flat_config, serve
from tests.battery.test_disclosure import disclosed
from tests.problems.test_findings import NAMES, make_table
from tests.refusals import refuses

KEYS: dict[str, Scalar] = {"dataset": "csv", "partition": "own", "label-columns": ", ".join(NAMES)}
KEYS |= {"strategy": "local-sgd", "learning-rate": 0.3}


def write(folder: Path, tables: Sequence[pd.DataFrame], least: int = 1) -> list[dict[str, Scalar]]:
    """Write a table for each site, and return the node configs."""
    paths = [folder / f"{place}.csv" for place in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        table.to_csv(path, index=False)
    return [{"data-path": str(path), "least-cell": least} for path in paths]


def play(folder: Path, nodes: Sequence[Mapping[str, Scalar]], **keys: Scalar) -> tuple[Run, Wiretap]:
    return federate(folder, {**KEYS, **{key.replace("_", "-"): value for key, value in keys.items()}}, nodes=nodes)


def make_tables(rows: int = 60) -> list[pd.DataFrame]:
    return [make_table(rows, seed=place) for place in range(3)]


@pytest.mark.parametrize("strategy", ["local-sgd", "fedx2", "local-pair", "codasca"])
def test_own_files_train_as_one_table_in_parts(strategy: str, tmp_path: Path) -> None:
    tables, test = make_tables(), make_table(50, seed=9)
    nodes = write(tmp_path, tables)
    pd.concat(tables).to_csv(tmp_path / "train.csv", index=False)
    test.to_csv(tmp_path / "test.csv", index=False)
    own, _ = play(tmp_path / "own", nodes, strategy=strategy, data_dir=str(tmp_path / "test.csv"))
    for node in nodes:
        Path(str(node["data-path"])).unlink()
    whole = {**KEYS, "strategy": strategy, "partition": "consecutive", "data-dir": str(tmp_path)}
    pooled, _ = federate(tmp_path / "pooled", whole)
    for name, value in pooled.model.items():
        np.testing.assert_allclose(own.model[name], value, rtol=1e-4, atol=1e-6)
    assert own.result["metrics"] == pytest.approx(pooled.result["metrics"], abs=1e-4)


@pytest.mark.parametrize("secure", [False, True])
def test_counted_metrics_are_those_of_the_held_out_rows(secure: bool, tmp_path: Path) -> None:
    nodes = write(tmp_path, make_tables(200))
    run, grid = play(tmp_path / "run", nodes, **{"privacy.secure-sum": secure})
    config = parse_run_config(KEYS)
    sites = [own_rows(config, node, place) for place, node in enumerate(nodes)]
    tables = [pd.read_csv(str(node["data-path"])).iloc[site.test_rows] for node, site in zip(nodes, sites, strict=True)]
    values = np.concatenate([site.findings_of(site.test_rows).values for site in sites])  # type: ignore[union-attr]
    exact = finding_metrics(Findings.of(values, NAMES), load_model(run.path).decision_function(pd.concat(tables)))
    error = 2e-2 if secure else 2e-3
    for name in ("auc", "accuracy", *(f"auc_{finding}" for finding in NAMES)):
        assert run.result["metrics"][name] == pytest.approx(exact[name], abs=error)
    assert secure or any(one.phase == "finding-counts" for one in grid.exchanges)


@pytest.mark.parametrize("strategy", ["local-sgd", "fedx2", "codasca"])
def test_secure_sums_train_the_same_model(strategy: str, tmp_path: Path) -> None:
    nodes = write(tmp_path, make_tables(120), least=5)
    keys = {"strategy": strategy, **({"fedx.pool": "histogram"} if strategy == "fedx2" else {})}
    plain, _ = play(tmp_path / "plain", nodes, **keys)
    secure, _ = play(tmp_path / "secure", nodes, **keys, **{"privacy.secure-sum": True})
    for name, value in plain.model.items():
        np.testing.assert_allclose(secure.model[name], value, atol=1e-4)


def test_arrays_of_sites_have_findings_too(tmp_path: Path) -> None:
    nodes = []
    for place, table in enumerate(make_tables(100)):
        np.savez(tmp_path / f"{place}.npz", X=table[[*"abcd"]].to_numpy(), y=table[[*NAMES]].to_numpy())
        nodes.append({"data-path": str(tmp_path / f"{place}.npz")})
    keys = {"dataset": "npz", "validation_fraction": 0.3, "select_by": "auc_scar", "num_server_rounds": 20}
    run, _ = play(tmp_path / "run", nodes, **keys)
    assert run.result["test_metrics"]["auc"] > 0.8


def test_a_site_may_lack_a_class(tmp_path: Path) -> None:
    tables = []
    for place, table in enumerate(make_tables(200)):
        kinds = np.array([*NAMES, "none"])[np.argmax(table[[*"abcd"]].to_numpy(), axis=1)]
        tables.append(table[[*"abcd"]].assign(kind=np.where((kinds == "scar") & (place == 1), "none", kinds)))
    run, _ = play(tmp_path / "run", write(tmp_path, tables), label_column="kind", num_server_rounds=8)
    assert run.result["metrics"]["auc_scar"] > 0.7
    assert run.result["training_rows"][1]["findings"][2][1] == 0


@pytest.mark.parametrize("strategy", ["local-sgd", "fedx2"])
def test_no_reply_has_a_column_of_findings(strategy: str, tmp_path: Path) -> None:
    tables = make_tables(120)
    flat = flat_config(tmp_path / "run", {**KEYS, "strategy": strategy})
    grid = Listener(client_app, 3, flat, write(tmp_path, tables, least=5))
    serve(grid, server_app, flat)
    columns = [table[name].to_numpy()[part] for table in tables for name in NAMES for part in (slice(96), slice(None))]
    values = [np.nan_to_num(column, nan=-1) for column in columns]
    assert len(grid.heard) > 3 * 8
    assert not [place for reply in grid.heard for place in disclosed(reply, set(), values)]


# Small cells, and sites that do not fit.

VALUES = st.lists(st.lists(st.integers(-1, 1), min_size=2, max_size=2), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.integers(1, 6))
def test_no_count_is_small(rows: list[list[int]], least: int) -> None:
    values = np.array(rows, np.int8)
    hidden = Findings.of(values, ("a", "b")).without_small_cells(least).values
    for before, after in zip(values.T, hidden.T, strict=True):
        counts, old = (np.array([(column == value).sum() for value in (-1, 0, 1)]) for column in (after, before))
        assert not ((counts[1:] > 0) & (counts[1:] < least)).any()
        assert not 0 < counts[0] < min(least, len(rows))
        assert ((after == before) | (after == -1)).all()
        if not ((old > 0) & (old < least)).any():
            assert (after == before).all()


def test_a_rare_finding_is_unknown_at_its_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tables = make_tables(100)
    tables[1]["scar"] = np.where(np.arange(100) % 12 == 0, 1.0, 0.0)
    nodes = write(tmp_path, tables, least=5)
    report = own_report(own_rows(parse_run_config(KEYS), nodes[1], 1), 1, 3, 5)
    for counts in (report.finding_counts, report.held_out_findings):
        assert counts is not None
        assert counts[:2].min() >= 5
    assert report.held_out_findings is not None
    assert report.held_out_findings[2].tolist() == [0, 0]
    with caplog.at_level("INFO"):
        play(tmp_path / "run", nodes)
    assert "0 or 1 in fewer than least-cell: scar at 1 of 3 sites" in caplog.text
    assert "findings that are unknown in all evaluation rows: scar, since fewer than 5 rows" in caplog.text


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"scar": None}, "partition 1.*label-columns: got 'scar'"),
        ({"scar": "yes"}, "partition 1.*column 'scar'.*text"),
    ],
)
def test_a_site_with_other_columns_is_named(change: dict[str, str | None], match: str, tmp_path: Path) -> None:
    tables = make_tables()
    for name, cell in change.items():
        tables[1] = tables[1].drop(columns=name) if cell is None else tables[1].assign(**{name: cell})
    with refuses(RunFailedError, match):
        play(tmp_path / "run", write(tmp_path, tables))


def test_a_finding_without_ones_at_any_site_is_named(tmp_path: Path) -> None:
    tables = [table.assign(scar=0) for table in make_tables()]
    with refuses(RunFailedError, r"the training rows of all sites.*one value only of scar \(144 zeros, 0 ones\)"):
        play(tmp_path / "run", write(tmp_path, tables))


def test_changed_findings_are_noticed(tmp_path: Path) -> None:
    tables = make_tables()
    nodes = write(tmp_path, tables)
    play(tmp_path / "run", nodes, checkpoint_every=1, num_server_rounds=1)
    order = tables[0].index.to_numpy().copy()
    ones = np.flatnonzero(tables[0]["scar"] == 1)
    order[ones[:2]], order[ones[-2:]] = ones[-2:], ones[:2]  # the same counts, in other rows
    zeros = np.flatnonzero(tables[0]["scar"] == 0)
    swapped = tables[0]["scar"].to_numpy().copy()
    swapped[[ones[0], zeros[0]]] = 0, 1
    tables[0].assign(scar=swapped).to_csv(str(nodes[0]["data-path"]), index=False)
    with refuses(RunFailedError, "resume: partition 0.*other (labels|values)"):
        play(tmp_path / "run", nodes, checkpoint_every=1, num_server_rounds=2, resume=True)


def test_impossible_counts_are_refused() -> None:
    counts = np.zeros((2, BINS), np.int32)
    counts[:, 0] = 3, 1
    record = FindingCounts(negatives=counts.ravel(), positives=counts.ravel())
    record.check_rows(np.array([[3, 3], [1, 1]]))
    with pytest.raises(PayloadError, match=r"FindingCounts.positives: counts of \[3, 1\] rows by finding"):
        record.check_rows(np.array([[3, 3], [1, 2]]))
    with pytest.raises(PayloadError, match="expected 3 x 2048"):
        record.check_rows(np.ones((3, 2), int))
    edges = np.stack([np.arange(BINS - 1), np.arange(BINS - 1)[::-1]])
    with pytest.raises(PayloadError, match="descend"):
        FindingEdges(edges=edges).check_order()
