"""Times to an event: their columns, the grid of intervals, and the loss of hazards."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from problems.data import DataError, DataSpec, load
from problems.data.own import read_own
from problems.data.times import (
    Times,
    agree_on_borders,
    choose_borders,
    count_intervals,
    find_sketch_fault,
    parse_time_borders,
    sketch_events,
)
from problems.data.validation import validate
from problems.objectives.hazard import decode, encode, hazard_loss, hazard_slopes, survive
from problems.site import Site

SPEC = DataSpec("csv", label_column="dead", time_column="months", entry_column="from", time_borders="1:12")


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    start = rng.integers(0, 3, 200)
    ends = start + rng.integers(1, 12, 200)
    return pd.DataFrame({"x": rng.normal(size=200), "from": start, "months": ends, "dead": rng.integers(0, 2, 200)})


def save(frame: pd.DataFrame, folder: Path) -> str:
    frame.to_csv(folder / "rows.csv", index=False)
    return str(folder / "rows.csv")


@given(st.lists(st.floats(0, 20), min_size=1, max_size=20), st.lists(st.floats(0.1, 20), unique=True, max_size=6))
def test_a_row_is_at_risk_at_the_borders_between_entry_and_time(numbers: list[float], cuts: list[float]) -> None:
    """Interval k ends at border k, and a row is at risk there if it entered before the border and left no earlier."""
    borders = tuple(sorted(cuts))
    ends = np.array(numbers) + 1e-6
    times = Times(ends, ends / 2)
    periods = times.on_grid(borders)
    for row, (end, start) in enumerate(zip(times.ends, times.starts, strict=True)):
        assert periods.exits[row] == sum(border < end for border in borders)
        assert periods.entries[row] == sum(border <= start for border in borders)
        assert periods.entries[row] <= periods.exits[row]


def test_features_exclude_the_columns_of_times(frame: pd.DataFrame, tmp_path: Path) -> None:
    data = load(DataSpec(**{**vars(SPEC), "data_dir": save(frame, tmp_path)}), 2)
    assert data.columns is not None
    assert data.columns.names == ("x",)
    assert data.columns.time_borders == tuple(range(1, 13))
    together = np.concatenate([data.train.periods.exits, data.test.periods.exits])  # type: ignore[union-attr]
    assert sorted(together) == sorted(frame["months"] - 1)  # whole months: interval k ends with month k + 1
    own = read_own(save(frame, tmp_path), DataSpec(**{**vars(SPEC), "scale": "none", "partition": "own"}), 0)
    periods = own.samples(np.arange(200), None).periods
    assert periods is not None
    assert (periods.exits.tolist(), periods.entries.tolist()) == (
        (frame["months"] - 1).tolist(),
        frame["from"].tolist(),
    )


def test_quantiles_divide_the_events(frame: pd.DataFrame, tmp_path: Path) -> None:
    data = load(DataSpec(**{**vars(SPEC), "time_borders": "", "data_dir": save(frame, tmp_path)}), 2)
    assert data.columns is not None
    borders = data.columns.time_borders
    assert set(borders) <= set(frame["months"])
    assert len(borders) < count_intervals(DataSpec("csv", time_column="months"))
    many = choose_borders(np.arange(1000.0), np.arange(1000) % 2)
    assert np.bincount(np.searchsorted(many, np.arange(1, 1000, 2))).tolist() == [25] * 20  # 500 events, 20 intervals


BAD: list[tuple[str, Callable[[pd.DataFrame], pd.DataFrame]]] = [
    ("below 0", lambda frame: frame.assign(months=-1.0)),
    ("not before the time", lambda frame: frame.assign(**{"from": frame["months"]})),
    ("missing", lambda frame: frame.assign(months=frame["months"].where(frame["months"] > 3))),
    ("text", lambda frame: frame.assign(months="long")),
]


@pytest.mark.parametrize(("match", "change"), BAD)
def test_wrong_times_are_refused(
    match: str, change: Callable[[pd.DataFrame], pd.DataFrame], frame: pd.DataFrame, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=match):
        load(DataSpec(**{**vars(SPEC), "data_dir": save(change(frame), tmp_path)}), 2)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"time_column": ""}, "entry-column"),
        ({"time_borders": "3, 2"}, "time-borders"),
        ({"time_borders": "1:1000"}, "time-borders"),
        ({"time_borders": "0, 2"}, "time-borders"),
        ({"time_column": "dead"}, "time-column"),
        ({"label_type": "number"}, "label-type"),
        ({"offset_column": "x"}, "offset-column"),
        ({"dataset": "digits", "label_column": "", "entry_column": ""}, "time-column"),
    ],
)
def test_wrong_keys_of_times_are_refused(changes: dict[str, str], match: str) -> None:
    with pytest.raises(DataError, match=match):
        validate(DataSpec(**{**vars(SPEC), "data_dir": "x.csv", **changes}))


def test_ranges_of_borders() -> None:
    assert parse_time_borders("0.5:2:0.5, 4") == (0.5, 1.0, 1.5, 2.0, 4.0)


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, codes and baselines of rows with entries, in float64."""
    rng = np.random.default_rng(1)
    entries = rng.integers(0, 3, 60)
    periods = Times(entries + 1.0 + rng.integers(0, 4, 60), entries + 0.5).on_grid((1.0, 2.0, 3.0, 4.0, 5.0))
    labels = torch.tensor(rng.integers(0, 2, 60), dtype=torch.float64)
    codes = encode(labels, periods)
    back = decode(codes)
    assert [part.long().tolist() for part in back] == [
        periods.entries.tolist(),
        periods.exits.tolist(),
        labels.tolist(),
    ]
    assert torch.equal(encode(labels.float(), periods).double(), codes)
    return torch.tensor(rng.normal(size=60)), codes, torch.tensor(rng.normal(size=6))


