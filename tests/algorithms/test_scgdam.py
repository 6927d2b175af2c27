"""LocalSCGDAM: whole runs against the NumPy reference, step by step; special cases; what travels and what is kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from matplotlib.axes import Axes
from safetensors.numpy import load_file
from torch import nn

from apps import resources
from apps.client_app import app as client_app
from apps.config import ConfigError, Scalar, parse_run_config
from apps.evaluation import better, shown
from apps.evaluators import make_evaluator
from apps.server_app import app as server_app
from clients.base import Site
from clients.scgdam import LocalSCGDAMClient
from payloads.handshake import SiteReport
from payloads.record import PayloadError, specs_of
from payloads.scgdam import CompositionalState, CompositionalUp, SCGDAMDown, SCGDAMSettings
from payloads.settings import TrainingSettings
from payloads.wire import PAYLOAD, payload_record
from problems.data import DataError, DataSpec, load
from problems.minimax import AUCOracle
from problems.models import FlatModel, build_model
from problems.models.saddle import SaddleNetwork, network_names
from problems.randomness import Purpose, stream
from problems.sampling import EpochSampler
from strategies.roster import Roster, StrategyError
from strategies.scgdam import LocalSCGDAM
from tests.battery.federation import Exchange, Run, Wiretap, federate, flat_config, model_of, save_npz, serve
from tests.docs.markdown import PROJECT, blocks, codes, rows, section
from tests.reference import scgdam
from tests.reference.minimax import Array, best_saddle

CLOSE: dict[str, float] = {"rtol": 1e-10, "atol": 1e-10}
EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
SITES, ROUNDS, STEPS = 4, 5, 3
USER = "tests.algorithms.minimax_problems:"
TANH = "tests.algorithms.test_scgdam:tanh_network"
KEYS: dict[str, Scalar] = {
    "strategy": "local-scgdam",
    "dtype": "float64",
    "model": "linear",
    "num-server-rounds": ROUNDS,
    "local-steps": STEPS,
    "batch-size": 5,
    "seed": 3,
    "scgdam.beta-x": 1.7,
    "scgdam.beta-y": 0.9,
    "scgdam.alpha": 2.2,
    "scgdam.rho": 0.2,
}


def tanh_network(input_shape: tuple[int, ...]) -> nn.Module:
    """One hidden layer of three units, in the order of the reference's "tanh"."""
    return nn.Sequential(nn.Linear(*input_shape, 3), nn.Tanh(), nn.Linear(3, 1))


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Scalar]:
    """Sites of unequal sizes and unequal shares of positives."""
    rng = np.random.default_rng(5)
    labels = (rng.random(110) < np.linspace(0.1, 0.7, 110)).astype(int)
    return {**save_npz(tmp_path / "data.npz", rng.normal(size=(110, 3)) + 0.7 * labels[:, None], labels)} | {
        "partition": "positives-skewed"
    }


