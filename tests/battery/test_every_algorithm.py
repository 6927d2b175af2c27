"""Requirements of every algorithm: both number types, unusual sites, a single site, and repeated runs."""

from pathlib import Path

import numpy as np
import pytest

from apps.registry import ALGORITHMS
from payloads.record import Payload, specs_of
from problems.objectives.pairwise import PAIRWISE_LOSSES
from tests.battery.federation import (
    OF_ROWS,
    PAIRS,
    SAMPLING,
    federate,
    model_of,
    network_of,
    payloads_of,
    saver,
    sites_of,
)

each_loss = pytest.mark.parametrize(("strategy", "loss"), PAIRS, ids=lambda value: str(value))
each_loss_on_rows = pytest.mark.parametrize(
    ("strategy", "loss"), [pair for pair in PAIRS if pair[0] in OF_ROWS], ids=lambda value: str(value)
)
POSITIVE, NEGATIVE, MIXED = [1] * 24, [0] * 24, [0, 1, 0] * 8


def floats_of(payload: Payload | None) -> dict[str, np.ndarray]:
    if payload is None:
        return {}
    return {name: value for name, value in payload.arrays().items() if specs_of(type(payload))[name].kind == "float"}


def bytes_of(model: list[np.ndarray], payload: Payload | None) -> int:
    return sum(array.nbytes for array in [*model, *(payload.arrays().values() if payload else ())])


@pytest.mark.parametrize(
    ("strategy", "dtype"), [(name, dtype) for name, row in ALGORITHMS.items() for dtype in row.traits.number_types]
)
def test_the_number_type_holds_on_the_wire_and_in_the_model(strategy: str, dtype: str, tmp_path: Path) -> None:
    run, tap = federate(tmp_path / "run", {"strategy": strategy, "dtype": dtype})
    models = [array for e in tap.exchanges for array in (*model_of(e.message), *model_of(e.reply))]
    extras = [floats_of(payload) for e in tap.exchanges for payload in payloads_of(strategy, e)]
    assert {array.dtype.name for array in models} == {dtype}
    # the share of positives and the mean size of the sites describe the data, not the model
    found = {value.dtype.name for payload in extras for name, value in payload.items() if name != "population"}
    assert found <= {dtype}
    assert {value.dtype.name for value in run.model.values() if value.dtype.kind == "f"} == {dtype}
    up = ALGORITHMS[strategy].strategy.up_type
    if up is not None and any(spec.kind == "float" for spec in specs_of(up).values()):
        assert any(extras)


def test_two_seeds_give_two_runs(strategy: str, tmp_path: Path) -> None:
    first, second = (federate(tmp_path / f"seed-{s}", {"strategy": strategy, "seed": s})[0] for s in (0, 1))
    assert first.untimed != second.untimed
    assert first.model_bytes != second.model_bytes


def test_one_client_is_enough_or_three_parties(strategy: str, tmp_path: Path) -> None:
    clients = 1 if ALGORITHMS[strategy].strategy.shares_model else 3
    run, _ = federate(tmp_path / "run", {"strategy": strategy}, clients=clients)
    assert [line["clients_answered"] for line in run.lines[1:]] == [clients] * 3
    assert run.lines[3]["loss"] != run.lines[0]["loss"]
    assert np.isfinite(run.numbers()).all()


@each_loss_on_rows
@pytest.mark.parametrize(
    "sites",
    [
        pytest.param([NEGATIVE, MIXED, MIXED], id="no-positives"),
        pytest.param([MIXED, MIXED, POSITIVE], id="no-negatives"),
        pytest.param([NEGATIVE, POSITIVE], id="no-pair-on-any-site"),
    ],
)
def test_a_site_may_hold_one_class_only(strategy: str, loss: str, sites: list[list[int]], tmp_path: Path) -> None:
    config = {"strategy": strategy, "loss": loss, **sites_of(sites, tmp_path / "data.npz", loss)}
    run, _ = federate(tmp_path / "run", config, clients=len(sites))
    assert [line["clients_answered"] for line in run.lines[1:]] == [len(sites)] * 3
    assert [line["dropped"] for line in run.lines] == [{}] * 4
    assert np.isfinite(run.numbers()).all()
    assert all(np.isfinite(value).all() for value in run.model.values())


@each_loss
def test_equal_features_teach_nothing_and_break_nothing(strategy: str, loss: str, tmp_path: Path) -> None:
    labels = np.tile([0, 1, 0], 18)
    config = {"strategy": strategy, "loss": loss, **saver(loss)(tmp_path / "data.npz", np.ones((54, 4)), labels)}
    run, tap = federate(tmp_path / "run", config)
    assert np.isfinite(run.numbers()).all()
    if loss in PAIRWISE_LOSSES and loss != "auprc":  # auprc's steps depend on the classes of the partners drawn
        (first,), (last,) = model_of(tap.exchanges[0].message), model_of(tap.exchanges[-1].reply)
        np.testing.assert_allclose(last, first, rtol=0, atol=1e-5)


@pytest.mark.parametrize("strategy", SAMPLING)
def test_a_fraction_of_the_clients_is_asked(strategy: str, tmp_path: Path) -> None:
    config = {"strategy": strategy, "fraction-train": 0.5, "num-server-rounds": 6}
    run, tap = federate(tmp_path / "run", config, clients=6)
    assert [line["clients_asked"] for line in run.lines[1:]] == [3] * 6
    assert [line["clients_answered"] for line in run.lines[1:]] == [3] * 6
    asked = [tuple(e.partition for e in tap.exchanges if e.server_round == r and not e.phase) for r in range(1, 7)]
    assert all(len(set(partitions)) == 3 for partitions in asked)
    assert len(set(asked)) > 1


def test_counted_bytes_are_the_model_and_the_declared_payload(strategy: str, tmp_path: Path) -> None:
    config = {"strategy": strategy, "model": network_of(strategy), "num-server-rounds": 2}
    run, tap = federate(tmp_path / "run", config, clients=8)
    for line in run.lines[1:]:
        down = up = 0
        for exchange in (e for e in tap.exchanges if e.server_round == line["round"]):
            sent, returned = payloads_of(strategy, exchange)
            down += bytes_of(model_of(exchange.message), sent)
            up += bytes_of(model_of(exchange.reply), returned)
        assert (line["bytes_down"], line["bytes_up"]) == (down, up)
