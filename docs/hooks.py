"""Hooks of MkDocs: the API reference's pages, nav entries of whole folders, links that lead out of docs/, and formulas.

On a git host the pages' links to sources, such as ``../methods/fedx.py``, lead to the file. On the site they lead to
the module's page in the API reference, to the page made of a Markdown file above docs/ or of a notebook, or else to one
that shows the file. Formulas, TeX between dollar signs, become MathML, which browsers typeset without scripts or fonts
of the site.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PROJECT = Path(__file__).resolve().parents[1]
# from the lowest floor up
PACKAGES = ("payloads", "privacy", "problems", "methods", "vertical", "strategies", "clients", "apps", "simulations")
NOTEBOOKS = sorted((PROJECT / "examples" / "notebooks").glob("*.ipynb"))
OTHER_PAGES = {  # Markdown files and notebooks that are not in docs/
    "README.md": "readme.md",
    "examples/README.md": "examples.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    **{f"examples/notebooks/{path.name}": f"notebooks/{path.stem}.md" for path in NOTEBOOKS},
}
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".sh": "sh"}

LINK = re.compile(r"`[^`]*`|(\[[^\]]*\]\()([^)\s]+)(\))")  # or a text in backticks, which has no links
ABSOLUTE = re.compile(r"[a-z]+:|/")
FENCE = re.compile(r"\s*(```+|~~~+)")
FORMULA = re.compile(r'(<(span|div) class="arithmatex">)(.*?)(</\2>)', re.DOTALL)  # as pymdownx.arithmatex leaves it
CELL = re.compile("<td.*?</td>", re.DOTALL)

site: Site  # of the build that is going on


def anchor(title: str, separator: str) -> str:
    """A heading's anchor, as git hosts make it: spaces are not merged."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def modules() -> dict[str, str]:
    """The public modules: page of the site -> file of the project; a package's page is its folder's index."""
    pages = {}
    for package in PACKAGES:
        for path in sorted((PROJECT / package).rglob("*.py")):
            relative = path.relative_to(PROJECT)
            if path.name == "__init__.py":
                pages[f"api/{relative.parent.as_posix()}/index.md"] = relative.as_posix()
            elif not any(part.startswith("_") for part in relative.parts):
                pages[f"api/{relative.with_suffix('').as_posix()}.md"] = relative.as_posix()
    return pages


def module_name(source: str) -> str:
    """``methods/fedx.py`` -> ``methods.fedx``; ``problems/data/__init__.py`` -> ``problems.data``."""
    return source.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def first_paragraph(source: str) -> str:
    """The first paragraph of a module's docstring, on one line, as a cell of a table."""
    text = (PROJECT / source).read_text("utf-8")
    docstring = re.match(r'"""(.+?)(?:\n\n|""")', text, re.DOTALL)
    return " ".join(docstring[1].split()).replace("|", "\\|") if docstring else ""


def reference_index(pages: dict[str, str]) -> str:
    """The API reference's first page: a table of modules for each package."""
    parts = [
        "# API reference\n",
        "The modules of the seven packages. A name that begins with an underscore is private.\n",
    ]
    for package in PACKAGES:
        parts.append(
            f"## {package}\n\n{first_paragraph(f'{package}/__init__.py')}\n\n| module | what it has |\n|---|---|"
        )
        for page, source in pages.items():
            if source.startswith(f"{package}/") and source != f"{package}/__init__.py":
                parts.append(f"| [`{module_name(source)}`]({page.removeprefix('api/')}) | {first_paragraph(source)} |")
        parts.append("")
    return "\n".join(parts)


def blocks(markdown: str) -> Iterator[tuple[str, bool]]:
    """The paragraphs and the other lines of a page, each with whether it is prose, not part of a fenced block."""
    fence, paragraph = "", list[str]()
    for line in markdown.split("\n"):
        mark = FENCE.match(line)
        if line.strip() and not fence and not mark:
            paragraph.append(line)
            continue
        if paragraph:
            yield "\n".join(paragraph), True
            paragraph = []
        yield line, False
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
    if paragraph:
        yield "\n".join(paragraph), True


