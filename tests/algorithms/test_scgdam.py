"""LocalSCGDAM: whole runs step by step against the NumPy reference; special cases; messages and state."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from apps.config import Scalar
from apps.sites import resources
from methods.scgdam import CompositionalUp, SCGDAMDown
from methods.sgdam import SaddleMomentum
from payloads.record import PayloadError
from problems.data import DataError, DataSpec, load
from problems.models import build_model
from problems.randomness import Purpose
from strategies.minimax import LocalSCGDAM
from tests.algorithms.watched import CLOSE, EXACT, ROUNDS, SITES, Watched
from tests.battery.federation import model_of
from tests.docs.markdown import PROJECT, blocks
from tests.reference import scgdam
from tests.refusals import spell

USER = "tests.algorithms.minimax_problems:"
TANH = "tests.algorithms.test_scgdam:tanh_network"
KEYS: dict[str, Scalar] = {
    "strategy": "local-scgdam",
    "scgdam.beta-x": 1.7,
    "scgdam.beta-y": 0.9,
    "scgdam.alpha": 2.2,
    "scgdam.rho": 0.2,
}


def tanh_network(input_shape: tuple[int, ...]) -> nn.Module:
    """Return a network with one hidden layer of three units, in the order of the reference's "tanh"."""
    return nn.Sequential(nn.Linear(*input_shape, 3), nn.Tanh(), nn.Linear(3, 1))


# Step by step.


def reference(one: Watched) -> Iterator[tuple[list[scgdam.Scgdam], scgdam.Scgdam]]:
    """Yield the participants' final values in each round, and their means."""
    settings, (features, labels) = one.settings, one.shares
    prior, score = float(np.concatenate(labels).mean()), one.score
    net = "linear" if one.config.run.model == "linear" else "tanh"
    problem = scgdam.CompositionalAUC(features, labels, prior, settings.rho, score, settings.hessian, net)
    outer = (lambda i, j: one.batch(i, j, Purpose.INDEPENDENT_SAMPLES)) if settings.independent_batches else None
    state, steps = scgdam.Scgdam(one.models[0][:-1], one.models[0][-1:]), one.training.local_steps
    for t in range(one.rounds):
        ends = []
        for i in one.participants(t + 1):
            end = state
            for iteration in range(t * steps, (t + 1) * steps):
                drop = one.rate(iteration) / one.training.learning_rate
                gammas = settings.gamma_x * drop, settings.gamma_y * drop
                weights = (settings.beta_x, settings.beta_y, settings.alpha)
                rest = (settings.eta, *gammas, *weights, outer)
                end = scgdam.localscgdam_round(problem, end, [i], one.batch, 1, iteration, *rest)
            ends.append(end)
        state = scgdam.Scgdam(*(np.mean(parts, axis=0) for parts in zip(*ends, strict=True)))
        yield ends, state


VARIANTS: dict[str, dict[str, Scalar]] = {
    "base": {},
    "table-2": {"scgdam.beta-x": 3.3, "scgdam.beta-y": 3.3, "scgdam.alpha": 3.0},
    "blocks": {
        "scgdam.eta": 0.5,
        "scgdam.gamma-x": 0.2,
        "scgdam.gamma-y": 0.7,
        "scgdam.beta-x": 0.4,
        "scgdam.beta-y": 1.9,
        "scgdam.alpha": 0.6,
        "scgdam.rho": 0.5,
    },
    "identity": {"scgdam.hessian": "identity"},
    "sigmoid": {"score": "sigmoid"},
    "sigmoid-identity": {"score": "sigmoid", "scgdam.hessian": "identity"},
    "independent": {"scgdam.independent-batches": True},
    "independent-sigmoid": {"scgdam.independent-batches": True, "score": "sigmoid"},
    "half": {"fraction-train": 0.5},
    "drops": {"lr-decay": 0.5, "lr-decay-every": 4},  # inside rounds too
    "one-step": {"local-steps": 1},
    "whole-batches": {"batch-size": 0},
}


