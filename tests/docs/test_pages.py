"""Tests that every Python block runs, every table is complete, and every link has a target."""

import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, PAGES, PROJECT, Block, anchors, blocks, links, prose

TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials"]  # separate tests run each of them as a whole
PYTHON = [block for page in PAGES if page not in TUTORIALS for block in blocks(page) if block.language == "python"]


def name(page: Path) -> str:
    return page.relative_to(PROJECT).as_posix()


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_every_python_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    padded = "\n" * (block.line - 1) + block.text  # an error then names the page's own line
    exec(compile(padded, str(block.page), "exec"), {"__name__": "__main__"})
    assert not list(tmp_path.iterdir()), "a block must leave nothing behind"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in links(page):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert not broken


def test_every_folder_s_index_lists_its_pages() -> None:
    for folder in {page.parent for page in PAGES if DOCS in page.parents and (page.parent / "index.md").exists()}:
        listed = {target.partition("#")[0] for target in links(folder / "index.md")}
        assert {page.name for page in folder.glob("*.md") if page.name != "index.md"} <= listed, folder


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tables_are_whole(page: Path) -> None:
    width = 0
    for line in prose(page).splitlines():
        bars = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not (width and bars) or bars == width, f"{name(page)}: {line}"
        width = bars


def test_bash_blocks_are_the_readme_s_two() -> None:
    """The gate runs these two unchanged; all other examples are `sh`."""
    assert [one.page.name for page in PAGES for one in blocks(page) if one.language == "bash"] == ["README.md"] * 2