def links(markdown: str) -> Iterator[str]:
    """The relative links of a page, without their anchors."""
    for block, is_prose in blocks(markdown):
        for match in LINK.finditer(block) if is_prose else ():
            path = (match[2] or "").partition("#")[0]
            if path and not ABSOLUTE.match(path):
                yield path


class Site:
    """Which file each page shows. A page's path is relative to the site, a file's to the project's folder."""

    def __init__(self, written: Iterable[str]) -> None:
        self.files = {page: f"docs/{page}" for page in written}
        self.files |= {page: file for file, page in OTHER_PAGES.items()}
        self.made = modules()
        self.titles: dict[str, str] = {}  # of the pages that nav gives one
        shown = self.pages
        for page in [*self.files]:
            for link in links(self.text(self.files[page])):
                file = self.target(page, link)
                if (PROJECT / file).is_file() and not file.startswith("docs/") and file not in shown:
                    self.made[f"files/{file}.md"] = file
        for folder in {posixpath.dirname(page) for page in self.files} - {""}:
            if f"{folder}/index.md" not in self.files:
                self.made[f"{folder}/index.md"] = f"docs/{folder}"

    @property
    def pages(self) -> dict[str, str]:
        """The page of each file, and of each folder that has an index."""
        pages = {file: page for page, file in (self.files | self.made).items()}
        indices = [(file, page) for file, page in pages.items() if page.endswith("/index.md") and Path(file).suffix]
        return pages | {posixpath.dirname(file): page for file, page in indices}

    def text(self, file: str) -> str:
        text = (PROJECT / file).read_text("utf-8")
        return notebook(text) if file.endswith(".ipynb") else text

    def target(self, page: str, link: str) -> str:
        """The file or folder that a link of the page names."""
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.files[page]), link))

    def content(self, page: str) -> str:
        """The Markdown of a page that no file of docs/ is."""
        if page in self.files:
            return self.text(self.files[page])
        file = self.made[page]
        if page.startswith("api/"):
            return f"::: {module_name(file)}\n"
        if page.endswith("/index.md"):
            return self.contents(posixpath.dirname(page))
        return f"# {file}\n\n`````{LANGUAGES.get(Path(file).suffix, 'text')}\n{self.text(file).rstrip()}\n`````\n"

    def contents(self, folder: str) -> str:
        """The index of a folder that has none of its own: its pages' titles."""
        inside = sorted(page for page in self.files if posixpath.dirname(page) == folder)
        items = [f"- [{self.title(page)}]({posixpath.basename(page)})" for page in inside]
        return "\n".join([f"# {folder.capitalize()}\n", *items, ""])

    def title(self, page: str) -> str:
        """What nav calls the page, or else its heading."""
        heading = re.search("^# (.+)$", self.content(page), re.MULTILINE)
        return self.titles.get(page) or (heading[1] if heading else page)

    def rewritten(self, page: str, markdown: str) -> str:
        """The page with its links to files turned into links to the pages that show them.

        A link whose text is the name of a Markdown file gets the page's title instead.
        """
        pages = self.pages

        def replace(match: re.Match[str]) -> str:
            path, mark, heading = (match[2] or "").partition("#")
            if not path or ABSOLUTE.match(path):
                return match[0]
            file = self.target(page, path)
            found = pages.get(file) or file.removeprefix("docs/")
            if found == file:
                return match[0]  # MkDocs warns of what leads nowhere
            named = path.endswith(".md") and match[1][1:-2] in (path, posixpath.basename(path))
            text = f"[{self.title(found)}](" if named else match[1]
            return f"{text}{posixpath.relpath(found, posixpath.dirname(page))}{mark}{heading}{match[3]}"

        return "\n".join(LINK.sub(replace, block) if is_prose else block for block, is_prose in blocks(markdown))


