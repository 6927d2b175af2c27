"""The inputs and outputs of a party in one segment: the plan, the party's data and state, and the outcome.

A segment is the epochs of vertical training between two messages of the server (one Flower round).
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
# the algorithm on secret shares, see `vertical.shares`
SHARED = "shared"
MASKINGS = (PAIRWISE, TWO_TREES, BARE)
MAX_PARTIES = 2**16 - 1


@dataclass(frozen=True)
class SegmentPlan:
    """The plan of a segment, the same at every party.

    Attributes:
        serial: The number of this attempt, larger than the number of any earlier attempt, below 2^32.
        segment: The number of the segment in the run.
        algorithm: "sgd", "svrg" or "saga".
        problem: The problem, a name of `vertical.problem.objectives`.
        weight: The factor of the regulariser.
        step: The learning rate gamma.
        batch_size: The rows of an update. 0: all rows of an active party's slice.
        seed: The run's seed.
        first_epoch: The number of the run's epochs before this segment.
        epochs: The number of this segment's epochs. 0: only evaluate.
        parties: The number of parties.
        active: The parties that have labels and lead updates (*dominators*), in order. The first, the *reporter*, also
            sends the metrics to the server.
        window: W, the number of a dominator's updates that may be under way at once. Synchronous rounds have 1.
        skew: D, the number of updates that a dominator may be ahead of the slowest unfinished dominator. 0: no bound.
        masking: "pairwise", "two-trees" (Algorithm 1), or "none", which shows every partial sum to the dominator.
        synchronous: Whether updates are grouped in rounds. A round evaluates one batch of every active party at equal
            weights and then applies all updates in order.
        update_passive: Whether parties without labels update their blocks. False: the paper's AFSVRG-VP.
        evaluate: Whether the reporter gets the metrics at the end.
        label_epsilon: The epsilon of the labels' differential privacy (classification). 0: off.
        rows: The number n of training rows.
        test_rows: The number of test rows.
        curvature: Whether the evaluation also bounds the objective's curvature.
        start: Whether this is the run's first segment with epochs, in which SAGA fills its table.
        allow_bare: Whether to accept two parties, although the dominator sees its only collaborator's partials.
        score: Whether the segment only scores rows: every active party learns the sums of all rows. No party needs
            labels, and blocks do not change.
        embedding: The number k of outputs of every party's network. 0: linear models, with one partial sum per row.
        penalty: The nonsmooth penalty of every block: "none", "l1" or "group-lasso".
        penalty_weight: The penalty's factor.
        ids: The digest of the rows' ids at this party. "": ids are not compared. The comparison is necessary: if a
            party contributed shifted rows, the server and a recipient of sums could separate the partials. The plan's
            digest excludes the ids, since other parties could test guesses with it (`vertical.segment.same_rows`).
        counted: Whether the parties check that enough parties' partials vary over the rows
            (`vertical.segment.varying`). False for simulated parties.
        history: The digest of the plan of the segment that produced the initial weights. "": weights 0.
        columns: The number of columns of each party, in a segment on secret shares.
        last: Whether the segment is the last of the run, in a segment on secret shares.
        keep_shared: Whether the weights stay shared after the last segment.
        wanted: The number of active parties. They must be the first parties with labels. 0: not checked.
        terms: The digest of each value that the server must send equally to all parties, by name.
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
    columns: tuple[int, ...] = ()
    last: bool = False
    keep_shared: bool = False
    wanted: int = 0
    terms: tuple[tuple[str, str], ...] = ()

    @property
    def counts(self) -> bool:
        """Whether the parties check whose partials vary: only if masks of three or more parties hide partials."""
        return self.counted and self.parties > 2 and self.masking != BARE

    @property
    def rounds(self) -> bool:
        """Whether the segment ends with shares of the rounded weights, which score new rows in later runs."""
        return self.keep_shared and self.last

    @property
    def width(self) -> int:
        """The number of values per row in partials, sums and thetas."""
        return max(self.embedding, 1)

    @property
    def headed(self) -> bool:
        """Whether the dominator has a head, a last layer that turns a row's sums into a prediction.

        Without a head, the sum is the prediction.
        """
        return self.embedding > 1 and self.problem != SOFTMAX

    def moves(self, party: int) -> bool:
        """Return whether a party's block is updated."""
        return self.update_passive or party in self.active

    def digest(self) -> bytes:
        """Return a 32-byte digest of the plan except `ids`."""
        return self.agreement().greet()[:-1]

    def agreement(self, *, labelled: bool = False) -> Agreement:
        """Return the terms that this party compares with its peers.

        Args:
            labelled: Whether the party has labels.
        """
        names = [part.name for part in fields(self) if part.name not in ("terms", "ids")]
        own = {name: json.dumps(getattr(self, name)) for name in names}
        derived = {f"{DERIVED}{name}": hashlib.sha256(value.encode()).hexdigest() for name, value in own.items()}
        return Agreement({**dict(self.terms), **derived}, self.active, self.wanted, labelled)

    def check(self) -> None:
        """Raise ValueError with the reason if the plan is impossible."""
        if not 0 <= self.serial < 2**32:
            raise ValueError(f"serial must be 0 to 2^32 - 1, got {self.serial}")
        lower_bounds = dict.fromkeys(
            ("segment", "batch_size", "seed", "first_epoch", "epochs", "skew", "test_rows", "embedding"), 0
        )
        for name, bound in {**lower_bounds, "window": 1, "rows": 1}.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} must be {bound} or more, got {getattr(self, name)}")
        self._check_parties()
        choices = {
            "masking": MASKINGS,
            "algorithm": (*ALGORITHMS, SHARED),
            "problem": (*PROBLEMS, SOFTMAX),
            "penalty": PENALTIES,
        }
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
            raise ValueError("a segment that scores rows must have no epochs, no evaluation and no test rows")
        if not 0.0 <= self.penalty_weight < math.inf:
            raise ValueError(f"penalty_weight must be >= 0 and finite, got {self.penalty_weight}")
        if self.embedding and self.penalty != NO_PENALTY:
            raise ValueError(f"a plan with a penalty must have embedding 0 (linear models), got {self.embedding}")
        if self.embedding and (self.algorithm != SGD or self.curvature or not self.update_passive):
            raise ValueError(
                "a plan with embedding must have algorithm 'sgd', curvature False and update_passive True, got "
                f"{self.algorithm!r}, {self.curvature} and {self.update_passive}"
            )
        if self.problem == SOFTMAX and self.embedding < 2:
            raise ValueError(f"softmax needs an embedding of 2 or more, the number of classes, got {self.embedding}")
        if self.headed and len(self.active) > 1:
            raise ValueError(
                f"the head of {self.embedding} sums needs exactly one active party, got {len(self.active)}"
            )

    def _check_parties(self) -> None:
        if not 1 <= self.parties <= MAX_PARTIES:
            raise ValueError(f"parties must be 1 to {MAX_PARTIES:,}, got {self.parties}")
        active = self.active
        if not active or len(set(active)) < len(active) or not all(0 <= party < self.parties for party in active):
            raise ValueError(f"active must be different parties of 0 to {self.parties - 1}, at least one, got {active}")
        if len(active) > self.rows and not self.score:
            raise ValueError(f"{len(active)} active parties need at least as many rows, got {self.rows}")
        if self.parties == 2 and not self.allow_bare and self.algorithm != SHARED:
            raise ValueError(
                "2 parties: the dominator would learn its only collaborator's partials with any masking; "
                "use 3 or more parties, or set allow_bare"
            )


