"""Passes over all rows: for the derivatives that SVRG and SAGA store, and for the metrics.

The rows of a pass are cut into one chunk for each active party. For each row of its chunk, the active party receives
the masked sum of all parties' partials, so it learns the predictions of these rows only. No updates run during a pass.
"""

import numpy as np

from problems.binned_scores import codes, find_bins, first_edges
from problems.metrics import binary_metrics
from problems.tallies import Tally
from vertical.problem.analysis import second_moment
from vertical.problem.blocks import NO_PENALTY
from vertical.problem.objectives import Array
from vertical.segment.shared import SegmentContext, SegmentPhase
from vertical.segment.sum_order import BINS, MARKS
from vertical.transport.frames import Kind, PartyError, protocol_error

PENALTY, MOMENT, TRAINING_LOSS, TEST_LOSS, TEST_MARK = range(MARKS)
COUNTS = slice(MARKS, MARKS + 2 * BINS)


class FullPass(SegmentPhase):
    """The full passes of a segment (Algorithm 4, steps 3 and 4; Algorithm 6, step 2). `begin` starts the next pass.

    The active parties send theta, the derivatives of the losses of their chunks, to all parties whose blocks are
    updated. At the end of the pass, each of these blocks stores the theta of all rows.
    """

    theta_kind = Kind.SNAPSHOT_THETA

    def __init__(self, context: SegmentContext) -> None:
        self._context = context
        self._number = -1
        self._due: set[int] = set()
        self._theta: Array = np.zeros(0)
        self._own: Array | None = None

    def begin(self) -> None:
        context = self._context
        self._number += 1
        self._due = set(range(len(context.plan.active)))
        self._theta = np.zeros(context.plan.rows)
        products = context.block.partials()
        cut = {index: products[chunk] for index, chunk in enumerate(context.agenda.chunks)}
        self._own = context.share(Kind.SNAPSHOT_PARTIAL, cut)
        self.process_sums()

    def process_sums(self) -> None:
        context = self._context
        z = context.total(Kind.SNAPSHOT_PARTIAL, self._own)
        if z is None or context.dominator is None:
            return
        self._own = None
        theta = context.dominator.theta(z, context.agenda.chunks[context.active_index])
        context.dominator.announce(Kind.SNAPSHOT_THETA, self._number, theta)
        self._note(context.active_index, theta)

    def take_theta(self, index: int, number: int, body: bytes | memoryview) -> None:
        context, peer = self._context, self._context.plan.active[index]
        if index not in self._due or number != self._number:
            raise protocol_error(peer, f"it sent the theta of full pass {number}, which is not expected now")
        chunk = context.agenda.chunks[index]
        self._note(index, _check(peer, body, chunk.stop - chunk.start if context.learns else 0))

    def _note(self, index: int, theta: Array) -> None:
        context = self._context
        self._due.remove(index)
        if context.learns:
            self._theta[context.agenda.chunks[index]] = theta
        if self._due:
            return
        if context.learns:
            context.block.remember(self._theta)
        context.done()


def _check(peer: int, body: bytes | memoryview, length: int) -> Array:
    """Return a body's (length,) values; raise PartyError if the length is wrong or a value is not finite."""
    if len(body) != 8 * length:
        raise protocol_error(
            peer, f"its theta of a full pass has {len(body)} bytes, not the {8 * length} of {length} rows"
        )
    values = np.frombuffer(body)
    if count := int((~np.isfinite(values)).sum()):
        raise PartyError(peer, f"its theta of a full pass has {count} values that are not finite: lower learning-rate")
    return values


