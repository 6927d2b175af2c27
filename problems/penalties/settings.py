"""What describes a penalty, as run-config keys do."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel, Field

PenaltyName = Literal[
    "none", "l1", "l2", "elastic-net", "group-lasso", "nuclear-norm", "box", "l2-ball", "simplex", "nonnegative"
]
PENALTIES: tuple[PenaltyName, ...] = get_args(PenaltyName)


class PenaltySettings(BaseModel, frozen=True, extra="forbid"):
    """What is minimised beside the loss: the penalty, and ridge/2 ||x||^2, which belongs to the smooth part f."""

    penalty: PenaltyName = Field("l1", description=f"one of {', '.join(PENALTIES)}")
    weight: float = Field(1e-4, ge=0, description="the penalty's factor, a number >= 0 (no effect on constraint sets)")
    ridge: float = Field(0.01, ge=0, description="factor of the smooth term ||x||^2 / 2, a number >= 0")
    parameters: str = Field(
        "auto",
        min_length=1,
        description="what penalty and ridge act on: auto (all but biases), all, or names with commas",
    )
    ratio: float = Field(0.5, ge=0, le=1, description="share of l1 in elastic-net, in [0, 1]")
    groups: Literal["rows", "columns"] = Field(
        "rows", description="group-lasso's groups: rows (the weights of a unit) or columns (those of an input)"
    )
    lower: float | Literal["none"] = Field("none", description="lower bound of box, a number, or none")
    upper: float | Literal["none"] = Field("none", description="upper bound of box, a number >= lower, or none")
    radius: float = Field(1.0, gt=0, description="radius of l2-ball, sum of simplex, a number > 0")