@dataclass
class Finished:
    """A finished run with everything that went over the wire."""

    flat: dict[str, Scalar]
    run: Run
    tap: Wiretap
    clients: int

    @classmethod
    def of(cls, path: Path, flat: dict[str, Scalar], clients: int = SITES, tamper: Any = None) -> Finished:
        return cls(flat, *federate(path, flat, clients, tamper), clients)

    @cached_property
    def config(self) -> Any:
        return parse_run_config(flat_config(self.run.path, self.flat))

    @property
    def settings(self) -> Any:
        return self.config.family

    @cached_property
    def data(self) -> Any:
        return resources.federated_data(self.config.data, self.clients)

    def exchanges(self, server_round: int) -> list[Exchange]:
        return [e for e in self.tap.exchanges if e.server_round == server_round]

    def point(self, server_round: int) -> Array:
        """(x, y) after a round: as the next one's clients got it, or as it was saved."""
        if server_round < self.config.training.num_server_rounds:
            return model_of(self.exchanges(server_round + 1)[0].message)[0]
        return np.concatenate([value.ravel() for value in ordered(self.config, self.data, self.run.model)])

    # for the reference

    def problem(self) -> scgdam.CompositionalAUC:
        shares = [self.data.client(i) for i in range(self.clients)]
        labels = [share.labels.astype(int) for share in shares]
        return scgdam.CompositionalAUC(
            [share.features for share in shares],
            labels,
            float(np.concatenate(labels).mean()),
            self.settings.rho,
            self.config.training.score == "sigmoid",
            self.settings.hessian,
            "linear" if self.config.run.model == "linear" else "tanh",
        )

    def participants(self, server_round: int) -> list[int]:
        count = max(1, round(self.config.training.fraction_train * self.clients))
        if count == self.clients:
            return list(range(count))
        rng = stream(self.config.training.seed, Purpose.SAMPLE_CLIENTS, server_round)
        return sorted(rng.choice(self.clients, count, replace=False).tolist())

    def batch(self, client: int, position: int, purpose: Purpose = Purpose.SAMPLES) -> Array:
        """The product's batch of that position in the run."""
        training, everyone = self.config.training, np.arange(len(self.data.client(client).labels))
        return EpochSampler(everyone, training.batch_size, training.seed, purpose, client).batch(position)

    def drop(self, iteration: int) -> float:
        """lr-decay^(t // lr-decay-every), written out."""
        every = self.config.training.lr_decay_every
        return float(self.config.training.lr_decay ** (iteration // every)) if every else 1.0


def ordered(config: Any, data: Any, named: dict[str, Array]) -> list[Array]:
    """A saved model's arrays in the order of the flat vector, without the buffers."""
    model = resources.new_model(config, data.input_shape)
    return [named[next(iter(network_names({name: 0})))] for name in model.parameter_names]


def down_of(exchange: Exchange) -> SCGDAMDown:
    return SCGDAMDown.from_record(exchange.message.content.config_records[PAYLOAD])


def up_of(exchange: Exchange) -> CompositionalUp:
    return CompositionalUp.from_record(exchange.reply.content.config_records[PAYLOAD])


# Step by step.


def reference(one: Finished) -> Iterator[tuple[list[scgdam.Scgdam], scgdam.Scgdam]]:
    """The participants' ends of every round, and their means."""
    problem, settings, steps = one.problem(), one.settings, one.config.training.local_steps
    start = model_of(one.exchanges(1)[0].message)[0]
    state = scgdam.Scgdam(start[:-1], start[-1:])
    outer = (lambda i, j: one.batch(i, j, Purpose.INDEPENDENT_SAMPLES)) if settings.independent_batches else None
    for t in range(one.config.training.num_server_rounds):
        ends = []
        for i in one.participants(t + 1):
            end = state
            for iteration in range(t * steps, (t + 1) * steps):
                gammas = [gamma * one.drop(iteration) for gamma in (settings.gamma_x, settings.gamma_y)]
                weights = (settings.beta_x, settings.beta_y, settings.alpha)
                end = scgdam.localscgdam_round(
                    problem, end, [i], one.batch, 1, iteration, settings.eta, *gammas, *weights, outer
                )
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
    one = Finished.of(tmp_path / "run", {**KEYS, **data, "model": network, **VARIANTS[variant]})
    for server_round, (ends, state) in enumerate(reference(one), start=1):
        exchanges = one.exchanges(server_round)
        assert [e.partition for e in exchanges] == one.participants(server_round)
        for exchange, end in zip(exchanges, ends, strict=True):
            up = up_of(exchange)
            np.testing.assert_allclose(model_of(exchange.reply)[0], np.concatenate([end.x, end.y]), **CLOSE)
            np.testing.assert_allclose(up.inner, end.h, **CLOSE)
            np.testing.assert_allclose(up.momentum, np.concatenate([end.u, end.v]), **CLOSE)
        np.testing.assert_allclose(one.point(server_round), np.concatenate([state.x, state.y]), **CLOSE)
        for exchange in one.exchanges(server_round + 1):
            down = down_of(exchange)
            np.testing.assert_allclose(down.inner, state.h, **CLOSE)
            np.testing.assert_allclose(down.momentum, np.concatenate([state.u, state.v]), **CLOSE)
    assert np.abs(one.point(ROUNDS) - model_of(one.exchanges(1)[0].message)[0]).max() > 0.01


def test_the_rounds_of_the_reference_are_its_steps(data: dict[str, Scalar], tmp_path: Path) -> None:
    """The reference's own rounds of K steps, without the helper above."""
    one = Finished.of(tmp_path / "run", {**KEYS, **data})
    start, settings = model_of(one.exchanges(1)[0].message)[0], one.settings
    state = scgdam.Scgdam(start[:-1], start[-1:])
    for t in range(ROUNDS):
        state = scgdam.localscgdam_round(
            *(one.problem(), state, list(range(SITES)), one.batch, STEPS, t * STEPS),
            *(settings.eta, settings.gamma_x, settings.gamma_y, settings.beta_x, settings.beta_y, settings.alpha),
        )
        np.testing.assert_allclose(one.point(t + 1), np.concatenate([state.x, state.y]), **CLOSE)


def test_the_learning_rate_itself_has_no_effect(data: dict[str, Scalar], tmp_path: Path) -> None:
    drops: dict[str, Scalar] = {"lr-decay": 0.1, "lr-decay-at": "0.5,0.75"}
    models = [
        Finished.of(tmp_path / f"{rate}", {**KEYS, **data, **drops, "learning-rate": rate}).run.model_bytes
        for rate in (0.125, 64.0)
    ]
    assert models[0] == models[1]


def test_drops_at_fractions_of_the_run_shrink_the_steps(data: dict[str, Scalar], tmp_path: Path) -> None:
    keys = {**KEYS, **data, "num-server-rounds": 4, "local-steps": 2}
    at = Finished.of(tmp_path / "at", {**keys, "lr-decay": 0.1, "lr-decay-at": "0.5,0.75"})
    plain = Finished.of(tmp_path / "plain", keys)
    np.testing.assert_array_equal(at.point(2), plain.point(2))
    assert np.abs(at.point(3) - plain.point(3)).max() > 1e-3


# What must hold.


def weights(eta: float) -> dict[str, Scalar]:
    """No inner function and nothing averaged in h."""
    return {"scgdam.eta": eta, "scgdam.rho": 0.0, "scgdam.alpha": 1 / eta}


@pytest.mark.parametrize("network", ["linear", TANH, USER + "normed"], ids=["linear", "tanh", "normed"])
@pytest.mark.parametrize("more", [{}, {"score": "sigmoid"}, {"scgdam.hessian": "identity"}, {"fraction-train": 0.5}])
def test_1_without_rho_and_without_memory_in_h_it_is_local_sgdam(
    network: str, more: dict[str, Scalar], data: dict[str, Scalar], tmp_path: Path
) -> None:
    keys = {**KEYS, **data, "model": network}
    left = Finished.of(tmp_path / "left", {**keys, **weights(0.3), **more})
    own = {"sgdam.beta-x": 1.7, "sgdam.beta-y": 0.9}
    common = {key: value for key, value in {**keys, **more}.items() if not key.startswith("scgdam.")}
    right = Finished.of(tmp_path / "right", {**common, **own, "strategy": "local-sgdam"})
    for a, b in zip(left.tap.exchanges, right.tap.exchanges, strict=True):
        for mine, theirs in zip(model_of(a.reply), model_of(b.reply), strict=True):
            np.testing.assert_allclose(mine, theirs, **EXACT)
        up = up_of(a)
        momentum = right.config.algorithm.strategy.up_type.from_record(b.reply.content.config_records[PAYLOAD]).momentum
        np.testing.assert_allclose(up.momentum, momentum, **EXACT)
        np.testing.assert_allclose(up.inner, model_of(a.reply)[0][:-1], **EXACT)
        if up.inner_buffers is not None:
            np.testing.assert_allclose(up.inner_buffers, model_of(a.reply)[1], **EXACT)
    assert [line["auc"] for line in left.run.lines] == [line["auc"] for line in right.run.lines]


def test_2_one_device_without_memory_is_coda(data: dict[str, Scalar], tmp_path: Path) -> None:
    eta, gamma = 0.4, 0.5
    keys = {**KEYS, **data, "partition": "iid", "lr-decay": 0.5, "lr-decay-every": 4}
    own = {"scgdam.beta-x": 1 / eta, "scgdam.beta-y": 1 / eta, "scgdam.gamma-x": gamma, "scgdam.gamma-y": gamma}
    left = Finished.of(tmp_path / "left", {**keys, **weights(eta), **own}, clients=1)
    common = {key: value for key, value in keys.items() if not key.startswith("scgdam.")}
    coda = {"strategy": "coda", "coda.proximal": 0.0, "learning-rate": gamma * eta}
    right = Finished.of(tmp_path / "right", {**common, **coda}, clients=1)
    for server_round in range(1, ROUNDS + 1):
        np.testing.assert_allclose(left.point(server_round), right.point(server_round), **EXACT)


def test_3_the_hessian_counts_and_the_results_say_so(data: dict[str, Scalar], tmp_path: Path) -> None:
    """That (I - rho H) q is the gradient through g: tests/problems/test_compositional.py."""
    runs = {
        hessian: Finished.of(tmp_path / hessian, {**KEYS, **data, "model": TANH, "scgdam.hessian": hessian})
        for hessian in ("exact", "identity")
    }
    assert np.abs(runs["exact"].point(ROUNDS) - runs["identity"].point(ROUNDS)).max() > 1e-3
    for hessian, one in runs.items():
        assert one.run.result["config"]["scgdam"]["hessian"] == hessian
    without = [
        Finished.of(tmp_path / f"{hessian}-0", {**KEYS, **data, "scgdam.rho": 0.0, "scgdam.hessian": hessian})
        for hessian in runs
    ]
    assert without[0].run.model_bytes == without[1].run.model_bytes


def test_4_devices_agree_after_a_communication_and_not_between(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Finished.of(tmp_path / "run", {**KEYS, **data, "model": USER + "normed"})
    for server_round in range(1, ROUNDS + 1):
        exchanges = one.exchanges(server_round)
        sent = [[*model_of(e.message), *down_of(e).arrays().values()] for e in exchanges]
        returned = [[*model_of(e.reply), *up_of(e).arrays().values()] for e in exchanges]
        assert len(sent[0]) == (3 if server_round == 1 else 6)
        assert len(returned[0]) == 5
        for others in sent[1:]:
            for first, other in zip(sent[0], others, strict=True):
                np.testing.assert_array_equal(first, other)
        for i in range(SITES):
            for j in range(i):
                differences = [np.abs(a - b).max() for a, b in zip(returned[i], returned[j], strict=True)]
                assert min(differences) > 1e-6
        if server_round < ROUNDS:
            after = one.exchanges(server_round + 1)[0]
            down = down_of(after)
            means = [np.mean(parts, axis=0) for parts in zip(*returned, strict=True)]
            got = [*model_of(after.message), down.inner, down.momentum, down.inner_buffers]
            for value, mean in zip(got, means, strict=True):
                np.testing.assert_allclose(value, mean, **EXACT)


@pytest.mark.parametrize("network", [TANH, USER + "normed"], ids=["tanh", "normed"])
def test_4_identical_devices_and_batches_are_one_device_for_any_period(network: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    labels = np.arange(20) % 3 == 0
    features = rng.normal(size=(20, 3)) + labels[:, None]
    points = []
    for copies, period in ((1, 1), (1, 6), (3, 1), (3, 2), (3, 3), (3, 6)):
        folder = tmp_path / f"{copies}-{period}"
        folder.mkdir()
        saved = save_npz(folder / "data.npz", np.tile(features, (copies, 1)), np.tile(labels, copies).astype(int))
        keys = {**KEYS, **saved, "model": network, "batch-size": 0, "local-steps": period}
        one = Finished.of(folder / "run", {**keys, "num-server-rounds": 6 // period}, clients=copies)
        inner = load_file(one.run.path / "model_inner.safetensors")
        points.append([*one.run.model.values(), *inner.values()])
    for other in points[1:]:
        for first, value in zip(points[0], other, strict=True):
            np.testing.assert_allclose(value, first, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("score", ["logit", "sigmoid"])
def test_5_at_the_saddle_the_loss_is_the_pairwise_square_loss(
    score: str, data: dict[str, Scalar], tmp_path: Path
) -> None:
    """Both losses of a run, at w and at h, from its saved models and from the test set."""
    one = Finished.of(tmp_path / "run", {**KEYS, **data, "score": score})
    test, line = one.data.test, one.run.lines[-1]
    labels = test.labels.astype(int)
    for file, suffix in (("model", ""), ("model_inner", "_inner")):
        named = load_file(one.run.path / f"{file}.safetensors")
        scores = test.features.astype(np.float64) @ named["output.weight"][0] + named["output.bias"]
        scores = 1 / (1 + np.exp(-scores)) if score == "sigmoid" else scores
        pairs = [(1 - (s - t)) ** 2 for s in scores[labels == 1] for t in scores[labels == 0]]
        assert line[f"loss{suffix}"] == pytest.approx(np.mean(pairs), rel=1e-10)
        # and the saddle is where f has no gradient in w1, w2 and w3
        problem = scgdam.CompositionalAUC([test.features], [labels], float(labels.mean()), 0.1, score == "sigmoid")
        weights = np.append(named["output.weight"][0], named["output.bias"])
        saddle = best_saddle(scores, labels)
        np.testing.assert_allclose(problem.gradient(0, np.append(weights, saddle))[-3:], 0, atol=1e-12)
        np.testing.assert_allclose(saddle[2], saddle[1] - saddle[0], **EXACT)


# Other networks.


@pytest.mark.parametrize("network", ["normed", "dropped", "normed_and_dropped"])
@pytest.mark.parametrize("more", [{}, {"scgdam.hessian": "identity"}, {"scgdam.independent-batches": True}])
def test_other_networks_train_the_same_on_any_number_of_threads(
    network: str, more: dict[str, Scalar], data: dict[str, Scalar], tmp_path: Path
) -> None:
    keys: dict[str, Scalar] = {**KEYS, **data, "model": USER + network, "num-server-rounds": 4, **more}
    runs = []
    for threads in (1, 4):
        path = tmp_path / f"{threads}"
        grid = Wiretap(client_app, SITES, flat_config(path, keys), threads=threads)
        serve(grid, server_app, flat_config(path, keys))
        runs.append(Run(path))
    assert runs[0].untimed == runs[1].untimed
    for file in ("model", "model_inner"):
        first, second = ((run.path / f"{file}.safetensors").read_bytes() for run in runs)
        assert first == second
    assert [line["dropped"] for line in runs[0].lines] == [{}] * 5
    assert np.isfinite(runs[0].numbers()).all()
    assert runs[0].lines[-1]["loss"] != runs[0].lines[1]["loss"]


def test_the_statistics_at_h_travel_and_are_another_s(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Finished.of(tmp_path / "run", {**KEYS, **data, "model": USER + "normed"})
    assert down_of(one.exchanges(1)[0]).inner_buffers is None
    for server_round in range(2, ROUNDS + 1):
        exchange = one.exchanges(server_round)[0]
        at_h, at_w = down_of(exchange).inner_buffers, model_of(exchange.message)[1]
        assert at_h is not None
        assert at_h.shape == at_w.shape
        assert np.abs(at_h - at_w).max() > 1e-4


@pytest.mark.parametrize("hessian", ["exact", "identity"])
def test_the_table_3_network_trains(hessian: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(48) % 4 == 0
    images = rng.normal(size=(48, 1, 8, 8)) + labels[:, None, None, None]
    saved = save_npz(tmp_path / "data.npz", images, labels.astype(int))
    keys = {"strategy": "local-scgdam", **saved, "model": "table3-cnn", "score": "sigmoid", "scgdam.hessian": hessian}
    one = Finished.of(tmp_path / "run", {**keys, "num-server-rounds": 6, "local-steps": 4}, clients=2)
    assert one.run.lines[-1]["loss"] < one.run.lines[0]["loss"]
    assert one.run.lines[-1]["auc"] > 0.9
    assert one.run.lines[-1]["auc_inner"] > 0.9


# What travels and what is kept.


def test_round_1_takes_h_u_and_v_from_batch_0(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Finished.of(tmp_path / "run", {**KEYS, **data})
    for exchange in one.exchanges(1):
        down = down_of(exchange)
        assert list(down.arrays()) == ["class_counts"]
        assert down.class_counts is not None
        assert down.class_counts.sum() == 110
    for server_round in range(2, ROUNDS + 1):
        assert [list(down_of(e).arrays()) for e in one.exchanges(server_round)] == [
            ["class_counts", "inner", "momentum"]
        ] * SITES


def test_a_round_takes_the_next_round_s_first_batch() -> None:
    """Iteration t takes batch t + 1 of each stream: batch 0 is the first round's alone."""
    taken: dict[str, list[int]] = {"xi": [], "zeta": []}

    class Counting:
        def __init__(self, name: str) -> None:
            self.name = name

        def batch(self, position: int) -> Any:
            taken[self.name].append(position)
            return np.arange(4)

    client = by_hand(SCGDAMSettings(independent_batches=True))
    client.batches, client.outer_batches = Counting("xi"), Counting("zeta")  # type: ignore[assignment]
    client.fit([np.zeros(6)], {"server-round": 1})
    sent = client.outbox
    client.inbox = SCGDAMDown(inner=sent.inner, momentum=sent.momentum, class_counts=np.array([8, 4]))
    client.fit([np.zeros(6)], {"server-round": 2})
    assert taken == {"xi": [0, 1, 2, 3, 4, 5, 6], "zeta": [0, 1, 2, 3, 4, 5, 6]}


def by_hand(settings: SCGDAMSettings | None = None) -> LocalSCGDAMClient:
    rng = np.random.default_rng(0)
    site = Site.from_arrays(0, rng.normal(size=(12, 2)), np.arange(12) % 3 == 0, dtype=torch.float64)
    config = parse_run_config({"strategy": "local-scgdam", "model": "linear", "dtype": "float64"})
    training = TrainingSettings(local_steps=3, batch_size=4, dtype="float64")
    client = LocalSCGDAMClient(site, resources.trained(config, site), training, settings)
    client.inbox = SCGDAMDown(class_counts=np.array([8, 4]))
    return client


def test_independent_batches_are_drawn_apart() -> None:
    client = by_hand(SCGDAMSettings(independent_batches=True))
    assert client.outer_batches is not None
    pairs = [(client.batches.batch(t), client.outer_batches.batch(t)) for t in range(12)]
    assert all(len(xi) == len(zeta) == 4 for xi, zeta in pairs)
    assert sum(sorted(xi) == sorted(zeta) for xi, zeta in pairs) < 3
    assert by_hand().outer_batches is None


def test_a_client_s_evaluation_is_f_at_w_on_its_own_samples() -> None:
    client = by_hand()
    z = np.random.default_rng(1).normal(size=6)
    site = client.site
    value, count, _ = client.evaluate([z], {})
    reference = scgdam.CompositionalAUC([site.features.numpy()], [site.labels.numpy().astype(int)], 4 / 12, 0.1)
    assert (value, count) == (pytest.approx(reference.value(0, z), rel=1e-12), 12)


def test_a_client_leaves_nothing_to_the_next(data: dict[str, Scalar], tmp_path: Path) -> None:
    """All clients of a process share their two networks; the order in which they train does not matter."""
    keys: dict[str, Scalar] = {**KEYS, **data, "model": USER + "normed"}
    one = Finished.of(tmp_path / "run", keys)
    config = one.config
    last = one.exchanges(ROUNDS)
    for exchange in (*reversed(last), *last):
        site = resources.site(config, SITES, exchange.partition)
        client = config.algorithm.client(site, resources.trained(config, site), config.training, config.family)
        client.inbox = down_of(exchange)
        arrays, _, _ = client.fit(model_of(exchange.message), {"server-round": ROUNDS})
        for mine, sent in zip(arrays, model_of(exchange.reply), strict=True):
            np.testing.assert_array_equal(mine, sent)
        for name, value in up_of(exchange).arrays().items():
            np.testing.assert_array_equal(getattr(client.outbox, name), value)


@pytest.mark.parametrize("network", ["linear", USER + "normed", USER + "normed_and_dropped"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("cut", [1, 3, 5])
def test_a_resumed_run_is_the_whole_one_to_the_bit(
    network: str, fraction: float, cut: int, data: dict[str, Scalar], tmp_path: Path
) -> None:
    config: dict[str, Scalar] = {**KEYS, **data, "model": network, "dtype": "float32"}
    config |= {"fraction-train": fraction, "checkpoint-every": 1, "scgdam.headline": "inner"}
    whole, _ = federate(tmp_path / "whole", config, SITES)
    federate(tmp_path / "parts", {**config, "num-server-rounds": cut}, SITES)
    parts, _ = federate(tmp_path / "parts", {**config, "resume": True}, SITES)
    assert parts.untimed == whole.untimed
    for file in ("model", "model_inner"):
        first, second = ((run.path / f"{file}.safetensors").read_bytes() for run in (whole, parts))
        assert first == second
    assert parts.result["metrics"] == whole.result["metrics"]
    assert parts.result["best"] == whole.result["best"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("network", ["linear", USER + "normed"])
def test_bytes_are_the_model_and_the_declared_payload(
    network: str, dtype: str, data: dict[str, Scalar], tmp_path: Path
) -> None:
    one = Finished.of(tmp_path / "run", {**KEYS, **data, "model": network, "dtype": dtype})
    d, b = ([len(array) for array in model_of(one.exchanges(1)[0].message)] + [0])[:2]
    size = np.dtype(dtype).itemsize
    model, extras = size * (d + b), size * (2 * d - 1 + b)
    formulas: dict[str, Any] = {}
    (block,) = [block for block in blocks(PROJECT / "docs" / "scgdam.md") if block.language == "python"]
    exec(block.text, formulas)
    for line in one.run.lines[1:]:
        t = line["round"]
        assert line["bytes_down"] == SITES * (model + 16 + (0 if t == 1 else extras))
        assert line["bytes_up"] == SITES * (model + extras)
        assert line["bytes_down"] == SITES * formulas["bytes_down"](size, d, b, t)
        assert line["bytes_up"] == SITES * formulas["bytes_up"](size, d, b)


def test_the_page_names_the_fields_that_travel() -> None:
    table = rows(section(PROJECT / "docs" / "scgdam.md", "What travels"))
    described = {codes(row[0])[0]: row for row in table if len(row) == 4}
    assert list(described) == list(specs_of(SCGDAMDown))
    assert {name for name, row in described.items() if row[3].startswith("both")} == set(specs_of(CompositionalUp))


def replaced(up: CompositionalUp, **fields: Any) -> CompositionalUp:
    return CompositionalUp(**{**up.arrays(), **fields})


BROKEN = {
    "short-inner": (lambda up: replaced(up, inner=up.inner[:-1]), "CompositionalUp.inner: got 44 values, expected 45"),
    "long-inner": (lambda up: replaced(up, inner=np.append(up.inner, 0.0)), "CompositionalUp.inner: got 368 bytes"),
    "short-momentum": (lambda up: replaced(up, momentum=up.momentum[:-1]), "CompositionalUp.momentum: got shape (45,)"),
    "no-statistics": (lambda up: replaced(up, inner_buffers=None), "inner_buffers: got nothing, expected 12"),
    "short-statistics": (lambda up: replaced(up, inner_buffers=np.ones(3)), "inner_buffers: got 3 values, expected 12"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_misshapen_payload_drops_its_client(kind: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    change, reason = BROKEN[kind]

    def tamper(exchange: Exchange) -> Message:
        if exchange.partition == 1 and exchange.server_round == 2:
            exchange.reply.content[PAYLOAD] = payload_record(change(up_of(exchange)))
        return exchange.reply

    one = Finished.of(tmp_path / "run", {**KEYS, **data, "model": USER + "normed"}, tamper=tamper)
    assert [list(line["dropped"]) for line in one.run.lines] == [[], [], ["1"], [], [], []]
    assert reason in one.run.lines[2]["dropped"]["1"]
    returned = [up_of(e).inner for e in one.exchanges(2) if e.partition != 1]
    np.testing.assert_allclose(down_of(one.exchanges(3)[0]).inner, np.mean(returned, axis=0), **EXACT)


def test_statistics_that_nobody_has_are_refused(data: dict[str, Scalar], tmp_path: Path) -> None:
    def tamper(exchange: Exchange) -> Message:
        if exchange.partition == 0 and exchange.server_round == 1:
            exchange.reply.content[PAYLOAD] = payload_record(replaced(up_of(exchange), inner_buffers=np.ones(2)))
        return exchange.reply

    one = Finished.of(tmp_path / "run", {**KEYS, **data}, tamper=tamper)
    told = "CompositionalUp.inner_buffers: got 16 bytes, allowed: at most (0) numbers of 8 bytes"
    assert one.run.lines[1]["dropped"] == {"0": told}


def test_the_halves_have_defaults_of_their_own() -> None:
    strategy = LocalSCGDAM()
    assert strategy.settings == SCGDAMSettings()
    assert strategy.snapshot() is None
    assert strategy.views() == {}
    assert strategy.down(1).arrays() == {}
    assert by_hand().scgdam == SCGDAMSettings()


def test_a_snapshot_restores_the_view() -> None:
    state = CompositionalState(inner=np.arange(4.0), momentum=np.ones(4), inner_buffers=np.zeros(2))
    strategy = LocalSCGDAM()
    strategy.restore(state)
    assert strategy.snapshot() is state
    (view,) = strategy.views().values()
    np.testing.assert_array_equal(view[0], np.arange(4.0))
    np.testing.assert_array_equal(view[1], np.zeros(2))
    np.testing.assert_array_equal(strategy.down(2).inner, np.arange(3.0))


# Both models are shown.


METRICS = ("auc", "pauc_fpr30", "pauc_fpr30_raw", "average_precision", "accuracy", "loss")


def test_every_metric_is_there_at_w_and_at_h(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Finished.of(tmp_path / "run", {**KEYS, **data, "model": USER + "normed", "evaluate-every": 2})
    first, *others = one.run.lines
    assert not [name for name in first if name.endswith("_inner")]  # there is no h yet
    for line in others:
        for name in METRICS:
            assert (name in line) == (f"{name}_inner" in line) == (line["round"] in (2, 4, 5))
    evaluator = make_evaluator(one.config, one.data)
    for server_round in (2, 4):
        after = one.exchanges(server_round + 1)[0]
        down = down_of(after)
        assert down.inner is not None
        assert down.inner_buffers is not None
        y = model_of(after.message)[0][-1:]
        expected = evaluator([np.append(down.inner, y), down.inner_buffers])
        line = one.run.lines[server_round]
        assert {name: line[f"{name}_inner"] for name in expected} == expected
        assert line["loss_inner"] != line["loss"]
    result = one.run.result
    assert result["metrics"] == {name: one.run.lines[-1][name] for name in result["metrics"]}
    evaluated = [line for line in one.run.lines if "loss_inner" in line]
    assert result["best"]["loss_inner"] == min(line["loss_inner"] for line in evaluated)
    assert result["best"]["auc_inner"] == max(line["auc_inner"] for line in evaluated)


def test_the_network_at_h_is_saved_beside_that_at_w(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Finished.of(tmp_path / "run", {**KEYS, **data, "model": USER + "normed"})
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


def test_other_strategies_show_and_save_one_model(data: dict[str, Scalar], tmp_path: Path) -> None:
    keys = {key: value for key, value in {**KEYS, **data}.items() if not key.startswith("scgdam.")}
    one = Finished.of(tmp_path / "run", {**keys, "strategy": "local-sgdam"})
    assert [file.name for file in one.run.path.glob("*.safetensors")] == ["model.safetensors"]
    assert not [name for line in one.run.lines for name in line if name.endswith("_inner")]


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
    monkeypatch.setattr("apps.curves.draw_curves", lambda lines, path, title, view: drawn.append(view))
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO, logger="flwr"):
        one = Finished.of(tmp_path / "run", {**KEYS, **data, "scgdam.headline": headline, "pictures": True})
    rounds = [message for message in caplog.messages if message.startswith("round ")]
    assert f"auc {one.run.lines[0]['auc']:.4f}" in rounds[0]
    for message, line in zip(rounds[1:], one.run.lines[1:], strict=True):
        assert f"  auc{suffix} {line[f'auc{suffix}']:.4f}  " in message
        assert f"loss{suffix} {line[f'loss{suffix}']:.4f}" in message
        assert ("_inner" in message) is bool(suffix)
    (finished,) = [message for message in caplog.messages if message.startswith("finished")]
    assert f"auc{suffix} {one.run.lines[-1][f'auc{suffix}']:.4f}" in finished
    assert drawn == [suffix.removeprefix("_")]
    # the other's metrics are recorded all the same
    assert {"auc", "auc_inner"} <= one.run.lines[-1].keys()


def test_the_curves_are_those_of_the_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apps.curves import draw_curves

    drawn: list[tuple[list[int], list[float]]] = []
    plot = Axes.plot

    def spy(axes: Axes, x: Any, y: Any, **options: Any) -> Any:
        drawn.append((list(x), list(y)))
        return plot(axes, x, y, **options)

    monkeypatch.setattr(Axes, "plot", spy)
    lines = [{"round": 0, "auc": 0.5, "loss": 2.0}] + [
        {"round": r, "auc": 0.5, "loss": 2.0, "auc_inner": 0.5 + r / 10, "loss_inner": 1 / r} for r in (1, 2)
    ]
    draw_curves(lines, tmp_path / "inner.png", "a", "inner")
    assert drawn == [([1, 2], [0.6, 0.7]), ([1, 2], [1.0, 0.5])]
    drawn.clear()
    draw_curves(lines, tmp_path / "outer.png", "a")
    assert drawn == [([0, 1, 2], [0.5] * 3), ([0, 1, 2], [2.0] * 3)]
    assert (tmp_path / "inner.png").read_bytes().startswith(b"\x89PNG")


def test_less_loss_is_better_at_h_too() -> None:
    assert better("loss_inner") is better("loss") is min
    assert better("auc_inner") is better("pauc_fpr30_inner") is max
    metrics = {"auc": 0.25, "loss": 2.0, "auc_inner": 0.75, "loss_inner": 1.0}
    assert shown(metrics, "inner") == "auc_inner 0.7500  loss_inner 1.0000"
    assert shown(metrics) == "auc 0.2500  loss 2.0000"
    assert shown({"auc": 0.25}, "inner") == "auc 0.2500"
    assert shown({}, "inner") == ""


# Errors.


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"scgdam.beta-x": 5.0}, ["scgdam.beta-x: got 5.0, allowed: ", "eta * beta-x <= 1"]),
        ({"scgdam.beta-y": 5.0}, ["scgdam.beta-y: got 5.0, allowed: ", "eta * beta-y <= 1"]),
        ({"scgdam.alpha": 5.0}, ["scgdam.alpha: got 5.0, allowed: ", "eta * alpha <= 1"]),
        ({"scgdam.eta": 0.32}, ["scgdam.beta-x: got 3.3, allowed: ", "scgdam.beta-y: got 3.3, allowed: "]),
        ({"scgdam.eta": 0.5}, ["scgdam.beta-x: got 3.3", "scgdam.beta-y: got 3.3", "scgdam.alpha: got 3.0"]),
        ({"scgdam.eta": 0.0}, ["scgdam.eta: got 0.0", "number > 0"]),
        ({"scgdam.gamma-x": -1.0}, ["scgdam.gamma-x: got -1.0", "number > 0"]),
        ({"scgdam.gamma-y": 0}, ["scgdam.gamma-y: got 0", "number > 0"]),
        ({"scgdam.alpha": 0.0}, ["scgdam.alpha: got 0.0", "number > 0"]),
        ({"scgdam.rho": -0.01}, ["scgdam.rho: got -0.01", "number >= 0"]),
        ({"scgdam.rho": float("nan")}, ["scgdam.rho: got nan", "number >= 0"]),
        ({"scgdam.hessian": "approximate"}, ["scgdam.hessian: got 'approximate'", "exact", "identity"]),
        ({"scgdam.headline": "h"}, ["scgdam.headline: got 'h'", "outer", "inner"]),
        ({"scgdam.independent-batches": 1}, ["scgdam.independent-batches: got 1", "true", "false"]),
        ({"strategy": "fedx2", "scgdam.beta-x": 5.0}, ["scgdam.beta-x: got 5.0"]),
    ],
)
def test_a_refusal_names_key_value_and_what_is_allowed(values: dict[str, Scalar], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config({"strategy": "local-scgdam", **values})
    message = str(refused.value)
    assert [part for part in parts if part not in message] == []
    assert message.count("scgdam.") == len([part for part in parts if part.startswith("scgdam.")])


@pytest.mark.parametrize(("eta", "factor"), [(0.3, 1 / 0.3), (1.0, 1.0), (0.1, 10.0), (1e-3, 1e3)])
def test_weights_of_one_are_allowed(eta: float, factor: float) -> None:
    values = {f"scgdam.{key}": factor for key in ("beta-x", "beta-y", "alpha")}
    config = parse_run_config({"strategy": "local-scgdam", "scgdam.eta": eta, **values, "scgdam.rho": 0.0})
    assert config.family == SCGDAMSettings(eta=eta, beta_x=factor, beta_y=factor, alpha=factor, rho=0.0)


def test_the_defaults_are_table_2() -> None:
    settings = parse_run_config({"strategy": "local-scgdam"}).family
    assert isinstance(settings, SCGDAMSettings)
    assert (settings.eta, settings.gamma_x, settings.gamma_y) == (0.3, 0.33, 0.33)
    assert (settings.beta_x, settings.beta_y, settings.alpha) == (3.3, 3.3, 3.0)
    assert (settings.rho, settings.hessian, settings.headline) == (0.01, "exact", "outer")


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"loss": "auc-minimax"}, ["loss: got 'auc-minimax'", "'local-scgdam' allows auto, compositional-auc"]),
        ({"loss": "psm"}, ["loss: got 'psm'", "'local-scgdam' allows auto, compositional-auc"]),
        (
            {"loss": USER + "Robust"},
            ["got 'tests.algorithms.minimax_problems:Robust'", "'local-scgdam' cannot solve", "fedsgda-mb", "coda"],
        ),
        ({"dataset": "synthetic-pl"}, ["dataset: got 'synthetic-pl'", "'local-scgdam' cannot solve", "local-sgdam"]),
        (
            {"strategy": "local-sgdam", "loss": "compositional-auc"},
            ["loss: got 'compositional-auc'", "goes with strategy local-scgdam"],
        ),
    ],
)
def test_what_it_cannot_solve_is_refused(values: dict[str, Scalar], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config({"strategy": "local-scgdam", **values})
    assert [part for part in parts if part not in str(refused.value)] == []
    assert "local-scgdam" not in str(refused.value).partition("strategies that can")[2]


def test_auto_is_the_compositional_loss() -> None:
    assert parse_run_config({"strategy": "local-scgdam"}).training.loss == "compositional-auc"
    named = parse_run_config({"strategy": "local-scgdam", "loss": "compositional-auc"})
    assert named == parse_run_config({"strategy": "local-scgdam"})


def test_another_oracle_is_refused() -> None:
    features, labels = torch.zeros(2, 3), torch.tensor([0.0, 1.0])
    oracle = AUCOracle(FlatModel(SaddleNetwork(build_model("linear", (3,), 0))), features, labels)
    site = Site.from_arrays(0, features.numpy(), labels.numpy())
    with pytest.raises(TypeError, match="needs a CompositionalOracle, got AUCOracle"):
        LocalSCGDAMClient(site, oracle, TrainingSettings())


def test_all_sites_together_need_both_classes() -> None:
    reports = tuple(SiteReport(identity=np.array([i, 2]), class_counts=np.array([15, 0])) for i in range(2))
    with pytest.raises(StrategyError, match="0 positives and 30 negatives; AUC needs both"):
        LocalSCGDAM(TrainingSettings(batch_size=4)).meet(Roster((1, 2), reports))


def test_a_payload_of_another_kind_is_not_taken() -> None:
    with pytest.raises(PayloadError, match="CompositionalUp.momentum: missing"):
        CompositionalUp.from_record(SCGDAMDown(inner=np.zeros(3)).to_record())


# Imbalance.


def digits(**keys: Any) -> DataSpec:
    return DataSpec(dataset="digits", **keys)


def test_imbalance_that_leaves_a_client_without_positives_names_it() -> None:
    with pytest.raises(DataError) as refused:
        load(digits(imbalance=0.01), 16)
    message = str(refused.value)
    assert message.startswith(
        "dataset 'digits': imbalance 0.01 leaves 0 positives to 3 of 16 clients, 13 to all together: "
    )
    assert "client 13 (8 without it), client 14 (8 without it), client 15 (8 without it)" in message
    assert message.endswith("raise imbalance, take fewer clients or another partition; see docs/data.md")
    load(digits(imbalance=0.01), 13)


def test_many_such_clients_are_counted() -> None:
    with pytest.raises(DataError, match=r"to 27 of 40 clients.*client 20 \(3 without it\), and 19 more; raise"):
        load(digits(imbalance=0.01), 40)


def test_a_client_that_never_had_positives_is_no_reason_to_refuse() -> None:
    pathological = digits(imbalance=0.3, partition="pathological", partition_classes=1, positive_label="first-half")
    data = load(pathological, 10)
    assert sorted(len(data.client(i).positives) > 0 for i in range(10)) == [False] * 5 + [True] * 5


def test_the_refusal_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"strategy": "local-scgdam", "dataset": "digits", "imbalance": 0.01}
    with pytest.raises(RuntimeError, match="imbalance 0.01 leaves 0 positives to 3 of 16 clients"):
        federate(tmp_path / "run", keys, 16)
    reason = json.loads((tmp_path / "run" / "failure.json").read_text("utf-8"))["reason"]
    assert reason.startswith("dataset 'digits': imbalance 0.01 leaves 0 positives")


def test_without_imbalance_one_class_sites_take_part(tmp_path: Path) -> None:
    labels = np.repeat([0, 1], 24)
    saved = save_npz(tmp_path / "data.npz", np.random.default_rng(0).normal(size=(48, 3)) + labels[:, None], labels)
    one = Finished.of(tmp_path / "run", {**KEYS, **saved}, clients=2)
    assert [line["clients_answered"] for line in one.run.lines[1:]] == [2] * ROUNDS
    assert np.isfinite(one.run.numbers()).all()