def notebook(text: str) -> str:
    """A notebook as Markdown: its cells, and what it was saved with below them."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", [])})
            picture = "".join(data.get("image/png", "")).replace("\n", "")
            words = "".join(data["text/plain"]).rstrip()
            parts.append(f"![figure](data:image/png;base64,{picture})" if picture else f"```text\n{words}\n```")
    return "\n\n".join(parts) + "\n"


def mathml(tex: str, display: str) -> str:
    """A formula as MathML; display is "inline" or "block".

    Raises:
        ValueError: It cannot be typeset. latex2mathml itself closes a brace and shows a command that it does not know.
    """
    braces = re.sub(r"\\[{}]", "", tex)
    if braces.count("{") != braces.count("}"):
        raise ValueError("a brace is missing")
    bars = re.sub(r"\\l([vV]ert)(?![a-zA-Z])", r"\\left\\\1", tex)  # as a pair, without an operator's spaces
    bars = re.sub(r"\\r([vV]ert)(?![a-zA-Z])", r"\\right\\\1", bars)
    try:
        found = convert(bars, display=display)
        ElementTree.fromstring(found)
    except Exception as error:  # of many kinds, also StopIteration
        raise ValueError(type(error).__name__) from error
    if "\\" in found:
        raise ValueError("a command is unknown")
    return re.sub("<mi>(;|:|&#x0007E;)</mi>", r"<mo>\1</mo>", found)


def typeset(page: str, content: str) -> str:
    """The HTML of a page with its formulas as MathML, and with a bar for the ``\\|`` that git hosts need in tables."""

    def replace(match: re.Match[str]) -> str:
        tex = html.unescape(match[3]).strip()
        try:
            return match[1] + mathml(tex, "block" if match[2] == "div" else "inline") + match[4]
        except ValueError as error:
            raise PluginError(f"{page}: this formula cannot be typeset ({error}): {tex}") from error

    return CELL.sub(lambda cell: cell[0].replace("\\|", "|"), FORMULA.sub(replace, content))


def tree(folder: str, pages: Sequence[str]) -> list[Any]:
    """The nav of a folder: its index, its pages, and its folders as sections; the API's are titled by module."""
    entries: list[Any] = []
    inner = {page.removeprefix(folder).split("/")[0] for page in pages if page.startswith(folder)}
    first = ["index.md", *(PACKAGES if folder == "api/" else ())]
    for name in [*(name for name in first if name in inner), *sorted(inner - {*first})]:
        page = folder + name
        if page not in pages:
            entries.append({name: tree(f"{page}/", pages)})
        elif name == "index.md" or not folder.startswith("api/"):
            entries.append(page)
        else:
            entries.append({name.removesuffix(".md"): page})
    return entries


def filled(nav: list[Any], pages: Sequence[str]) -> list[Any]:
    """The nav with every folder's pages in place of its `/*`; a section that has none is left out."""
    entries: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and entry.endswith("/*"):
            entries += tree(entry[:-1], pages)
        elif isinstance(entry, dict):
            for title, inner in entry.items():
                inner = filled(inner, pages) if isinstance(inner, list) else inner
                entries += [{title: inner}] if inner else []
        else:
            entries.append(entry)
    return entries


def named(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """The pages of a nav, with their titles, "" where it gives none."""
    for entry in nav:
        for title, inner in entry.items() if isinstance(entry, dict) else [("", entry)]:
            yield from named(inner) if isinstance(inner, list) else [(inner, title)]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that no file of docs/ is, and completes nav."""
    global site
    site = Site([file.src_uri for file in files.documentation_pages()])
    for page in [*OTHER_PAGES.values(), *site.made]:
        files.append(File.generated(config, page, content=site.content(page)))
    files.append(File.generated(config, "api/index.md", content=reference_index(modules())))
    pages = [file.src_uri for file in files.documentation_pages()]
    nav = filled(config.nav or [], pages)
    site.titles = dict(named(nav))
    config.nav = nav + sorted({*pages} - {*site.titles})
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    return site.rewritten(page.file.src_uri, markdown) if page.file.src_uri in site.files else markdown


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    return typeset(page.file.src_uri, content)