@pytest.mark.parametrize("network", ["linear", TANH], ids=["linear", "tanh"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_follows_the_reference(variant: str, network: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**KEYS, **data, "model": network, **VARIANTS[variant]})
    for r, (ends, state) in enumerate(reference(one), start=1):
        assert [e.partition for e in one.exchanges(r)] == one.participants(r)
        for exchange, end in zip(one.exchanges(r), ends, strict=True):
            up = one.returned(r, CompositionalUp)[exchange.partition]
            np.testing.assert_allclose(model_of(exchange.reply)[0], np.concatenate([end.x, end.y]), **CLOSE)
            np.testing.assert_allclose(up.inner, end.h, **CLOSE)
            np.testing.assert_allclose(up.momentum, np.concatenate([end.u, end.v]), **CLOSE)
        np.testing.assert_allclose(one.models[r], np.concatenate([state.x, state.y]), **CLOSE)
        if r < ROUNDS:
            down = one.told(r + 1, SCGDAMDown)
            assert list(down.arrays()) == ["population", "inner", "momentum"]
            assert down.population.tolist() == [0.3, 110 / SITES]
            np.testing.assert_allclose(down.inner, state.h, **CLOSE)
            np.testing.assert_allclose(down.momentum, np.concatenate([state.u, state.v]), **CLOSE)
    assert list(one.told(1, SCGDAMDown).arrays()) == ["population"]
    assert np.abs(one.models[-1] - one.models[0]).max() > 0.01


# Special cases, with networks that the reference lacks.


@pytest.mark.parametrize("more", [{"score": "sigmoid"}, {"scgdam.hessian": "identity"}, {"fraction-train": 0.5}])
def test_without_rho_and_without_memory_in_h_it_is_local_sgdam(
    more: dict[str, Scalar], data: dict[str, Scalar], tmp_path: Path
) -> None:
    """The method then has no inner function and averages nothing in h."""
    common = {**data, "model": USER + "normed"}
    own = {"scgdam.eta": 0.3, "scgdam.rho": 0.0, "scgdam.alpha": 1 / 0.3}
    left = Watched(tmp_path, {**KEYS, **common, **own, **more})
    more = {key: value for key, value in more.items() if not key.startswith("scgdam.")}
    sgdam = {"strategy": "local-sgdam", "sgdam.beta-x": 1.7, "sgdam.beta-y": 0.9}
    right = Watched(tmp_path, {**common, **sgdam, **more})
    for r in range(1, ROUNDS + 1):
        ups, momenta = left.returned(r, CompositionalUp), right.returned(r, SaddleMomentum)
        for a, b in zip(left.exchanges(r), right.exchanges(r), strict=True):
            up, (point, buffers) = ups[a.partition], model_of(a.reply)
            for mine, theirs in zip((point, buffers), model_of(b.reply), strict=True):
                np.testing.assert_allclose(mine, theirs, **EXACT)
            np.testing.assert_allclose(up.momentum, momenta[b.partition].momentum, **EXACT)
            np.testing.assert_allclose(up.inner, point[:-1], **EXACT)
            np.testing.assert_allclose(up.inner_buffers, buffers, **EXACT)


def test_the_statistics_at_h_travel_and_are_averaged(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**KEYS, **data, "model": USER + "normed"})
    assert one.told(1, SCGDAMDown).inner_buffers is None
    for r in range(1, ROUNDS):
        returned = [up.inner_buffers for up in one.returned(r, CompositionalUp).values()]
        at_h, at_w = one.told(r + 1, SCGDAMDown).inner_buffers, model_of(one.exchanges(r + 1)[0].message)[1]
        np.testing.assert_allclose(at_h, np.mean(returned, axis=0), **EXACT)
        np.testing.assert_allclose(at_w, np.mean([model_of(e.reply)[1] for e in one.exchanges(r)], axis=0), **EXACT)
        assert np.abs(at_h - at_w).max() > 1e-4


# Messages and state.


def test_a_client_leaves_nothing_to_the_next(data: dict[str, Scalar], tmp_path: Path) -> None:
    """All clients of a process share two networks, but their order of training has no effect."""
    one = Watched(tmp_path, {**KEYS, **data, "model": USER + "normed"})
    config, last, ups = one.config, one.exchanges(ROUNDS), one.returned(ROUNDS, CompositionalUp)
    for exchange in (*reversed(last), *last):
        site = resources.site(config, SITES, exchange.partition)
        client = config.algorithm.client(site, resources.get_trainee(config, site), config.training, config.family)
        client.inbox = one.told(ROUNDS, SCGDAMDown)
        arrays, _, _ = client.fit(model_of(exchange.message), {"server-round": ROUNDS})
        for mine, sent in zip(arrays, model_of(exchange.reply), strict=True):
            np.testing.assert_array_equal(mine, sent)
        for name, value in ups[exchange.partition].arrays().items():
            np.testing.assert_array_equal(getattr(client.outbox, name), value)


def test_the_page_s_formulas_count_the_bytes(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**KEYS, **data, "model": USER + "normed"})
    d, b = (len(array) for array in model_of(one.exchanges(1)[0].message))
    formulas: dict[str, Any] = {}
    page = PROJECT / "docs" / "algorithms" / "local-scgdam.md"
    (block,) = [block for block in blocks(page) if block.language == "python"]
    exec(block.text, formulas)
    for line in one.run.lines[1:]:
        assert line["bytes_down"] == SITES * formulas["bytes_down"](8, d, b, line["round"])
        assert line["bytes_up"] == SITES * formulas["bytes_up"](8, d, b)


