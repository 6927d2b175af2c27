"""Small vertical problems, their segments, and the expected results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.parties import run_parties
from tests.reference import vfb2 as reference
from vertical.segment.plan import Array, Holding, SegmentOutcome, SegmentPlan
from vertical.transport.frames import Frame

PROBLEMS = ("logistic", "nonconvex-logistic", "ridge", "robust")
ALGORITHMS = ("sgd", "svrg", "saga")
WEIGHTS = {"logistic": 0.02, "nonconvex-logistic": 0.05, "ridge": 0.01, "robust": 0.0, "softmax": 0.02}


@dataclass
class Case:
    """A problem split among parties, and the plan of its first segment."""

    features: Array  # (n, d)
    labels: Array  # (n,)
    test_features: Array
    test_labels: Array
    columns: list[NDArray[np.int64]]
    plan: SegmentPlan

    @property
    def holdings(self) -> list[Holding]:
        plan = self.plan
        return [
            Holding(
                np.ascontiguousarray(self.features[:, own]),
                np.ascontiguousarray(self.test_features[:, own]),
                self.labels if party in plan.active else None,
                self.test_labels if party in plan.active else None,
            )
            for party, own in enumerate(self.columns)
        ]

    @property
    def sparse_holdings(self) -> list[Holding]:
        return [
            replace(
                holding,
                features=sparse.csr_array(holding.features),
                test_features=sparse.csr_array(holding.test_features),
            )
            for holding in self.holdings
        ]

    def whole(self, outcomes: Sequence[SegmentOutcome]) -> Array:
        """Return the assembled model, (d,)."""
        weights = np.full(self.features.shape[1], np.nan)
        for own, outcome in zip(self.columns, outcomes, strict=True):
            weights[own] = outcome.weights
        return weights

    def epochs(self, plan: SegmentPlan | None = None) -> list[list[list[NDArray[np.int64]]]]:
        """Return every epoch's batches, by slice."""
        plan = plan or self.plan
        return [
            reference.batches(plan.rows, len(plan.active), plan.batch_size, plan.seed, epoch)
            for epoch in range(plan.first_epoch, plan.first_epoch + plan.epochs)
        ]

    def problem(self) -> reference.Problem:
        return reference.Problem(self.plan.problem, self.plan.weight)

    def centralised(self, frozen: Sequence[int] = ()) -> Array:
        """Return the reference's model after training from zero, (d,)."""
        plan = self.plan
        return reference.centralised(
            self.problem(), self.features, self.labels, plan.algorithm, plan.step, self.epochs(), frozen=frozen
        )

    def run(self, plans: SegmentPlan | Sequence[SegmentPlan] | None = None, **options: Any) -> list[SegmentOutcome]:
        """Run the segments with a thread for each party; return the outcomes of the last segment."""
        options.setdefault("processes", False)
        options.setdefault("timeout", 30.0)
        return run_parties(self.holdings, self.plan if plans is None else plans, **options)[-1]


def make_case(
    parties: int = 4, active: tuple[int, ...] = (0,), *, rows: int = 30, columns: int = 13, data: int = 0, **fields: Any
) -> Case:
    """Return a case with random data; `fields` are the plan's."""
    import_module("vertical.problem.blocks.dense")  # imported early: this may take seconds, and limits are timed below
    rng = np.random.default_rng(data)
    features, test_features = rng.standard_normal((rows, columns)), rng.standard_normal((11, columns))
    truth = rng.standard_normal(columns)
    labels, test_labels = features @ truth + rng.standard_normal(rows), test_features @ truth + rng.standard_normal(11)
    problem = fields.get("problem", "logistic")
    if "logistic" in problem:
        labels, test_labels = np.sign(labels), np.sign(test_labels)
    if problem == "softmax":  # the thirds of the numbers
        cuts = np.quantile(labels, [1 / 3, 2 / 3])
        labels, test_labels = (np.digitize(numbers, cuts).astype(np.float64) for numbers in (labels, test_labels))
    plan = SegmentPlan(
        serial=7,
        segment=0,
        algorithm="sgd",
        problem=problem,
        weight=WEIGHTS[problem],
        step=0.05,
        batch_size=4,
        seed=3,
        first_epoch=0,
        epochs=2,
        parties=parties,
        active=active,
        window=1,
        skew=0,
        masking="pairwise",
        synchronous=False,
        update_passive=True,
        evaluate=True,
        label_epsilon=0.0,
        rows=rows,
        test_rows=11,
        start=True,
    )
    own = [np.sort(part) for part in np.array_split(rng.permutation(columns), parties)]
    return Case(features, labels, test_features, test_labels, own, replace(plan, **fields))


@dataclass
class Tape:
    """A recorder of every frame that a party received, and of every value that it contributed unmasked."""

    frames: list[tuple[int, Frame]] = field(default_factory=list)
    partials: list[tuple[int, int, Array]] = field(default_factory=list)

    def received(self, peer: int, frame: Frame) -> None:
        self.frames.append((peer, Frame(frame.kind, frame.active, frame.update, bytes(frame.body))))

    def contributed(self, kind: int, active: int, values: Array) -> None:
        self.partials.append((kind, active, values.copy()))
