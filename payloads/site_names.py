"""Names of sites: the name that a site's owner has chosen, and the text that stands for a site without a name."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

# the most characters of a name
LONGEST_NAME = 40
ALLOWED_NAMES = f"1 to {LONGEST_NAME} printable characters without spaces around them, and not 'partition 0'"


def check_name(name: str) -> str:
    """Return a name that fits on one line of a log.

    Raises:
        ValueError: The name is empty or too long, contains a control character or surrounding spaces, or is the text
            that stands for a site without a name.

    Example:
        >>> check_name("VA Long Beach")
        'VA Long Beach'
    """
    fits = 0 < len(name) <= LONGEST_NAME and name.isprintable() and name == name.strip()
    if not fits or re.fullmatch(r"partition \d+", name.casefold()):
        raise ValueError(f"got {name[: LONGEST_NAME + 1]!r}, allowed: {ALLOWED_NAMES}")
    return name


@lru_cache(maxsize=16)
def fit_names(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of sites, cut to `LONGEST_NAME` characters; () if they are not valid or not distinct.

    Args:
        texts: The sites' names in the data, one for each site.

    Example:
        >>> fit_names(("Bern", "clinic 7")), fit_names(("Bern", "Bern"))
        (('Bern', 'clinic 7'), ())
    """
    names = [text.strip()[:LONGEST_NAME].strip() for text in texts]
    try:
        distinct = len(set(map(check_name, names))) == len(names)
    except ValueError:
        distinct = False
    return tuple(names) if distinct else ()


def label_site(partition: int | str, names: Mapping[str, str] | None = None) -> str:
    """Return the text that stands for a site in results and logs: its name, else its partition id.

    Args:
        partition: The site's partition id.
        names: The names of sites, by partition id as text.

    Example:
        >>> label_site(1, {"1": "Hungary"}), label_site(2, {"1": "Hungary"})
        ('Hungary', 'partition 2')
    """
    return (names or {}).get(str(partition), f"partition {partition}")


def label_entry(entry: Mapping[str, Any]) -> str:
    """Return the text that stands for the site of an entry of result.json. Entries of older releases have no name."""
    return str(entry.get("name") or label_site(entry["partition"]))
