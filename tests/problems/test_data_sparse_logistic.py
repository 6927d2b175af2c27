"""Tests of Synthetic(alpha, beta) with two classes: the distribution, the streams, and the allowed settings."""

import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from problems.data import DataError, DataSpec, load, validate
from simulations.__main__ import cli
from tests.battery.federation import Run
from tests.refusals import refuses, spell

NAME = "synthetic-sparse-logistic"
SMALL = DataSpec(NAME, synthetic_samples=25, seed=4)


def by_hand(seed: int, client: int, alpha: float, beta: float, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the same draws from the same stream, sample by sample: features (samples, 60) and labels (samples,)."""
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
        mine, tested = data.client(client), slice(2 * client, 2 * client + 2)
        np.testing.assert_allclose(mine.features, features[:25], rtol=1e-12, atol=0)
        np.testing.assert_array_equal(mine.labels, labels[:25])
        np.testing.assert_allclose(data.test.features[tested], features[25:], rtol=1e-12, atol=0)
        np.testing.assert_array_equal(data.test.labels[tested], labels[25:])
        assert mine.features.dtype == data.test.features.dtype == np.float64
        assert mine.features.flags.c_contiguous
        assert not mine.features.flags.writeable


def test_more_clients_or_samples_leave_the_first_ones_as_they_are() -> None:
    few, many, long = load(SMALL, 4), load(SMALL, 9), load(replace(SMALL, synthetic_samples=40), 4)
    for client in range(4):
        features = few.client(client).features
        np.testing.assert_array_equal(features, many.client(client).features)
        np.testing.assert_array_equal(features, long.client(client).features[:25])
    np.testing.assert_array_equal(many.test.features[: len(few.test)], few.test.features)


def test_a_client_may_hold_one_class_but_not_all_together() -> None:
    data = load(DataSpec(NAME, synthetic_samples=50), 5)
    held = [len(data.client(client).positives) for client in range(5)]
    assert set(held) == {0, 50}
    one = held.index(0)
    assert one > 0
    with pytest.raises(DataError) as refused:
        load(DataSpec(NAME, synthetic_samples=50), 1)
    for part in (NAME, "training set of 1 clients", "50 positives and 0 negatives", "synthetic.samples", "seed"):
        assert part in spell(refused.value)


def test_the_test_samples_need_both_classes_too() -> None:
    spec = DataSpec(NAME, synthetic_alpha=0.0, synthetic_beta=0.0, synthetic_samples=9)
    seed = next(seed for seed in range(60) if len(set(by_hand(seed, 0, 0.0, 0.0, 9)[1])) == 2)
    with refuses(DataError, "got one class only in the test set of 1 clients, [01] positives and [01] neg"):
        load(replace(spec, seed=seed), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "dirichlet"}, "partition: got 'dirichlet', allowed: 'natural', since"),
        (
            {"positive_label": "1"},
            "positive-label: got '1', allowed: '', since dataset 'synthetic-sparse-logistic' has",
        ),
        ({"synthetic_alpha": -1.0}, "synthetic.alpha: got -1.0, allowed: 0 or above"),
        ({"synthetic_beta": float("inf")}, "synthetic.beta: got inf, allowed: 0 or above"),
        ({"synthetic_samples": 0}, "synthetic.samples: got 0, allowed: 1 or more"),
        ({"dataset": "synthetic-pl", "partition": "dirichlet"}, "has no labels and has its own sites"),
    ],
)
def test_what_it_cannot_be_asked(options: dict[str, object], message: str) -> None:
    spec = replace(SMALL, **options)
    with refuses(DataError, re.escape(message)):
        validate(spec)
    with refuses(DataError, re.escape(message)):
        load(spec, 4)


def test_it_runs_from_the_command_line(tmp_path: Path) -> None:
    config = f'dataset="{NAME}" strategy="fedx2" num-server-rounds=3 synthetic.samples=50'  # partners from other sites
    words = ["run", "--clients", "5", "-c", config, "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(cli, words).exit_code == 0
    run = Run(tmp_path / "run")
    assert {name: (value.shape, value.dtype.name) for name, value in run.model.items()} == {
        "output.weight": ((1, 60), "float64")
    }
    assert run.result["config"]["synthetic"] == {"alpha": 10.0, "beta": 10.0, "samples": 50}
    assert run.result["metrics"]["loss"] < run.lines[0]["loss"]
