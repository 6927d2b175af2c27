"""Tests of `report.html`: a reproduction's page, and whether the paper's claims hold."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from apps.config import ConfigError
from simulations.experiments.expansion import Expansion
from simulations.experiments.reports.claims import CONTRARY, NOISE, SHOWS, UNMEASURED, Judged, judge
from simulations.experiments.reports.figures import draw
from simulations.experiments.reports.tables import rows
from simulations.experiments.reproduce import Reproduction
from tests.refusals import refuses
from tests.simulations.fabricated import Aucs, adding, expanded, not_drawn, recorded
from tests.simulations.pages import Page

BETTER = """
[[claims]]
text = "FedX ends above Local SGD"
better = "FedX"
than = "Local SGD"
"""


def ends(**methods: Sequence[float | None]) -> Aucs:
    """Return the last AUC of a method, by seed."""

    def curve(at: Mapping[str, Any]) -> Sequence[float] | None:
        end = methods[str(at["method"]).replace(" ", "_")][int(at["seed"])]
        return None if end is None else (0.5, end)

    return curve


ENDS = ends(FedX=(0.7, 0.8), Local_SGD=(0.5, 0.5))


def written(expansion: Expansion, out: Path, aucs: Aucs, failed: Mapping[str, str] | None = None) -> str:
    """Return the page of a reproduction with fabricated runs."""
    reproduction = Reproduction(expansion, out)
    with reproduction.open():
        reproduction.records = recorded(expansion, out / "runs", aucs)
        for name, reason in (failed or {}).items():
            reproduction.end(reproduction.runs[name], reason)
        reproduction.write()
    return (out / "report.html").read_text("utf-8")


@pytest.fixture(autouse=True)
def figure(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Leave out drawing, which takes half a second; return a function that restores it."""
    monkeypatch.setattr("simulations.experiments.reproduce.draw", not_drawn)
    return lambda: monkeypatch.setattr("simulations.experiments.reproduce.draw", draw)


# The page.


def test_the_page_of_a_reproduction(tmp_path: Path) -> None:
    said = ('figure = "Table 9"', 'figure = "Table 9"\ndiffers = ["Smaller data."]')
    profile = ("minutes = 2", 'minutes = 2\ndiffers = ["Two rounds."]')
    expansion = expanded(tmp_path, said, profile, adding(BETTER))
    text = written(expansion, tmp_path / "out", ENDS)
    page = Page(text)
    assert page.open == []
    assert page.loaded == []
    for part in ("Two methods on digits", "A paper, Table 9", "2 seeds, from 0", "8 of 8 runs finished", "quick"):
        assert part in page.text
    assert re.findall(r"<li>(.*)</li>", text) == ["Smaller data.", "Two rounds."]
    assert "Interrupted" not in page.text
    assert "Failed runs" not in page.text
    found = page.table("method")
    assert "|".join(found[1]) == "method|setting|last round|last tenth|seeds|paper|difference|in the paper"
    cells = "FedX|K = 2|0.7500 ± 0.0707|0.7500 ± 0.0707|2|0.7500 ± 0.0100|0.0000|Table 9"
    assert "|".join(found[1].values()) == cells
    assert (found[0]["paper"], found[0]["difference"], found[0]["in the paper"]) == ("-", "-", "")
    loss = next(table for table in page.tables if len(table) == 5 and "0.2500" in table[3][2])
    assert loss[3][6] == "-0.2500"  # measured less the paper's; the fabricated loss is half the AUC
    assert "not of profile quick" in page.text
    assert page.text.count("FedX ends above Local SGD: no verdict with 2 seeds in 2 of 2 settings.") == 1
    claimed = page.table("setting")[0]
    told = [claimed[name] for name in ("gap", "95 % interval", "p", "seeds")]
    assert told == ["+0.2500", "-0.3853 to +0.8853", "0.13", "2"]


