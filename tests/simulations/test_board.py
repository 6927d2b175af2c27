"""Tests of the answers for a board: headline, comparison, figures, threshold and checklist, on page and card."""

import json
from pathlib import Path
from typing import Any

import pytest

import florilegium
from simulations.results.board import HIDDEN, NO_BASELINES, NO_FIGURES, NO_THRESHOLD, Board
from simulations.results.compare import Comparison
from simulations.results.records import read_run
from simulations.results.report import as_html
from simulations.results.tripod import ITEMS, OPEN
from simulations.scoring.card import write_card
from tests.battery.federation import Run, federate
from tests.simulations.pages import Page

HEART = {"dataset": "heart-disease", "partition": "natural", "strategy": "fedx2", "num-server-rounds": 2}
FULL = {"site-metrics": True, "validation-fraction": 0.2, "threshold-at": "sensitivity=0.9", "calibration": "platt"}


def change(run: Run, **entries: Any) -> None:
    """Replace entries of result.json; None removes an entry."""
    result = {key: value for key, value in {**run.result, **entries}.items() if value is not None}
    (run.path / "result.json").write_text(json.dumps(result), "utf-8")


def compared(auc: float) -> dict[str, Any]:
    """Return the content of a baselines.json."""
    common = {"rows": 9, "positives": 4, "reason": "", "federated_is": "ahead of"}
    gap = {"value": 0.1, "low": 0.05, "high": 0.15}
    names = ["federated", "all rows in one place", "Cleveland alone", "Hungary alone"]
    results = [{**common, "name": name, "metrics": {"auc": auc}, "difference": gap} for name in names]
    results[0]["difference"], results[3] = (
        None,
        {**results[3], "metrics": {}, "reason": "one class", "federated_is": None},
    )
    return {"metric": "auc", "results": results}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run, _ = federate(tmp_path_factory.mktemp("board") / "run", {**HEART, **FULL}, 4)
    (run.path / "baselines.json").write_text(json.dumps(compared(0.75)), "utf-8")
    return run


def test_page_and_card_answer_a_board(full: Run) -> None:
    text = as_html(Comparison.of([full.path]))
    page, card = Page(text), write_card(florilegium.load(full.path))
    assert page.open == []
    board, found = Board.of(read_run(full.path)), full.result["all"]
    assert f"AUC of {found['auc'][0]:.3f} (95 % interval" in board.headline()
    assert "one site alone has 0.750, and all rows in one place have 0.750." in board.headline()
    for expected in (board.headline(), "Decision curve", "Reliability", "VA Long Beach"):
        assert expected in page.text
    assert board.headline() in card
    rows = page.table("trained on the rows of")
    assert [row["verdict"] for row in rows[1:]] == ["together is ahead of it"] * 2 + ["one class"]
    assert rows[1]["95 % interval"] == "+0.0500 to +0.1500"
    counts, confusion = page.table(""), found["confusion"]
    assert [counts[0]["called positive"], counts[1]["called positive"]] == [
        str(confusion[name]) for name in ("true_positives", "false_positives")
    ]
    assert counts[0]["share right"].startswith(f"sensitivity {confusion['true_positives'] / found['positives']:.3f} (")
    items = {row["item"]: row["facts of the run"] for row in page.table("item")}
    assert list(items) == list(ITEMS)
    assert items["17"] == OPEN
    assert "Cleveland, Hungary, Switzerland, VA Long Beach" in items["6a"]
    assert text.count("<svg") == 3 + len(Comparison.of([full.path]).compared)


def test_missing_answers_name_the_key(full: Run, tmp_path: Path) -> None:
    run, _ = federate(tmp_path / "plain", HEART, 4)
    page = Page(as_html(Comparison.of([run.path]))).text
    for expected in (NO_BASELINES, NO_FIGURES, NO_THRESHOLD):
        assert expected.replace("`", "") in page
    board = Board.of(read_run(run.path))
    assert 'Set `calibration = "platt"`' in board.no_probabilities
    assert "95 % interval" not in board.headline()
    everyone = {**full.result["all"], "confusion": None}
    change(full, all=everyone)
    assert HIDDEN in Board.of(read_run(full.path)).threshold()


def test_a_run_of_an_older_release_is_reported(tmp_path: Path) -> None:
    run, _ = federate(tmp_path / "old", {**HEART, "site-metrics": True}, 4)
    sites = [{key: value for key, value in site.items() if key != "name"} for site in run.result["sites"]]
    everyone = {key: value for key, value in run.result["all"].items() if key != "by_score"}
    change(run, sites=sites, all=everyone, site_names=None)
    page, card = Page(as_html(Comparison.of([run.path]))), write_card(florilegium.load(run.path))
    assert [row["site"] for row in page.table("site")] == [*(f"partition {place}" for place in range(4)), "all"]
    assert "| partition 3 |" in card
    assert NO_FIGURES.replace("`", "") in page.text


def test_names_are_escaped(tmp_path: Path) -> None:
    nodes = [{"site-name": "<b>$x$ *|*"}, {}, {}]
    config = {"strategy": "local-sgd", "dataset": "breast-cancer", "num-server-rounds": 1}
    run, _ = federate(tmp_path / "run", config, nodes=nodes)
    page, card = as_html(Comparison.of([run.path])), write_card(florilegium.load(run.path))
    assert "<b>" not in page
    assert r"| \<b\>$x$ \*\|\* |" in card
