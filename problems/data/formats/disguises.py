"""Detection of text columns whose cells are numbers with a sign or a unit, such as ``45%``, ``>60`` and ``10 mg``.

Such columns should be numbers, not categories. ``A1``, ``stage 2``, ``1st``, ``18-24`` and ``1a`` are categories. No
description quotes a cell.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

MISSING_WORDS = frozenset(
    """?|??|-|--|---|.|..|...|*|/|#|na|n/a|n.a.|n.a|nan|nil|null|none|nd|n.d.|nk|n/k|nr|n.r.|unk|unknown|missing|missed
    |unavailable|undefined|undetermined|refused|pending|error|not available|not applicable|not done|not known
    |not recorded|not measured|no data|see notes|k.a.|ka|unbekannt|fehlt|inconnu
    |bdl|lod|<lod|<loq|below detection|below detection limit|not detected|hemolyzed|haemolysed|see comment|cancelled
    |canceled|#div/0!|#value!|#ref!|#name?|#num!|#null!""".replace("\n    ", "").split("|")
)
"""Lower-case texts that often mean "missing" and do not count when a column of numbers is recognised."""
SHARE = 0.8
"""A column is numeric if at least this share of its cells are numbers. A unit is the column's unit if at least this
share of the cells' units are the same."""
MIN_PLAIN = 2
"""``>60``, ``5+``, ``(105)`` and ``5.4 H`` are numbers in a column with at least this many different plain numbers. In
other columns, such as a column of ``<65`` and ``>=65``, they are categories."""
MAX_CELLS = 20_000
"""The approximate number of cells, at equal distances, that are examined in a longer column."""
_MAX_UNIT, _MAX_WORDS, _MIN_SIDES = 12, 3, 3

_ASCII = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **dict.fromkeys("\u2018\u2019\u201b\u2032\u00b4`", "'"),
        **dict.fromkeys("\u201c\u201d\u2033", '"'),
        **dict.fromkeys("\u00d7\u00b7\u22c5", "x"),
        **dict.fromkeys("\u2264\u2a7d\u2266", "<="),
        **dict.fromkeys("\u2265\u2a7e\u2267", ">="),
        **dict.fromkeys("\u2248\u2243\u223c", "~"),
        **dict.fromkeys("\u200b\u200c\u200d\u200e\u200f\u2060\ufeff", ""),
    }
)
_FRACTION = re.compile(r"\d*\s*[¼½¾⅓⅔⅛⅜⅝⅞]|\d+\s\d/\d")
_MONEY = r"[^\W\d_]{0,3}[$€£¥₤₹₽₩₺₪฿₫₱¢]|(?:EUR|USD|GBP|CHF|JPY|CNY|INR|AUD|CAD|SEK|NOK|DKK|PLN|Rs|kr|Fr)\.?(?=[\s\d])"
_BOUND = r"[<>]=?|=[<>]|(?i:less than|more than|over|under|below|above|at least|at most|up to)\s"
_QUOTES = r"=?['\"]+"
_LEAD = rf"{_BOUND}|~|±|ca?\.|ca\s|(?i:circa\s|about\s|approx\.?\s)|%|{_QUOTES}|{_MONEY}"
_SPACED = r"\d{1,3}(?:[ '_]\d{3})+(?:[.,]\d+)?"
_DOTTED = r"\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}"
_COMMAS = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?"
_CELL = re.compile(
    rf"(?P<open>\()?(?P<lead>(?:{_LEAD})*)\s*(?P<sign>[-+]?)\s*(?P<money>{_MONEY})?\s*"
    rf"(?P<core>(?P<spaced>{_SPACED})|(?P<dotted>{_DOTTED})|{_COMMAS}|\d+(?:[.,]\d*)?|[.,]\d+)"
    r"(?:[eE][-+]?\d+|(?P<power>\s*[x*]\s*10(?:\^|\*\*)?[-+]?\d+|\s+10\^[-+]?\d+))?(?P<tail>.*)",
    re.DOTALL,
)
# letters, perhaps in several parts, as in mm Hg, kg/m2, 10^9/L and beats per minute
_UNIT = re.compile(
    r"/?\s*(?:[°%‰]\s*)?[^\W\d_]*(?:[/x*. ^\[\]()-]{1,2}(?:[^\W\d_]+|10\^?\d+|1[.,]73 ?m))*(?:\^?-?[23])?[.)\]]?"
)
_SIGNS = {"%", "‰", "°", "°C", "°F", '"', "'", "''", "¢", "€", "$", "£", "¥", "₹"}
# marks behind a number: of a bound (5+), of a negative number (5-), or of an abnormal result (5.4 H)
_MARK = re.compile(
    r"[-+*!<>?†‡↑↓]|\*\*+|!!|\(\+\)|[\[(]?(?:H|L|HH|LL)[\])]?|(?i:hi|lo|high|low|abnormal|critical)"
    r"|(?i:(?:or|and) (?:more|over|above|older|up|less|below|under|fewer|younger))"
)
_OUT_OF = re.compile(r"(?i:/|(?:out )?of|von|sur)\s*(\d+)")
_ORDINALS = {"st", "nd", "rd", "th", "er", "re", "e", "eme", "ème", "º", "ª", "to", "or", "and", "bis"}
# the units of a single letter; a number with another letter is a code, such as 1a or 3D
_LETTERS = set("gGlLmsShdyKkCFUMxXJWV")
# units that may differ within a column of numbers
_KNOWN = frozenset(
    re.findall(
        r"\S+",
        """mg g kg μg ug mcg ng pg lb oz st m cm mm μm um nm in ft inch inche km ml l dl cl μl ul fl mol mmol μmol umol
        nmol pmol mmol/l mol/l μmol/l umol/l nmol/l mg/dl g/dl g/l mg/l ng/ml μg/l ug/l iu u iu/l u/l iu/ml miu meq
        meq/l h hr hour min minute s sec second d day w wk week mo month y yr year
        bpm mmhg kpa c f °c °f % ‰ k cr dr""",
    )
)
_PAIR = re.compile(r"(\d+(?:\.\d+)?)\s*(?P<mark>[/:x'±]|ft\.?)\s*(\d+(?:\.\d+)?)\s*(?:\"|''|in\.?|:\d+(?:\.\d+)?)?")


