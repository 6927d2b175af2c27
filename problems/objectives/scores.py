"""A sample's score in a loss: the model's raw output, or a bounded function of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Score(NamedTuple):
    """A kind of score.

    Attributes:
        value: (n,) raw outputs -> (n,) scores.
        slope: (n,) scores -> (n,) their derivatives in the raw outputs.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


SCORES = {
    "logit": Score(lambda output: output, torch.ones_like),
    "sigmoid": Score(torch.sigmoid, lambda score: score * (1 - score)),
    "tanh": Score(torch.tanh, lambda score: 1 - score**2),
}


def score_of(setting: str, auto: str) -> Score:
    """The score that a setting names: a key of `SCORES`, or "auto", which stands for ``auto``."""
    return SCORES[auto if setting == "auto" else setting]
