"""Detectors of bounded scores with which a run trains badly: the user gets a warning.

The project's losses and metrics treat a network's outputs as logits, so a network that ends in a sigmoid is a mistake.
If the loss itself bounds scores, and all scores are near a bound, gradients vanish and the model stands still.
"""

import re

import numpy as np
import torch
from jaxtyping import Float

from payloads.settings import TrainingSettings
from problems.minimax import AUC_SCORE, SADDLES
from problems.models import FlatModel
from problems.objectives.pairwise import ALL_PAIRWISE, pairwise_score
from problems.objectives.scores import SCORES, Score, score_of

FEWEST_ROWS, FEWEST_ROUNDS = 20, 2
"""A network is suspected if all scores of at least this many rows, in this many evaluated rounds, are in [0, 1]."""
# the scales of the random inputs that test whether a suspected network's scores stay in [0, 1]
_SCALES = (1.0, 30.0, 1000.0)
# Autograd's names of operations that only change the shape, of operations that bound the values, and of linear layers.
_SHAPES = r"(Squeeze|Unsqueeze|View|UnsafeView|Reshape|ReshapeAlias|Alias|Select|Slice|T|Transpose|ToCopy)Backward\d"
_BOUNDED = r"(Sigmoid|Softmax|LogSoftmax|LogSigmoid|Tanh|Hardsigmoid|Hardtanh|Clamp\w*|Relu)Backward\d"
_LINEAR = r"(Addmm|Mm|Mv|Addmv|Bmm|Convolution\w*|Linear)Backward\d"


FLAT = 1e-3
"""A mean slope of the score below this value leads to a warning; the largest slope of the sigmoid is 1/4."""


def score_in(training: TrainingSettings) -> Score:
    """Return the score that a run's loss compares: the network's output, or a bounded function of it."""
    if training.loss in SADDLES:
        return score_of(training.score, AUC_SCORE)
    return pairwise_score(training.score, training.loss) if training.loss in ALL_PAIRWISE else SCORES["logit"]


def slope_of(training: TrainingSettings, outputs: Float[torch.Tensor, "n"]) -> float:
    """Return the mean derivative of rows' scores by the network's outputs; 1 if the loss compares the outputs."""
    score = score_in(training)
    return float(score.slope(score.value(outputs.double())).mean())


class StallWatch:
    """A detector of scores that a bounded score, such as the sigmoid, has made nearly equal."""

    def __init__(self) -> None:
        self._warned = False

    def take(self, mean_slope: float, steps: str) -> str:
        """Return a warning after an evaluation if training stands still, at most once per run; otherwise "".

        Args:
            mean_slope: The mean derivative of the evaluated rows' scores by the network's outputs.
            steps: The names of the keys of step sizes, for the advice.
        """
        if self._warned or mean_slope >= FLAT:
            return ""
        self._warned = True
        return (
            f"nearly all scores are at a bound of the loss's score (mean slope {mean_slope:.1e}), so gradients vanish "
            f"and the model hardly changes: lower {steps}, or set score to 'logit'"
        )


class BoundWatch:
    """A detector of bounded scores over a run's evaluated rounds.

    Args:
        model: The network. Evaluations load the newest weights into it.
        shape: The shape of a sample.
    """

    def __init__(self, model: FlatModel, shape: tuple[int, ...]) -> None:
        self._model, self._shape = model, shape
        self._last: str | None = None
        self._rounds = 0
        self._warned = False

    def take(self, low: float, high: float, rows: int) -> str:
        """Return a warning after an evaluation if the network is bounded, at most once per run; otherwise "".

        Args:
            low: The smallest score.
            high: The largest score.
            rows: The number of scores.
        """
        self._rounds = self._rounds + 1 if 0 <= low < high <= 1 and rows >= FEWEST_ROWS else 0
        if self._warned or low == high:
            return ""
        if self._last is None:
            self._last = _last_operation(self._model, self._shape)
        by_name = re.fullmatch(_BOUNDED, self._last)
        suspected = self._rounds >= FEWEST_ROUNDS and not re.fullmatch(_LINEAR, self._last)
        if not by_name and not (suspected and _stays_in_unit_interval(self._model, self._shape)):
            return ""
        self._warned = True
        name = by_name[1].lower() if by_name else "sigmoid or a similar function"
        return (
            f"the model ends in a {name}: its scores lie between {low:.3g} and {high:.3g} on all {rows:,} evaluated "
            f"rows, but a score is a logit, whose sigmoid is the probability: remove the last {name} from the model"
        )


def _last_operation(model: FlatModel, shape: tuple[int, ...]) -> str:
    """Return autograd's name of a network's last operation that changes values. "" if autograd does not track it."""
    rows = torch.zeros((2, *shape), dtype=model.dtype, device=model.device)
    model.module.eval()
    with torch.enable_grad():
        node = model.module(rows).grad_fn
    while node is not None and re.fullmatch(_SHAPES, node.name()):
        node = node.next_functions[0][0]
    return "" if node is None else str(node.name())


def _stays_in_unit_interval(model: FlatModel, shape: tuple[int, ...]) -> bool:
    """Return whether scores stay in [0, 1] for random inputs of any scale."""
    rows = np.random.default_rng(0).normal(size=(32, *shape))
    for scale in _SCALES:
        scores = model.predict(torch.tensor(scale * rows, dtype=model.dtype, device=model.device))
        if not bool(((scores >= 0) & (scores <= 1)).all()):
            return False
    return True