class SegmentEvaluation(SegmentPhase):
    """An evaluation of the current blocks, by two masked sums.

    From the first sum, each active party learns the predictions of its share of the training and test rows. From the
    second sum, the reporter (the first active party) learns the totals over all parties: losses, hits or squared
    errors, penalties and largest second moments. With several active parties, the totals also count the rows of each
    class with scores in each of `BINS` narrow ranges (`problems.binned_scores`), for the AUC.
    """

    def __init__(self, context: SegmentContext) -> None:
        self._context = context
        # an active party's own partials, until the sum of the other parties' partials has arrived
        self._own: Array | None = None
        self._totals: Array = np.zeros(0)
        self._reports = False

    def begin(self) -> None:
        context, agenda = self._context, self._context.agenda
        test = context.holding.test_features
        trained, tested = context.block.partials(), np.zeros(0) if test is None else context.block.predict(test)
        trained, tested = (values.reshape(-1, context.plan.width) for values in (trained, tested))
        shares = zip(agenda.chunks, agenda.test_chunks, strict=True)
        values = [np.concatenate([trained[rows], tested[test_rows]]).ravel() for rows, test_rows in shares]
        self._own = context.share(Kind.EVALUATION, dict(enumerate(values)))
        self._totals = np.zeros(agenda.totals)
        self._totals[PENALTY] = context.block.penalty() + (0.0 if context.head is None else context.head.penalty())
        if context.plan.penalty != NO_PENALTY:
            self._totals[-1] = np.count_nonzero(context.block.weights)
        if context.plan.curvature:
            self._totals[MOMENT] = second_moment(context.holding.features)
        if self._own is None:
            self._contribute_totals()
        else:
            self.process_sums()

    def process_sums(self) -> None:
        context = self._context
        z = context.total(Kind.EVALUATION, self._own)
        if z is not None:
            self._own = None
            self._measure(context.predict(z))
            if context.active_index:
                self._contribute_totals()
            else:
                self._reports = True
        totals = context.total(Kind.TOTALS, self._totals if self._reports else None)
        if totals is not None:
            self._reports = False
            self._report(totals)
            context.done()

    def _contribute_totals(self) -> None:
        self._context.sums.contribute(Kind.TOTALS, self._totals, [(0, len(self._totals))])
        self._context.done()

    def _measure(self, z: Array) -> None:
        """Compute this active party's totals from the predictions of its training and test rows, (r,) or (r, k)."""
        context, plan, totals = self._context, self._context.plan, self._totals
        rows, test_rows = context.agenda.chunks[context.active_index], context.agenda.test_chunks[context.active_index]
        labels, objective = context.holding.labels, context.objective
        if labels is None:
            raise RuntimeError("an active party has no labels to evaluate")
        count = rows.stop - rows.start
        totals[TRAINING_LOSS] = objective.losses(z[:count], labels[rows]).sum() / plan.rows
        if context.holding.test_labels is None or not plan.test_rows:
            return
        z, labels = z[count:], context.holding.test_labels[test_rows]
        totals[TEST_LOSS] = objective.losses(z, labels).sum() / plan.test_rows
        if objective.multiclass:
            totals[TEST_MARK] = np.sum(z.argmax(axis=1) == labels) / plan.test_rows
            return
        if not objective.classification:
            totals[TEST_MARK] = np.square(z - labels).sum() / plan.test_rows
            return
        positive = labels > 0
        totals[TEST_MARK] = np.sum((z >= 0.0) == positive) / plan.test_rows
        if len(plan.active) > 1:
            bins = find_bins(codes(z), first_edges(BINS))
            for part, chosen in zip(np.split(totals[COUNTS], 2), (~positive, positive), strict=True):
                part[:] = np.bincount(bins[chosen], minlength=BINS) / plan.test_rows
        elif 0 < positive.sum() < len(positive):
            context.metrics["auc"] = binary_metrics(positive, z)["auc"]

    def _report(self, totals: Array) -> None:
        context, plan, metrics = self._context, self._context.plan, self._context.metrics
        metrics["objective"] = float(totals[TRAINING_LOSS] + totals[PENALTY])
        if plan.penalty != NO_PENALTY:
            metrics["nonzeros"] = round(totals[-1])
        if plan.curvature:
            metrics["largest_eigenvalue"] = context.objective.curvature_bound * float(totals[MOMENT]) + plan.weight
        if not plan.test_rows:
            return
        metrics["loss"] = float(totals[TEST_LOSS])
        if not (context.objective.classification or context.objective.multiclass):
            metrics["rmse"] = float(np.sqrt(totals[TEST_MARK]))
            return
        metrics["accuracy"] = round(totals[TEST_MARK] * plan.test_rows) / plan.test_rows
        if context.objective.classification and len(plan.active) > 1:
            negatives, positives = np.rint(totals[COUNTS] * plan.test_rows).astype(np.int64).reshape(2, 1, BINS)
            tally = Tally.of_bins(first_edges(BINS), negatives, positives)
            if all(tally.count()):
                metrics["auc"] = binary_metrics(*tally.rows())["auc"]
