"""The threshold of ``predict --threshold``, from which on a row is predicted to be positive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.config import ConfigError
from problems.objectives.classification import SOFTMAX
from problems.score_groups import ScoreGroups
from simulations.scoring.model import TrainedModel
from simulations.scoring.run_files import BEST, LAST

RUN, YOUDEN, SCORE_IS = "run", "youden", "score="
OPTION = "--threshold"
_ALLOWED = f"a probability between 0 and 1, {SCORE_IS}x, {RUN}, or {YOUDEN}"


@dataclass(frozen=True)
class Threshold:
    """A threshold.

    Attributes:
        value: The smallest positive score or, with ``likely``, the smallest positive probability. An array (l,): of
            each finding.
        likely: Whether the value is a probability.
        words: The threshold's origin, for a person.
    """

    value: float | NDArray[np.float64]
    likely: bool
    words: str

    @classmethod
    def parse(cls, text: str, model: TrainedModel) -> Threshold:
        """Return the threshold of an option.

        Args:
            text: The option's value.
            model: The model that scores the rows.

        Raises:
            ConfigError: The value is not allowed, the run has no such threshold for this model, or its loss is the
                softmax.
        """
        if model.exclusive:
            allowed = f"no threshold, since a run with loss {SOFTMAX!r} predicts the most probable class"
            raise ConfigError(OPTION, got=repr(text), allowed=allowed, hint=f"remove {OPTION}")
        if text in (RUN, YOUDEN):
            return cls._of_run(text, model)
        likely = not text.startswith(SCORE_IS)
        try:
            value = float(text.removeprefix(SCORE_IS))
        except ValueError:
            value = math.nan
        if not (0 < value < 1 if likely else math.isfinite(value)):
            raise ConfigError(OPTION, got=repr(text), allowed=_ALLOWED, hint=f"set {OPTION} to a probability")
        return cls(value, likely, f"{'probability' if likely else 'score'} {value:.6g}")

    @classmethod
    def _of_run(cls, text: str, model: TrainedModel) -> Threshold:
        values, words = list[float](), list[str]()
        for entry in model.chosen_entries:
            if text == RUN and (chosen := entry.get("threshold")):
                values.append(float(chosen["score"]))
                words.append(f"score {values[-1]:.6g}, the run's {chosen['at']}")
            elif text == YOUDEN and (groups := entry.get("all", {}).get("by_score")) is not None:
                score, index = ScoreGroups.from_json(groups).youden()
                values.append(score)
                words.append(f"score {score:.6g}, with Youden's index {index:.3f} on the run's {entry['figures_on']}")
        if values and len(values) == len(model.chosen_entries):
            if not model.findings:
                return cls(values[0], False, words[0])
            pairs = zip(model.findings, words, strict=True)
            return cls(np.array(values), False, "; ".join(f"{name}: {text}" for name, text in pairs))
        got = f"{text!r}, but the run has no such threshold for model {model.chosen!r}"
        pair = "threshold-at, such as 'sensitivity=0.9'" if text == RUN else "site-metrics=true"
        described = BEST if "selected" in model.record.result else LAST  # the model of result.json
        remedy = f"train again with {pair}" if model.is_left else f"set --model to {described}"
        hint = f"set {OPTION} to a probability, or {remedy}"
        raise ConfigError(OPTION, got=got, allowed=_ALLOWED, hint=hint)

    def predict(self, scores: NDArray[Any], probabilities: NDArray[Any]) -> NDArray[np.int64]:
        """Return 1 for positive rows, else 0.

        Args:
            scores: The (n,) scores, or (n, l) with l findings.
            probabilities: The probabilities of the positive label, or of the findings, of the same shape.
        """
        return ((probabilities if self.likely else scores.astype(np.float64)) >= self.value).astype(np.int64)
