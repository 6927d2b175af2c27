"""`report.html`: what it says of a reproduction, and whether the paper's claims show up."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from apps.config import ConfigError
from simulations.claims import CONTRARY, NOISE, ONE_SEED, SHOWS, UNMEASURED, Judged, judge
from simulations.expansion import Expansion
from simulations.figures import draw
from simulations.page import versions
from simulations.report import rows
from simulations.reproduce import Reproduction
from tests.simulations.fabricated import Aucs, adding, expanded, not_drawn, recorded

BETTER = """
[[claims]]
text = "FedX ends above Local SGD"
better = "FedX"
than = "Local SGD"
"""


def ends(**methods: Sequence[float | None]) -> Aucs:
    """The last AUC of a method, a seed after the other."""

    def curve(at: Mapping[str, Any]) -> Sequence[float] | None:
        end = methods[str(at["method"]).replace(" ", "_")][int(at["seed"])]
        return None if end is None else (0.5, end)

    return curve


ENDS = ends(FedX=(0.7, 0.8), Local_SGD=(0.5, 0.5))


def written(expansion: Expansion, out: Path, aucs: Aucs, failed: Mapping[str, str] | None = None) -> str:
    """The page of a reproduction whose runs are fabricated."""
    reproduction = Reproduction(expansion, out)
    with reproduction.open():
        reproduction.records = recorded(expansion, out / "runs", aucs)
        reproduction.failed = dict(failed or {})
        reproduction.write()
    return (out / "report.html").read_text("utf-8")


class Page(HTMLParser):
    """A page's tables (rows of texts), its text without style and script, and the tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)
        self.loaded += [f"{key}={value}" for key, value in attributes if key in ("src", "href", "srcset", "action")]
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def table(self, first: str) -> list[dict[str, str]]:
        """The rows of the first table with such a first column."""
        head, *body = next(table for table in self.tables if table[0][0] == first)
        return [dict(zip(head, row, strict=True)) for row in body]


