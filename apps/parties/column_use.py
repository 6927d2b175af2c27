"""The owner's limits on a party's columns, as labels, features or ids, and on the networks that a run may use.

The person who submits a run writes the run config. Without these limits, ``label-column`` could turn a feature of any
party into a label, which all parties could then compute from the derivatives that they receive. A party with its own
file therefore uses as labels only columns that its owner names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from logging import INFO
from typing import Self

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from apps.run_config.algorithm import RunConfig
from apps.sites.settings import DEFAULT_FEWEST_COLUMNS, DEFAULT_LARGEST_EMBEDDING, VerticalTable
from problems.data import DataSpec
from problems.data.samples import Array
from problems.data.spec import parse_columns
from vertical.policy import DEFAULT_FEWEST_ROWS, PolicyError
from vertical.problem.blocks.network import NETWORKS
from vertical.settings import VFB2Settings

LABELS, COLUMNS, ID_COLUMN, MODELS = "labels", "columns", "id-column", "models"
FEWEST_COLUMNS, LARGEST_EMBEDDING = "fewest-columns", "largest-embedding"
# A column varies if at least one row in this many differs from the column's most frequent value.
_VARYING = 100


@dataclass(frozen=True)
class ColumnUse:
    """The columns of a party's file that a run may use. The defaults apply to a party with its own file.

    Attributes:
        labels: The columns that may be a label. Empty: the party never provides labels.
        columns: The columns that may be features. None: all except the ids and the labels.
        id_column: The column of the ids. "": the run config names it.
        models: The values of `vfb2.model`.
        fewest_columns: The fewest columns that vary over the training rows.
        largest_embedding: The largest `vfb2.embedding`.
        fewest_rows: The fewest rows. Fewer rows are not checked, since `Policy.check_rows` refuses them.
    """

    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    id_column: str = ""
    models: tuple[str, ...] = NETWORKS
    fewest_columns: int = DEFAULT_FEWEST_COLUMNS
    largest_embedding: int = DEFAULT_LARGEST_EMBEDDING
    fewest_rows: int = DEFAULT_FEWEST_ROWS

    @classmethod
    def of(cls, settings: VerticalTable) -> Self:
        """Return the limits that the owner of a party sets.

        Args:
            settings: The party's settings.
        """
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})

    def may_be_feature(self, name: str) -> bool:
        """Return whether a column of the file may be a feature."""
        return name not in self.labels if self.columns is None else name in self.columns

    def choose(self, names: Sequence[str], spec: DataSpec) -> list[str]:
        """Return the columns that a run may read: the features and, if the owner allows it, the label.

        Args:
            names: The columns of the file, without the column of the ids.
            spec: The run's keys of the data.

        Raises:
            PolicyError: The run uses a column in another way than the owner allows, or the file lacks a column.
        """
        label = spec.labels_in
        if lacking := [name for name in self.columns or () if name not in names]:
            log(INFO, "columns in the site's settings that the file does not have: %s", ", ".join(lacking))
            got, allowed = f"{len(lacking)} columns that the file does not have", "columns of the party's file"
            raise PolicyError(COLUMNS, got=got, allowed=allowed, hint="change columns in the site config")
        if label in names and label not in self.labels and self.may_be_feature(label):
            got = f"a run with label-column={label!r}, a column that this party's settings do not allow as a label"
            allowed = f"label-column {' or '.join(map(repr, self.labels))}" if self.labels else "another party's column"
            hint = f"set label-column to another column, or let the owner add {label!r} to {LABELS} in the site config"
            raise PolicyError(LABELS, got=got, allowed=allowed, hint=hint)
        requested = [column.name for column in parse_columns(spec.feature_columns)]
        refused = [name for name in requested if name in names and name != label and not self.may_be_feature(name)]
        if refused:
            got = f"a run with {', '.join(map(repr, refused[:10]))} in feature-columns"
            allowed = "features that this party's settings allow"
            hint = f"change feature-columns, or let the owner add the columns to {COLUMNS} in the site config"
            raise PolicyError(COLUMNS, got=got, allowed=allowed, hint=hint)
        usable = [name for name in names if self.may_be_feature(name) or (name == label and label in self.labels)]
        if left := [name for name in names if name not in usable]:
            log(
                INFO,
                "%d columns are not used, since the site's settings do not allow it: %s",
                len(left),
                ", ".join(left),
            )
        return usable

    def check_varying(self, features: Array, groups: NDArray[np.int64]) -> None:
        """Refuse rows over which too few of the party's columns vary.

        If only one column varies, a sum over the parties reveals the column up to its scale. Run-config keys such as
        ``drop-columns`` and ``missing-values`` could leave only one column.

        Args:
            features: The encoded training rows (n, d).
            groups: The number of each feature's column (d,). Below 0: the intercept.

        Raises:
            PolicyError: Fewer columns vary than the owner requires.
        """
        if len(features) < self.fewest_rows:
            return
        min_differing, varying = max(1, len(features) // _VARYING), set[int]()
        for column, group in zip(features.T, groups.tolist(), strict=True):
            if len(varying) >= self.fewest_columns:
                return  # the other columns need no check
            if group >= 0 and len(column) - np.unique(column, return_counts=True)[1].max() >= min_differing:
                varying.add(group)
        if len(varying) < self.fewest_columns:
            got = "a run in which too few of this party's columns vary"
            allowed = f"{self.fewest_columns} or more varying columns"
            keys = "feature-columns, drop-columns or missing-values"
            hint = f"use more columns of this party ({keys}), or let the owner lower {FEWEST_COLUMNS}"
            raise PolicyError(FEWEST_COLUMNS, got=got, allowed=allowed, hint=hint)

    def check_ids(self, column: str) -> None:
        """Refuse a column of ids that the owner has not named, or has named for another use.

        Args:
            column: The run's `vfb2.id-column`.

        Raises:
            PolicyError: The column is refused. The error names the key of the site config.
        """
        if self.id_column and column != self.id_column:
            got, hint = f"a run with vfb2.id-column={column!r}", "set vfb2.id-column"
            raise PolicyError(ID_COLUMN, got=got, allowed=repr(self.id_column), hint=hint)
        for key, names in ((LABELS, self.labels), (COLUMNS, self.columns or ())):
            if column in names:
                got, allowed = f"a run with vfb2.id-column={column!r}, one of {key}", "a column that has no other use"
                raise PolicyError(key, got=got, allowed=allowed, hint="set vfb2.id-column")

    def check_block(self, columns: Sequence[str]) -> None:
        """Refuse to score with columns that may no longer be features.

        Args:
            columns: The file's columns that the block uses.

        Raises:
            PolicyError: One of the columns may not be a feature.
        """
        refused = [repr(name) for name in columns if not self.may_be_feature(name)]
        if refused:
            got, allowed = (
                f"a block of the columns {', '.join(refused[:10])}",
                "columns that this party's settings allow",
            )
            raise PolicyError(
                COLUMNS, got=got, allowed=allowed, hint="train again, or let the owner change the settings"
            )


def check_use(use: ColumnUse, config: RunConfig, *, own_model: bool) -> None:
    """Refuse a run with ids or networks that a party's owner does not allow. The check reads and imports nothing.

    Args:
        use: The owner's limits.
        config: The run config.
        own_model: Whether the party's node config names its network, so the run's network is not used.

    Raises:
        PolicyError: The run is refused. The error names the key of the site config.
    """
    vfb2 = config.family
    assert isinstance(vfb2, VFB2Settings)
    use.check_ids(vfb2.id_column)
    if vfb2.score_run or not vfb2.embedding:
        return
    if vfb2.embedding > use.largest_embedding:
        got, allowed = f"a run with vfb2.embedding={vfb2.embedding}", f"at most {use.largest_embedding}"
        raise PolicyError(LARGEST_EMBEDDING, got=got, allowed=allowed, hint="lower vfb2.embedding")
    if vfb2.model not in use.models and not own_model:
        got, allowed = f"a run with vfb2.model={vfb2.model!r}", ", ".join(use.models)
        hint = f"set vfb2.model, or let the owner add the network to {MODELS} in the site config"
        raise PolicyError(MODELS, got=got, allowed=allowed, hint=hint)
