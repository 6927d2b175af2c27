"""Attacks on table one: small cells, differences of two requests, and a site that is too small to describe."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apps.client_app import app as client_app
from apps.server_app import RunFailedError
from apps.server_app import app as server_app
from clients.describe import PHASES, DescribeClient
from clients.vfb2 import NoModel
from methods.cohort import Cohort, Columns
from methods.describe import answer_bins, answer_totals
from payloads.description import QUANTILES, TOTALS, BinQuestion
from payloads.digit_sums import from_digits
from payloads.handshake import SiteReport
from payloads.record import PayloadError
from payloads.settings import TrainingSettings
from payloads.wire import PAYLOAD, PHASE, ROUND
from problems.data import DataError
from problems.data.preprocessing import Feature
from problems.protected_counts import suppress
from simulations.engines.grid import FIRST_NODE_ID
from tests.apps.test_describe import CONFIG, column, describe, table
from tests.battery.federation import Listener, flat_config, serve

LEAST = 5
COLUMNS = Columns(
    (Feature("x", "number"), Feature("flag", "number"), *(Feature("ward", "category", value) for value in "abc"))
)


def cohort(seed: int, rows: int = 90) -> Cohort:
    """Return a site with rare levels, rare ones, few missing cells and a rare outcome."""
    rng = np.random.default_rng(seed)
    values = np.zeros((rows, 5))
    values[:, 0] = rng.normal(0, 1, rows) if seed % 2 else np.round(rng.exponential(3, rows))
    values[:, 1] = rng.random(rows) < 0.06
    values[np.arange(rows), 2 + rng.choice(3, rows, p=[0.85, 0.1, 0.05])] = 1
    values[rng.random(rows) < 0.04, 0] = np.nan
    values[rng.random(rows) < 0.03, 2:] = np.nan
    return Cohort(0, COLUMNS, values, (rng.random(rows) < 0.2).astype(np.int8), LEAST)


def small(counts: Iterable[Any]) -> bool:
    """Return whether any count is above 0 and below the least cell."""
    return any(0 < count < LEAST for count in np.abs(np.array(list(counts))).ravel())


def counts(site: Cohort, borders: np.ndarray) -> np.ndarray:
    """Return a site's counts by column, class and bin, for the same borders of both columns."""
    question = BinQuestion(borders=np.tile(np.sort(borders), (2, 1)), origins=np.zeros(0))
    return answer_bins(site, question).counts.reshape(2, 3, -1)


@pytest.mark.parametrize("seed", range(30))
def test_no_small_cell_in_any_answer(seed: int) -> None:
    """Neither a count nor its complement is small: in a class, by level, by bin, or among missing cells."""
    site, rng = cohort(seed), np.random.default_rng(seed)
    totals = answer_totals(site)
    marks, pooled = totals.marks.reshape(-1, 3), totals.pooled.reshape(-1, 3)
    assert totals.rows.sum() == len(site)
    assert not small(totals.rows)
    assert not small(totals.gaps)
    assert not small(totals.rows - totals.gaps.reshape(-1, 3))
    assert not small(marks)
    assert not small(pooled)
    assert (marks.sum(axis=0) + pooled[0] == totals.rows).all()
    for _ in range(20):
        assert not small(counts(site, rng.normal(0, 3, 12)))


@pytest.mark.parametrize("seed", range(30))
def test_borders_cannot_isolate_a_row(seed: int) -> None:
    """A server that moves a border past one row learns nothing: the difference is 0 or at least the least cell."""
    site = cohort(seed)
    for cell in site.values[:40, 0]:
        if np.isnan(cell):
            continue
        below, above = (counts(site, np.array([cell + step])) for step in (-1e-9, 1e-9))
        assert not small(above - below)


@pytest.mark.parametrize("seed", range(30))
def test_the_mean_of_a_flag_equals_its_counts_by_class(seed: int) -> None:
    """The mean reveals the number of ones; less the ones of a class, it would reveal the ones of the other class."""
    site = cohort(seed)
    totals, bins = answer_totals(site), counts(site, np.array([0.5]))
    assert from_digits(totals.sums)[1] == bins[1, :, 1].sum()


