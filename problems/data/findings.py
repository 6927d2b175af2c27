"""Several binary labels of each row, the *findings*, such as the diseases that a radiologist looks for in an image.

A finding may be unknown in a row. The row then trains only the other findings.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from jaxtyping import Bool, Float64, Int8, Int64
from numpy.typing import NDArray

from problems.data.cells import name_cells
from problems.data.spec import UNCERTAIN, DataError, DataSpec
from problems.errors import join_first
from problems.least_cell import is_small

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)

UNKNOWN = -1
_MOST_NAMED = 10


@dataclass(frozen=True, eq=False)
class Findings:
    """The findings of rows.

    Attributes:
        values: 1, 0 or `UNKNOWN` for each row and finding.
        names: The names of the findings.
        shares: The share of the training rows of all clients in which each finding is known.
        priors: The share of these known cells that are 1.
    """

    values: Int8[np.ndarray, "n findings"]
    names: tuple[str, ...]
    shares: Float64[np.ndarray, "findings"]
    priors: Float64[np.ndarray, "findings"]

    @classmethod
    def of(cls, values: Int8[np.ndarray, "n findings"], names: tuple[str, ...]) -> Self:
        """Return findings with shares and priors computed from the rows."""
        return cls(values, names, *find_shares(_count(values), len(values)))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> "Findings":
        return replace(self, values=self.values[rows])

    @staticmethod
    def join(parts: "Sequence[Findings | None]") -> "Findings | None":
        """Return the findings of several groups of rows, one group after another. None: rows have one label each.

        Args:
            parts: The findings of each group, of the same names and shares.
        """
        known = [part for part in parts if part is not None]
        return replace(known[0], values=np.concatenate([part.values for part in known])) if known else None

    @property
    def known(self) -> Bool[np.ndarray, "n findings"]:
        """Whether each finding is known."""
        known: np.ndarray = self.values != UNKNOWN
        return known

    @property
    def classes(self) -> Int64[np.ndarray, "n"] | None:
        """The index of each row's only finding that is 1, if all other findings are 0; None if a row is different."""
        exclusive = (self.values != UNKNOWN).all() and ((self.values == 1).sum(axis=1) == 1).all()
        return self.values.argmax(axis=1) if exclusive else None

    @property
    def counts(self) -> Int64[np.ndarray, "findings 2"]:
        """The numbers of zeros and ones of each finding."""
        return _count(self.values)

    def with_totals(
        self, shares: Float64[np.ndarray, "some"] | None, priors: Float64[np.ndarray, "some"] | None
    ) -> "Findings":
        """Return the findings with the shares and priors of all sites.

        Args:
            shares: See `Findings`. None: the site has not received them.
            priors: See `Findings`.

        Raises:
            DataError: The numbers are missing, impossible, or of another number of findings.
        """
        allowed, hint = f"all sites' shares of {len(self.names)} findings", "install the same release at every site"
        if shares is None or priors is None or not len(shares) == len(priors) == len(self.names):
            raise DataError("label-columns", got="no shares, or another number", allowed=allowed, hint=hint)
        if not ((shares > 0) & (shares <= 1) & (priors > 0) & (priors < 1)).all():
            raise DataError("label-columns", got="shares or priors outside (0, 1)", allowed=allowed, hint=hint)
        return replace(self, shares=shares, priors=priors)

    def without_small_cells(self, least_cell: int) -> "Findings":
        """Return the findings, in which no value of a finding is known, or unknown, in few rows.

        A finding that is unknown in few rows becomes unknown in the first rows with its more common value, too. A
        finding with few zeros or few ones then becomes unknown in all rows.

        Args:
            least_cell: The smallest number of rows, other than 0, that is not few.
        """
        values = self.values.copy()
        for column in values.T:
            zeros, ones = ((column == value).sum() for value in (0, 1))
            if is_small([missing := len(column) - zeros - ones], least_cell):
                common = np.flatnonzero(column == (1 if ones > zeros else 0))
                column[common[: least_cell - missing]] = UNKNOWN
            if is_small([(column == value).sum() for value in (0, 1)], least_cell):
                column[:] = UNKNOWN
        return replace(self, values=values)

    def with_totals_of(self, rows: Int64[np.ndarray, "some"]) -> "Findings":
        """Return the findings with the shares and priors of some rows, the training rows of all clients."""
        totals = Findings.of(self.values[rows], self.names)
        return replace(self, shares=totals.shares, priors=totals.priors)

    def check(self, rows: Int64[np.ndarray, "some"], what: str) -> None:
        """Check that both values of each finding occur.

        Args:
            rows: The rows to check.
            what: The name of these rows in the error.

        Raises:
            DataError: A finding lacks a value; lists such findings with their counts.
        """
        check_values(self[rows].counts, self.names, what)

    def check_exclusive(self) -> None:
        """Check that exactly one finding of each row is 1.

        Raises:
            DataError: Other rows exist; states their number.
        """
        if others := int(((self.values == 1).sum(axis=1) != 1).sum()):
            got, allowed = (
                f"{others:,} rows with none of the classes, or several",
                "one class for each row, for a softmax",
            )
            hint = "list all classes in label-columns, or remove loss"
            raise DataError("label-columns", got=got, allowed=allowed, hint=hint)