def test_the_loss_is_the_cross_entropy_of_pairs(rows: tuple[torch.Tensor, ...]) -> None:
    """An independent computation: one binary row for each interval in which a row is observed."""
    scores, codes, baseline = rows
    for row, (score, code) in enumerate(zip(scores, codes, strict=True)):
        entry, last, event = (int(part) for part in decode(code[None]))
        wanted = 0.0
        for interval in range(entry, last + 1):
            chance = 1 / (1 + np.exp(-float(score + baseline[interval])))
            happens = event == 1 and interval == last
            wanted -= np.log(chance if happens else 1 - chance)
        assert float(hazard_loss(scores, codes, baseline)[row]) == pytest.approx(wanted, rel=1e-12)


def test_slopes_are_the_derivatives(rows: tuple[torch.Tensor, ...]) -> None:
    scores, codes, baseline = (part.clone().requires_grad_(part.is_floating_point()) for part in rows)
    codes = codes.detach()
    to_scores, to_baseline = torch.autograd.grad(hazard_loss(scores, codes, baseline).sum(), (scores, baseline))
    slopes = hazard_slopes(scores.detach(), codes, baseline.detach())
    torch.testing.assert_close(slopes.sum(-1), to_scores, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slopes.sum(0), to_baseline, rtol=1e-12, atol=1e-12)
    chances = torch.sigmoid(scores.detach()[:, None] + baseline.detach())
    torch.testing.assert_close(survive(scores.detach(), baseline.detach()), (1 - chances).cumprod(1))


def test_a_site_has_codes_as_outcomes(frame: pd.DataFrame, tmp_path: Path) -> None:
    data = load(DataSpec(**{**vars(SPEC), "data_dir": save(frame, tmp_path)}), 1)
    site = Site.of_samples(0, data.client(0), torch.float32)
    assert site.periods is not None
    entries, exits, events = decode(site.samples(np.arange(9))[1])
    assert entries.tolist() == site.periods.entries[:9].tolist()
    assert exits.tolist() == site.periods.exits[:9].tolist()
    assert events.tolist() == site.labels[:9].tolist()


@given(st.lists(st.lists(st.floats(0.01, 50), min_size=1, max_size=300), min_size=1, max_size=4), st.integers(1, 40))
def test_agreed_borders_divide_all_events_and_no_sketch_shows_few(sites: list[list[float]], least: int) -> None:
    """Each site's groups have at least 10 and least-cell events, so a border's rank is wrong by at most a group."""
    ends = [np.array(site) for site in sites]
    sketches = [sketch_events(site, np.ones(len(site)), least) for site in ends]
    for site, quantiles in zip(ends, sketches, strict=True):
        assert not find_sketch_fault(len(site), quantiles, least)
        for border in quantiles:  # ties may lie on a border
            assert min((site <= border).sum(), (site >= border).sum()) >= max(10, least)
    if not any(map(len, sketches)):
        with pytest.raises(DataError, match=r"time-column: .*set time-borders"):
            agree_on_borders([len(site) for site in ends], sketches)
        return
    borders = agree_on_borders([len(site) for site in ends], sketches)
    assert list(borders) == sorted(set(borders))
    assert len(borders) < count_intervals(DataSpec("csv", time_column="months"))
    if len(ends) == 1 and least == 1 and len(set(sites[0])) == len(sites[0]):
        ranks = (ends[0] <= np.array(borders)[:, None]).mean(axis=1)
        assert np.abs(ranks - np.arange(1, 20) / 20).max() <= max(2 / 64, 21 / len(ends[0]))


def test_a_moved_row_shows_only_in_a_quantile_between_groups() -> None:
    """The largest and the smallest time of an event have no effect on the sketch: attack by one changed row."""
    ends = np.sort(np.random.default_rng(0).exponential(10, 400))
    changed = ends.copy()
    changed[[0, -1]] = 1e-6, 1e6
    assert sketch_events(ends, np.ones(400), 5) == pytest.approx(sketch_events(changed, np.ones(400), 5))
    censored = np.append(ends, np.linspace(0, 99, 50))  # censored times do not show at all
    labels = np.append(np.ones(400), np.zeros(50))
    assert sketch_events(censored, labels, 5) == pytest.approx(sketch_events(ends, np.ones(400), 5))
