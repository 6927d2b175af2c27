"""Synthetic(alpha, beta) with two classes: the distribution, the streams, and what may be asked of it."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from problems.data import DataError, DataSpec, FederatedData, load, validate
from problems.data.bundled import synthetic_sparse_logistic
from tests.battery.federation import Run

ROOT = Path(__file__).parents[2]
NAME = "synthetic-sparse-logistic"
SMALL = DataSpec(NAME, synthetic_samples=25, seed=4)


def by_hand(seed: int, client: int, alpha: float, beta: float, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """The same draws from the same stream, sample by sample: features (samples, 60) and labels (samples,)."""
    g = np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(NAME.encode()), client]))
    u, B = np.sqrt(alpha) * g.standard_normal(), np.sqrt(beta) * g.standard_normal()
    w = u + g.standard_normal(60)
    c = u + g.standard_normal()
    v = B + g.standard_normal(60)
    x, y = np.empty((samples, 60)), np.empty(samples)
    for i in range(samples):
        a = [v[j - 1] + np.sqrt(j**-1.2) * g.standard_normal() for j in range(1, 61)]
        x[i] = a / np.sqrt(np.sum(np.square(a)))
        y[i] = sum(w * a) + c > 0
    return x, y


@pytest.mark.parametrize(("alpha", "beta"), [(10.0, 10.0), (0.0, 0.0), (0.5, 2.0)])
def test_the_data_are_the_definition_by_hand(alpha: float, beta: float) -> None:
    data = load(replace(SMALL, synthetic_alpha=alpha, synthetic_beta=beta), 8)
    assert (data.num_clients, data.input_shape, len(data.train), len(data.test)) == (8, (60,), 8 * 25, 8 * 2)
    for client in range(8):
        features, labels = by_hand(4, client, alpha, beta, 27)
        mine = data.client(client)
        np.testing.assert_allclose(mine.features, features[:25], rtol=1e-12, atol=0)
        np.testing.assert_array_equal(mine.labels, labels[:25])
        tested = slice(2 * client, 2 * client + 2)
        np.testing.assert_allclose(data.test.features[tested], features[25:], rtol=1e-12, atol=0)
        np.testing.assert_array_equal(data.test.labels[tested], labels[25:])


def test_beta_is_the_variance_of_the_clients_centres() -> None:
    # v / std(v) over the features has mean about B, whose variance is beta; 400 clients tell it to 7 %
    means = np.array([synthetic_sparse_logistic(0, client, 1.0, 4.0, 20)[0].mean(axis=0) for client in range(400)])
    assert np.var(means.mean(axis=1) / means.std(axis=1)) == pytest.approx(4.0, rel=0.25)


def test_a_clients_samples_spread_by_the_power_of_their_feature() -> None:
    # far from 0 dividing by the norm is nearly the same for all samples
    features, _ = synthetic_sparse_logistic(0, 0, 1.0, 1e8, 20_000)
    spread = features.std(axis=0) * np.arange(1, 61) ** 0.6
    np.testing.assert_allclose(spread / spread.mean(), 1.0, atol=0.15)


def test_labels_and_features_follow_the_signs_of_the_clients_means() -> None:
    # w . a + c is near u * (60 B + 1) where alpha and beta are large
    signs = []
    for client in range(50):
        features, labels = synthetic_sparse_logistic(0, client, 1e4, 1e4, 10)
        g = np.random.default_rng(np.random.SeedSequence([0, zlib.crc32(NAME.encode()), client]))
        u, B = g.standard_normal(2)
        if min(abs(u), abs(B)) > 0.1:
            assert set(labels) == {int(u * B > 0)}
            assert (np.sign(features) == np.sign(B)).all()
            signs.append((u > 0, B > 0))
    assert len(set(signs)) == 4


def test_features_are_unit_vectors_in_float64() -> None:
    data = load(DataSpec(NAME, synthetic_samples=300), 6)
    for samples in (data.train, data.test, data.client(5)):
        assert samples.features.dtype == np.float64
        assert samples.features.flags.c_contiguous
        assert not samples.features.flags.writeable
        np.testing.assert_allclose(np.linalg.norm(samples.features, axis=1), 1.0, rtol=0, atol=1e-15)


def test_more_clients_leave_the_first_ones_as_they_are() -> None:
    few, many = load(SMALL, 4), load(SMALL, 9)
    for client in range(4):
        assert few.client(client).features.tobytes() == many.client(client).features.tobytes()
        assert few.client(client).labels.tobytes() == many.client(client).labels.tobytes()
    np.testing.assert_array_equal(many.test.features[: len(few.test)], few.test.features)
    assert not np.array_equal(few.client(0).features, few.client(1).features)


def test_more_samples_leave_the_first_ones_as_they_are() -> None:
    short, long = load(SMALL, 4), load(replace(SMALL, synthetic_samples=40), 4)
    np.testing.assert_array_equal(long.client(2).features[:25], short.client(2).features)


@pytest.mark.parametrize(("samples", "tested"), [(1, 1), (9, 1), (19, 1), (20, 2), (2000, 200)])
def test_a_tenth_as_many_are_test_samples(samples: int, tested: int) -> None:
    features, labels = synthetic_sparse_logistic(0, 0, 1.0, 1.0, samples)
    assert features.shape == (samples + tested, 60)
    assert labels.shape == (samples + tested,)


def test_the_seed_decides_and_nothing_else_does() -> None:
    def digest(data: FederatedData) -> str:
        parts = (data.train.features, data.train.labels, data.test.features, data.test.labels)
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    first = digest(load(SMALL, 4))
    assert digest(load(SMALL, 4)) == first
    assert digest(load(replace(SMALL, partition="natural"), 4)) == first
    assert digest(load(replace(SMALL, seed=5), 4)) != first
    code = (
        "import hashlib; from problems.data.bundled import synthetic_sparse_logistic as draw; "
        "print(hashlib.sha256(draw(3, 2, 1.0, 1.0, 5)[0]).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    mine, _ = synthetic_sparse_logistic(3, 2, 1.0, 1.0, 5)
    assert done.stdout.strip() == hashlib.sha256(mine).hexdigest()


def test_a_client_may_hold_one_class_but_not_all_together() -> None:
    data = load(DataSpec(NAME, synthetic_samples=50), 5)
    held = [len(data.client(client).positives) for client in range(5)]
    assert set(held) == {0, 50}
    one = held.index(0)
    assert one > 0
    with pytest.raises(DataError) as refused:
        load(DataSpec(NAME, synthetic_samples=50), 1)
    for part in (NAME, "training set of 1 clients", "50 positives and 0 negatives", "synthetic.samples", "seed"):
        assert part in str(refused.value)


def test_the_test_samples_need_both_classes_too() -> None:
    spec = DataSpec(NAME, synthetic_alpha=0.0, synthetic_beta=0.0, synthetic_samples=9)
    seed = next(seed for seed in range(60) if len(set(by_hand(seed, 0, 0.0, 0.0, 9)[1])) == 2)
    with pytest.raises(DataError, match="got one class only in the test set of 1 clients, [01] positives and [01] neg"):
        load(replace(spec, seed=seed), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "dirichlet"}, "partition: got 'dirichlet', allowed: 'natural'"),
        ({"imbalance": 0.1}, "imbalance: got 0.1, allowed: 0.0"),
        ({"label_noise": 0.1}, "label-noise: got 0.1, allowed: 0.0"),
        ({"client_shift": 0.01}, "client-shift: got 0.01, allowed: 0.0"),
        ({"positive_label": "1"}, "positive-label: got '1', allowed: ''"),
        ({"synthetic_alpha": -1.0}, "synthetic.alpha: got -1.0, allowed: 0 or above"),
        ({"synthetic_beta": float("inf")}, "synthetic.beta: got inf, allowed: 0 or above"),
        ({"synthetic_samples": 0}, "synthetic.samples: got 0, allowed: 1 or more"),
    ],
)
def test_what_it_cannot_be_asked(options: dict[str, object], message: str) -> None:
    spec = replace(SMALL, **options)
    with pytest.raises(DataError, match=re.escape(message)):
        validate(spec)
    with pytest.raises(DataError, match=re.escape(message)):
        load(spec, 4)


def test_only_the_set_without_labels_says_so() -> None:
    with pytest.raises(DataError, match="'synthetic-pl' has no labels and comes in sites of its own"):
        validate(DataSpec("synthetic-pl", partition="dirichlet"))
    with pytest.raises(DataError, match="'synthetic-sparse-logistic' comes in sites of its own"):
        validate(replace(SMALL, partition="dirichlet"))


@pytest.mark.parametrize("strategy", ["local-sgd", "fedx2"])  # fedx2's partners come from other sites
def test_it_runs_from_the_command_line(strategy: str, tmp_path: Path) -> None:
    config = f'dataset="{NAME}" strategy="{strategy}" num-server-rounds=3 synthetic.samples=50'
    command = ["run", "--clients", "5", "-c", config, "--out", str(tmp_path / "run")]
    subprocess.run([sys.executable, "-m", "simulations", *command], cwd=ROOT, capture_output=True, check=True)
    run = Run(tmp_path / "run")
    assert {name: (value.shape, value.dtype.name) for name, value in run.model.items()} == {
        "output.weight": ((1, 60), "float64")
    }
    assert run.result["config"]["synthetic"] == {"alpha": 10.0, "beta": 10.0, "samples": 50}
    assert run.result["metrics"]["loss"] < run.lines[0]["loss"]