def test_everything_is_escaped(tmp_path: Path) -> None:
    evil = "<b onload=x>&\\\"'</script>"
    changes = [
        ('title = "Two methods on digits"', f'title = "{evil} T"'),
        ('paper = "A paper"', f'paper = "{evil} P"'),
        ('name = "Local SGD"', f'name = "{evil} M"'),
        ('method = "Local SGD"', f'method = "{evil} M"'),
        ('source = "Table 9, K = 1"', f'source = "{evil} S"'),
        ("minutes = 2", f'minutes = 2\ndiffers = ["{evil} D"]'),
        adding(BETTER.replace("Local SGD", f"{evil} M")),
    ]
    expansion = expanded(tmp_path, *changes)
    plain = evil.replace("\\", "")
    failed = {run.name: f"{plain} R" for run in expansion.runs if run.line.method == "FedX" and run.seed == 1}
    aucs = ends(FedX=(0.7, None), **{f"{plain} M".replace(" ", "_"): (0.5, 0.6)})
    text = written(expansion, tmp_path / "out", aucs, failed)
    page = Page(text)
    assert page.open == []
    assert [f"{plain} {part}" in page.text for part in "TPMSDR"] == [True] * 6
    assert "<b" not in text.replace("<body", "").replace("<button", "")
    assert text.count("</script>") == 1


def test_failed_runs_and_runs_that_were_not_made(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, adding(BETTER))
    text = written(expansion, tmp_path / "none", lambda at: None)
    assert "0 of 8 runs finished" in text
    assert "<svg" not in text
    assert "Versions" not in text
    failed = {"fedx_digits_k-1_seed-1": "the model has\ndiverged"}
    text = written(expansion, tmp_path / "out", ends(FedX=(0.7, None), Local_SGD=(None, None)), failed)
    assert "<li>FedX  digits  K = 1  seed 1: the model has diverged</li>" in text
    assert "Interrupted: 5 runs not made yet." in text
    assert "2 of 8 runs finished" in text
    found = Page(text).table("method")
    assert [row["seeds"] for row in found] == ["1 of 2", "1 of 2", "0 of 2", "0 of 2"]
    assert found[2]["last round"] == "-"
    assert f"FedX ends above Local SGD: {UNMEASURED} in 2 of 2 settings." in text


def test_the_page_is_the_same_bytes_and_its_figure_has_its_colours(tmp_path: Path, figure: Callable[[], None]) -> None:
    figure()
    expansion = expanded(tmp_path, adding(BETTER))
    text, again = (written(expansion, tmp_path / name, ENDS) for name in ("one", "two"))
    assert text == again
    assert str(tmp_path) not in text
    assert not re.search(r"\b20\d\d-\d\d", text)
    svg = text[text.index("<svg") : text.index("</svg>")]
    assert text.index("<h1") < text.index("<svg") < text.index("<h2")
    for colour in ("var(--curve-0)", "var(--curve-3)", "currentColor"):
        assert f"stroke: {colour}" in svg
    assert set(re.findall(r"#[0-9a-f]{6}", svg)) == {"#b0b0b0"}  # the grid
    assert "<metadata" not in svg
    assert "<!--" not in svg


# Claims.


def judged(folder: Path, text: str, aucs: Aucs, profile: str = "quick", seeds: int | None = None) -> list[Judged]:
    expansion = expanded(folder, adding(text), profile=profile, seeds=seeds)
    records = recorded(expansion, folder, aucs)
    return judge(expansion, rows(expansion, records), records)


LIKE = (0.1, 0.3, 0.2, 0.5, 0.4)  # the seeds' effect on both sides


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ((0.02, 0.03, 0.01, 0.02, 0.03), SHOWS),
        ((-0.02, -0.03, -0.01, -0.02, -0.03), CONTRARY),
        ((0.02, 0.03, -0.03, -0.02, 0.03), NOISE),
        ((0.02,) * 5, SHOWS),
        ((0.0,) * 5, NOISE),
        ((0.02, 0.03, 0.01, 0.02, None), "no verdict with 4 seeds"),
        ((0.02, None, None, None, None), "no verdict with 1 seed"),
        ((None,) * 5, UNMEASURED),
        ((0.02, 0.03, 0.01, 0.02, float("nan")), UNMEASURED),
    ],
)
def test_the_verdict(tmp_path: Path, gaps: Sequence[float | None], verdict: str) -> None:
    """Seeds differ by more than the methods, and by the same amounts for both."""
    fedx = [None if gap is None else start + gap for start, gap in zip(LIKE, gaps, strict=True)]
    (claim,) = judged(tmp_path, BETTER, ends(FedX=fedx, Local_SGD=LIKE), seeds=5)
    assert [(one.setting, one.verdict) for one in claim.findings] == [("K = 1", verdict), ("K = 2", verdict)]
    assert claim.sentence == f"FedX ends above Local SGD: {verdict} in 2 of 2 settings."