@dataclass
class Holding:
    """A party's data.

    Attributes:
        features: The (n, d) features of the training rows, dense or sparse.
        test_features: The (k, d) features of the test rows. None: no test rows.
        labels: The (n,) training labels. None at a party without labels.
        test_labels: The (k,) test labels. None at a party without labels or test rows.
        groups: The (d,) number of each column's group, for a penalty. Below 0: the column is not penalised. None: each
            column is a separate group.
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
    """A party's state between two segments.

    Attributes:
        weights: The block's (d,) or the network's (p,) weights. None: zeros, or a network's initial weights.
        table: SAGA's (n,) alpha. None for other algorithms.
        flips: Whether each of the (n,) labels is inverted, at an active party under label privacy. Otherwise None.
        head: The (k + 1,) weights of the head, at the active party of a plan with a head. None: its initial weights.
        history: The digest of the plan of the segment that produced the state. "": no segment.
        share: The party's (D,) shares of all weights, on secret shares. None: weights 0. In a segment that scores rows,
            its shares of the rounded weights.
    """

    weights: Array | None = None
    table: Array | None = None
    flips: NDArray[np.bool_] | None = None
    head: Array | None = None
    history: str = ""
    share: NDArray[np.uint64] | None = None


class Event(NamedTuple):
    """A party's step in an update, for tests.

    Attributes:
        kind: "partial" (computed by a collaborator), "theta" (computed by the dominator) or "apply".
        active: The dominator of the update.
        update: The number of the update among the dominator's updates of this segment.
    """

    kind: str
    active: int
    update: int


class Recorder(Protocol):
    """The callbacks of an observer of a segment, for tests."""

    def received(self, peer: int, frame: Frame) -> None:
        """Receive every frame of a peer."""

    def contributed(self, kind: int, active: int, values: Array) -> None:
        """Receive every vector that this party adds to another party's sum.

        Args:
            kind: The kind of the sum, a number of `Kind`.
            active: The dominator that receives the sum.
            values: The (k,) values before encoding and masking.
        """


@dataclass
class SegmentOutcome:
    """A party's state and results after a segment.

    Attributes:
        weights, table, flips, head, share: See `PartyState`.
        metrics: The metrics at the reporter: `objective` of the training rows; `loss`, `accuracy` and `auc` (or `rmse`)
            of the test rows; and `largest_eigenvalue`, a bound of the curvature, if the plan requires it.
        counters: The counters, see `vertical.segment.party`.
        log: The party's steps in their order. None: not requested.
        scores: The (n,) predictions z of all rows, (n, k) for softmax, at an active party of a segment that scores
            rows. Otherwise None.
        rounded: The party's (D,) shares of the rounded weights, after the last segment of a run whose weights stay
            shared. Otherwise None.
    """

    weights: Array
    table: Array | None = None
    flips: NDArray[np.bool_] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    log: list[Event] | None = None
    scores: Array | None = None
    head: Array | None = None
    share: NDArray[np.uint64] | None = None
    rounded: NDArray[np.uint64] | None = None

    @property
    def state(self) -> PartyState:
        """The initial state of the next segment."""
        return PartyState(self.weights, self.table, self.flips, self.head, share=self.share)
