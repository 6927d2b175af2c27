"""A client's history: all scores of its batches, a uniform subsample, or the scores of an independent sample."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from methods.method import Task
from methods.pairwise import FedXSettings
from methods.predictions import FedXPredictions, Scored, make_predictions
from payloads.settings import TrainingSettings
from problems.randomness import Purpose
from problems.site import Site
from tests.reference import fedx

from .helpers import SCORERS, TOLERANCE, Case, Federation, batches_of, draws_of, reference, reference_clients, segments

BATCHES = (("positive_batch_size", 4), ("negative_batch_size", 6), ("gamma", 0.5), ("beta", 0.5))
SITE = Site.from_arrays(1, np.zeros((2, 1)), np.array([0, 1]))


def history(count: int, per_step: int = 4) -> list[Scored]:
    """Return a history of `count` positives with u = 10 * score, and as many partners, each labelled by its parity."""
    steps = torch.arange(count, dtype=torch.float64).split(per_step)
    return [Scored(step, 10 * step[:, None], step + 0.5, step % 2) for step in steps]


def sent(made: list[Scored], size: int, server_round: int = 0) -> FedXPredictions:
    """Return the predictions that partition 1 sends from a history in a round."""
    task: Task[FedXSettings, Any] = Task(
        server_round, TrainingSettings(dtype="float64"), FedXSettings(history_size=size), SITE, None, "kl-opauc"
    )
    return make_predictions(made, task)


@pytest.mark.parametrize("size", [1, 5, 12, 13])
def test_a_subsample_has_the_size_and_keeps_u_and_label_beside_their_score(size: int) -> None:
    some = sent(history(12), size)
    count = min(size, 12)
    assert len(set(some.positive_scores)) == len(set(some.partner_scores)) == count
    assert some.positive_u is not None
    np.testing.assert_array_equal(some.positive_u[:, 0], 10 * some.positive_scores)
    np.testing.assert_array_equal(some.partner_labels, (some.partner_scores - 0.5) % 2 == 1)


def test_a_subsample_is_uniform() -> None:
    """Each of 12 entries is among the 5 with probability 5/12; 4,000 rounds put its share within 4.5 sigma."""
    made, rounds = history(12), 4000
    counts = np.zeros((2, 12))
    pairs = np.zeros((12, 12))
    for server_round in range(rounds):
        some = sent(made, 5, server_round)
        chosen = some.positive_scores.astype(int)
        counts[0, chosen] += 1
        counts[1, some.partner_scores.astype(int)] += 1
        pairs[np.ix_(chosen, chosen)] += 1
    p, q = 5 / 12, 5 / 12 * 4 / 11  # one entry; two entries together
    assert np.abs(counts - rounds * p).max() < 4.5 * np.sqrt(rounds * p * (1 - p))
    off_diagonal = pairs[~np.eye(12, dtype=bool)]
    assert np.abs(off_diagonal - rounds * q).max() < 4.5 * np.sqrt(rounds * q * (1 - q))


def test_history_size_cuts_what_a_client_sends_and_nothing_else() -> None:
    """With the same pool, round 1 gives the same model and u table, but only some rows of the scores and their u."""
    whole, cut = (
        Federation(Case("fedx2", "kl-opauc", options=(*BATCHES, *extra))) for extra in ((), (("history_size", 5),))
    )
    assert cut.pool.positive_lengths.tolist() == [5, 5, 5]
    assert cut.pool.partner_lengths.tolist() == [5, 5, 5, 5]
    cut.strategy.state = whole.strategy.state
    for one, other in zip(whole.step(), cut.step(), strict=True):
        np.testing.assert_array_equal(one.model[0], other.model[0])
        rows = np.flatnonzero(np.isin(one.payload.positive_scores, other.payload.positive_scores))
        assert len(rows) == len(other.payload.positive_scores) == min(5, len(one.payload.positive_scores))
        np.testing.assert_array_equal(one.payload.positive_scores[rows], other.payload.positive_scores)
        np.testing.assert_array_equal(one.payload.positive_u[rows], other.payload.positive_u)
        assert np.isin(other.payload.partner_scores, one.payload.partner_scores).sum() == 5


@pytest.mark.parametrize("loss", ["kl-opauc", "auprc"])
def test_an_independent_history_is_that_of_the_independent_samplers(loss: str) -> None:
    plain = Case("fedx2", loss, options=(*BATCHES, ("surrogate", "logistic")))
    independent = dataclasses.replace(plain, options=(*plain.options, ("independent_history", True)))
    federation = Federation(independent)
    start, replies = federation.w.copy(), federation.step()

    records: list[fedx.Round] = []
    for record in reference(plain, federation.sites, start):
        records.append(record)
        if record.round == 1:
            break
    np.testing.assert_allclose(federation.w, records[1].w, **TOLERANCE)  # round 1 trains on the same pool

    purposes = Purpose.INDEPENDENT_POSITIVES, Purpose.INDEPENDENT_PARTNERS
    batches, draws = batches_of(plain, federation.sites, 0, purposes), draws_of(plain, records)
    score = SCORERS[plain.scorer].score
    for place, (X1, X2, y2) in enumerate(reference_clients(federation.sites, loss)):
        steps, sent = records[1].steps[place], replies[place].payload
        models = [start, *(step.w for step in steps[:-1])]  # the model at the start of each step
        tables = [np.full_like(steps[0].u, np.nan), *(step.u for step in steps[:-1])]
        lengths = [len(batches(place, 1, k)[0]) for k in range(3)]
        for k, rows in enumerate(segments(lengths)):
            first, second = batches(place, 1, k)
            a, b = score(models[k], X1[first]), score(models[k], X2[second])
            np.testing.assert_allclose(sent.positive_scores[rows], a, **TOLERANCE)
            np.testing.assert_allclose(sent.partner_scores.reshape(3, -1)[k], b, **TOLERANCE)
            if loss == "auprc":
                np.testing.assert_array_equal(sent.partner_labels.reshape(3, -1)[k], y2[second] == 1)
            # u comes from the table; for a sample never visited, from this step's draw
            b_lazy, weight, y_lazy = fedx.take(records[0].partners, draws(place, 1, k)[1])
            seen = fedx.inner_mean(plain.objective, a, b_lazy, y_lazy, weight)
            table = tables[k][first]
            np.testing.assert_allclose(sent.positive_u[rows], np.where(np.isnan(table), seen, table), **TOLERANCE)
