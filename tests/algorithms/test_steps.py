"""Every algorithm against its NumPy reference: model, momentum, pool, weights and u after every round."""

import pytest

from .helpers import EQUAL, UNEQUAL, Case, assert_follows_the_reference

LINEAR = ["square", "psm", "squared-hinge", "logistic"]
NON_LINEAR = [
    ("kl-opauc", {"lambda_": 2.0, "margin": 0.7}),
    ("kl-opauc", {"lambda_": 0.5}),
    ("auprc", {"surrogate": "squared-hinge", "margin": 1.5}),
    ("auprc", {"surrogate": "logistic"}),
    ("auprc", {"surrogate": "psm"}),
    ("p-norm-push", {"surrogate": "squared-hinge", "power": 2.0}),
    ("p-norm-push", {"surrogate": "logistic", "power": 3.0}),
]
DECAY = {"lr_decay": 0.5, "lr_decay_every": 4}
STEP = {"p-norm-push": 0.02}  # p-th powers have p-th gradients


def case(strategy: str, loss: str, *, scorer: str = "tanh", sizes=UNEQUAL, training=None, **fedx) -> Case:
    rate = {"learning_rate": STEP.get(loss, 0.1)}
    return Case(strategy, loss, scorer, tuple(sizes), tuple(fedx.items()), tuple((rate | (training or {})).items()))


VARIANTS = {
    "base": {},
    "linear": {"scorer": "linear"},
    "relu": {"scorer": "relu", "training": DECAY},
    "equal": {"sizes": EQUAL, "tau": 3},
    "tau": {"tau": 3, "training": DECAY},
    "half": {"training": {"fraction_train": 0.5}},
    "half-tau": {"scorer": "linear", "tau": 3, "training": {"fraction_train": 0.5, "local_steps": 4} | DECAY},
    "one": {"sizes": [(9, 14)]},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("loss", LINEAR)
def test_fedx1(loss: str, variant: str) -> None:
    assert_follows_the_reference(case("fedx1", loss, margin=0.8, **VARIANTS[variant]))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("loss", "options"), NON_LINEAR)
def test_fedx2(loss: str, options: dict, variant: str) -> None:
    assert_follows_the_reference(case("fedx2", loss, gamma=0.6, beta=0.3, **options, **VARIANTS[variant]))


@pytest.mark.parametrize("variant", ["base", "half-tau"])
@pytest.mark.parametrize("loss", LINEAR)
def test_fedx2_of_a_linear_loss(loss: str, variant: str) -> None:
    assert_follows_the_reference(case("fedx2", loss, gamma=0.6, beta=0.3, **VARIANTS[variant]))


@pytest.mark.parametrize(("gamma", "beta"), [(1.0, 1.0), (1.0, 0.1), (0.1, 1.0)])
def test_fedx2_at_the_ends_of_gamma_and_beta(gamma: float, beta: float) -> None:
    assert_follows_the_reference(
        case("fedx2", "kl-opauc", gamma=gamma, beta=beta, tau=2, training={"learning_rate": 0.01})
    )


LOCAL = {
    "base": {},
    "relu": {"scorer": "relu", "training": DECAY},
    "equal": {"sizes": EQUAL, "scorer": "linear"},
    "half": {"training": {"fraction_train": 0.5} | DECAY},
}


@pytest.mark.parametrize("variant", LOCAL)
@pytest.mark.parametrize("loss", LINEAR)
def test_local_pair_of_a_linear_loss(loss: str, variant: str) -> None:
    assert_follows_the_reference(case("local-pair", loss, **LOCAL[variant]))


@pytest.mark.parametrize("variant", LOCAL)
@pytest.mark.parametrize(("loss", "options"), NON_LINEAR)
def test_local_pair_of_a_non_linear_loss(loss: str, options: dict, variant: str) -> None:
    sizes = [(9, 14), (7, 12), (3, 20), (6, 5)]  # `test_a_site_without_pairs_waits` tests sites of one class
    variant_options = {"sizes": sizes} | LOCAL[variant]
    assert_follows_the_reference(case("local-pair", loss, gamma=0.6, beta=0.3, **options, **variant_options))


@pytest.mark.parametrize(("loss", "options"), [("kl-opauc", {}), ("auprc", {"surrogate": "squared-hinge"})])
def test_local_pair_of_a_batch_of_one_pair(loss: str, options: dict) -> None:
    """u depends on the site's other negatives, so l/u may exceed 1, the number of partners in the batch."""
    small = {"positive_batch_size": 1, "negative_batch_size": 1, "gamma": 0.2, "beta": 0.5}
    training = {"learning_rate": 0.01, "num_server_rounds": 8}
    assert_follows_the_reference(case("local-pair", loss, sizes=[(9, 14)], training=training, **small, **options))


@pytest.mark.parametrize("scorer", ["linear", "tanh", "relu"])
@pytest.mark.parametrize("training", [{}, {"fraction_train": 0.5} | DECAY, {"batch_size": 0}, {"batch_size": 13}])
def test_local_sgd(training: dict, scorer: str) -> None:
    assert_follows_the_reference(case("local-sgd", "cross-entropy", scorer=scorer, training=training))