@dataclass(frozen=True)
class _Cell:
    """A cell that is a number.

    Attributes:
        number: The digits; cells with the same digits count as the same number.
        form: The description of the sign or unit, "" for a plain number.
        unit: The letters behind the number.
        marked: Whether the cell counts as a number only if the column also has plain numbers.
    """

    number: str
    form: str = ""
    unit: str = ""
    marked: bool = False


def find_disguise(words: Sequence[str]) -> str:
    """Describe the signs or units of the numbers in a text column.

    Args:
        words: The cells that are not missing, without surrounding spaces.

    Returns:
        A noun phrase, such as "numbers with the sign '%'". "" for a column of other text, or of plain numbers.
    """
    step = max(1, len(words) // MAX_CELLS)
    counts = Counter(word for word in words[::step] if word.casefold() not in MISSING_WORDS)
    total = counts.total()
    cells = {word: cell for word in counts if (cell := _parse(word)) is not None}
    if len({cell.number for cell in cells.values() if not cell.form}) < MIN_PLAIN:
        cells = {word: cell for word, cell in cells.items() if not cell.marked}
    if not _are_units(cells, counts):
        cells = {word: cell for word, cell in cells.items() if not cell.unit}
    forms, texts = Counter[str](), dict[str, str]()
    for word in sorted(cells, key=lambda word: -counts[word]):
        cell = cells[word]
        if cell.form:
            key = _stem(cell.unit) or cell.form
            forms[key] += counts[word]
            texts.setdefault(key, cell.form)
    numbers = {cell.number for cell in cells.values()}
    if not forms or len(numbers) < MIN_PLAIN or sum(counts[word] for word in cells) < SHARE * total:
        return _find_pairs(counts)
    # do not name a rare unit, which could reveal a single patient's cell
    names = [texts[key] if 2 * count >= total or key == texts[key] else "a unit" for key, count in forms.most_common(3)]
    return f"numbers with {' or '.join(dict.fromkeys(names))}"


def _parse(cell: str) -> _Cell | None:
    """Parse a cell as a number; None if it is not a number with known signs."""
    if _FRACTION.fullmatch(cell):
        return _Cell(cell, "fractions")
    word = cell if cell.isascii() else unicodedata.normalize("NFKC", cell).translate(_ASCII).strip()
    word = re.sub(r"[.,]-+$", "", word)  # 5.- is 5 francs
    match = _CELL.fullmatch(word)
    number = match and _read(match)
    return replace(number, form="unusual characters") if number and not number.form and word != cell else number


def _read(match: re.Match[str]) -> _Cell | None:
    """Convert a match of `_CELL` to a number; None if the text around the number makes the cell a category."""
    lead, core, tail = (match["lead"] + (match["money"] or "")).strip(), match["core"], match["tail"].strip()
    if match["open"]:
        if not tail.endswith(")"):
            return None
        tail = tail[:-1].strip()
        if not lead and not tail:
            return _Cell(core, "brackets", marked=True)
    if re.fullmatch(_QUOTES, lead):
        return None if tail.strip("'\"") else _Cell(core, "quotes or '='")
    suffix = _read_tail(tail)
    if suffix is None or re.fullmatch(r"\d*0s", match[0]):  # ages such as 30s and 40s
        return None
    if lead:
        bound = re.match(_BOUND, match["lead"]) is not None
        form = "a bound such as '<' or '>'" if bound else f"the sign {lead!r}"
        return replace(suffix, number=core, form=form, marked=bound or suffix.marked)
    if suffix.form:
        return replace(suffix, number=core)
    if match["spaced"]:
        return _Cell(core, "spaces or quotes between thousands")
    if match["dotted"]:
        return _Cell(core, "points between thousands")
    if match["power"]:
        return _Cell(core, "powers of 10")
    if re.search(r"\s", match[0]):
        return _Cell(core, "spaces")
    return _Cell(match["sign"] + core) if match[0].isascii() else _Cell(core, "unusual characters")


def _read_tail(tail: str) -> _Cell | None:
    """Parse the text behind a number, as a cell with the number ""; None if the text makes the cell a category."""
    if not tail:
        return _Cell("")
    if tail in _SIGNS:
        return _Cell("", f"the sign {tail!r}")
    if _MARK.fullmatch(tail):
        return _Cell("", "a mark after some numbers", marked=True)
    if whole := _OUT_OF.fullmatch(tail):
        return _Cell("", "the same number after each", f"/{whole[1]}")
    letters = any(map(str.isalpha, tail))
    if tail.casefold().split()[0] in _ORDINALS or len(tail.split()) > _MAX_WORDS or not _UNIT.fullmatch(tail):
        return None
    if not letters or (len(tail) == 1 and tail not in _LETTERS):
        return None
    return _Cell("", f"the unit {tail!r}" if len(tail) <= _MAX_UNIT else "a unit", tail)


def _are_units(cells: dict[str, _Cell], counts: Counter[str]) -> bool:
    """Return whether the texts behind numbers are units: nearly all are equal, or all are well known."""
    units, numbers = Counter[str](), dict[str, set[str]]()
    for word, cell in cells.items():
        if cell.unit:
            units[_stem(cell.unit)] += counts[word]
            numbers.setdefault(_stem(cell.unit), set()).add(cell.number)
    if not units:
        return True
    if units.keys() <= _KNOWN:
        return len(set.union(*numbers.values())) >= MIN_PLAIN
    (unit, count), *_ = units.most_common(1)
    return count >= SHARE * units.total() and len(numbers[unit]) >= MIN_PLAIN


def _stem(unit: str) -> str:
    """Return a unit in lower case, without spaces, final points and a plural "s"."""
    plain = "".join(unit.casefold().split()).rstrip(".")
    return plain[:-1] if len(plain) > 2 and plain.endswith("s") else plain


def _find_pairs(counts: Counter[str]) -> str:
    """Describe a column with two varying numbers in each cell, such as a blood pressure of 120/80; "" for others."""
    pairs = {word: pair for word in counts if (pair := _PAIR.fullmatch(word.translate(_ASCII)))}
    if not pairs or sum(counts[word] for word in pairs) < SHARE * counts.total():
        return ""
    if any(len({pair[side] for pair in pairs.values()}) < _MIN_SIDES for side in (1, 3)):
        return ""
    return f"two numbers with {next(iter(pairs.values()))['mark']!r} between"