@pytest.mark.parametrize(
    ("buffers", "changed", "reason"),
    [
        (1, {"inner": np.zeros(44)}, "CompositionalUp.inner: got 44 values, expected 45"),
        (1, {"inner_buffers": None}, "inner_buffers: got nothing, expected 12"),
        (1, {"inner_buffers": np.ones(3)}, "inner_buffers: got 3 values, expected 12"),
        (0, {"inner_buffers": np.ones(2)}, "inner_buffers: got 2 values, expected none"),
    ],
)
def test_a_misshapen_payload_is_refused(buffers: int, changed: dict[str, Any], reason: str) -> None:
    strategy = LocalSCGDAM()
    strategy.model = [np.zeros(46), np.zeros(12)][: 1 + buffers]
    good = {"inner": np.zeros(45), "momentum": np.zeros(46), "inner_buffers": np.zeros(12) if buffers else None}
    strategy.check_payload(CompositionalUp(**good))
    with pytest.raises(PayloadError, match=reason):
        strategy.check_payload(CompositionalUp(**{**good, **changed}))


# Metrics of both models.


def test_every_metric_is_there_at_w_and_at_h(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**KEYS, **data, "model": USER + "normed", "evaluate-every": 2})
    first, *others = one.run.lines
    assert not [name for name in first if name.endswith("_inner")]  # h does not exist yet
    for line in others:
        for name in ("auc", "pauc_fpr30", "pauc_fpr30_raw", "average_precision", "accuracy", "loss"):
            assert (name in line) == (f"{name}_inner" in line) == (line["round"] in (2, 4, 5))
    evaluator = one.config.algorithm.evaluation.of_data(one.config, one.data)
    for r in (2, 4):
        down, line = one.told(r + 1, SCGDAMDown), one.run.lines[r]
        expected = evaluator([np.append(down.inner, one.models[r][-1:]), down.inner_buffers])
        assert {name: line[f"{name}_inner"] for name in expected} == expected
        assert line["loss_inner"] != line["loss"]
    evaluated = [line for line in one.run.lines if "loss_inner" in line]
    assert one.run.result["best"]["loss_inner"] == min(line["loss_inner"] for line in evaluated)
    assert one.run.result["best"]["auc_inner"] == max(line["auc_inner"] for line in evaluated)


def test_the_network_at_h_is_saved_beside_that_at_w(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**KEYS, **data, "model": USER + "normed"})
    inner, outer = load_file(one.run.path / "model_inner.safetensors"), one.run.model
    assert inner.keys() == outer.keys()
    network = build_model(USER + "normed", (3,), 0).double()
    plain = {name: torch.from_numpy(value) for name, value in inner.items() if not name.startswith("saddle.")}
    network.load_state_dict(plain)
    network.eval()
    with torch.no_grad():
        logits = network(torch.tensor(one.data.test.features, dtype=torch.float64))
    accuracy = float(((logits.numpy() > 0) == (one.data.test.labels == 1)).mean())
    assert accuracy == pytest.approx(one.run.lines[-1]["accuracy_inner"], abs=1e-12)
    assert inner["saddle.dual"] == outer["saddle.dual"]  # y has no estimate


@pytest.mark.parametrize(("headline", "suffix"), [("outer", ""), ("inner", "_inner")])
def test_the_headline_is_whose_metrics_the_log_and_the_curves_show(
    headline: str,
    suffix: str,
    data: dict[str, Scalar],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(
        "apps.run_directory.drawings.draw_curves", lambda lines, path, title, rows, view, chosen: drawn.append(view)
    )
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO, logger="flwr"):
        one = Watched(tmp_path, {**KEYS, **data, "scgdam.headline": headline, "evaluate-every": 1, "pictures": True})
    rounds = [message for message in caplog.messages if message.startswith("round ")]
    assert f"auc {one.run.lines[0]['auc']:.4f}" in rounds[0]
    for message, line in zip(rounds[1:], one.run.lines[1:], strict=True):
        assert f"  auc{suffix} {line[f'auc{suffix}']:.4f}  " in message
        assert f"loss{suffix} {line[f'loss{suffix}']:.4f}" in message
        assert ("_inner" in message) is bool(suffix)
    assert drawn == [suffix.removeprefix("_")]


# Class imbalance.


@pytest.mark.parametrize(
    ("clients", "parts"),
    [
        (
            16,
            [
                "'digits': imbalance: got 0.01, which leaves 0 positives to 3 of 16 clients",
                "13 to all clients together: ",
                "client 13 (8 without it), client 14 (8 without it), client 15 (8 without it)",
                "raise imbalance, use fewer clients, or choose another partition; see docs/data.md",
            ],
        ),
        (40, ["to 27 of 40 clients", "client 20 (3 without it), and 19 more, allowed: a share that"]),
    ],
)
def test_imbalance_that_leaves_clients_without_positives_names_them(clients: int, parts: list[str]) -> None:
    with pytest.raises(DataError) as refused:
        load(DataSpec(dataset="digits", imbalance=0.01), clients)
    assert [part for part in parts if part not in spell(refused.value)] == []
    load(DataSpec(dataset="digits", imbalance=0.01), 13)