def find_strata(
    labels: Int8[np.ndarray, "n"], findings: Findings | None
) -> Int8[np.ndarray, "n"] | Int64[np.ndarray, "n"]:
    """Return the stratum of each row: its class if each row has exactly one of the findings, else its label.

    Args:
        labels: The rows' labels. All are 0 if rows have findings.
        findings: The rows' findings. None: rows have one label.
    """
    classes = None if findings is None else findings.classes
    return labels if classes is None else classes


def _count(values: Int8[np.ndarray, "n findings"]) -> Int64[np.ndarray, "findings 2"]:
    return np.stack([(values == value).sum(axis=0) for value in (0, 1)], axis=1)


def find_shares(
    counts: Int64[np.ndarray, "findings 2"], rows: int
) -> tuple[Float64[np.ndarray, "findings"], Float64[np.ndarray, "findings"]]:
    """Return the shares and the priors of findings, see `Findings`.

    Args:
        counts: The numbers of zeros and ones of each finding.
        rows: The number of rows.
    """
    known = counts.sum(axis=1)
    return known / max(rows, 1), counts[:, 1] / np.maximum(known, 1)


def check_values(counts: Int64[np.ndarray, "findings 2"], names: Sequence[str], what: str) -> None:
    """Check that both values of each finding occur.

    Args:
        counts: The numbers of zeros and ones of each finding.
        names: The names of the findings.
        what: The name of the counted rows in the error.

    Raises:
        DataError: A finding lacks a value; lists such findings with their counts.
    """
    lacking = [
        f"{name} ({zeros:,} zeros, {ones:,} ones)"
        for name, (zeros, ones) in zip(names, counts.tolist(), strict=True)
        if not (zeros and ones)
    ]
    if lacking:
        more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
        got = f"one value only of {', '.join(lacking[:_MOST_NAMED])}{more}"
        hint = "remove the finding from label-columns, or add rows"
        raise DataError(what, got=got, allowed="zeros and ones of each finding", hint=hint)


def read_findings(columns: "Sequence[pd.Series[Any]]", spec: DataSpec) -> Findings:
    """Read the columns of labels.

    Args:
        columns: The columns in `DataSpec.label_sources`: with cells 0, 1, -1 (uncertain) or missing (unknown), or a
            single column whose cells list findings.
        spec: The options; ``uncertain`` determines the meaning of -1.

    Raises:
        DataError: A cell is another number, or text. The error quotes no cell.
    """
    return make_findings(read_matrix(columns, spec), spec.findings, spec)


def read_matrix(columns: "Sequence[pd.Series[Any]]", spec: DataSpec) -> Float64[np.ndarray, "n findings"]:
    """Return the columns of labels as numbers, nan for missing cells; see `read_findings`.

    Raises:
        DataError: A cell is text, without ``label-separator``. The error quotes no cell.
    """
    if spec.label_separator:
        return _split_lists(columns[0], spec)
    return np.stack([_read_finding(column) for column in columns], axis=1)


