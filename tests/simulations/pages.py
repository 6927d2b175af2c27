"""A reader of reports' pages."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """A page's tables (rows of texts), its text without style and script, and its unclosed tags."""

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

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def table(self, first: str) -> list[dict[str, str]]:
        """Return the rows of the first table with this first column."""
        head, *body = next(table for table in self.tables if table[0][0] == first)
        return [dict(zip(head, row, strict=True)) for row in body]
