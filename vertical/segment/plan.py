"""What a segment does, what a party brings to it, and what it leaves with.

A segment is some epochs of vertical training between two messages of the server.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from vertical.agreement import DERIVED, Agreement
from vertical.problem.blocks import NO_PENALTY, PENALTIES
from vertical.problem.blocks.base import ALGORITHMS, SGD, Features
from vertical.problem.objectives import PROBLEMS, SOFTMAX, Array, make_objective
from vertical.transport.frames import Frame

PAIRWISE, TWO_TREES, BARE = "pairwise", "two-trees", "none"
MASKINGS = (PAIRWISE, TWO_TREES, BARE)
MOST_PARTIES = 2**16 - 1


@dataclass(frozen=True)
class SegmentPlan:
    """One segment; the same at every party.

    Attributes:
        serial: Names this attempt; larger than that of every earlier one, below 2^32.
        weight: Factor of the regulariser.
        step: gamma.
        batch_size: Rows per update; 0 is an active party's whole slice.
        first_epoch: Epochs of the run before this segment.
        epochs: Epochs of this segment; 0 only evaluates.
        parties: Q.
        active: The parties that hold labels and dominate updates, in order; the first is the reporter.
        window: W, updates of one dominator that may be under way at once. Synchronous rounds have 1.
        skew: D, how far a dominator may be ahead of the slowest unfinished one, in updates; 0 is no bound.
        masking: "pairwise", "two-trees" (Algorithm 1), or "none", which shows every partial to its dominator.
        synchronous: Whether updates go by rounds, each of which evaluates every active party's batch at one point and
            then applies all in order.
        update_passive: Whether parties without labels update their blocks; False is AFSVRG-VP.
        evaluate: Whether the reporter gets the metrics at the end.
        label_epsilon: Epsilon of the labels' differential privacy (classification); 0 is off.
        rows: n, of training.
        curvature: Whether the evaluation also bounds the objective's curvature.
        start: Whether this is the run's first segment with epochs, where SAGA fills its table.
        allow_bare: Accept q = 2, where the dominator sees its only collaborator's partials.
        score: Whether the segment does nothing but give every active party the sums of all rows, for which nobody needs
            labels; the blocks stay as they are.
        embedding: k, the numbers that each party makes of a row with a network; 0: its linear partial.
        penalty: Of every block beside the regulariser: "none", "l1" or "group-lasso".
        penalty_weight: Its factor.
        ids: The digest of the rows' ids at this party, "" if they are not compared. It is not part of the plan's
            digest, by which a peer could test guesses: see `vertical.segment.same_rows`. By sums to which a
            party gives shifted rows, a server and a recipient could tell partials apart.
        counted: Whether the parties count whose partials vary over the rows. False for simulated parties.
        history: The digest of the segment that left the weights it starts from; "": weights 0.
        wanted: The number of label holders that are active: the first of all; 0: not checked.
        terms: Names and digests of everything that the server sends all parties alike.
    """

    serial: int
    segment: int
    algorithm: str
    problem: str
    weight: float
    step: float
    batch_size: int
    seed: int
    first_epoch: int
    epochs: int
    parties: int
    active: tuple[int, ...]
    window: int
    skew: int
    masking: str
    synchronous: bool
    update_passive: bool
    evaluate: bool
    label_epsilon: float
    rows: int
    test_rows: int
    curvature: bool = False
    start: bool = False
    allow_bare: bool = False
    score: bool = False
    embedding: int = 0
    penalty: str = NO_PENALTY
    penalty_weight: float = 0.0
    ids: str = ""
    counted: bool = False
    history: str = ""
    wanted: int = 0
    terms: tuple[tuple[str, str], ...] = ()

    @property
    def counts(self) -> bool:
        """Whether parties count whose partials vary, which masks of three or more parties need."""
        return self.counted and self.parties > 2 and self.masking != BARE

    @property
    def width(self) -> int:
        """Numbers of a row in partials, sums and thetas."""
        return max(self.embedding, 1)

    @property
    def headed(self) -> bool:
        """Whether the dominator makes one prediction of a row's sums with a head; else the sum itself is one."""
        return self.embedding > 1 and self.problem != SOFTMAX

    def moves(self, party: int) -> bool:
        """Return whether a party's block is updated."""
        return self.update_passive or party in self.active

    def digest(self) -> bytes:
        """32 bytes that two plans share only if they are equal, except for `ids`."""
        return self.agreement().greet()[:-1]

    def agreement(self, *, labelled: bool = False) -> Agreement:
        """Return what this party compares with its peers.

        Args:
            labelled: Whether the party holds labels.
        """
        names = [part.name for part in fields(self) if part.name not in ("terms", "ids")]
        own = {name: json.dumps(getattr(self, name)) for name in names}
        derived = {f"{DERIVED}{name}": hashlib.sha256(value.encode()).hexdigest() for name, value in own.items()}
        return Agreement({**dict(self.terms), **derived}, self.active, self.wanted, labelled)

    def check(self) -> None:
        """Raise ValueError, with the reason, if the plan cannot be carried out."""
        if not 0 <= self.serial < 2**32:
            raise ValueError(f"serial must be 0 to 2^32 - 1, got {self.serial}")
        least = dict.fromkeys(
            ("segment", "batch_size", "seed", "first_epoch", "epochs", "skew", "test_rows", "embedding"), 0
        )
        for name, bound in {**least, "window": 1, "rows": 1}.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} must be {bound} or more, got {getattr(self, name)}")
        self._check_parties()
        choices = {"masking": MASKINGS, "algorithm": ALGORITHMS, "problem": (*PROBLEMS, SOFTMAX), "penalty": PENALTIES}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} {getattr(self, name)!r} is not known; one of: {', '.join(known)}")
        objective = make_objective(self.problem, self.weight)
        if not 0.0 < self.step < math.inf:
            raise ValueError(f"step must be > 0 and finite, got {self.step}")
        if not 0.0 <= self.label_epsilon < math.inf:
            raise ValueError(f"label_epsilon must be >= 0 and finite (0: labels as they are), got {self.label_epsilon}")
        if self.label_epsilon and not objective.classification:
            raise ValueError(f"label_epsilon {self.label_epsilon} needs two classes; problem {self.problem!r} has none")
        if self.score and (self.epochs or self.evaluate or self.test_rows):
            raise ValueError("a segment that scores rows has no epochs, no evaluation and no test rows")
        if not 0.0 <= self.penalty_weight < math.inf:
            raise ValueError(f"penalty_weight must be >= 0 and finite, got {self.penalty_weight}")
        if self.embedding and self.penalty != NO_PENALTY:
            raise ValueError("a penalty is one of linear blocks, not of networks")
        if self.embedding and (self.algorithm != SGD or self.curvature or not self.update_passive):
            raise ValueError("networks are trained by sgd, at all parties, and without a bound of the curvature")
        if self.problem == SOFTMAX and self.embedding < 2:
            raise ValueError(f"softmax has an embedding of 2 or more, the number of classes, got {self.embedding}")
        if self.headed and len(self.active) > 1:
            raise ValueError(f"the head of {self.embedding} sums is at one active party, got {len(self.active)}")

    def _check_parties(self) -> None:
        if not 1 <= self.parties <= MOST_PARTIES:
            raise ValueError(f"parties must be 1 to {MOST_PARTIES:,}, got {self.parties}")
        active = self.active
        if not active or len(set(active)) < len(active) or not all(0 <= party < self.parties for party in active):
            raise ValueError(f"active must be different parties of 0 to {self.parties - 1}, at least one, got {active}")
        if len(active) > self.rows and not self.score:
            raise ValueError(f"{len(active)} active parties need at least as many rows, got {self.rows}")
        if self.parties == 2 and not self.allow_bare:
            raise ValueError(
                "2 parties: the dominator would learn its only collaborator's partials, whatever the masking; "
                "take 3 or more, or allow_bare"
            )


