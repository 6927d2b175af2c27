"""Every algorithm reproduces its recorded messages and models.

`trajectories.npz` stores a number for each model and each payload of each message: its product with a vector drawn
from a seed. ``python -m tests.battery.test_trajectories`` records the cases that have no trajectory. If a change alters
an algorithm on purpose, add its cases as arguments, and state it in the commit.
"""

import sys
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from apps.config import Scalar
from apps.registry import ALGORITHMS
from tests.battery.federation import SAMPLING, federate, model_of, payloads_of, save_npz

RECORDED = Path(__file__).with_name("trajectories.npz")
TOLERANCE = {"float64": 1e-12, "float32": 1e-6}  # relative to the values' Euclidean norm
# fedcanon divides differences of models by short steps, which multiplies the rounding of float32 sums, different on
# each processor, to 1.5e-6
ROUNDED = {("fedcanon", "float32"): 4e-6}
# Four sites: unequal in size and in their share of positives, one without positives and one without negatives.
LABELS, GIVEN = [1] * 13 + [0] * 29, "24:0.125,6:1,4:0,8:0.5"
COMMON: dict[str, Scalar] = {
    "num-server-rounds": 5,
    "evaluate-every": 5,
    "local-steps": 3,
    "batch-size": 5,
    "learning-rate": 0.1,
    "lr-decay": 0.5,
    "lr-decay-every": 2,
    "model": "mlp",
    "seed": 3,
    "partition": "given",
    "partition-rows": GIVEN,
}
FEDX: dict[str, Scalar] = {"fedx.positive-batch-size": 3, "fedx.negative-batch-size": 4}
COMPOSITE: dict[str, Scalar] = {"composite.weight": 0.02}
STAGES: dict[str, Scalar] = {"coda.stage-rounds": 2, "coda.proximal": 0.3, "client-weights": "equal"}
ESTIMATOR: dict[str, Scalar] = {"fedsgda.rho": 0.2, "fedsgda.period": 2}
# Keys of one algorithm, away from their defaults. A case is "strategy", or "strategy, special feature".
CASES: dict[str, dict[str, Scalar]] = {
    # newton takes no local steps, and shared-sgd rounds at random
    **{name: {} for name in ALGORITHMS if name not in ("newton", "shared-sgd")},
    **dict.fromkeys(("fedx1", "fedx2", "local-pair"), FEDX),
    "fedx1, old predictions": {**FEDX, "fedx.tau": 2, "fedx.history-size": 7, "fedx.independent-history": True},
    "fedx2, auprc": {**FEDX, "loss": "auprc", "fedx.beta": 0.4},
    "fedx2, p-norm-push": {**FEDX, "loss": "p-norm-push", "score": "logit", "learning-rate": 0.01},
    "local-pair, kl-opauc": {**FEDX, "loss": "kl-opauc", "client-weights": "equal"},
    "codasca": STAGES,
    "coda": {**STAGES, "fraction-train": 1.0},
    **{f"fedsgda-{name}": ESTIMATOR for name in ("mb", "storm", "spider", "svrg")},
    "local-scgdam, without the Hessian": {"scgdam.hessian": "identity", "scgdam.independent-batches": True},
    "scaffold": {"server-learning-rate": 1.3},
    **dict.fromkeys(("composite", "fedcanon", "fedmid", "fedda", "fast-fedda"), COMPOSITE),
    "composite, a group": {**COMPOSITE, "composite.penalty": "group-lasso", "server-learning-rate": 1.3},
}
RUNS = [(case, dtype) for case in CASES for dtype in ALGORITHMS[case.split(",")[0]].traits.number_types]
RUNS_RECORDED = [tuple(name.rsplit(" ", 1)) for name in np.load(RECORDED).files]


def fingerprint(values: Iterable[NDArray[np.generic]]) -> tuple[float, float]:
    """Return the product of some values with a fixed normal vector, and the values' norm, which scales the error."""
    joined = np.concatenate([np.zeros(0), *(np.ravel(value).astype(np.float64) for value in values)])
    return float(np.random.default_rng(len(joined)).normal(size=len(joined)) @ joined), float(np.linalg.norm(joined))


def trajectory(case: str, dtype: str, folder: Path, stack: int = 1) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (messages, 4) fingerprints of the models and payloads of messages and replies, and the norms.

    For a vertical run: fingerprints of the final model and the measured values.
    """
    strategy = case.split(",")[0]
    half: dict[str, Scalar] = {"fraction-train": 0.5} if strategy in SAMPLING else {}
    features = np.random.default_rng(5).normal(size=(len(LABELS), 3)) + 0.7 * np.asarray(LABELS)[:, None]
    config = {**save_npz(folder / "rows.npz", features, LABELS), **COMMON, **half, **CASES[case]}
    if not ALGORITHMS[strategy].strategy.shares_model:
        keys = ("dataset", "data-dir", "num-server-rounds", "learning-rate", "seed")
        own = {key: config[key] for key in keys} | {"evaluate-every": 1, "strategy": strategy}
        run, _ = federate(folder / "run", own)  # the parties' messages are masked and never the same
        measured = [np.array([line["loss"], line["auc"], line["accuracy"]]) for line in run.lines]
        rows = [[fingerprint(run.model.values()), *map(fingerprint, zip(measured, strict=True))]]
    else:
        _, tap = federate(folder / "run", {**config, "strategy": strategy, "dtype": dtype}, clients=4, stack=stack)
        rows = []
        for exchange in sorted(tap.exchanges, key=lambda one: (one.server_round, one.phase, one.partition)):
            models = (model_of(exchange.message), model_of(exchange.reply))
            payloads = ([] if one is None else one.arrays().values() for one in payloads_of(strategy, exchange))
            rows.append([*map(fingerprint, models), *map(fingerprint, payloads)])
    found = np.array(rows)
    return found[..., 0], found[..., 1]


@pytest.mark.parametrize(("case", "dtype"), RUNS_RECORDED)
def test_messages_and_models_are_those_recorded(case: str, dtype: str, tmp_path: Path) -> None:
    found, norms = trajectory(case, dtype, tmp_path)
    recorded = np.load(RECORDED)[f"{case} {dtype}"]
    assert found.shape == recorded.shape
    assert np.isfinite(found).all()
    tolerance = ROUNDED.get((case, dtype), TOLERANCE[dtype])
    assert (np.abs(found - recorded) <= tolerance * (1 + norms)).all()


def record(again: Collection[str] = ()) -> None:
    """Write `trajectories.npz`.

    Args:
        again: Cases that have a trajectory and are recorded again.
    """
    made = {name: values for name, values in np.load(RECORDED).items() if name.rsplit(" ", 1)[0] not in again}
    for case, dtype in RUNS:
        if f"{case} {dtype}" in made:
            continue
        with tempfile.TemporaryDirectory() as folder:
            made[f"{case} {dtype}"] = trajectory(case, dtype, Path(folder))[0]
    np.savez_compressed(RECORDED, allow_pickle=False, **made)


if __name__ == "__main__":
    record(sys.argv[1:])
