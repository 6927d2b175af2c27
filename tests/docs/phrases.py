"""Counts hard phrases in each package. ``python -m tests.docs.phrases`` writes the counts to phrases.toml."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_suffix(".toml")
PACKAGES = (
    *("apps", "clients", "florilegium", "methods", "payloads", "privacy", "problems", "simulations", "strategies"),
    *("vertical", "tests", "benchmarks", "docs"),
)
# phrase -> an expression, which finds some correct uses too, and the wording to prefer
PHRASES = {
    "what": (r"[Ww]hat (a|an|the|it|they|is|was|are|goes|has|one|each|all|this)\b", "the noun: the reply, the effect"),
    "says": (r"says?\b", "lists, names, sets, determines"),
    "of its own": (r"of (its|their) own\b", "its own X, a separate X"),
    "nobody": (r"([Nn]obody|[Ww]hoever|[Ee]verybody|[Aa]nybody|whom)\b", "the role: no party, any client"),
    "that of": (r"(that|those) (of|in|from|that|which)\b", "the noun again"),
    "told": (r"(told|tells?|hears?)\b", "sent, reported, revealed"),
    "held": (r"(holds?|held)\b(?!-out)", "has, stores, contains"),
    "so that": (r"so that\b", "so, to, or two sentences"),
    "is no": (r"(is|are) no\b", "is not a"),
    "where": (r"[Ww]here (a|an|the|it|there|no)\b", "if, when"),
}
OTHERS = {
    "entries": "a noun phrase: `x: The site's x.`",
    "errors": "allowed: a noun phrase; hint: a verb with its object",
}
PREPOSITIONS = r"(of|in|from|as|by|with|has|gets|says|to|for|on|at|see)"
PRONOUNS = r"(ones?|that|those|it|this|these|none|some|others?|what|which|the same|as|once|there|another)\b"


def find_files() -> Iterator[tuple[str, Path]]:
    """Yield each package's modules and pages; README.md belongs to docs, as pages outside of packages do."""
    yield "docs", PROJECT / "README.md"
    for package in (*PACKAGES, "examples", "deploy"):
        for path in (PROJECT / package).rglob("*.*"):
            if path.suffix in (".py", ".md"):
                yield package if package in PACKAGES else "docs", path


def find_entries(docstring: str) -> Iterator[str]:
    """The arguments and attributes whose description begins with a preposition."""
    section = ""
    for line in docstring.split("\n"):
        section = line if re.fullmatch("[A-Z][a-z]+:", line) else section
        entry = re.match(r"    [*\w][\w.,* ]*( \(.*?\))?: (\S+)", line)
        if section in ("Args:", "Attributes:") and entry and re.fullmatch(PREPOSITIONS, entry[2]):
            yield line.strip()


def count(path: str, text: str) -> Counter[str]:
    """The hits in a text, in which a phrase or a comment may continue in the next line."""
    plain = re.sub(r"\s*\n\s*(# ?|> ?)?", " ", text)
    found = Counter({name: len(re.findall(rf"\b{phrase}", plain)) for name, (phrase, _) in PHRASES.items()})
    if not path.endswith(".py") or not re.search("Args:|Attributes:|allowed=|hint=", text):
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found["entries"] += sum(1 for _ in find_entries(ast.get_docstring(node) or ""))
        if isinstance(node, ast.keyword) and node.arg in ("allowed", "hint"):
            words = ast.unparse(node.value).lstrip("f").strip("'\"")
            ends = node.arg == "hint" and re.search(r"\b(so|it|them|one|some)$", words)
            found["errors"] += bool(re.match(PRONOUNS, words) or ends)
    return found


def count_all() -> dict[str, dict[str, int]]:
    """Return the hits of each phrase in each package that has any."""
    found = {name: Counter[str]() for name in (*PHRASES, *OTHERS)}
    for package, path in find_files():
        for name, hits in count(path.name, path.read_text("utf-8")).items():
            found[name][package] += hits
    return {name: {package: hits[package] for package in PACKAGES if hits[package]} for name, hits in found.items()}


def compare() -> tuple[list[str], list[str]]:
    """The counts above the ceilings in phrases.toml, and the counts below them."""
    now, most = count_all(), tomllib.loads(TABLE.read_text("utf-8"))
    more, fewer = [], []
    pairs = {(name, package) for table in (now, most) for name, hits in table.items() for package in hits}
    for name, package in sorted(pairs):
        hits, ceiling = now[name].get(package, 0), most.get(name, {}).get(package, 0)
        better = OTHERS.get(name) or PHRASES[name][1]
        if hits != ceiling:
            (more if hits > ceiling else fewer).append(f"{name!r} in {package}: {hits}, not {ceiling}; write {better}")
    return more, fewer


if __name__ == "__main__":
    lines = [
        "# The ceilings of hard phrases in each package, written by python -m tests.docs.phrases. They may only fall."
    ]
    for name, hits in count_all().items():
        lines += ["", f'["{name}"]', *(f"{package} = {number}" for package, number in hits.items())]
    TABLE.write_text("\n".join([*lines, ""]), "utf-8")