def _split_lists(column: "pd.Series[Any]", spec: DataSpec) -> Float64[np.ndarray, "n findings"]:
    """Return whether each cell lists each finding, nan for missing cells. The log counts other names in the cells."""
    values, others = np.full((len(column), len(spec.findings)), np.nan), Counter[str]()
    for row, (cell, missing) in enumerate(zip(column, column.isna(), strict=True)):
        if not missing:
            listed = {part.strip() for part in str(cell).split(spec.label_separator)}
            values[row] = [name in listed for name in spec.findings]
            others.update(listed.difference(spec.findings))
    if others:
        texts = [f"{name} in {count:,} cells" for name, count in others.most_common()]
        _log.warning("%s: label-columns does not list %s", column.name, join_first(texts, _MOST_NAMED))
    return values


def make_findings(values: NDArray[Any], names: tuple[str, ...], spec: DataSpec) -> Findings:
    """Make the findings of an array.

    Args:
        values: (n, findings) numbers 0, 1, -1 (uncertain) or nan (unknown).
        names: The names of the findings.
        spec: See `read_findings`.

    Raises:
        DataError: The array has another number of columns, or another number.
    """
    if values.ndim != 2 or values.shape[1] != len(names) or values.dtype.kind not in "biuf":
        got = f"labels of shape {values.shape} and type {values.dtype}"
        allowed = f"numbers of shape (n, {len(names)}), a column for each name in label-columns"
        raise DataError(
            "labels", got=got, allowed=allowed, hint="set label-columns to the names of the labels' columns"
        )
    values = values.astype(np.float64)
    strange = ~(np.isnan(values) | np.isin(values, (0, 1, -1)))
    if strange.any():
        named = join_first([names[i] for i in np.flatnonzero(strange.any(axis=0))], _MOST_NAMED)
        got = f"{int(strange.sum()):,} other numbers, of {named}"
        raise DataError("labels", got=got, allowed=_ALLOWED, hint="correct the labels")
    values[values == -1] = UNCERTAIN[spec.uncertain]
    codes = np.where(np.isnan(values), UNKNOWN, values).astype(np.int8)
    return Findings.of(codes, names)


def mark_classes(
    classes: Sequence[str], codes: Int64[np.ndarray, "n"], names: tuple[str, ...], *, site: bool = False
) -> Findings:
    """Return a finding for each of some classes: 1 for the rows of the class, 0 for all other rows.

    The log counts the rows of classes without a finding.

    Args:
        classes: All classes.
        codes: The index of each row's class.
        names: The classes with a finding.
        site: Whether the rows are from one site's file, which may lack classes of other sites.

    Raises:
        DataError: A class does not occur.
    """
    if (lacking := [name for name in names if name not in classes]) and not site:
        got, allowed = f"{join_first(lacking, _MOST_NAMED)}, which no row has", f"classes: {join_first(classes, 20)}"
        raise DataError("label-columns", got=got, allowed=allowed, hint="set label-columns to classes that occur")
    values = np.array(classes)[codes][:, None] == np.array(names)
    others = Counter(classes[code] for code in codes[~values.any(axis=1)].tolist())
    if others:
        texts = [f"{name} of {count:,} rows" for name, count in others.most_common()]
        _log.warning("label-columns does not list the class %s", join_first(texts, _MOST_NAMED))
    return Findings.of(values.astype(np.int8), names)


_ALLOWED = "0, 1, -1 for uncertain, or nothing for unknown"


def _read_finding(column: "pd.Series[Any]") -> Float64[np.ndarray, "n"]:
    """Return the numbers of a column, nan for missing cells."""
    import pandas as pd

    if column.dtype == bool:
        column = column.astype(float)
    numbers = pd.to_numeric(column, errors="coerce")
    strange = (numbers.isna() & column.notna()).to_numpy(dtype=bool)
    if strange.any():
        hint = "correct the cells, or list them in missing-values"
        raise DataError(
            f"column {column.name!r}", got=name_cells(strange, "that are text"), allowed=_ALLOWED, hint=hint
        )
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)
