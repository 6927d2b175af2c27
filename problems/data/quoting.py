"""Parsing of comma-separated lists of names; a name that contains a comma or bracket is quoted, as in a csv file.

``age, "weight, kg", "dose [mg]"`` has three names. Inside quotes a quote is written twice, and spaces count.
"""

import re

_QUOTED = r'"(?:[^"]|"")*"'
# a name, perhaps with a list of values in brackets; quotes hide commas and brackets in the name and in the values
_ITEM = re.compile(rf'\s*(?:{_QUOTED})?(?:[^,\["]*\[(?:{_QUOTED}|[^\]",])*\])?[^,]*')
# a marker, or a column's name, a colon and its markers
_MARKED = re.compile(rf'\s*(?:{_QUOTED}|[^,":]*)\s*(?::(?:{_QUOTED}|[^",])*)?[^,]*')
_COLUMN = re.compile(rf'\s*({_QUOTED}|[^":]*):(.*)', re.DOTALL)
_VALUE = re.compile(rf"\s*(?:{_QUOTED})?[^|]*")
_NAME = re.compile(rf"\s*({_QUOTED}|[^\[]*)(.*)", re.DOTALL)


def split_items(text: str, *, values: bool = False) -> list[str]:
    """Split a text at the commas that are not quoted.

    Args:
        text: The text.
        values: Whether values after a colon may be quoted too, as in ``split_markers``.
    """
    return _split(text, _MARKED if values else _ITEM)


def split_markers(item: str) -> tuple[str | None, list[str]]:
    """Split an item such as ``smoker:97|98`` into the column and the values.

    Returns:
        The column and the values; None and no values if the item has no colon outside quotes.
    """
    match = _COLUMN.fullmatch(item)
    if match is None:
        return None, []
    return unquote(match[1]), [unquote(value) for value in _split(match[2], _VALUE)]


def split_values(item: str) -> tuple[str, list[str] | None]:
    """Split an item such as ``sex[f|m]`` into the name and the values in brackets.

    Returns:
        The name, "" if its quotes do not close; and the values, None without brackets.

    Raises:
        ValueError: The brackets do not close.
    """
    match = _NAME.fullmatch(item)
    assert match
    name, brackets = match[1], match[2].strip()
    if brackets and not (brackets.startswith("[") and brackets.endswith("]")):
        raise ValueError(f"{brackets!r} is not in brackets")
    return unquote(name), [unquote(value) for value in _split(brackets[1:-1], _VALUE)] if brackets else None


def unquote(part: str) -> str:
    """Return a name or value without its quotes and surrounding spaces; "" if its quotes do not close."""
    part = part.strip()
    if not part.startswith('"'):
        return part
    return part[1:-1].replace('""', '"') if re.fullmatch(_QUOTED, part) else ""


def quote(name: str) -> str:
    """Return a name for a list: quoted if it contains special characters."""
    plain = name == name.strip() and not re.search(r'[\[\]|,"]', name)
    return name if plain else '"' + name.replace('"', '""') + '"'


def _split(text: str, item: re.Pattern[str]) -> list[str]:
    parts, start = [], 0
    while True:
        match = item.match(text, start)
        assert match
        parts.append(match[0])
        start = match.end() + 1
        if start > len(text):
            return parts
