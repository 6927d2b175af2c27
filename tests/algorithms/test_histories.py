"""What a client records: all scores of its batches, a uniform subsample, or those of an independent sample."""

import dataclasses

import numpy as np
import pytest
import torch

from clients.fedx import History, subsample
from problems.randomness import Purpose, stream
from tests.reference import fedx

from .helpers import SCORERS, TOLERANCE, Case, Federation, batches_of, draws_of, reference, reference_clients, segments

BATCHES = (("positive_batch_size", 4), ("negative_batch_size", 6), ("gamma", 0.5), ("beta", 0.5))


def history(count: int, per_step: int = 4) -> History:
    """A history of `count` positives with u = 10 * score, as many partners, each labelled by its parity."""
    made = History()
    for values in torch.arange(count, dtype=torch.float64).split(per_step):
        made.add(values, 10 * values[:, None], values + 0.5, values % 2)
    return made


@pytest.mark.parametrize("size", [1, 5, 12, 13])
def test_a_subsample_has_the_size_and_keeps_u_and_label_beside_their_score(size: int) -> None:
    sent = subsample(history(12).predictions(np.dtype(np.float64)), size, np.random.default_rng(0))
    count = min(size, 12)
    assert len(set(sent.positive_scores)) == len(set(sent.partner_scores)) == count
    np.testing.assert_array_equal(sent.positive_u[:, 0], 10 * sent.positive_scores)
    np.testing.assert_array_equal(sent.partner_labels, (sent.partner_scores - 0.5) % 2 == 1)


def test_a_subsample_is_uniform() -> None:
    """Each of 12 entries is among the 5 with probability 5/12; 4,000 rounds put its share within 4.5 sigma."""
    made, rounds = history(12), 4000
    counts = np.zeros((2, 12))
    pairs = np.zeros((12, 12))
    for server_round in range(rounds):
        sent = subsample(made.predictions(np.dtype(np.float64)), 5, stream(0, Purpose.HISTORY, 1, server_round))
        chosen = sent.positive_scores.astype(int)
        counts[0, chosen] += 1
        counts[1, sent.partner_scores.astype(int)] += 1
        pairs[np.ix_(chosen, chosen)] += 1
    p, q = 5 / 12, 5 / 12 * 4 / 11  # one entry; two entries together
    assert np.abs(counts - rounds * p).max() < 4.5 * np.sqrt(rounds * p * (1 - p))
    off_diagonal = pairs[~np.eye(12, dtype=bool)]
    assert np.abs(off_diagonal - rounds * q).max() < 4.5 * np.sqrt(rounds * q * (1 - q))


def test_history_size_cuts_what_a_client_sends_and_nothing_else() -> None:
    """Round 1 with the same pool: the same model and u table; of the scores and their u, some rows."""
    whole, cut = (
        Federation(Case("fedx2", "kl-opauc", options=(*BATCHES, *extra))) for extra in ((), (("history_size", 5),))
    )
    assert cut.pool.positive_lengths.tolist() == [5, 5, 5]
    assert cut.pool.partner_lengths.tolist() == [5, 5, 5, 5]
    cut.strategy.blocks = whole.strategy.blocks
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
        models = [start, *(step.w for step in steps[:-1])]  # the model each step starts from
        tables = [np.full_like(steps[0].u, np.nan), *(step.u for step in steps[:-1])]
        lengths = [len(batches(place, 1, k)[0]) for k in range(3)]
        for k, rows in enumerate(segments(lengths)):
            first, second = batches(place, 1, k)
            a, b = score(models[k], X1[first]), score(models[k], X2[second])
            np.testing.assert_allclose(sent.positive_scores[rows], a, **TOLERANCE)
            np.testing.assert_allclose(sent.partner_scores.reshape(3, -1)[k], b, **TOLERANCE)
            if loss == "auprc":
                np.testing.assert_array_equal(sent.partner_labels.reshape(3, -1)[k], y2[second] == 1)
            # u: the table's, or for a sample never visited what it observes against this step's draw
            b_lazy, weight, y_lazy = fedx.take(records[0].partners, draws(place, 1, k)[1])
            seen = fedx.inner_mean(plain.objective, a, b_lazy, y_lazy, weight)
            table = tables[k][first]
            np.testing.assert_allclose(sent.positive_u[rows], np.where(np.isnan(table), seen, table), **TOLERANCE)