@pytest.fixture(autouse=True)
def figure(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Nothing is drawn, which takes half a second; returns what has the figure drawn after all."""
    monkeypatch.setattr("simulations.reproduce.draw", not_drawn)
    return lambda: monkeypatch.setattr("simulations.reproduce.draw", draw)


# What the page says.


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
    assert found[1] == {
        "method": "FedX",
        "setting": "K = 2",
        "last round": "0.7500 ± 0.0707",
        "last tenth": "0.7500 ± 0.0707",
        "seeds": "2",
        "paper": "0.7500 ± 0.0100",
        "difference": "0.0000",
        "in the paper": "Table 9",
    }
    assert (found[0]["paper"], found[0]["difference"], found[0]["in the paper"]) == ("-", "-", "")
    loss = next(table for table in page.tables if len(table) == 5 and "0.2500" in table[3][2])
    assert loss[3][6] == "-0.2500"  # measured less the paper's; the fabricated loss is half the AUC
    assert "not of profile quick" in page.text
    assert page.text.count("FedX ends above Local SGD: shows up in 2 of 2 settings.") == 1


def test_without_the_paper_s_numbers_there_are_no_such_columns(tmp_path: Path) -> None:
    expansion = expanded(tmp_path)
    expansion.paper.clear()
    page = Page(written(expansion, tmp_path / "out", ENDS))
    assert list(page.table("method")[0]) == ["method", "setting", "last round", "last tenth", "seeds"]
    for part in ("full experiment", "What the paper claims", "What differs"):
        assert part not in page.text


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


def test_configuration_is_what_all_share_and_what_differs(tmp_path: Path) -> None:
    page = Page(written(expanded(tmp_path), tmp_path / "out", ENDS))
    shared, defaults = (dict(map(tuple, table[1:])) for table in page.tables if table[0] == ["key", "value"])
    assert shared == {
        "engine": "in-process",
        "clients": "2",
        "model": "linear",
        "num-server-rounds": "2",
        "checkpoint-every": "0",
    }
    assert defaults["evaluate-every"] == "1"
    assert {"seed", "output-dir", "run-name", "data-dir"} & {*shared, *defaults} == set()
    own = [table for table in page.tables if table[0][0] == "setting"]
    heads = [dict(zip(table[0], table[2], strict=True)) for table in own]
    assert [(head["setting"], head["strategy"], head["local-steps"], head["learning-rate"]) for head in heads] == [
        ("digits, K = 2", "fedx1", "2", "0.1"),
        ("digits, K = 2", "local-sgd", "2", "0.3"),
    ]
    assert (heads[0]["fedx.gamma"], heads[1].get("fedx.gamma")) == ("0.5", None)


def test_versions_are_those_of_the_runs(tmp_path: Path) -> None:
    records = recorded(expanded(tmp_path), tmp_path, ENDS).values()
    for number, record in enumerate(records):
        record.result["versions"] = {"torch": f"2.{number // 4}", "numpy": "2.0"}
    assert versions(records) == {"torch": "2.0, 2.1", "numpy": "2.0"}


def test_the_page_is_the_same_bytes_and_its_figure_takes_its_colours(
    tmp_path: Path, figure: Callable[[], None]
) -> None:
    figure()
    expansion = expanded(tmp_path, adding(BETTER))
    text, again = (written(expansion, tmp_path / name, ENDS) for name in ("one", "two"))
    assert text == again
    assert str(tmp_path) not in text
    assert not re.search(r"\b20\d\d-\d\d", text)
    svg = text[text.index("<svg") : text.index("</svg>")]
    for colour in ("var(--curve-0)", "var(--curve-3)", "currentColor"):
        assert f"stroke: {colour}" in svg
    assert set(re.findall(r"#[0-9a-f]{6}", svg)) == {"#b0b0b0"}  # the grid
    assert "<metadata" not in svg
    assert "<!--" not in svg


# Claims.


def judged(folder: Path, text: str, aucs: Aucs, profile: str = "quick", seeds: int | None = None) -> list[Judged]:
    expansion = expanded(folder, adding(text), profile=profile, seeds=seeds)
    return judge(expansion, rows(expansion, recorded(expansion, folder, aucs)))


@pytest.mark.parametrize(
    ("fedx", "local", "verdict", "spreads"),
    [
        ((0.8, 0.9), (0.5, 0.6), SHOWS, 0.3 / (0.1 / 2**0.5)),
        ((0.5, 0.6), (0.8, 0.9), CONTRARY, -0.3 / (0.1 / 2**0.5)),
        ((0.6, 0.7), (0.5, 0.6), NOISE, 0.1 / (0.1 / 2**0.5)),
        ((0.5, 0.6), (0.6, 0.7), NOISE, -0.1 / (0.1 / 2**0.5)),
        ((0.75, 0.75), (0.5, 0.5), SHOWS, float("inf")),
        ((0.5, 0.5), (0.75, 0.75), CONTRARY, float("-inf")),
        ((0.5, 0.5), (0.5, 0.5), NOISE, 0.0),
        ((0.8, None), (0.5, 0.6), ONE_SEED, None),
        ((0.8, 0.9), (None, None), UNMEASURED, None),
        ((0.8, None), (float("nan"), None), UNMEASURED, None),
    ],
)
def test_the_verdict(
    tmp_path: Path, fedx: Sequence[float | None], local: Sequence[float | None], verdict: str, spreads: float | None
) -> None:
    (claim,) = judged(tmp_path, BETTER, ends(FedX=fedx, Local_SGD=local))
    assert [(finding.setting, finding.verdict) for finding in claim.findings] == [
        ("K = 1", verdict),
        ("K = 2", verdict),
    ]
    found = claim.findings[0].spreads
    assert found == (spreads if spreads is None else pytest.approx(spreads))
    assert claim.sentence == f"FedX ends above Local SGD: {verdict} in 2 of 2 settings."


def test_spreads_are_pooled_by_their_seeds(tmp_path: Path) -> None:
    aucs = ends(FedX=(0.7, 0.9, 0.8), Local_SGD=(0.5, 0.5, None))
    (claim,) = judged(tmp_path, BETTER, aucs, seeds=3)
    pooled = ((2 * 0.1**2 + 1 * 0) / 3) ** 0.5
    assert claim.findings[0].gap == pytest.approx(0.3)
    assert claim.findings[0].spreads == pytest.approx(0.3 / pooled)


def test_less_is_better_for_a_loss(tmp_path: Path) -> None:
    text = BETTER.replace("above", "below") + 'metric = "loss"\n'
    (claim,) = judged(tmp_path, text, ends(FedX=(0.5, 0.6), Local_SGD=(0.8, 0.9)))
    assert claim.metric == "loss"
    assert claim.findings[0].gap == pytest.approx(0.15)  # the fabricated loss is half the AUC
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

    every, some, both = judged(tmp_path, text, aucs)
    assert [(finding.setting, finding.verdict) for finding in every.findings] == [
        ("FedX", SHOWS),
        ("Local SGD", CONTRARY),
    ]
    assert every.sentence == "K = 2 is ahead: shows up in 1, does not show up in 1 of 2 settings."
    assert [(finding.setting, finding.verdict) for finding in some.findings] == [("FedX", SHOWS)]
    assert some.sentence == "K = 2 is ahead with FedX: shows up."
    assert (some.better, some.than) == ("K = 2", "K = 1")
    assert [(finding.better.mean, finding.than.mean) for finding in both.findings] == [
        (pytest.approx(0.7005), pytest.approx(0.4005))
    ]


def test_a_claim_that_a_profile_leaves_out(tmp_path: Path) -> None:
    text = '[[claims]]\ntext = "K = 2 is ahead"\nbetter = { K = 2 }\nthan = { K = 1 }\n'
    (claim,) = judged(tmp_path, text, ends(FedX=(0.5,), Local_SGD=(0.5,)), profile="smoke")
    assert claim.sentence == "K = 2 is ahead: no two runs of this profile are about it."


def test_the_claims_in_table_md(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, adding(BETTER))
    out = tmp_path / "out"
    written(expansion, out, ends(FedX=(0.8, 0.9), Local_SGD=(0.5, 0.6)))
    lines = (out / "table.md").read_text().splitlines()
    at = lines.index("What the paper claims:")
    assert lines[at + 2] == "- FedX ends above Local SGD: shows up in 2 of 2 settings."
    assert lines[at + 3] == (
        "  - K = 1: auc 0.8500 ± 0.0707 with FedX, 0.5500 ± 0.0707 with Local SGD; "
        "gap +4.2 standard deviations; shows up"
    )


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('better = "FedX"', 'better = "FedY"', r"claims\[0\]: got method = FedY, which no run has"),
        ('than = "Local SGD"', "than = { K = 3 }", r"claims\[0\]: than: got .*'K': 3.*better = .*the same coordinates"),
        ('than = "Local SGD"', 'than = "FedX"', r"claims\[0\]: than: got .*better = .*other values"),
        ('than = "Local SGD"\n', "", r"claims\[0\].than: got nothing"),
        ('than = "Local SGD"', 'than = "Local SGD"\nat = { K = 7 }', r"got .*K = 7, which no run has"),
        ('than = "Local SGD"', 'than = "Local SGD"\nat = { method = "FedX" }', r"claims\[0\]: at: got method"),
        (
            'than = "Local SGD"',
            'than = "Local SGD"\nmetric = "f1"',
            r"claims\[0\].metric: got 'f1', allowed: auc, loss",
        ),
        ('than = "Local SGD"', 'than = "Local SGD"\nmean = 1', r"claims\[0\].mean: got an unknown key"),
    ],
)
def test_a_wrong_claim(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in BETTER
    with pytest.raises(ConfigError, match=message):
        expanded(tmp_path, adding(BETTER.replace(before, after)))


def test_a_claim_on_runs_that_differ_in_more(tmp_path: Path) -> None:
    change = (
        ("learning-rate = 0.3", "axes.steps = [{ at = { L = 1 }, local-steps = 1 }]"),
        ('"{method} {K}"', '"{method} {setting}"'),
    )
    paper = ('metric = "loss"\nat = { K = 1 }', 'metric = "loss"\nat = { L = 1 }')
    with pytest.raises(ConfigError, match=r"claims\[0\]: got no two runs that differ in method alone, allowed: a pair"):
        expanded(tmp_path, *change, paper, ("only = { K = [1] }", ""), adding(BETTER))


# In a browser.

# Looks at the page in a frame of a phone's width, sorts a table, and leaves what it saw in the title.
PROBE = """
<!DOCTYPE html><title></title><body style="margin: 0">
<iframe style="border: 0; width: 390px; height: 844px" srcdoc="{page}"></iframe>
<script>
document.querySelector("iframe").onload = (event) => {{
  const view = event.target.contentDocument, root = view.documentElement;
  const table = [...view.querySelectorAll("table")].find((one) => one.tHead.rows[0].cells[0].textContent === "method");
  const column = [...table.tHead.rows[0].cells].findIndex((head) => head.textContent === "last round");
  const head = table.tHead.rows[0].cells[column];
  const sorted = () => [...table.tBodies[0].rows].map((row) => row.cells[column].textContent);
  const seen = [[head.ariaSort, sorted()]];
  for (const _ of [1, 2]) {{
    head.querySelector("button").focus();
    head.querySelector("button").click();
    seen.push([head.ariaSort, sorted()]);
  }}
  const svg = view.querySelector("svg").getBoundingClientRect();
  document.title = JSON.stringify({{
    width: root.clientWidth,
    content: root.scrollWidth,
    boxes: [...view.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth).length,
    seen,
    focus: view.activeElement.tagName,
    svg: [svg.width, svg.height],
    images: [...view.images].every((image) => image.naturalWidth > 0),
    details: view.querySelectorAll("details:not([open])").length,
  }});
}};
</script>
"""


@pytest.fixture
def chromium(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not found:
        pytest.skip("there is no chromium")

    def run(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
        fixed = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={tmp_path / 'chromium'}",
        )
        command = [found, *fixed, "--enable-logging=stderr", "--virtual-time-budget=5000", *options, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)

    return run


@pytest.mark.slow
def test_a_browser_shows_the_page(
    tmp_path: Path, figure: Callable[[], None], chromium: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    figure()
    expansion = expanded(tmp_path, adding(BETTER))
    out = tmp_path / "out"

    def aucs(at: Mapping[str, Any]) -> Sequence[float] | None:
        return None if (at["method"], at["K"]) == ("FedX", 2) else (0.5, 0.02 * at["K"] + (at["method"] == "FedX"))

    text = written(expansion, out, aucs)
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(page=html.escape(text)))
    done = chromium(probe, "--dump-dom")
    assert "CONSOLE" not in done.stderr
    title = re.search("<title>(.*)</title>", done.stdout)
    assert title is not None
    found = json.loads(html.unescape(title[1]))
    assert (found["width"], found["content"]) == (390, 390)
    assert found["boxes"] > 0  # tables and the figure, each in its own
    first, second, third, last = "1.0200 ± 0.0000", "-", "0.0200 ± 0.0000", "0.0400 ± 0.0000"
    assert found["seen"] == [
        ["none", [first, second, third, last]],
        ["ascending", [third, last, first, second]],
        ["descending", [first, last, third, second]],
    ]
    assert found["focus"] == "BUTTON"
    assert min(found["svg"]) > 100
    assert found["images"]
    assert found["details"] == 4
    for scheme in (0, 1):  # dark, light
        picture = tmp_path / f"{scheme}.png"
        options = (
            f"--screenshot={picture}",
            "--window-size=390,844",
            f"--blink-settings=preferredColorScheme={scheme}",
        )
        done = chromium(out / "report.html", *options)
        assert "CONSOLE" not in done.stderr
    assert (tmp_path / "0.png").read_bytes() != (tmp_path / "1.png").read_bytes()