def test_suppressed_cells_stay_ambiguous() -> None:
    """At least two cells are hidden, with the least cell in all, so the number of all rows reveals none of them."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        cells = rng.poisson(rng.choice([1, 4, 30], size=rng.integers(2, 7)))
        hidden = suppress(cells, LEAST)
        assert not small(cells[~hidden])
        if cells.sum() >= LEAST and hidden.any():
            assert (cells[hidden] > 0).sum() >= 2
            assert cells[hidden].sum() >= LEAST


def test_a_rare_outcome_is_hidden(tmp_path: Path) -> None:
    frames = [table(200, 0), table(100, 1)]
    frames[1]["ill"] = np.where(np.arange(100) < LEAST - 1, "yes", "no")
    found = describe(tmp_path, frames)
    assert found["sites_that_hide_the_outcome"] == 1
    assert found["sites"][1] == {
        "site": "partition 1", "rows": 100, "positives": None, "negatives": None, "prevalence": None
    }  # fmt: skip
    assert found["positives"] == (frames[0]["ill"] == "yes").sum()
    assert column(found, "age")["all"]["mean"] == pytest.approx(pd.concat(frames)["age"].mean(), rel=1e-9)


@pytest.mark.parametrize("secure", [False, True])
def test_a_site_of_four_rows_shows_nothing(secure: bool, tmp_path: Path) -> None:
    """The answers of a site of four rows equal the answers of a site with four other rows."""
    tables = list[str]()
    for version in (0, 1):
        folder = tmp_path / str(version)
        folder.mkdir()
        frames = [table(80, 0), table(60, 1), table(70, 2), table(4, 10 + version)]
        frames[3]["ill"] = ["yes", "no", "no", "yes" if version else "no"]
        for site, frame in enumerate(frames):
            frame.to_csv(folder / f"{site}.csv", index=False)
        nodes = [{"data-path": str(folder / f"{site}.csv")} for site in range(4)]
        flat = flat_config(folder / "run", {**CONFIG, "privacy.secure-sum": secure})
        grid = Listener(client_app, 4, flat, nodes)
        serve(grid, server_app, flat)
        tables.append((folder / "run" / "describe.json").read_text("utf-8"))
        assert '"sites_that_show_nothing": 1' in tables[-1]
        if not secure:
            of_site = [reply for reply in grid.heard if reply.metadata.src_node_id == FIRST_NODE_ID + 3]
            report = SiteReport.from_record(of_site[0].content.config_records[PAYLOAD])
            assert report.class_counts is report.counts is report.means is report.held_out_counts is None
            for reply, phase in zip(of_site[1:], [TOTALS, "bins-1"], strict=False):
                arrays = PHASES[phase].from_record(reply.content.config_records[PAYLOAD]).arrays()
                assert all(not array.any() for name, array in arrays.items() if name != "withheld")
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    "keys", [{"seed": 9}, {"test-fraction": 0.4}, {"validation-fraction": 0.3}, {"scale": "log"}, {"missing": "median"}]
)
def test_another_split_gives_the_same_table(keys: dict[str, Any], tmp_path: Path) -> None:
    frames = [table(120, 0), table(90, 1)]
    assert describe(tmp_path, frames) == describe(tmp_path, frames, keys, name="again")


def test_other_columns_do_not_change_a_column(tmp_path: Path) -> None:
    frames = [table(120, 0), table(90, 1)]
    whole = describe(tmp_path, frames)
    fewer = describe(tmp_path, frames, {"feature-columns": "bmi,ward[a|b|c]"}, name="fewer")
    assert [column(whole, name) for name in ("bmi", "ward")] == fewer["columns"]


@pytest.mark.parametrize("secure", [False, True])
def test_one_site_less_reveals_no_small_cell(secure: bool, tmp_path: Path) -> None:
    """The difference of two tables is the last site's own answer, in which every count is 0 or at least 5."""
    frames = [table(150, 0), table(90, 1), table(75, 2), table(60, 3)]
    tables = [describe(tmp_path / str(number), frames[:number], {"privacy.secure-sum": secure}) for number in (4, 3)]
    for name in ("age", "bmi", "kids", "sex", "ward"):
        more, less = (column(found, name)["all"] for found in tables)
        assert not small([more["missing"] - less["missing"]])
        for mine, theirs in zip(more.get("levels", []), less.get("levels", []), strict=True):
            assert not small([mine["count"] - theirs["count"]])
    assert not small([tables[0][key] - tables[1][key] for key in ("rows", "positives", "negatives")])


