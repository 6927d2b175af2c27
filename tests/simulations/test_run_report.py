"""Tests of `report`: finished and unfinished runs on one page."""

from pathlib import Path

import pytest
from flwr.app import Error, Message

from tests.battery.federation import Exchange, federate
from tests.programs import Line
from tests.refusals import states
from tests.simulations.fabricated import fake, refusal
from tests.simulations.pages import Page


def lose(exchange: Exchange) -> Message:
    """Replace partition 1's replies with errors."""
    lost = exchange.partition == 1
    return Message(Error(2, "<b>broke</b>"), reply_to=exchange.message) if lost else exchange.reply


def written(command: Line, *arguments: object) -> tuple[str, Page]:
    """Return the page that the command names, as text and parsed; check that it is complete and loads nothing."""
    code, out, err = command("report", *arguments)
    assert (code, err) == (0, "")
    text = Path(out.strip()).read_text("utf-8")
    page = Page(text)
    assert (page.open, page.loaded) == ([], [])
    return text, page


def test_a_run_with_a_missing_site(command: Line, tmp_path: Path) -> None:
    config = {"strategy": "local-sgd", "num-server-rounds": 2, "learning-rate": 0.2}
    run, _ = federate(tmp_path / "<i>one", config, tamper=lose)
    text, page = written(command, run.path)
    assert (run.path / "report.html").read_text("utf-8") == text
    assert text.index("<h1") < text.index("<table") < text.index("<svg")
    assert "<i>one, finished" in page.text
    assert not {"<i>", "<b>"} & {text[at : at + 3] for at in range(len(text))}
    assert page.table("site") == [{"site": "partition 1", "rounds": "2 of 2", "last reason": "<b>broke</b>"}]
    last, result = {row["metric"]: row["last"] for row in page.table("metric")}, run.result
    assert last == {name: f"{value:.4f}" for name, value in result["metrics"].items()}
    for told in ("in-process", f"{result['bytes_up'] / 1e6:.3f} MB", f"flwr {result['versions']['flwr']}"):
        assert told in page.text
    departing = {row["key"]: (row["value"], row["default"]) for row in page.table("key")}
    assert departing["learning-rate"] == ("0.2", "0.3")
    assert not {"strategy", "seed", "run-name"} & {*departing}
    assert {"metrics.jsonl", "result.json"} < {row["file"] for row in page.table("file")}
    assert written(command, run.path)[0] == text


def test_runs_without_a_result_say_why(command: Line, tmp_path: Path) -> None:
    _, page = written(command, fake(tmp_path / "a", auc=(0.5, float("nan")), clients=None, failure="it\ndiverged <s>"))
    assert "a, failed\nit diverged <s>" in page.text
    assert [*page.table("metric")[0].values()] == ["auc", "nan", "0.5000", "0"]
    text, page = written(command, fake(tmp_path / "b", auc=(), clients=None))
    assert "b, unfinished\nit is still running" in page.text
    assert "<svg" not in text


def test_several_runs(command: Line, tmp_path: Path) -> None:
    paths = [fake(tmp_path / "a", {"positive-label": "<s>"}), fake(tmp_path / "b", clients=None, failure="diverged")]
    text, page = written(command, *paths, "--out", tmp_path / "new" / "all.html")
    assert "<s>" not in text
    assert text.count("<svg") == 1
    assert [(row["run"], row["status"], row["auc"]) for row in page.table("run")] == [
        ("a", "finished", "0.8000"),
        ("b", "failed", "0.8000"),
    ]
    assert ["a", "<s>"] in [row for table in page.tables for row in table]
    assert "b failed: diverged" in page.text
    assert (text.count("<details>"), len(page.tables)) == (2, 7)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["."], ".: got no run (there is no config.toml), allowed: a run directory"),
        (["a", "a"], "--out: got nothing, allowed: a file, since there are several runs; set a file"),
        (["a", "--out", "a"], "/a, which cannot be written (Is a directory), allowed: a writable file"),
    ],
)
def test_wrong_input(
    command: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    fake(tmp_path / "a", auc=(), clients=None)
    assert states(refusal(command, "report", *words), told)
