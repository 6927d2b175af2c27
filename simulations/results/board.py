"""A run's answers for a board: whether joining helped, how good the model is, and how good its threshold is.

All numbers come from result.json and baselines.json. A part that the run cannot answer names the key that would change
this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from apps.evaluation.labels import join_labels
from apps.evaluation.metric_names import OF_TIMES
from apps.evaluation.site_figures import NOT_RECALIBRATED, RECALIBRATION, is_probable
from apps.run_directory.curves import rows_in_words
from payloads.site_names import label_entry
from problems.calibration import read_calibration
from problems.data.spec import NUMBER, parse_names
from problems.intervals import AUC, BRIER, ECE, share_interval
from problems.objectives.number_losses import POISSON
from problems.recalibration import INTERCEPT, MIN_ROWS, RATIO, SLOPE, describe_recalibration, format_figure
from problems.score_groups import ScoreGroups
from simulations.results.output import Table, format_cell, format_metric
from simulations.results.paired import format_signed
from simulations.results.records import RunRecord, read_object

NO_FIGURES = "The run has no counts of scores: set `site-metrics = true`."
NO_LABELS = "The problem has no binary labels, so it has no ROC curve, reliability, decision curve or threshold."
NO_BASELINES = "No model was trained at one site alone or on all rows in one place: run it with `--baselines`."
NO_THRESHOLD = (
    "The run has chosen no threshold: set `threshold-at`, such as `sensitivity=0.9`, and `validation-fraction`."
)
HIDDEN = "The counts at the threshold are withheld, since one of them is smaller than a site's `least-cell`."
FEW_GROUPS = "The rows are too few to be divided into groups of scores, so no curve is drawn: use more test rows."
_NOT_PROBABILITIES = (
    'The scores only rank rows: they are not probabilities under the loss `{}`. Set `calibration = "platt"` and '
    "`validation-fraction` for reliability and decision curve."
)
CONCORDANCE = OF_TIMES[0]
_NAMES = {AUC: "an AUC", CONCORDANCE: "a concordance"}
# threshold probabilities of a short decision table; the nearest known ones are taken
_SHOWN = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)


@dataclass(frozen=True)
class Board:
    """The answers of a finished run.

    Attributes:
        run: The run.
        compared: The content of baselines.json; empty without this file.
    """

    run: RunRecord
    compared: Mapping[str, Any]

    @classmethod
    def of(cls, run: RunRecord) -> Board:
        """Read the answers of a run.

        Args:
            run: The run.
        """
        try:
            compared = read_object(run.path / "baselines.json")
        except (OSError, ValueError):
            compared = {}
        return cls(run, compared)

    @property
    def is_binary(self) -> bool:
        """Whether the run is finished, and each of its rows has one binary label."""
        return AUC in self.run.metrics and bool(self.run.result) and not self.run.config.get("label-columns")

    @property
    def is_timed(self) -> bool:
        """Whether the run is finished, and its rows have times to an event."""
        return CONCORDANCE in self.run.metrics and bool(self.run.result)

    @property
    def metric(self) -> str:
        """The metric that ranks models: the concordance if rows have times, else the AUC."""
        return CONCORDANCE if self.is_timed else AUC

    @property
    def everyone(self) -> Mapping[str, Any]:
        """The figures of all rows; empty without figures."""
        found: Mapping[str, Any] = self.run.result.get("all", {})
        return found

    @property
    def rows_in_words(self) -> str:
        """The rows of the figures."""
        evaluated = "test rows" if "test_metrics" in self.run.result else rows_in_words(self.run.config)
        return str(self.run.result.get("figures_on", evaluated))

    @cached_property
    def groups(self) -> ScoreGroups | None:
        """The rows grouped by score. None: the run does not have them, or there are fewer than two groups."""
        entry = self.everyone.get("by_score")
        groups = None if entry is None else ScoreGroups.from_json(entry)
        return groups if groups is not None and len(groups.scores) > 1 else None

    @property
    def no_curves(self) -> str:
        """The reason why the run has no curves, or ""."""
        if self.groups is not None:
            return ""
        return FEW_GROUPS if "by_score" in self.everyone else NO_FIGURES

    @property
    def no_probabilities(self) -> str:
        """The reason why reliability and decision curve are missing, or ""."""
        if is_probable(self.run.result):
            return self.no_curves
        return _NOT_PROBABILITIES.format(self.run.config.get("loss"))

    @property
    def events(self) -> str:
        """The labels that count as an event."""
        labels = (self.run.result.get("samples") or {}).get("positive_labels", [])
        return f"label{'s' * (len(labels) > 1)} {join_labels(labels)}" if labels else "positive labels"

    @property
    def trained(self) -> tuple[int, int] | None:
        """The numbers of training rows and of positives among them. None: unknown."""
        counted = self.run.result.get("training_rows")
        return counted and (sum(one["rows"] for one in counted), sum(one["positives"] for one in counted))

    def headline(self) -> str:
        """Return the result in one sentence."""
        sites = self.run.facts["clients"] or 1
        start = f"The model of {sites} sites together" if sites > 1 else "The model"
        if self.trained is not None:
            rows, events = self.trained
            start += f", trained on {rows:,} rows with {events:,} events ({self.events}),"
        figure = self.everyone.get(self.metric)
        value = self._interval(figure) if figure else f"{self.run.metrics[self.metric]:.3f}"
        on = f"{self.everyone['rows']:,} {self.rows_in_words}" if "rows" in self.everyone else self.rows_in_words
        text = f"{start} has {_NAMES[self.metric]} of {value} on {on}"
        if values := self._alone():
            many = f"{len(values)} sites alone have" if len(values) > 1 else "one site alone has"
            spread = f"{min(values):.3f} to {max(values):.3f} (mean {np.mean(values):.3f})"
            text += f"; {many} {spread if len(values) > 1 else f'{values[0]:.3f}'}"
        for pooled in self._results()[1:2]:
            if self.metric in pooled["metrics"]:
                text += f", and all rows in one place have {pooled['metrics'][self.metric]:.3f}"
        return f"{text}."

    def _interval(self, figure: Sequence[float]) -> str:
        value, low, high = figure
        return f"{value:.3f} (95 % interval {low:.3f} to {high:.3f})"

    def _results(self) -> Sequence[Mapping[str, Any]]:
        """Return the federated run, all rows in one place and each site alone, in this order; [] without baselines."""
        results: Sequence[Mapping[str, Any]] = self.compared.get("results", [])
        return results

    def _alone(self) -> list[float]:
        return [float(one["metrics"][self.metric]) for one in self._results()[2:] if self.metric in one["metrics"]]

    def comparison(self) -> Table | None:
        """Return the table of each site alone, together and pooled. None: the run has no baselines."""
        if not (results := self._results()):
            return None
        rows = []
        for number, one in enumerate(results):
            difference = one.get("difference") or {}
            low, high = difference.get("low"), difference.get("high")
            words = one.get("federated_is") or one.get("reason", "").split(",")[0]
            rows.append(
                [
                    "together" if number == 0 else one["name"],
                    (format_metric(one["metrics"].get(self.metric)), one["metrics"].get(self.metric)),
                    _format_difference(difference.get("value")),
                    "-" if low is None else f"{_format_difference(low)[0]} to {_format_difference(high)[0]}",
                    f"together is {words} it" if one.get("federated_is") else words or "-",
                    *(one["rows"], one["positives"]),
                ]
            )
        name = AUC.upper() if self.metric == AUC else self.metric
        columns = ["trained on the rows of", name, "together minus it", "95 % interval", "verdict"]
        return Table("all models on the same test rows", [*columns, "training rows", "events"], rows)

    def calibration(self) -> str:
        """Return a sentence about the Brier score and the calibration error; "" without figures."""
        if BRIER not in self.everyone:
            return ""
        brier, ece = (self._interval(self.everyone[name]) for name in (BRIER, ECE))
        return f"Brier score {brier}; expected calibration error {ece}. Both are 0 for a perfect model."

    def recalibration(self) -> str:
        """Return a sentence about the recalibration of all rows; "" without figures."""
        if RECALIBRATION not in self.everyone:
            return ""
        if (entry := self.everyone[RECALIBRATION]) is None:
            return (
                f"All rows have no recalibration: a class has fewer than {MIN_ROWS} rows, or the scores separate them."
            )
        return f"All {self.rows_in_words}: {describe_recalibration(entry)}. A model that fits has slope 1, intercept 0."

    def recalibrations(self) -> Table | None:
        """Return the recalibration of each site. None: no site has one."""
        sites = [site for site in self.run.result.get("sites", []) if site.get(RECALIBRATION)]
        if not sites:
            return None
        names = [name for name in (INTERCEPT, SLOPE, RATIO) if name in sites[0][RECALIBRATION]]
        rows = [
            [
                label_entry(site),
                *((format_figure(site[RECALIBRATION][name]), site[RECALIBRATION][name][0]) for name in names),
            ]
            for site in sites
        ]
        caption = f"recalibration by site, on {self.rows_in_words}, with 95 % intervals"
        if missing := self.run.result.get(NOT_RECALIBRATED):
            caption += f"; {missing['sites']} without, such as with fewer than {missing['fewer_than']} rows of a class"
        return Table(caption, ["rows of", *(name.replace("_", "/") for name in names)], rows)

    def threshold(self) -> str:
        """Return sentences about the threshold, or about its absence."""
        chosen = self.run.result.get("threshold")
        if chosen is None:
            return NO_THRESHOLD
        text = f"Rows with a score of at least {chosen['score']:.6g}"
        if not self.no_probabilities:
            likely = read_calibration(self.run.result.get("calibration"))([chosen["score"]])[0]
            text += f", a probability of {likely:.3f},"
        text += " count as positive"
        if "at" in chosen:
            text += f', by `threshold-at = "{chosen["at"]}"` on validation rows'
        if "sensitivity" in chosen:
            text += f" (sensitivity {chosen['sensitivity']:.3f}, specificity {chosen['specificity']:.3f} there)"
        text += "."
        return text if self.everyone.get("confusion") else f"{text} {HIDDEN}"

    def counts(self) -> Table | None:
        """Return the counts at the threshold. None: no threshold, or withheld counts."""
        if not (found := self.everyone.get("confusion")):
            return None
        true, false = found["true_positives"], found["false_positives"]
        missed, passed = found["false_negatives"], found["true_negatives"]
        rows = [
            ["event", true, missed, _share("sensitivity", true, true + missed)],
            ["no event", false, passed, _share("specificity", passed, false + passed)],
            ["share right", _share("predictive value", true, true + false), _share("", passed, missed + passed), ""],
        ]
        caption = f"counts at the threshold, on {self.rows_in_words}, with 95 % intervals"
        return Table(caption, ["", "called positive", "called negative", "share right"], rows)

    def decisions(self) -> Table | None:
        """Return the net benefit at a few threshold probabilities. None: no decision curve."""
        if self.no_probabilities or self.groups is None:
            return None
        points = np.stack(self.groups.decision(), axis=1)
        near = sorted({int(np.abs(points[:, 0] - shown).argmin()) for shown in _SHOWN}) if len(points) else []
        rows = [[(f"{value:.3f}", float(value)) for value in points[place]] for place in near]
        columns = ["threshold probability", "by the model", "treat all"]
        return Table("net benefit per row; treat none has 0", columns, rows)


def _format_difference(value: float | None) -> tuple[str, float | None]:
    """Return a difference with four decimals, and the number by which it is sorted."""
    return format_signed(value and round(value, 4) + 0.0, 1.0), value


def _share(name: str, hits: int, rows: int) -> str:
    if not rows:
        return "-"
    low, high = share_interval(hits, rows)
    return f"{name} {format_cell(hits / rows, 3)} ({low:.3f} to {high:.3f})".strip()


def describe_findings(run: RunRecord) -> str:
    """Return the result of a run whose rows have several binary labels in one sentence; "" for a run with other labels.

    Args:
        run: The run.
    """
    names = parse_names("label-columns", str(run.config.get("label-columns", "")))
    figures = {name: run.metrics[f"auc_{name}"] for name in names if f"auc_{name}" in run.metrics}
    if not figures:
        return ""
    low, high = min(figures, key=lambda name: figures[name]), max(figures, key=lambda name: figures[name])
    texts = [f"{format_metric(figures[name])} ({name})" for name in (low, high)]
    rows = Board(run, {}).rows_in_words
    mean = format_metric(run.metrics[AUC])
    return f"The model scores {len(figures)} labels. On {rows} its mean AUC is {mean}, from {texts[0]} to {texts[1]}."


def tabulate_findings(run: RunRecord) -> Table | None:
    """Return the figures of each finding. None: a run with other labels, or without figures, thresholds, calibration.

    Args:
        run: The run.
    """
    if not (entries := run.result.get("findings")):
        return None
    rows = []
    for name, entry in entries.items():
        everyone = entry["all"]
        cells: dict[str, Any] = {"finding": name, "rows": everyone["rows"], "positives": everyone["positives"]}
        if AUC in everyone:
            cells[AUC] = everyone[AUC] and (format_figure(everyone[AUC]), everyone[AUC][0])
            of_sites = [site[AUC][0] for site in entry["sites"] if site[AUC]]
            cells["lowest of a site"] = format_metric(min(of_sites)) if of_sites else None
        if "calibration" in entry:
            cells |= {figure: format_metric(entry["calibration"]["after"][figure]) for figure in (BRIER, ECE)}
        if chosen := entry.get("threshold"):
            cells["threshold"] = format_cell(chosen["score"], 4)
            cells |= {rate: format_cell(chosen[rate], 3) for rate in ("sensitivity", "specificity")}
        rows.append(cells)
    on = Board(run, {}).rows_in_words
    caption = f"figures of each finding on {on}; sensitivity and specificity are of validation rows"
    return Table(caption, list(rows[0]), [list(cells.values()) for cells in rows])


def describe_numbers(run: RunRecord) -> str:
    """Return the result of a run whose labels are numbers in one sentence; "" for a run with other labels.

    Args:
        run: The run.
    """
    if run.config.get("label-type") != NUMBER:
        return ""
    found, rows = run.metrics, Board(run, {}).rows_in_words
    mean = "expected count" if run.config.get("loss") == POISSON else "mean"
    column = f"column '{run.config.get('label-column') or 'label'}'"
    if not {"mae", "rmse", "r2"} <= found.keys():
        return f"The model predicts the {mean} of {column}."
    mae, rmse, r2 = (format_metric(found[name]) for name in ("mae", "rmse", "r2"))
    return (
        f"The model predicts the {mean} of {column}. On {rows} its mean absolute error is {mae}, its root mean squared "
        f"error {rmse}, and its R\u00b2 {r2}."
    )
