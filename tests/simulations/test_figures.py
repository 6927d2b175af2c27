"""The numbers of a reproduction's table, and the curves of its figure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from apps.config import ConfigError
from simulations.expansion import Expansion
from simulations.figures import Curve, _figure, band, comparable, draw, panels
from simulations.report import as_text, pair, rows, tail
from simulations.reproduce import Reproduction
from tests.simulations.fabricated import RANKING, Aucs, expanded, recorded

SEEDS = 0.2 / 2**0.5  # the standard deviation of two seeds that are 0.2 apart


def x_axis(text: str) -> tuple[str, str]:
    return "clients = 2", f"clients = 2\nx = {text}"


def last(at: Any) -> tuple[float, ...]:
    return 0.5, 0.6, 0.7 + 0.2 * at["seed"]


def drawn(expansion: Expansion, folder: Path, x: str, aucs: Aucs = last) -> list[Curve]:
    return panels(expansion, recorded(expansion, folder, aucs), x)["digits"]


@pytest.mark.parametrize(
    ("curve", "mean"),
    [
        ([9.0], 9.0),
        ([9.0, 5.0, 1.0], 1.0),
        ([99.0, *range(1, 11)], 10.0),
        ([99.0, *range(1, 12)], 10.5),
        ([99.0, *range(1, 31)], 29.0),
    ],
)
def test_the_tail_is_the_last_tenth_of_the_evaluated_rounds(curve: list[float], mean: float) -> None:
    assert tail(curve) == mean


def test_the_tail_is_averaged_a_seed_first(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, profile="smoke", seeds=2)
    records = recorded(expansion, tmp_path, lambda at: [0, *[0.5] * 18, *((0.2, 0.4) if at["seed"] else (0.6, 1.0))])
    first = rows(expansion, records)[0]
    assert (first.mean, first.std) == (pytest.approx(0.7), pytest.approx(0.6 / 2**0.5))
    assert (first.tail_mean, first.tail_std) == (pytest.approx(0.55), pytest.approx(0.5 / 2**0.5))


@pytest.mark.parametrize("diverged", [math.nan, math.inf])
def test_a_metric_that_is_not_finite_in_one_seed_has_no_mean(tmp_path: Path, diverged: float) -> None:
    expansion = expanded(tmp_path, profile="smoke", seeds=3)
    found = rows(expansion, recorded(expansion, tmp_path, lambda at: [0.5, diverged if at["seed"] == 1 else 0.7]))
    assert math.isnan(found[0].mean or 0.0)
    assert math.isnan(found[0].tail_mean or 0.0)
    assert (found[0].std, found[0].tail_std, found[0].seeds, found[0].not_finite) == (None, None, 3, 1)
    assert pair(found[0]) == "nan (1 of 3 seeds not finite)"
    assert "nan (1 of 3 seeds not finite)" in as_text(expansion, found)


@pytest.mark.parametrize(
    ("x", "expected"),
    [("round", [0, 1, 2]), ("iteration", [0, 2, 4]), ("seconds", [0.5, 1.0, 1.5]), ("megabytes", [4e-5, 8e-5, 1.2e-4])],
)
def test_the_x_axis(tmp_path: Path, x: str, expected: list[float]) -> None:
    curves = drawn(expanded(tmp_path, x_axis(f'"{x}"')), tmp_path, x)
    assert [curve.label for curve in curves] == ["FedX 1", "FedX 2", "Local SGD 1", "Local SGD 2"]
    assert_allclose(curves[1].x, expected)
    assert_allclose(curves[1].mean, [0.5, 0.6, 0.8])
    assert_allclose(curves[1].high - curves[1].low, [0, 0, 2 * SEEDS], atol=1e-12)
    assert curves[1].seeds == 2


def test_a_round_may_communicate_more_than_once(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, x_axis('"communication"'), ('"local-sgd"', '"local-sgd"\ncommunications = 2'))
    curves = drawn(expansion, tmp_path, "communication")
    assert [curve.x.tolist() for curve in curves] == [[0, 1, 2]] * 2 + [[0, 2, 4]] * 2


def test_seconds_are_those_of_training_where_they_are_known(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, x_axis('"seconds"'))
    records = recorded(expansion, tmp_path, last)
    for record in records.values():
        for number, line in enumerate(record.lines):
            line["training_seconds"] = 0.25 * number
    assert records[expansion.runs[0].name].metrics.keys() == {"auc", *RANKING}
    assert_allclose(panels(expansion, records, "seconds")["digits"][0].x, [0, 0.25, 0.75])


def test_all_panels_are_drawn_over_each_x_axis(tmp_path: Path) -> None:
    axes = x_axis('["seconds", "round"]\npanel = "{method}"')
    expansion = expanded(tmp_path, axes)
    records = recorded(expansion, tmp_path, last)
    found = [panels(expansion, records, x) for x in ("seconds", "round")]
    figure = _figure(expansion, found)
    assert [(shown.get_title(), shown.get_xlabel()) for shown in figure.axes] == [
        (method, label) for label in ("seconds", "communication round") for method in ("FedX", "Local SGD")
    ]
    for shown, curves in zip(figure.axes, [*found[0].values(), *found[1].values()], strict=True):
        assert [line.get_xdata().tolist() for line in shown.lines] == [curve.x.tolist() for curve in curves]
    assert len({round(shown.get_position().y0, 2) for shown in figure.axes}) == 2  # one x axis below the other
    named = expanded(tmp_path, (axes[0], f'{axes[1]}\nx-label = ["time", "epochs"]'))
    assert [shown.get_xlabel() for shown in _figure(named, found).axes] == ["time", "time", "epochs", "epochs"]


def test_numbers_of_clients_are_points_of_one_curve(tmp_path: Path) -> None:
    """The last evaluated round's values, in the order of the numbers."""
    changes = (
        x_axis('"clients"'),
        ('curve = "{method} {K}"', 'curve = "{method}"'),
        ("K = 1 }, local-steps = 1 }", "K = 1 }, local-steps = 1, clients = 8 }"),
    )
    expansion = expanded(tmp_path, *changes)
    records = recorded(expansion, tmp_path, last)
    del records["fedx_digits_k-1_seed-1"]
    found = panels(expansion, records, "clients")
    fedx, local = found["digits"]
    assert (fedx.label, fedx.seeds, local.label, local.seeds) == ("FedX", 1, "Local SGD", 2)
    assert_allclose([fedx.x, local.x], [[2, 8], [2, 8]])
    assert_allclose([fedx.mean, local.mean], [[0.8, 0.7], [0.8, 0.8]])
    assert_allclose(local.high - local.low, [2 * SEEDS] * 2)
    assert_allclose(fedx.high - fedx.low, [2 * SEEDS, 0], atol=1e-12)
    assert _figure(expansion, [found]).axes[0].get_xlabel() == "number of clients"
    named = expanded(tmp_path, x_axis('"clients"\nx-label = "parties"'), *changes[1:])
    assert _figure(named, [found]).axes[0].get_xlabel() == "parties"
    with pytest.raises(ConfigError, match="would both be curve 'FedX'"):
        expanded(tmp_path, *changes[:2])


