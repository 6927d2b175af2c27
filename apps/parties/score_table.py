"""The rows that a party scores with its block, and the file to which it writes the scores.

The rows are a file, which is encoded as in training, or all rows of the data set that simulated parties share.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from logging import WARNING
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.common import log
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import softmax

from apps.parties.blocks import BlockFile, read_block
from apps.parties.column_use import ColumnUse
from apps.parties.table import UsedColumns, encode_rows, read_ids, read_own
from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError
from apps.sites.rows import DATA_PATH, SCORE_PATH, with_dialect
from apps.sites.settings import SiteConfig
from problems.data import DataError, Preprocessing
from problems.data.cells import is_number
from problems.data.dialect import Dialect
from problems.data.formats.tables import read_table
from problems.data.unseen import find_unseen
from problems.files import make_folder, write_atomic
from vertical.parties import KeptBlock, PartyData, Rows
from vertical.problem.blocks.base import Features, canonical
from vertical.problem.objectives import make_objective
from vertical.segment.plan import Holding
from vertical.settings import VFB2Settings

if TYPE_CHECKING:
    import pandas as pd

SCORES_PATH = "scores-path"


class _ScoreRows:
    """Rows to score, none of which is a test row.

    Attributes:
        labelled: Whether the party provided labels in training.
        columns, names: The number and the names of the block's columns.
        classes: The classes of the party's labels in training, if the model distinguishes several classes.
    """

    keys: Mapping[str, Any] = MappingProxyType({})
    block: KeptBlock | None

    def __init__(self, features: Features, ids: Sequence[str], block: BlockFile, party: int) -> None:
        self._features, self._ids, self.block = features, ids, block
        self.labelled = party in block.active
        self.columns, self.names, self.classes = len(block.names), list(block.names), block.classes

    def ids(self, rows: Rows | None) -> Sequence[str]:
        return self._ids if rows is None else [self._ids[row] for row in rows]

    def holding(self, rows: Rows | None) -> Holding:
        return Holding(self._features if rows is None else self._features[rows])

    def preprocessing(self, rows: Rows | None) -> Preprocessing | None:
        return None

    def training_marks(self, rows: Rows | None) -> Sequence[str] | None:
        return None


class ScoreTable(_ScoreRows):
    """The rows of one party's csv or parquet file, in the order of their ids, encoded and scaled as in training.

    Attributes:
        read: Names of the file's columns that are features.

    Columns that the training file lacked are ignored. Numbers may lie outside the range of the training rows. For a
    category that did not occur in training, all features of its column are 0, and a warning is logged.

    Raises:
        DataError: A column is missing, has gaps or is of another kind than in training, or two rows have the same id.
            The error names the column or the rows.
    """

    def __init__(self, path: Path, id_column: str, block: BlockFile, party: int, dialect: Dialect) -> None:
        encoding = block.preprocessing
        if encoding is None:
            allowed = "a block of a run on the parties' files, since a file is scored"
            hint = "train on the parties' files"
            raise DataError(block.path, got="a block of a data set's columns", allowed=allowed, hint=hint)
        self.read = UsedColumns(encoding.columns)
        frame = read_table(path, [*encoding.words, id_column], dialect)
        ids = read_ids(path, frame, id_column)
        frame.columns = frame.columns.map(str)
        order = np.argsort(ids, kind="stable")
        intercept = len(block.names) > len(encoding.names)
        values = encoding.encode(frame)
        _check_kinds(frame, encoding, party)
        features = encode_rows(encoding, values[order], intercept=intercept)
        super().__init__(features, ids[order].tolist(), block, party)


class SimulatedRows(_ScoreRows):
    """A party's columns of all rows of a data set, training rows first. The ids are the data set's row numbers.

    Raises:
        DataError: The block belongs to another party, or to other data.
    """

    def __init__(self, rows: PartyData, block: BlockFile, party: int) -> None:
        for key, value in rows.keys.items():
            if value != block.data.get(key, value):
                allowed = f"{block.data[key]!r}, as in training"
                hint = f"set {key} to {block.data[key]!r}"
                raise DataError(f"party {party}: {key}", got=repr(value), allowed=allowed, hint=hint)
        if tuple(rows.names) != block.names:
            got, allowed = f"{len(rows.names)} columns that differ from the columns of its block", "the same columns"
            raise DataError(f"party {party}: columns", got=got, allowed=allowed, hint="use the block of this party")
        holding = rows.holding(None)
        parts: list[Any] = [holding.features, *([] if holding.test_features is None else [holding.test_features])]
        dense = isinstance(holding.features, np.ndarray)
        features: Features = np.concatenate(parts) if dense else canonical(sparse.vstack(parts, format="csr"))
        super().__init__(features, rows.ids(None), block, party)


def _check_kinds(frame: "pd.DataFrame", encoding: Preprocessing, party: int) -> None:
    """Refuse numbers in a column of categories, and warn of categories that training did not have."""
    for unseen in find_unseen(encoding, frame):
        if unseen.is_whole and all(map(is_number, unseen.values)):
            allowed = "text, as in training"
            raise DataError(
                f"column {unseen.column!r}", got="numbers", allowed=allowed, hint="write the column as in training"
            )
        log(WARNING, "party %d: %s", party, unseen.describe(quote=False))


def read_score_table(
    path: Path, config: RunConfig, node: Mapping[str, Any], partition: tuple[int, int], use: ColumnUse
) -> ScoreTable:
    """Return the rows that a party scores.

    Args:
        path: The party's file.
        config: The run config.
        node: The party's node config, which locates its block.
        partition: The party's index, and the number of parties.
        use: The owner's limits on the use of the columns.

    Raises:
        PolicyError: The block uses columns that the owner does not allow.
        ConfigError: The party does not have the block, or its scores would replace another file.
        DataError: The file does not fit the block. The error names the party, the file and the column.
    """
    vfb2, key = config.family, SCORE_PATH if SiteConfig.of(node).vertical.score_path else DATA_PATH
    assert isinstance(vfb2, VFB2Settings)
    block = read_block(node, vfb2.score_run, vfb2.problem, partition)
    check_scores_path(node, vfb2.id_column, [path, block.path])
    use.check_block(() if block.preprocessing is None else block.preprocessing.columns)
    dialect = Dialect.of(with_dialect(config.data, node))
    read = partial(_score_table, id_column=vfb2.id_column, block=block, party=partition[0], dialect=dialect)
    return read_own(path, f"party {partition[0]}: {key}", read)


@lru_cache(maxsize=4)
def _score_table(
    path: Path, changed: int, *, id_column: str, block: BlockFile, party: int, dialect: Dialect
) -> ScoreTable:
    return ScoreTable(path, id_column, block, party, dialect)


def write_scores(
    path: Path, ids: Sequence[str], z: NDArray[np.float64], vfb2: VFB2Settings, classes: Sequence[str]
) -> None:
    """Write scores (n,), or softmax scores (n, k), as a csv file that only its owner can read, with a row for each id.

    The columns are the ids, ``score`` and, for problems with two classes, ``probability``: the sigmoid of the score,
    the model's probability of a positive label. For softmax the columns are the ids, the most probable ``class`` and
    the probability of each class. The columns are named by the classes, or by their numbers at a party without labels.
    """
    columns: dict[str, Sequence[Any]] = {vfb2.id_column: ids}
    if z.ndim == 2:
        names = classes or [str(number) for number in range(z.shape[1])]
        columns["class"] = [names[index] for index in z.argmax(axis=1)]
        chances = softmax(z, axis=1)
        columns |= {f"probability-{name}": chances[:, index].tolist() for index, name in enumerate(names)}
    else:
        columns["score"] = z.tolist()
    if make_objective(vfb2.problem).classification:
        columns["probability"] = np.exp(-np.logaddexp(0.0, -z)).tolist()
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(zip(*columns.values(), strict=True))
    make_folder(path.parent, private=True)
    write_atomic(path, text.getvalue().encode("utf-8", "surrogatepass"), private=True)


def check_scores_path(node: Mapping[str, Any], id_column: str, inputs: Sequence[Path]) -> None:
    """Check before scoring that the file at ``scores-path`` does not exist yet, or contains scores of an earlier run.

    Args:
        node: The party's node config.
        id_column: The name of the first column of a file of scores.
        inputs: The files that the party reads.

    Raises:
        ConfigError: The file is an input, or does not contain scores.
    """
    own = SiteConfig.of(node)
    target = own.vertical.scores_path
    if target is None or not target.exists():
        return
    read_files = (*inputs, own.data.data_path, own.vertical.score_path)
    fault = "which is not a table of scores"
    if any(file and file.exists() and target.samefile(file) for file in read_files):
        fault = "which is a file that this party reads"
    elif target.is_file():
        with target.open(encoding="utf-8", errors="replace", newline="") as file:
            if next(csv.reader(file), [])[:2] in ([id_column, "score"], [id_column, "class"]):
                return
    allowed, hint = "a new file, or a table of scores", f"set {SCORES_PATH} to another path"
    raise ConfigError(SCORES_PATH, got=f"{target}, {fault}", allowed=allowed, hint=hint)


def scores_path(node: Mapping[str, Any], folder: Path | None, block: BlockFile, token: str) -> Path:
    """Return the path of a party's scores: ``scores-path``, else in its folder of the run, else next to its block.

    Args:
        node: The party's node config.
        folder: The party's folder of the run, if it has one.
        block: The party's block.
        token: The token of the run that scores.
    """
    if path := SiteConfig.of(node).vertical.scores_path:
        return path
    return block.path.with_name(f"scores-{token}.csv") if folder is None else folder / "scores.csv"
