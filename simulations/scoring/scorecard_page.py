"""The page of a scorecard, for a person who scores an applicant by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from apps.evaluation.labels import join_labels
from problems.calibration import IDENTITY
from simulations.results.board import Board
from simulations.results.output import Table, format_cell
from simulations.results.page import render
from simulations.scoring.model import TrainedModel
from simulations.scoring.scorecard import ColumnPoints, Item, Scorecard, band_edges

NAME = "scorecard.html"


def write_page(card: Scorecard, trained: TrainedModel) -> str:
    """Return the text of the page. The same run and scale give the same text.

    Args:
        card: The card.
        trained: The model of the card.
    """
    positive = join_labels(trained.sample_format.positive_labels)
    example = [(block, _example(block)) for block in card.blocks]
    board = Board.of(trained.record)
    return render(
        Path(__file__).with_name("scorecard.html"),
        "",
        drawn="",
        title=f"Scorecard of {trained.record.name}",
        subtitle=f"model {trained.chosen!r}, {trained.config.run.model}, of round {trained.server_round}",
        lead=_lead(card),
        notes=[
            _explain_scale(card, positive),
            _explain_odds(card, trained, positive),
            _explain_rounding(card),
            *_explain_threshold(card, trained, positive),
            *([board.headline()] if board.is_binary and trained.is_left else []),
        ],
        blocks=[_describe(block) for block in card.blocks],
        bands=_bands(card, positive),
        example=_sum(card, example),
        outcome=_outcome(card, example, positive),
        start=card.start,
    )


def _lead(card: Scorecard) -> str:
    rest = "" if all(block.is_table for block in card.blocks) else ", or points for each unit of a number"
    return (
        f"Start with {card.start} points. For each column add the points of the applicant's value{rest}. "
        "The sum is the score."
    )


def _explain_scale(card: Scorecard, positive: str) -> str:
    base, odds, double = map(_number, (card.scale.base_points, card.scale.base_odds, card.scale.to_double))
    return f"{base} points mean odds of {odds} to 1 against the label {positive}. {double} points more double the odds."


def _explain_odds(card: Scorecard, trained: TrainedModel, positive: str) -> str:
    if card.calibration == IDENTITY:
        return f"The odds come from the model's own probabilities of {positive}: the run has no calibration."
    return f"The odds come from the probabilities of {positive} after calibration on the run's validation rows."


def _explain_rounding(card: Scorecard) -> str:
    error = card.max_error
    percent = 100 * (2 ** (error / card.scale.to_double) - 1)
    return (
        f"The points are rounded: a score differs from the exact score by at most {error:.1f} points, which changes "
        f"the odds by at most {percent:.0f} %."
    )


def _explain_threshold(card: Scorecard, trained: TrainedModel, positive: str) -> list[str]:
    """Return a sentence about the run's threshold, in a list; an empty list without a threshold for this model."""
    chosen = trained.record.result.get("threshold") if trained.is_left else None
    if not chosen:
        return []
    points = math.floor(card.convert(float(chosen["score"])))
    by = f", chosen by {chosen['at']} on validation rows" if "at" in chosen else ""
    return [f"With {points} points or fewer {positive} is predicted: the run's threshold{by}."]


def _describe(block: ColumnPoints) -> dict[str, Any]:
    """Return a column's table: the column's name, and the label and the points of each value."""
    return {
        "name": block.column.name,
        "rows": [(item.value.label, _points(item)) for item in block.items],
    }


def _bands(card: Scorecard, positive: str) -> Table:
    rows = []
    for points in band_edges(card):
        odds = card.scale.odds(points)
        shown = f"{_number(odds)} : 1" if odds >= 1 else f"1 : {_number(1 / odds)}"
        rows.append([_number(points), shown, f"{100 * card.scale.probability(points):.2f} %"])
    return Table("", ["score", "odds", f"probability of {positive}"], rows)


def _example(block: ColumnPoints) -> tuple[Item, float]:
    """Return the value of a made-up applicant in a column, and how many units of it the applicant has."""
    items = [item for item in block.trained if item.value.label != "missing"] or list(block.items)
    if block.is_table:
        return sorted(items, key=lambda item: item.exact)[len(items) // 2], 1.0
    feature = block.column.feature
    return items[0], float(np.round(feature.mean, 2 if abs(feature.mean) < 100 else 0))


def _sum(card: Scorecard, example: list[tuple[ColumnPoints, tuple[Item, float]]]) -> dict[str, Any]:
    """Return the example's table, with the start and the total."""
    rows = [("start", str(card.start))]
    for block, (item, units) in example:
        label = item.value.label if block.is_table else f"{_number(units)} x {_points(item)}"
        rows.append((f"{block.column.name}: {label}", _number(round(item.points * units, 1))))
    return {"name": "a made-up applicant", "rows": [*rows, ("score", str(_total(card, example)))]}


def _total(card: Scorecard, example: list[tuple[ColumnPoints, tuple[Item, float]]]) -> int:
    return int(np.rint(card.start + sum(item.points * units for _, (item, units) in example)))


def _outcome(card: Scorecard, example: list[tuple[ColumnPoints, tuple[Item, float]]], positive: str) -> str:
    exact = card.exact_start + sum(item.exact * units for _, (item, units) in example)
    total = _total(card, example)
    shown, true = (f"{100 * card.scale.probability(points):.2f} %" for points in (total, exact))
    return (
        f"The score {total} means a probability of {positive} of {shown}. The exact score of the same applicant is "
        f"{exact:.2f}, with the probability {true}."
    )


def _points(item: Item) -> str:
    return str(item.points) if isinstance(item.points, int) else f"{item.points:.4g}"


def _number(value: float) -> str:
    """Return a number with at most four significant digits, or as a whole number."""
    return str(round(value)) if float(value).is_integer() or abs(value) >= 1000 else format_cell(float(f"{value:.4g}"))
