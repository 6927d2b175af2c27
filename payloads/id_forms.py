"""The form of a party's row ids, by which the server finds ids that parties write in different ways, as ``007``, ``7``.

A party reports the lengths of its shortest and longest id, and for each of `MARKS` whether any id has it. No id is
sent.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from payloads.record import PayloadError

MARKS = ("leading zeros", "letters", "capital letters", "small letters", "spaces around", "other characters")
"""The features of ids that a party reports."""


def measure_ids(ids: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the lengths of the shortest and of the longest id, and which of `MARKS` some ids have."""
    lengths, characters = set(map(len, ids)) or {0}, set().union(*ids)
    marks = (
        re.search(r"(?<!\d)0\d", "\n".join(ids)) is not None,
        any(letter.isalpha() for letter in characters),
        any(letter.isupper() for letter in characters),
        any(letter.islower() for letter in characters),
        any(name != name.strip() for name in ids),
        any(not letter.isalnum() for letter in characters),
    )
    return np.array([min(lengths), max(lengths)]), np.array(marks)


def check_lengths(lengths: NDArray[np.signedinteger]) -> None:
    """Check the lengths that a party has reported.

    Raises:
        PayloadError: The lengths are negative, or in the wrong order.
    """
    low, high = lengths.tolist()
    if not 0 <= low <= high:
        raise PayloadError(f"DataSummary.id_lengths: got {low} and {high}, expected 0 <= shortest <= longest")


def compare_forms(forms: Sequence[tuple[NDArray[np.signedinteger], NDArray[np.bool_]]]) -> str:
    """Return the differences between the forms of the parties' ids, in words; "" if there are none.

    Args:
        forms: The lengths and marks of each party, as `measure_ids` returns them.
    """
    differences = []
    for index, name in enumerate(MARKS):
        having, lacking = ([party for party, (_, marks) in enumerate(forms) if marks[index] == side] for side in (1, 0))
        if having and lacking:
            differences.append(f"{name} at party {_join(having)} but not at party {_join(lacking)}")
    apart = max(int(lengths[0]) for lengths, _ in forms) > min(int(lengths[1]) for lengths, _ in forms)
    if not differences and not apart:
        return ""
    sizes = [f"{low} to {high}" if low < high else str(low) for (low, high), _ in forms]
    if len(set(sizes)) > 1:
        differences.append(f"lengths of {', '.join(sizes)} characters at party {_join(range(len(forms)))}")
    return f"the parties write ids differently, and 007 is not 7: {'; '.join(differences)}"


def _join(parties: Sequence[int]) -> str:
    return ", ".join(map(str, parties))
