"""Tests of the documentation's site: every page is in the nav, nothing comes from other hosts, and MkDocs checks the
links."""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import markdown
import pytest
from mkdocs.exceptions import PluginError

from tests.docs.markdown import DOCS, PAGES, PROJECT

CONFIG = PROJECT / "mkdocs.yml"


class Page(HTMLParser):
    """A built page: its anchors, and the files that a browser loads for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value for key, value in attrs if value}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        place = "href" if tag == "link" else "src" if tag in ("script", "img", "iframe", "source") else ""
        self.loaded += [values[place]] if place in values else []


@pytest.fixture(scope="module")
def hooks() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(DOCS / "hooks.py")))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site, built with warnings as errors."""
    site = tmp_path_factory.mktemp("site")
    # not --quiet: MkDocs counts only the warnings that it shows
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(CONFIG), "-d", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "WARNING" not in run.stdout + run.stderr
    return site


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(built.rglob("*.html"))}


def flat(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for inner in entry.values() if isinstance(entry, dict) else [entry]:
            yield from flat(inner) if isinstance(inner, list) else [inner]


def test_a_link_may_be_spread_over_two_lines_but_not_be_in_code(hooks: SimpleNamespace) -> None:
    page = "The [first\nlink](a.md#part) and `[no](b.md)`.\n\n```\n[no](c.md)\n```\n| [in a table](d.md) |"
    assert [*hooks.links(page)] == ["a.md", "d.md"]
    assert "\n".join(block for block, _ in hooks.blocks(page)) == page


@pytest.fixture(scope="module")
def config() -> Any:
    from mkdocs.config import load_config

    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
    return load_config(str(CONFIG))


@pytest.fixture(scope="module")
def rendered(hooks: SimpleNamespace, config: Any) -> Callable[[str], str]:
    """Return the site's HTML for a page's Markdown."""
    reader = markdown.Markdown(extensions=config.markdown_extensions, extension_configs=config.mdx_configs)
    return lambda text: hooks.typeset("a.md", reader.reset().convert(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_every_formula_is_typeset(rendered: Callable[[str], str], page: Path) -> None:
    text = rendered(page.read_text("utf-8"))
    assert text.count('class="arithmatex"') == text.count("<math ")
    assert "$" not in re.sub("<code.*?</code>", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("tex", [r"\nosuch{x}", r"\frac{1}{2", "a^b^c", "a & b", r"\left( x"])
def test_a_formula_that_cannot_be_typeset_ends_the_build(rendered: Callable[[str], str], tex: str) -> None:
    with pytest.raises(PluginError, match=rf"^a\.md: .*{re.escape(tex)}$"):
        rendered(f"Let ${tex}$ be.")


def test_a_notebook_shows_its_cells_and_what_they_left(hooks: SimpleNamespace) -> None:
    shown = [{"text": ["one\n"]}, {"data": {"image/png": "AA==\n", "text/plain": ["<Figure>"]}}]
    cells = [
        {"cell_type": "markdown", "source": ["# A\n", "b"]},
        {"cell_type": "code", "source": ["1 + 1"], "outputs": shown},
    ]
    parts = ["# A\nb", "```python\n1 + 1\n```", "```text\none\n```", "![figure](data:image/png;base64,AA==)\n"]
    assert hooks.notebook(json.dumps({"cells": cells})) == "\n\n".join(parts)


def test_the_dollar_signs_of_a_shell_stay(rendered: Callable[[str], str]) -> None:
    for text in ("`$PWD` and `$HOME`", "from $PWD to $HOME", "```sh\necho $PWD $HOME\n```"):
        assert "<math" not in rendered(text)


def test_a_bar_in_a_table_s_code_is_one(rendered: Callable[[str], str]) -> None:
    assert "<td><code>sex[f|m]</code></td>" in rendered("| key |\n|---|\n| `sex[f\\|m]` |")
    assert "<code>sex[f\\|m]</code>" in rendered("`sex[f\\|m]`")


def test_every_page_is_in_the_nav_once(config: Any) -> None:
    from mkdocs.structure.files import get_files

    files = config.plugins.on_files(get_files(config), config=config)
    assert config.nav
    pages = [file.src_uri for file in files.documentation_pages()]
    assert sorted(flat(config.nav)) == sorted(pages)
    own = {page.relative_to(DOCS).as_posix() for page in PAGES if DOCS in page.parents}
    assert own | {"readme.md", "contributing.md", "api/index.md", "api/methods/fedx.md"} <= {*pages}


@pytest.mark.slow
def test_every_page_and_module_is_built(hooks: SimpleNamespace, built: Path, pages: dict[Path, Page]) -> None:
    for page in [page for page in PAGES if DOCS in page.parents]:
        assert built / page.relative_to(DOCS).with_suffix(".html") in pages, page
    for name in ("readme", "examples", "contributing", "changelog", "api/index"):
        assert built / f"{name}.html" in pages
    assert not (built / "hooks.py").exists()
    for page, source in hooks.modules().items():
        tree = ast.parse((PROJECT / source).read_text("utf-8"))
        public = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        module = hooks.module_name(source)
        expected = {f"{module}.{name}" for name in public if not name.startswith("_")}
        assert expected | {module} <= pages[(built / page).with_suffix(".html")].anchors, source


@pytest.mark.slow
def test_the_site_loads_nothing_from_another_host(pages: dict[Path, Page]) -> None:
    loaded = {link for page in pages.values() for link in page.loaded}
    assert loaded
    assert not [link for link in loaded if urllib.parse.urlsplit(link).netloc]
    styles = [path.parent / link for path, page in pages.items() for link in page.loaded if link.endswith(".css")]
    assert not [path for path in {*styles} if path.exists() and "url(http" in path.read_text("utf-8")]
