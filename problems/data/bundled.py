"""Data that needs no file: scikit-learn's two small sets, and the synthetic sites."""

from __future__ import annotations

import numpy as np

from problems.data.source import Source, make_source, standardise
from problems.randomness import stream

SITES = 16
SITE_POSITIVES, SITE_NEGATIVES = 20, 100
SITE_TEST_POSITIVES, SITE_TEST_NEGATIVES = 100, 500
SITE_FEATURES = 10


def digits() -> Source:
    """Return scikit-learn's digits: features (1797, 64) in [0, 1], classes "0" to "9"."""
    from sklearn.datasets import load_digits

    data, target = load_digits(return_X_y=True)
    return make_source(target, (data / 16).astype(np.float32))


def breast_cancer() -> Source:
    """Return scikit-learn's breast cancer set: features (569, 30), classes "benign" and "malignant"."""
    from sklearn.datasets import load_breast_cancer

    data, target = load_breast_cancer(return_X_y=True)
    return make_source(np.where(target == 0, "malignant", "benign"), lambda rows: standardise(data, rows))


def synthetic_offset_sites(seed: int) -> Source:
    """Return the sites on which pairs across sites decide: features (11520, 10), classes "0" and "1".

    Feature 0 is N(+-0.5, 1); feature 1 is +-0.5 + N(0, 0.3^2) + s_i with the site's offset s_i ~ N(0, 3^2):
    the best feature inside a site, nearly useless across sites; the others are N(0, 1). 16 sites of 20
    positives and 100 negatives; then the test rows, 100 positives and 500 negatives from each of the same
    offsets.
    """
    offsets = stream(seed, "offset-sites offsets").normal(0.0, 3.0, size=SITES)
    features, labels = [], []
    for split, positives, negatives in (
        ("train", SITE_POSITIVES, SITE_NEGATIVES),
        ("test", SITE_TEST_POSITIVES, SITE_TEST_NEGATIVES),
    ):
        for site, offset in enumerate(offsets):
            rng = stream(seed, f"offset-sites {split}", site)
            label = np.repeat((1, 0), (positives, negatives))  # (n,)
            draws = rng.standard_normal((len(label), SITE_FEATURES))  # (n, 10)
            draws[:, 0] += label - 0.5
            draws[:, 1] = 0.3 * draws[:, 1] + (label - 0.5) + offset
            features.append(draws)
            labels.append(label)
    size = SITE_POSITIVES + SITE_NEGATIVES
    return make_source(
        np.concatenate(labels),
        np.concatenate(features).astype(np.float32),
        train_count=SITES * size,
        site_sizes=(size,) * SITES,
    )
