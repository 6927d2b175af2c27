"""Tests of counts of rows by score: thresholds that reach a target, and the errors at these thresholds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix

from payloads.held_out import BINS
from problems.binned_scores import codes, find_bins, first_edges, refine
from problems.tallies import NOWHERE, Tally


@st.composite
def drawn(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels with both classes, scores with ties, and sites."""
    count = draw(st.integers(2, 40))
    labels = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count).filter(lambda one: 0 < sum(one) < count))
    scores = draw(st.lists(st.integers(-5, 5), min_size=count, max_size=count))
    sites = draw(st.lists(st.sampled_from([NOWHERE, 0, 3]), min_size=count, max_size=count))
    return np.array(labels), np.array(scores) / 4, np.array(sites)


def tally_of_bins(labels: np.ndarray, scores: np.ndarray, kept: list[int] | None = None) -> Tally:
    """Return the tally that a server has after two exchanges."""
    code, edges = codes(scores), first_edges(BINS, kept or [])
    for _ in range(2):
        place = find_bins(code, edges)
        counts = [np.bincount(place[labels == label], minlength=BINS) for label in (0, 1)]
        found = Tally.of_bins(edges, counts[0][None], counts[1][None])
        edges = refine(edges, *counts, kept or [])
    return found


@given(drawn())
def test_rows_are_those_counted(rows: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    labels, scores, sites = rows
    tally = Tally.of_rows(labels, scores, sites)
    for some, chosen in [(tally, sites == sites), *((each, sites == each.places[0]) for each in tally.sites())]:
        found = sorted(zip(*map(np.ndarray.tolist, some.rows()), strict=True))
        assert found == sorted(zip(labels[chosen].tolist(), scores[chosen].tolist(), strict=True))
        assert some.count() == ((labels[chosen] == 0).sum(), (labels[chosen] == 1).sum())
    assert [each.places for each in tally.sites()] == [(place,) for place in np.unique(sites) if place != NOWHERE]
    assert tally.total().sites() == Tally.of_rows(labels, scores).sites() == []


@settings(max_examples=60)
@given(drawn(), st.sampled_from(["sensitivity", "specificity"]), st.integers(1, 20), st.booleans())
def test_a_threshold_reaches_what_is_asked_and_the_most_of_the_other(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray], wanted: str, twentieths: int, binned: bool
) -> None:
    labels, scores, _ = rows
    least = twentieths / 20
    tally = tally_of_bins(labels, scores) if binned else Tally.of_rows(labels, scores)
    threshold = tally.threshold(wanted, least)
    called = scores >= threshold
    true_negatives, false_positives, false_negatives, true_positives = confusion_matrix(labels, called).ravel().tolist()
    assert tally.confusion(threshold) == {
        "true_positives": true_positives,
        "false_positives": false_positives,
        "true_negatives": true_negatives,
        "false_negatives": false_negatives,
    }
    sensitivity, specificity = tally.rates(threshold)
    assert (sensitivity, specificity) == pytest.approx((called[labels == 1].mean(), 1 - called[labels == 0].mean()))
    # the best of all thresholds that reach the target
    every = [*np.unique(scores), np.inf]
    pairs = [((scores >= one)[labels == 1].mean(), (scores < one)[labels == 0].mean()) for one in every]
    if wanted == "sensitivity":
        assert sensitivity >= least - 1e-9
        assert specificity == pytest.approx(max(other for reached, other in pairs if reached >= least - 1e-9))
    else:
        assert specificity >= least - 1e-9
        assert sensitivity == pytest.approx(max(other for other, reached in pairs if reached >= least - 1e-9))


@settings(max_examples=40)
@given(drawn(), st.floats(-2, 2, width=32))
def test_bins_that_keep_a_threshold_count_exactly_at_it(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray], threshold: float
) -> None:
    labels, scores, _ = rows
    scores = scores + 1e-3 * np.arange(len(scores))
    kept = codes([threshold]).tolist()
    exact = Tally.of_rows(labels, scores.astype(np.float32)).confusion(threshold)
    assert tally_of_bins(labels, scores, kept).confusion(threshold) == exact


def test_a_share_is_the_decimal_number_that_it_is_written_as() -> None:
    """0.55 of 20 is slightly above 11 in floating point, which would require 12 positives."""
    tally = Tally.of_rows(np.repeat([1, 0], 20), np.arange(40)[::-1])
    assert tally.rates(tally.threshold("sensitivity", 0.55)) == (0.55, 1.0)


def test_a_class_that_is_missing() -> None:
    tally = Tally.of_rows([0, 0], [0.5, 1.5])
    assert tally.rates(1.0)[1] == 0.5
    assert np.isnan(tally.rates(1.0)[0])
    # above all scores also in single precision, which a model may use
    assert tally.threshold("specificity", 1.0) == np.nextafter(np.float32(1.5), np.float32(2)) > np.float32(1.5)
    with pytest.raises(ValueError, match="sensitivity needs rows of both classes, got 0 positives, 2 negatives"):
        tally.threshold("sensitivity", 0.5)