def test_an_owner_allows_describe_alone(tmp_path: Path) -> None:
    frames = [table(120, 0), table(90, 1)]
    nodes = {"allowed-strategies": "describe"}
    assert describe(tmp_path, frames, nodes=nodes)["rows"] == 210
    with pytest.raises(RunFailedError, match="strategy: set strategy to an allowed strategy"):
        describe(tmp_path, frames, {"strategy": "local-sgd", "model": "linear"}, nodes, "train")


def test_an_owner_who_allows_training_alone_refuses(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="got 'describe'"):
        describe(tmp_path, [table(120, 0), table(90, 1)], nodes={"allowed-strategies": "local-sgd"})


def test_split_seed_fixes_the_outcome(tmp_path: Path) -> None:
    """Without it, tables with two definitions of the outcome, or of missing cells, can be subtracted."""
    nodes = {"split-seed": 1, "dataset": "csv", "label-column": "ill", "positive-label": "yes"}
    keys = {"feature-columns": "", "drop-columns": "sex, ward"}
    with pytest.raises(RunFailedError, match="positive-label"):
        describe(
            tmp_path,
            [table(120, 0), table(90, 1)],
            {**keys, "positive-label": "no"},
            nodes | {"drop-columns": "sex, ward"},
        )


def test_a_site_sends_no_quantiles_in_a_secure_sum() -> None:
    client = DescribeClient(cohort(0), NoModel(), TrainingSettings())  # type: ignore[arg-type]
    client.summed = 3
    with pytest.raises(PayloadError, match="not an exchange"):
        client.fit([np.zeros(0)], {ROUND: 0, PHASE: QUANTILES})


def test_single_rows_in_many_cells_stay_ambiguous() -> None:
    """Five hidden cells with five rows in all would have one row each."""
    for cells in ([40, 1, 1, 1, 1, 1], [40, 30, 2, 2, 1]):
        hidden = np.array(cells)[suppress(np.array(cells), LEAST)]
        assert hidden.sum() - (len(hidden) - 1) >= LEAST


@pytest.mark.parametrize("few", [1, 2, 3])
def test_origins_that_round_differences_count_nothing(few: int) -> None:
    """With an origin near 2^56 the sum of rounded differences would reveal the number of large cells."""
    values = np.zeros((201, 5))
    values[:, 0] = np.arange(201) % 3
    values[:few, 0] = 7.0
    site = Cohort(0, COLUMNS, values, np.arange(201).astype(np.int8) % 2, LEAST)
    for origin in (2.0**39 + 0.7, 2.0**40):
        question = BinQuestion(borders=np.zeros((2, 1)), origins=np.full(2, origin))
        (offset, _) = from_digits(answer_bins(site, question).offsets)
        assert offset == site.numbers[0].sums(0.0)[0] - len(values) * Fraction(origin)
    with pytest.raises(DataError, match="origins"):
        answer_bins(site, BinQuestion(borders=np.zeros((2, 1)), origins=np.full(2, 2.0**56)))


@pytest.mark.parametrize("missing", [1, 2, 3, 4])
def test_the_mean_of_whole_numbers_hides_few_missing_cells(missing: int) -> None:
    """The sum of whole numbers is whole for the true number of cells, whose reported number differs."""
    values = np.zeros((100, 5))
    values[:, 0] = np.random.default_rng(missing).integers(20, 80, 100)
    values[:missing, 0] = np.nan
    site = Cohort(0, COLUMNS, values, (np.arange(100) >= 50).astype(np.int8), LEAST)
    number = site.numbers[0]
    assert (number.is_hidden, number.weight) == (True, 100)
    assert number.sums(0.0)[0].denominator & (number.sums(0.0)[0].denominator - 1) == 0  # not a multiple of 100 / cells
