"""Tests of the numbers of a reproduction's table, and of the curves of its figure."""

import math
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_allclose

from apps.config import ConfigError
from simulations.experiments.expansion import Expansion
from simulations.experiments.reports.figures import Curve, _figure, panels
from simulations.experiments.reports.tables import results, rows, tail
from simulations.experiments.reproduce import Reproduction
from tests.refusals import refuses
from tests.simulations.fabricated import Aucs, expanded, recorded

SEEDS = 0.2 / 2**0.5  # the standard deviation of two seeds that are 0.2 apart


def x_axis(text: str) -> tuple[str, str]:
    return "clients = 2", f"clients = 2\nx = {text}"


def last(at: Any) -> tuple[float, ...]:
    return 0.5, 0.6, 0.7 + 0.2 * at["seed"]


def drawn(expansion: Expansion, folder: Path, x: str, aucs: Aucs = last) -> list[Curve]:
    return panels(expansion, recorded(expansion, folder, aucs), x)["digits"]


def test_the_tail_is_the_last_tenth_of_the_evaluated_rounds() -> None:
    assert (tail([9.0]), tail([9.0, 5.0, 1.0])) == (9.0, 1.0)
    assert [tail([99.0, *range(1, rounds + 1)]) for rounds in (10, 11, 30)] == [10.0, 10.5, 29.0]


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
    assert found[0].last[0] == "nan (1 of 3 seeds not finite)"
    assert "nan (1 of 3 seeds not finite)" in results(found, 3).text()


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
    with refuses(ConfigError, "would both be curve 'FedX'"):
        expanded(tmp_path, *changes[:2])


@pytest.mark.parametrize(
    ("panel", "scale", "count"), [("{dataset}", "log", 1), ("{method} {K} $", "linear", 3), ("{K}", "log", 2)]
)
def test_figures_of_one_panel_and_of_several(tmp_path: Path, panel: str, scale: str, count: int) -> None:
    """Missing runs leave no hole, and the same results give the same file."""
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