def test_less_is_better_for_a_loss(tmp_path: Path) -> None:
    text = BETTER.replace("above", "below") + 'metric = "loss"\n'
    (claim,) = judged(tmp_path, text, ends(FedX=LIKE, Local_SGD=[value + 0.3 for value in LIKE]), seeds=5)
    assert claim.metric == "loss"
    gap = claim.findings[0].gap
    assert gap.mean == pytest.approx(0.15)  # the fabricated loss is half the AUC
    assert claim.findings[0].verdict == SHOWS


def test_a_claim_on_coordinates_at_some_of_them(tmp_path: Path) -> None:
    text = """
[[claims]]
text = "K = 2 is ahead"
better = { K = 2 }
than = { K = 1 }
[[claims]]
text = "K = 2 is ahead with FedX"
better = { K = 2 }
than = { K = 1 }
at = { method = "FedX" }
[[claims]]
text = "FedX at 2 is ahead of Local SGD at 1"
better = { method = "FedX", K = 2 }
than = { method = "Local SGD", K = 1 }
"""

    def aucs(at: Mapping[str, Any]) -> Sequence[float]:
        sign = 1 if at["method"] == "FedX" else -1
        return 0.4, 0.5 + sign * 0.1 * at["K"] + 0.001 * at["seed"]

    every, some, both = judged(tmp_path, text, aucs, seeds=5)
    assert [(one.setting, one.verdict) for one in every.findings] == [("FedX", SHOWS), ("Local SGD", CONTRARY)]
    assert every.sentence == "K = 2 is ahead: shows up in 1, does not show up in 1 of 2 settings."
    assert [(one.setting, one.verdict) for one in some.findings] == [("FedX", SHOWS)]
    assert some.sentence == "K = 2 is ahead with FedX: shows up."
    assert (some.better, some.than) == ("K = 2", "K = 1")
    assert [(one.better.mean, one.than.mean) for one in both.findings] == [(pytest.approx(0.702), pytest.approx(0.402))]


def test_a_claim_that_a_profile_leaves_out(tmp_path: Path) -> None:
    text = '[[claims]]\ntext = "K = 2 is ahead"\nbetter = { K = 2 }\nthan = { K = 1 }\n'
    (claim,) = judged(tmp_path, text, ends(FedX=(0.5,), Local_SGD=(0.5,)), profile="smoke")
    assert claim.sentence == "K = 2 is ahead: this profile has no pair of runs for the comparison."


def test_the_claims_in_table_md(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, adding(BETTER))
    out = tmp_path / "out"
    written(expansion, out, ends(FedX=(0.81, 0.89), Local_SGD=(0.5, 0.6)))
    lines = (out / "table.md").read_text().splitlines()
    at = lines.index("What the paper claims:")
    assert lines[at + 2] == "- FedX ends above Local SGD: no verdict with 2 seeds in 2 of 2 settings."
    assert lines[at + 3] == (
        "  - K = 1: auc 0.8500 ± 0.0566 with FedX, 0.5500 ± 0.0707 with Local SGD; "
        "gap +0.3000 (+0.1729 to +0.4271, p = 0.021, 2 seeds); no verdict with 2 seeds"
    )


@pytest.mark.parametrize(
    ("than", "message"),
    [
        ("{ K = 3 }", r"claims\[0\]: than: got .*'K': 3.*better = .*the same coordinates"),
        ('"FedX"', r"claims\[0\]: than: got .*better = .*different values"),
        ('"Local SGD"\nat = { K = 7 }', r"got .*K = 7, which no run has"),
        ('"Local SGD"\nat = { method = "FedX" }', r"claims\[0\]: at: got method"),
        ('"Local SGD"\nmetric = "f1"', r"claims\[0\].metric: got 'f1', allowed: auc, loss"),
    ],
)
def test_a_wrong_claim(tmp_path: Path, than: str, message: str) -> None:
    with refuses(ConfigError, message):
        expanded(tmp_path, adding(BETTER.replace('"Local SGD"', than)))


def test_a_claim_on_runs_that_differ_in_more(tmp_path: Path) -> None:
    axes = ("learning-rate = 0.4", "axes.steps = [{ at = { L = 1 }, local-steps = 1 }]")
    curve = ('"{method} {K}"', '"{method} {setting}"')
    paper = ('metric = "loss"\nat = { K = 1 }', 'metric = "loss"\nat = { L = 1 }')
    with refuses(ConfigError, r"claims\[0\]: got no two runs that differ only in method, allowed: at least one pair"):
        expanded(tmp_path, axes, curve, paper, ("only = { K = [1] }", ""), adding(BETTER))
