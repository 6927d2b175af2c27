"""Data sets that need no download: scikit-learn's digits and breast cancer, and the synthetic data sets."""

import math
from importlib.metadata import distribution

import numpy as np
from jaxtyping import Float, Float32, Float64, Int8, Int64

from problems.data.preprocessing import Feature, Preprocessing
from problems.data.samples import Source, make_source
from problems.data.spec import SPARSE_LOGISTIC
from problems.randomness import stream

SITES = 16
PL_SAMPLES, PL_DIM = 100, 100
SITE_POSITIVES, SITE_NEGATIVES = 20, 100
SITE_TEST_POSITIVES, SITE_TEST_NEGATIVES = 100, 500
SITE_FEATURES = 10
LOGISTIC_FEATURES = 60
NOISY_ROWS = 4_000  # of each split
_NUCLEUS = (
    *("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points"),
    *("symmetry", "fractal dimension"),
)
TUMOUR_COLUMNS = tuple(form.format(name) for form in ("mean {}", "{} error", "worst {}") for name in _NUCLEUS)
"""scikit-learn's names of the columns."""
DIAGNOSIS = "diagnosis"


def digits() -> Source:
    """Return scikit-learn's digits: 1,797 rows of 64 features in [0, 1], classes "0" to "9"."""
    data, target = _read("digits.csv.gz")
    return make_source(target, (data / 16).astype(np.float32))


def breast_cancer() -> Source:
    """Return scikit-learn's breast cancer set: 569 rows of 30 features, classes "benign" and "malignant"."""
    data, target = _read("breast_cancer.csv", header=1)

    def encode(train_rows: Int64[np.ndarray, "train"]) -> tuple[Float[np.ndarray, "n f"], Preprocessing]:
        known = data[train_rows]
        moments = zip(TUMOUR_COLUMNS, known.mean(axis=0).tolist(), np.sqrt(known.var(axis=0)).tolist(), strict=True)
        features = [Feature(name, "number", mean=mean, deviation=deviation) for name, mean, deviation in moments]
        fitted = Preprocessing(tuple(features), label_column=DIAGNOSIS)
        return fitted.transform(data), fitted

    return make_source(np.where(target == 0, "malignant", "benign"), encode)


def _read(name: str, header: int = 0) -> tuple[Float64[np.ndarray, "n f"], Int64[np.ndarray, "n"]]:
    """Return the data of scikit-learn's loaders, without their imports, which take seconds for each message."""
    path = distribution("scikit-learn").locate_file(f"sklearn/datasets/data/{name}")
    table = np.loadtxt(str(path), delimiter=",", skiprows=header)
    return table[:, :-1], table[:, -1].astype(np.int64)


def synthetic_pl(seed: int, num_clients: int) -> Float32[np.ndarray, "{100*num_clients} 3 100"]:
    """Return the data of a nonconvex-PL minimax problem, client by client.

    Xie et al., "A Federated Learning Framework for Nonconvex-PL Minimax Problems", Section 6.1: client i's
    samples (a, b, c) are N(w_i, 0.1 I), and w_i is N(0, 0.5 I); 0.1 and 0.5 are variances. A client's samples do
    not depend on the number of clients.
    """
    clients = np.empty((num_clients, PL_SAMPLES, 3, PL_DIM), dtype=np.float32)
    for client in range(num_clients):
        rng = stream(seed, "synthetic-pl", client)
        mean = rng.normal(0.0, math.sqrt(0.5), size=(3, PL_DIM))
        clients[client] = mean + rng.normal(0.0, math.sqrt(0.1), size=(PL_SAMPLES, 3, PL_DIM))
    return clients.reshape(-1, 3, PL_DIM)


def synthetic_sparse_logistic(
    seed: int, client: int, alpha: float, beta: float, samples: int
) -> tuple[Float64[np.ndarray, "n 60"], Int8[np.ndarray, "n"]]:
    """Return one client's samples, of unit norm, and their labels, 0 or 1; docs/data-sets.md explains the distribution.

    The training samples come first, then max(1, samples // 10) test samples.

    Args:
        seed: The run's seed.
        client: The client's number; each client draws other samples.
        alpha: The variance over clients of their label vectors' mean.
        beta: The variance over clients of their samples' mean.
        samples: The number of training samples.
    """
    rng = stream(seed, SPARSE_LOGISTIC, client)
    label_mean = rng.normal(0.0, math.sqrt(alpha))
    sample_mean = rng.normal(0.0, math.sqrt(beta))
    weights = rng.normal(label_mean, 1.0, size=LOGISTIC_FEATURES)  # (60,)
    intercept = rng.normal(label_mean, 1.0)
    centre = rng.normal(sample_mean, 1.0, size=LOGISTIC_FEATURES)  # (60,)
    spread = np.arange(1, LOGISTIC_FEATURES + 1) ** -0.6  # (60,) standard deviations
    raw = centre + spread * rng.standard_normal((samples + max(1, samples // 10), LOGISTIC_FEATURES))  # (n, 60)
    labels = (raw @ weights + intercept > 0).astype(np.int8)
    return raw / np.linalg.norm(raw, axis=1, keepdims=True), labels


def synthetic_offset_sites(seed: int) -> Source:
    """Return 16 sites, each with its own offset in a feature: 11,520 rows of 10 features, classes "0" and "1".

    docs/data-sets.md explains the distribution.
    """
    offsets = stream(seed, "offset-sites offsets").normal(0.0, 3.0, size=SITES)
    features, labels, sites = [], [], []
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
            sites.append(np.full(len(label), site))
    return make_source(
        np.concatenate(labels),
        np.concatenate(features).astype(np.float32),
        train_count=SITES * (SITE_POSITIVES + SITE_NEGATIVES),
        sites=np.concatenate(sites),
    )


def synthetic_long_servedio(seed: int) -> Source:
    """Return 8,000 rows of 21 features on which a convex loss fails if labels are flipped; classes "0" and "1".

    Long and Servedio, "Random classification noise defeats all convex potential boosters", 2010. Each feature equals
    the label, as -1 or 1, or the opposite label; docs/data-sets.md explains which. Half of the rows are for training.
    """
    rng = stream(seed, "long-servedio")
    labels = rng.integers(0, 2, 2 * NOISY_ROWS)  # (n,)
    kind = rng.integers(0, 4, len(labels))
    # The numbers of features that equal the label among the first 11 and the last 10, for each kind of row: all
    # features, only the first 11, or 5 and 6 random features.
    counts = np.array([(11, 10), (11, 0), (5, 6), (5, 6)])[kind]
    ranks = [rng.random((len(labels), width)).argsort(axis=1) for width in (11, 10)]
    is_label = np.concatenate([ranks[part] < counts[:, part, None] for part in (0, 1)], axis=1)
    signs = np.where(is_label == labels[:, None], 1, -1)
    return make_source(labels, signs.astype(np.float32), NOISY_ROWS)
