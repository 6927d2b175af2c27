"""Warnings about a run, from the lines of metrics.jsonl: sites that drop out, and metrics that indicate a mistake."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from apps.evaluation.metric_names import add_suffix
from payloads.site_names import label_site
from strategies.rounds.errors import advise

# the number of consecutive rounds or evaluations with the same problem that lead to a warning
RUNNING = 3
# AUC and standardised partial AUCs of scores without information
CHANCE = 0.5
# an AUC that a model of real data does not reach within so few rounds
ANSWERED, FIRST_ROUNDS = 0.999, 3
# the largest number of sites in a sentence, and the largest number of characters of a site's reason
_NAMED, _LONGEST = 8, 160
_BELOW = (
    f"auc has been below one half in {RUNNING} evaluations in a row: check that positive-label is the intended label "
    "at all sites; else lower "
)
_ANSWERED = (
    f"auc is above {ANSWERED} after so few rounds: check whether a column contains the answer, or whether training "
    "rows occur among the test rows"
)
_CONSTANT = (
    "the model gives every row the same score (auc is one half), as before training or after too large steps: check "
    "whether the features vary, and lower "
)
_EXPLODED = "loss {now:.3g} on the evaluated rows, after {first:.3g} at first: the run diverges; lower "
EXPLODING = 1000.0
"""A loss of more than this factor times the first loss, or times 1 if that is larger, leads to a warning."""
LASTING = ("constant", "exploded")
"""The kinds of warnings that are also in result.json."""
WITH_MISSING = "finished, with sites missing"


def dropped_sites(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Count the rounds in which each site was dropped, from the lines of metrics.jsonl.

    Returns:
        Partition id (as text) of each dropped site -> its number of ``rounds`` and the last ``reason``.
    """
    sites: dict[str, dict[str, Any]] = {}
    for line in lines:
        for site, reason in line.get("dropped", {}).items():
            sites[site] = {"rounds": sites.get(site, {"rounds": 0})["rounds"] + 1, "reason": reason}
    return {site: sites[site] for site in sorted(sites, key=int)}


def in_words(dropped: Mapping[str, Mapping[str, Any]], rounds: int, names: Mapping[str, str] | None = None) -> str:
    """Describe the dropped sites, with the number of rounds and the last reason of each.

    Args:
        dropped: The dropped sites, from `dropped_sites`.
        rounds: The number of rounds of the run.
        names: The names of sites, by partition id as text.
    """
    texts = [
        f"{label_site(site, names)} in {entry['rounds']} of {rounds} rounds ({_cut(entry['reason'])})"
        for site, entry in dropped.items()
    ]
    return "; ".join(texts[:_NAMED]) + (f"; and {len(texts) - _NAMED} more" if len(texts) > _NAMED else "")


def _cut(reason: str) -> str:
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."


class Watch:
    """The source of warnings about a run's rounds for the user. It gives each warning only once.

    Args:
        view: The view whose AUC the run shows. "" is the model itself.
        steps: The names of the keys of step sizes, for the advice.

    Attributes:
        names: The names of sites, by partition id as text.
        lasting: The warnings of `LASTING` kinds so far, with their rounds.
    """

    def __init__(self, view: str, steps: str) -> None:
        self._view = view
        self._steps = steps
        self.names: Mapping[str, str] = {}
        # site -> the number of consecutive rounds that asked the site and dropped it
        self._dropped: dict[str, int] = {}
        self._below = 0  # consecutive evaluations with an AUC below 1/2
        self._first: float | None = None  # the first loss
        self._said: set[str] = set()
        self.lasting: list[str] = []

    def take(self, line: Mapping[str, Any], answered: Iterable[int]) -> list[str]:
        """Return the new warnings after a round.

        Args:
            line: The round's line of metrics.jsonl.
            answered: The partition ids whose replies were used. Other sites were not asked, unless they were dropped.
        """
        warnings = dict([*self._sites(line["dropped"], set(map(str, answered))), *self._scores(line)])
        new = {kind: text for kind, text in warnings.items() if kind not in self._said}
        self.lasting += [f"round {line['round']}: {text}" for kind, text in new.items() if kind in LASTING]
        self._said |= new.keys()
        return list(new.values())

    def _sites(self, dropped: Mapping[str, str], answered: set[str]) -> Iterator[tuple[str, str]]:
        without_answer = {site: count for site, count in self._dropped.items() if site not in answered}
        self._dropped = without_answer | {site: self._dropped.get(site, 0) + 1 for site in dropped}
        for site, reason in dropped.items():
            if self._dropped[site] >= RUNNING:
                advice = advise(reason, self._steps)
                label = label_site(site, self.names)
                yield site, f"{label} was dropped in {RUNNING} rounds in a row ({_cut(reason)}): {advice}"

    def _scores(self, line: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if (loss := line.get(add_suffix("loss", self._view))) is not None:
            self._first = loss if self._first is None else self._first
            if abs(loss) > EXPLODING * max(1.0, abs(self._first)):
                yield "exploded", _EXPLODED.format(now=loss, first=self._first) + self._steps
        auc = line.get(add_suffix("auc", self._view))
        if auc is None or not line["round"]:
            return
        if line["round"] <= FIRST_ROUNDS and auc > ANSWERED:
            yield "answered", _ANSWERED
        self._below = self._below + 1 if auc < CHANCE else 0
        if self._below >= RUNNING:
            yield "below", _BELOW + self._steps
        # Equal scores are ties: their ROC curve is the diagonal, so the partial areas are at chance level too.
        areas = [line.get(add_suffix(name, self._view), 0.0) for name in ("pauc_fpr30", "pauc_fpr50")]
        if all(math.isclose(area, CHANCE) for area in (auc, *areas)):
            yield "constant", _CONSTANT + self._steps