def test_the_band_on_a_log_axis_stays_positive() -> None:
    mean, spread = np.array([1.0, 1.0, 0.0]), np.array([0.1, 5.0, 0.0])
    low, high = band(mean, spread, log=True)
    assert_allclose(high, mean + spread)
    assert_allclose(low, [1 / 1.1, 1 / 6, 0])
    assert_allclose(band(mean, spread, log=False)[0], [0.9, -4, 0])


def test_panels_share_an_axis_that_each_fills() -> None:
    def panel(low: float, high: float) -> list[Curve]:
        ends = np.array([low, high])
        return [Curve("", np.arange(2.0), ends, ends, ends, 1)]

    assert comparable([panel(0.5, 0.9), panel(0.6, 0.95), panel(0.5, 0.51), panel(0.4, 1.0)], log=False) == {0, 1, 3}
    decades = [panel(0.1, 10), panel(1e-2, 10), panel(1e-11, 10), panel(0, 10)]
    assert comparable(decades, log=True) == {0, 1}
    assert comparable(decades, log=False) == {0, 1, 2, 3}
    assert comparable([panel(0, 0)], log=True) == {0}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.5, 0.91, 0.93, 0.95], (0.91, 0.95)),  # the untrained model would take nine tenths of the axis
        ([0.5, 0.65, 0.8, 0.95], (0.5, 0.95)),
        ([0.5, 0.91, 0.95], (0.5, 0.95)),  # two points are no curve
        ([0.5, 0.9, 0.9, 0.9], (0.5, 0.9)),
    ],
)
def test_an_untrained_model_does_not_flatten_the_rest(
    tmp_path: Path, values: list[float], shown: tuple[float, float]
) -> None:
    expansion = expanded(tmp_path, x_axis('"round"\npanel = "{dataset}"'))
    figure = _figure(expansion, [{"digits": drawn(expansion, tmp_path, "round", lambda at: values)}])
    margin = 0.05 * (shown[1] - shown[0])
    assert figure.axes[0].get_ylim() == pytest.approx((shown[0] - margin, shown[1] + margin))


@pytest.mark.parametrize("diverged", [math.nan, math.inf])
def test_a_curve_of_one_seed_that_is_not_finite_somewhere_is_drawn(tmp_path: Path, diverged: float) -> None:
    expansion = expanded(tmp_path, profile="smoke", seeds=1)
    draw(expansion, recorded(expansion, tmp_path, lambda at: [0.5, 0.9, diverged, 0.95]), tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("panel", "scale", "count"), [("{dataset}", "log", 1), ("{method} {K} $", "linear", 3), ("{K}", "log", 2)]
)
def test_figures_of_one_panel_and_of_several(tmp_path: Path, panel: str, scale: str, count: int) -> None:
    """Missing runs leave no hole, and the same results are the same file."""
    out = tmp_path / "out"
    expansion = expanded(tmp_path, x_axis(f'"round"\npanel = "{panel}"\nscale = "{scale}"'))
    reproduction = Reproduction(expansion, out)
    with reproduction.open():
        reproduction.write()
        assert not list(out.glob("curves.*"))
        records = recorded(expansion, out / "runs", last)
        reproduction.records = {name: record for name, record in records.items() if "fedx_digits_k-1" not in name}
        reproduction.write()
        first = (out / "curves.svg").read_bytes()
        reproduction.write()
    assert (out / "curves.svg").read_bytes() == first
    assert b"<svg" in first
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(panels(expansion, reproduction.records, "round")) == count
