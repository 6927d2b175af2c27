"""Readers of our Markdown: fenced blocks, tables, sections, links and anchors."""

import re
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
OTHER = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "examples/README.md")
PAGES = [*(PROJECT / name for name in OTHER), *sorted(DOCS.glob("**/*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the number of its first line of content, its language and its text."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(PROJECT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found: list[Block] = []
    start, language, indent = 0, "", ""
    lines = page.read_text("utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        fence = re.fullmatch(r"(\s*)```(\S*)\s*", line)
        if fence and not start:
            start, indent, language = number + 1, fence[1], fence[2]
        elif fence:
            text = "\n".join(content.removeprefix(indent) for content in lines[start - 1 : number - 1])
            found.append(Block(page, start, language, text + "\n"))
            start = 0
    assert not start, f"{page}: the block that starts at line {start} does not end"
    return found


def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return re.sub(r"^\s*```.*?^\s*```\s*$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def section(page: Path, title: str) -> str:
    """Return the text under a heading, up to the next heading of the same or a higher level."""
    text = prose(page)
    heading = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert heading, f"{page}: no section {title!r}"
    rest = text[heading.end() :]
    end = re.search(rf"^#{{1,{len(heading[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[list[str]]:
    """Return the cells of all table rows except the headings and their rules; an escaped bar is part of a cell."""
    found: list[list[str]] = []
    lines = [line.strip() for line in text.splitlines()]
    for above, line, below in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        rule = r"\|(?:\s*:?-+:?\s*\|)+"
        if not line.startswith("|") or re.fullmatch(rule, line) or re.fullmatch(rule, below):
            continue
        assert above.startswith("|"), f"a table without a heading: {line}"
        found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def codes(cell: str) -> list[str]:
    """Return the texts in backticks of a cell."""
    return re.findall(r"`([^`]+)`", cell)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> list[str]:
    """Return the targets of a page's links."""
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(page))
