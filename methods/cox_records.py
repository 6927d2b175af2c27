"""The records of the Cox model (`methods.cox`), in addition to the records of `methods.newton`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from methods.cox_sums import RiskSums
from methods.newton_records import ExactSums, NewtonQuestion, NewtonState
from payloads.record import FloatArray, IntArray, array


@dataclass(frozen=True, eq=False)
class CoxSums(ExactSums):
    """A client's reply: the sums over its part of each shared risk set.

    Attributes:
        score: The sum of the columns over events.
        at_risk: The moments of the risk set of each grid time (t x p).
        tied: The moments of the events of each grid time (t x p). Empty with Breslow's ties.
        events: The number of events at each grid time.
        rows: The number of rows.
    """

    score: IntArray = array("s", kind="int", combined="total")
    at_risk: IntArray = array("r", kind="int", combined="total")
    tied: IntArray = array("q", kind="int", combined="total")
    events: IntArray = array("t", kind="int", combined="total")
    rows: IntArray = array(1, kind="int", combined="total")

    @classmethod
    def of(cls, sums: RiskSums, rows: int) -> Self:
        """Return the record of sums over a number of rows."""
        at_risk, tied = sums.at_risk.ravel(), sums.tied.ravel()
        return cls.make(score=sums.event_columns, at_risk=at_risk, tied=tied, events=sums.events, rows=[rows])

    @classmethod
    def add(cls, records: Sequence[Self]) -> tuple[RiskSums, dict[str, Any]]:
        """Return the sums over clients, and all totals by field."""
        totals = cls.total(records)
        at_risk = totals["at_risk"].reshape(len(totals["events"]), -1)
        tied = totals["tied"].reshape(-1, at_risk.shape[1])
        return RiskSums(at_risk, tied, totals["events"], totals["score"]), totals


@dataclass(frozen=True, eq=False)
class CoxQuestion(NewtonQuestion):
    """The server's message of each exchange.

    Attributes:
        centre: The vector that is subtracted from all columns, so hazards are of moderate size.
        grid: The number of grid times.
        terms: `methods.cox_sums.residual_terms`, in the exchange of the robust standard errors.
    """

    centre: FloatArray = array("d")
    grid: IntArray = array(1, kind="int")
    terms: FloatArray | None = array("t", "r", optional=True)


@dataclass(frozen=True, eq=False)
class CoxState(NewtonState):
    """The server's state.

    Attributes:
        centre: See `CoxQuestion`.
        hazard: The baseline cumulative hazard at each grid time; None before the end, and with strata.
    """

    centre: FloatArray = array("d")
    hazard: FloatArray | None = array("t", optional=True)

    def ask(self, point: FloatArray, grid: int, terms: FloatArray | None = None) -> CoxQuestion:
        """Return the message with a point."""
        return CoxQuestion(
            point=point, free=self.free, between=np.zeros(len(point)), centre=self.centre, grid=np.array([grid]),
            terms=terms,
        )  # fmt: skip
