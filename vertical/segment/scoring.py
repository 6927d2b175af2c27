"""Scoring of new rows: every active party computes the predictions z from the masked sums of all parties' partials.

Nothing is trained, and no labels are used. The rows are divided into pieces, so frames stay short.
"""

import numpy as np

from vertical.masking.pairwise import RING
from vertical.problem.objectives import Array
from vertical.segment.shared import SegmentContext, SegmentPhase
from vertical.transport.frames import Kind, PartyError


class Scoring(SegmentPhase):
    """The scoring of the rows piece by piece. `begin` starts the next piece.

    Raises:
        PartyError: This party's partials are too large for masked sums. The text reveals nothing about a row.
    """

    def __init__(self, context: SegmentContext) -> None:
        self._context = context
        self._partials = context.block.partials().reshape(-1, context.plan.width)
        limit = RING.limit_for(context.plan.parties)
        beyond = int((~(np.abs(self._partials) < limit)).any(axis=1).sum())
        if beyond:
            reason = f"its columns add more than {limit:g} to the score of {beyond:,} of {len(self._partials):,} rows"
            words = "the limit of masked sums: check that its columns have the scale of the training columns"
            raise PartyError(
                context.me, f"{reason}, {words}", f"its columns add more than {limit:g} to a score, {words}"
            )
        if context.active_index >= 0:
            context.scores = context.predict(np.zeros(self._partials.size))
        self._number = -1
        # an active party's own partials of the piece, until the sum of the other parties' partials has arrived
        self._own: Array | None = None

    def begin(self) -> None:
        context = self._context
        self._number += 1
        values = self._partials[context.agenda.pieces[self._number]].ravel()
        self._own = context.share(Kind.SCORES, dict.fromkeys(range(len(context.plan.active)), values))
        if self._own is None:
            context.done()
        else:
            self.process_sums()

    def process_sums(self) -> None:
        context = self._context
        z = context.total(Kind.SCORES, self._own)
        if z is not None and context.scores is not None:
            self._own = None
            context.scores[context.agenda.pieces[self._number]] = context.predict(z)
            context.done()
