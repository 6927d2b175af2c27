"""A client's resident data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clients.base import Site
from problems.randomness import Purpose
from problems.sampling import EpochSampler


def test_features_of_the_run_s_type_stay_where_they_are() -> None:
    rows = np.arange(12.0).reshape(6, 2)
    shared = rows[2:].view()
    shared.setflags(write=False)  # as a data set's parts are
    site = Site.from_arrays(0, shared, np.array([0, 1, 1, 0]), dtype=torch.float64)
    assert site.features.data_ptr() == shared.ctypes.data
    assert not shared.flags.writeable


@pytest.mark.parametrize("fixed", [False, True])
def test_others_are_copied(fixed: bool) -> None:
    rows = np.frombuffer(np.arange(8.0).tobytes()).reshape(4, 2) if fixed else np.arange(8.0).reshape(4, 2)
    dtype = torch.float64 if fixed else torch.float32
    site = Site.from_arrays(0, rows, np.array([0, 1, 1, 0]), dtype=dtype)
    assert site.features.dtype == dtype
    site.features.zero_()
    assert rows.sum() == 28


def test_samples_are_rows_and_targets() -> None:
    rng = np.random.default_rng(0)
    site = Site.from_arrays(3, rng.normal(size=(5, 2, 3)), np.array([0, 1, 1, 0, 1]))
    assert site.class_counts == (2, 3)
    for indices in (None, np.array([4, 0, 4])):
        features, labels = site.samples(indices)
        wanted = np.arange(5) if indices is None else indices
        assert torch.equal(features, torch.stack([site.features[i] for i in wanted]))
        assert torch.equal(labels, torch.stack([site.labels[i] for i in wanted]))
        assert torch.equal(features, site.rows(indices))
        assert torch.equal(labels, site.targets(indices))


def test_a_site_in_memory_draws_an_epoch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And gives the batches of a sampler of its own whatever it was asked for before."""
    drawn: list[tuple[object, ...]] = []

    def counting(*address: int) -> np.random.Generator:
        drawn.append(address)
        return np.random.default_rng([ord(str(word)[0]) for word in address])

    monkeypatch.setattr("problems.sampling.stream", counting)
    site = Site.from_arrays(3, np.zeros((6, 2)), np.array([0, 1, 1, 0, 1, 1]))
    batches = [site.sampler(site.everyone, 2, 0, Purpose.SAMPLES).batch(place) for place in range(6)]
    assert drawn == [(0, Purpose.SAMPLES, 3, epoch) for epoch in (0, 1)]
    for indices, size, seed in (
        (site.everyone, 3, 0),
        (site.everyone, 2, 1),
        (site.positives, 2, 1),
        (site.everyone, 2, 0),
    ):
        own = EpochSampler(indices, size, seed, Purpose.SAMPLES, 3)
        kept = [site.sampler(indices, size, seed, Purpose.SAMPLES).batch(place) for place in range(6)]
        assert [batch.tolist() for batch in kept] == [own.batch(place).tolist() for place in range(6)]
    assert [batch.tolist() for batch in kept] == [batch.tolist() for batch in batches]
