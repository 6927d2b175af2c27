"""Local SGD with momentum, on the cross-entropy and on the ratio loss.

Whole runs step by step against the NumPy reference, special cases, and errors.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from apps.config import Scalar
from clients.base import Site
from clients.scoring import LocalSGDMRatioClient
from methods.sgdm import SGDMDown
from payloads.settings import TrainingSettings
from problems.models import FlatModel, build_model
from tests.algorithms.watched import CLOSE, DROPS, EXACT, ROUNDS, SITES, STEPS, Watched
from tests.battery.federation import model_of
from tests.reference import scgdam
from tests.reference.minimax import Array


class WithBatchNorm(nn.Module):
    """A linear score of normalised features, with six buffers."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.norm, self.output = nn.BatchNorm1d(*input_shape), nn.Linear(*input_shape, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.output(self.norm(features))
        return scores.squeeze(1)


BATCH_NORM: dict[str, Scalar] = {"model": f"{__name__}:WithBatchNorm"}


# Whole runs against the reference, whose problem also serves the other baselines of the cross-entropy.


def problem_of(one: Watched) -> scgdam.CompositionalAUC:
    return scgdam.CompositionalAUC(*one.shares, 0.5, 0.0)


def reference(one: Watched) -> Iterator[tuple[Array, Array]]:
    """Yield (w, m) after each round."""
    problem, settings, w, momentum = problem_of(one), one.settings, one.models[0], None
    weights = None
    if one.config.run.strategy == "local-sgdm-rl":
        counts = np.bincount(np.concatenate(problem.labels))
        weights = scgdam.ratio_weights(counts, settings.ratio_alpha, settings.ratio_beta)
    for r in range(1, one.rounds + 1):
        rest = ((r - 1) * STEPS, one.rates(r), settings.momentum, weights)
        w, momentum = scgdam.localsgdm_round(problem, w, momentum, one.answered(r), one.batch, STEPS, *rest)
        yield w, momentum


def assert_follows(one: Watched) -> None:
    assert one.told(1, SGDMDown).momentum is None
    for r, (w, momentum) in enumerate(reference(one), start=1):
        np.testing.assert_allclose(one.models[r], w, **CLOSE)
        if r < one.rounds:
            np.testing.assert_allclose(one.told(r + 1, SGDMDown).momentum, momentum, **CLOSE)
    assert np.abs(one.models[-1] - one.models[0]).max() > 0.05


VARIANTS: dict[str, dict[str, Scalar]] = {
    "base": {},
    "drops": {**DROPS, "sgdm.momentum": 0.4},
    "drops-at": {"lr-decay": 0.1, "lr-decay-at": "0.3,0.75"},
    "half": {"fraction-train": 0.5, "sgdm.momentum": 0.7, **DROPS},
    "no-memory": {"sgdm.momentum": 1.0},
    "weights": {"sgdm.ratio-alpha": 0.3, "sgdm.ratio-beta": 0.9},
    "full-batch": {"batch-size": 0},
}
both = pytest.mark.parametrize("name", ["local-sgdm", "local-sgdm-rl"])


@both
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_follows_the_reference(name: str, variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, "strategy": name, **VARIANTS[variant]})
    assert len(set(one.sizes)) == SITES
    assert min(labels.sum() for labels in one.shares[1]) == 0
    assert_follows(one)


# Special cases.


@pytest.mark.parametrize("more", [DROPS, {"fraction-train": 0.5}])
def test_without_memory_it_is_local_sgd(more: dict[str, Scalar], data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, **more, "strategy": "local-sgdm", "sgdm.momentum": 1.0})
    other = Watched(tmp_path, {**data, **more, "strategy": "local-sgd"})
    np.testing.assert_allclose(one.models, other.models, rtol=0, atol=1e-14)


def test_without_the_ratio_it_is_the_cross_entropy(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, "strategy": "local-sgdm"})
    other = Watched(tmp_path, {**data, "strategy": "local-sgdm-rl", "sgdm.ratio-beta": 0.0})
    np.testing.assert_array_equal(one.models, other.models)


def test_a_client_on_its_own_takes_the_ratio_of_its_own_classes() -> None:
    labels = np.array([0, 0, 0, 1, 1])
    site = Site.from_arrays(0, np.random.default_rng(0).normal(size=(5, 2)), labels, dtype=torch.float64)
    ends = []
    for inbox in (None, SGDMDown(class_counts=np.array([30, 20])), SGDMDown(class_counts=np.array([20, 30]))):
        model = FlatModel(build_model("linear", (2,), 0), dtype=torch.float64)
        client = LocalSGDMRatioClient(site, model, TrainingSettings(dtype="float64"))
        client.inbox = inbox
        ends.append(client.fit([np.zeros(3)], {"server-round": 1})[0][0])
    np.testing.assert_array_equal(ends[0], ends[1])
    assert np.abs(ends[0] - ends[2]).max() > 1e-4


# The loss.


def test_the_reported_loss_has_the_test_set_s_own_ratio(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"dataset": "digits", "num-server-rounds": 1}
    config |= {"sgdm.ratio-alpha": 0.5, "sgdm.ratio-beta": 2.0}
    one = Watched(tmp_path, {**config, "strategy": "local-sgdm-rl"})
    labels, n = one.data.test.labels, len(one.data.test.labels)
    logits = one.data.test.features.reshape(n, -1).astype(float) @ one.models[1][:-1] + one.models[1][-1]
    negatives, positives = np.bincount(labels.astype(int))
    assert positives / n < 0.2
    weight = np.where(labels == 1, 0.5 + 2.0 * negatives / positives, 0.5 + 2.0 * positives / negatives)
    expected = np.mean(weight * (np.logaddexp(0, logits) - labels * logits))
    assert one.run.lines[1]["loss"] == pytest.approx(expected, rel=1e-9)


# Messages.


@pytest.mark.parametrize("name", ["local-sgdm", "local-sgdm-rl", "scaffold", "fedprox"])
def test_buffers_are_averaged_with_the_model(name: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    server: dict[str, Scalar] = {"server-learning-rate": 0.5} if name == "scaffold" else {}
    one = Watched(tmp_path, {**data, **BATCH_NORM, **server, "strategy": name, "batch-size": 0})
    weights = np.array(one.sizes)
    for r in range(1, ROUNDS):
        replies = [model_of(e.reply) for e in sorted(one.exchanges(r), key=lambda e: e.partition)]
        buffers, vectors = (np.average([reply[part] for reply in replies], axis=0, weights=weights) for part in (1, 0))
        (before, _), after = model_of(one.exchanges(r)[0].message), model_of(one.exchanges(r + 1)[0].message)
        np.testing.assert_allclose(after[1], buffers, **EXACT)
        np.testing.assert_allclose(after[0], (before + vectors) / 2 if server else vectors, **EXACT)
    assert buffers.shape == (6,)
    assert np.abs(buffers[:3]).max() > 0.1
