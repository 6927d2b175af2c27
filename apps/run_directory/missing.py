"""Summary of missing sites from the lines of metrics.jsonl, and warnings during a run."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from apps.evaluation.metric_names import add_suffix
from payloads.site_names import label_site
from strategies.rounds.errors import advise

# the number of consecutive rounds or evaluations that lead to a warning
RUNNING = 3
# AUC and standardised partial AUCs of scores without information
CHANCE = 0.5
# an AUC that no real question reaches within so few rounds
ANSWERED, FIRST_ROUNDS = 0.999, 3
# limits of a sentence: the sites that it names, and the characters of a site's reason
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
    "the model gives every row the same score (auc is one half): it has learnt nothing, or too large steps have spoilt "
    "it; check whether the features vary, and lower "
)
_EXPLODED = "loss {now:.3g} on the evaluated rows, after {first:.3g} at first: the run diverges; lower "
EXPLODING = 1000.0
"""The factor of the loss, relative to the first loss or to 1, that leads to a warning."""
LASTING = ("constant", "exploded")
"""The kinds of warnings that are also in result.json."""
WITH_MISSING = "finished, with sites missing"


def dropped_sites(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Count the rounds in which each site was dropped, from the lines of metrics.jsonl.

    Returns:
        Partition id (as text) of each dropped site -> its number of ``rounds`` and the last ``reason``.
    """
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        for site, reason in line.get("dropped", {}).items():
            found[site] = {"rounds": found.get(site, {"rounds": 0})["rounds"] + 1, "reason": reason}
    return {site: found[site] for site in sorted(found, key=int)}


def in_words(dropped: Mapping[str, Mapping[str, Any]], rounds: int, names: Mapping[str, str] | None = None) -> str:
    """Return the dropped sites in words, with the number of rounds and the reason.

    Args:
        dropped: The dropped sites, from `dropped_sites`.
        rounds: The number of rounds of the run.
        names: The names of sites, by partition id as text.
    """
    named = [
        f"{label_site(site, names)} in {one['rounds']} of {rounds} rounds ({_cut(one['reason'])})"
        for site, one in dropped.items()
    ]
    return "; ".join(named[:_NAMED]) + (f"; and {len(named) - _NAMED} more" if len(named) > _NAMED else "")


def _cut(reason: str) -> str:
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."


class Watch:
    """A watch over a run's rounds, which returns warnings for the user, each only once.

    Args:
        view: The view whose AUC the run shows. "" is the model itself.
        steps: The keys of step sizes, in words.

    Attributes:
        names: The names of sites, by partition id as text.
        lasting: The warnings of `LASTING` kinds so far, with their rounds.
    """

    def __init__(self, view: str, steps: str) -> None:
        self._view = view
        self._steps = steps
        self.names: Mapping[str, str] = {}
        # site -> consecutive drops in rounds that asked it
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
        found = [*self._sites(line["dropped"], set(map(str, answered))), *self._scores(line)]
        new = [text for what, text in found if what not in self._said]
        lasting = [text for what, text in found if what in LASTING and what not in self._said]
        self.lasting += [f"round {line['round']}: {text}" for text in lasting]
        self._said |= {what for what, _ in found}
        return new

    def _sites(self, dropped: Mapping[str, str], answered: set[str]) -> Iterator[tuple[str, str]]:
        kept = {site: count for site, count in self._dropped.items() if site not in answered}
        self._dropped = kept | {site: self._dropped.get(site, 0) + 1 for site in dropped}
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