@dataclass
class Holding:
    """A party's data.

    Attributes:
        features: (n, d) its columns of the training rows, dense or sparse.
        test_features: (k, d) those of the test rows.
        labels: (n,) of an active party.
        test_labels: (k,) of an active party.
        groups: (d,) the number of each column's group, for a penalty; below 0: not penalised. None: each is a group.
    """

    features: Features
    test_features: Features | None = None
    labels: Array | None = None
    test_labels: Array | None = None
    groups: NDArray[np.int64] | None = field(default=None, kw_only=True)

    @property
    def test_rows(self) -> int:
        return 0 if self.test_features is None else int(self.test_features.shape[0])


@dataclass
class PartyState:
    """What a party keeps from one segment to the next.

    Attributes:
        weights: (d,) its block, or (p,) its network; None is zeros, or a network's first weights.
        table: (n,) SAGA's alpha.
        flips: (n,) which labels are flipped, of an active party under label privacy.
        head: (k + 1,) its head, of the active party where there is one; None is its first weights.
        history: The digest of the segment that left it; "": none did.
    """

    weights: Array | None = None
    table: Array | None = None
    flips: NDArray[np.bool_] | None = None
    head: Array | None = None
    history: str = ""


class Event(NamedTuple):
    """One step of a party: "partial" (computed, by a collaborator), "theta" (computed, by the dominator, with its own
    partial) or "apply". `active` is the dominating party, `update` counts its updates in this segment."""

    kind: str
    active: int
    update: int


class Recorder(Protocol):
    """Callbacks of a test that watches a segment."""

    def received(self, peer: int, frame: Frame) -> None:
        """Called with every frame of a peer."""

    def contributed(self, kind: int, active: int, values: Array) -> None:
        """Called with every vector that this party adds to another's sum.

        Args:
            kind: Of the sum, a number of `Kind`.
            active: The dominator that takes the sum.
            values: (k,) as they are before encoding and masking.
        """


@dataclass
class SegmentOutcome:
    """What a segment leaves at a party: its state and results.

    Attributes:
        metrics: At the reporter: `objective` (training rows); for the test rows `loss`, with `accuracy` and `auc` or
            with `rmse`; and `largest_eigenvalue` (a bound of the curvature) if asked for.
        counters: see `vertical.segment.party`.
        log: The steps in the order in which this party did them, if asked for.
        scores: (n,) z of every row, (n, k) of softmax, at an active party of a segment that scores rows.
        head: see `PartyState`.
    """

    weights: Array
    table: Array | None = None
    flips: NDArray[np.bool_] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    log: list[Event] | None = None
    scores: Array | None = None
    head: Array | None = None

    @property
    def state(self) -> PartyState:
        """Where the next segment starts."""
        return PartyState(self.weights, self.table, self.flips, self.head)
