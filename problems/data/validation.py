"""Checks of a `DataSpec` that need no data."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

from problems.data.spec import (
    DATASETS,
    DRAWN,
    GENERIC,
    GIVEN,
    NEEDS_FILES,
    OFFSET_SITES,
    OWN,
    PAGE,
    PARTITIONS,
    SITED,
    TABLES,
    UNLABELLED,
    DataError,
    DataSpec,
    parse_columns,
    parse_rows,
)
from problems.errors import NOTHING


def validate(spec: DataSpec, *, from_site: bool = False) -> None:
    """Check names and ranges without reading any data.

    `from_site` skips the checks that are pointless if sites read files of their own, such as that of `data_dir`.

    Raises:
        DataError: names the key as the run config spells it, what it got and what is allowed.
    """
    _known("dataset", spec.dataset, DATASETS)
    _known("partition", spec.partition, PARTITIONS)
    given = spec.partition == GIVEN
    if given:
        parse_rows(spec.partition_rows)
    for key, holds, allowed in (
        ("partition-alpha", 0.0 < spec.partition_alpha < math.inf, "a number above 0"),
        ("partition-classes", spec.partition_classes >= 1, "1 or more"),
        ("partition-sites", spec.partition_sites >= 0, "0 (as many as clients) or more"),
        ("partition-sites", not (given and spec.partition_sites), f"0 with partition {GIVEN!r}"),
        ("partition-rows", given or not spec.partition_rows, f"'' but with partition {GIVEN!r}"),
        ("imbalance", 0.0 <= spec.imbalance < 1.0, "0 (off) or a number between 0 and 1"),
        ("label-noise", 0.0 <= spec.label_noise < 0.5, "at least 0 and below 0.5"),
        ("client-shift", math.isfinite(spec.client_shift), "a finite number"),
        ("client-shift-std", 0.0 <= spec.client_shift_std < math.inf, "0 or above"),
        ("test-fraction", 0.0 < spec.test_fraction < 1.0, "between 0 and 1, both excluded"),
        ("validation-fraction", 0.0 <= spec.validation_fraction < 1.0, "0 (none) or below 1"),
        ("synthetic.alpha", 0.0 <= spec.synthetic_alpha < math.inf, "0 or above"),
        ("synthetic.beta", 0.0 <= spec.synthetic_beta < math.inf, "0 or above"),
        ("synthetic.samples", spec.synthetic_samples >= 1, "1 or more"),
        ("seed", spec.seed >= 0, "0 or a positive integer"),
    ):
        _inside(spec, key, holds, allowed)
    _check_columns(spec)
    if spec.partition == OWN:
        _check_own(spec)
        return
    if from_site:
        return
    if spec.dataset in NEEDS_FILES and not spec.data_dir:
        raise DataError(
            "data-dir",
            got=NOTHING,
            allowed=f"a file or folder, since dataset {spec.dataset!r} is read from files",
            hint=f"set data-dir to the file or its folder, see {PAGE}",
        )
    if spec.dataset in DRAWN:
        nature = "has no labels and comes" if spec.dataset in UNLABELLED else "comes"
        only: dict[str, tuple[object, ...]] = {
            "partition": ("iid", "natural"),
            "imbalance": (0.0,),
            "label-noise": (0.0,),
            "client-shift": (0.0,),
            "positive-label": ("",),
            "partition-sites": (0,),
        }
        for key, values in only.items():
            if _value(spec, key) not in values:
                raise DataError(
                    key,
                    got=repr(_value(spec, key)),
                    allowed=f"{values[-1]!r}, since dataset {spec.dataset!r} {nature} in sites of its own",
                    hint=f"leave it out, see {PAGE}",
                )
    if spec.dataset in UNLABELLED and spec.validation_fraction:
        raise DataError(
            "validation-fraction",
            got=spec.validation_fraction,
            allowed=f"0, since dataset {spec.dataset!r} has no test set",
            hint="leave it out",
        )
    if spec.partition == "natural" and spec.dataset not in SITED:
        raise DataError(
            "partition",
            got=f"'natural' with dataset {spec.dataset!r}, which has no sites of its own",
            allowed=f"with dataset {', '.join(SITED)}",
            hint=f"take 'consecutive' for slices in the order of the file, see {PAGE}",
        )
    if spec.dataset == OFFSET_SITES and spec.partition not in ("iid", "natural"):
        raise DataError(
            "partition",
            got=repr(spec.partition),
            allowed=f"'natural', since dataset {spec.dataset!r} comes in its own 16 sites",
            hint=f"leave it out, see {PAGE}",
        )


def _check_columns(spec: DataSpec) -> None:
    if spec.dataset in TABLES:
        parse_columns(spec.feature_columns)
    elif spec.dataset == "svmlight":
        number = spec.feature_columns
        counts = not number or (number.isdigit() and int(number) > 0)
        _inside(spec, "feature-columns", counts, "a number of features")
    elif spec.feature_columns:
        raise DataError(
            "feature-columns",
            got=repr(spec.feature_columns),
            allowed=(
                f"'' with dataset {spec.dataset!r}, which has columns of its own; names go with dataset "
                f"{', '.join((*TABLES, 'svmlight'))}"
            ),
            hint="leave it out",
        )
    if not spec.standardise and spec.dataset not in TABLES:
        raise DataError(
            "standardise",
            got=f"False with dataset {spec.dataset!r}",
            allowed=f"False with dataset {' or '.join(TABLES)}",
            hint="leave it out",
        )


def _check_own(spec: DataSpec) -> None:
    if spec.dataset not in GENERIC:
        raise DataError(
            "dataset",
            got=repr(spec.dataset),
            allowed=(
                f"{', '.join(GENERIC)}, since with partition {OWN!r} every node reads a file of its own, whose kind "
                "dataset names"
            ),
            hint=f"see {PAGE}",
        )
    for key in ("imbalance", "label-noise", "client-shift", "partition-sites"):
        if _value(spec, key):
            raise DataError(
                key,
                got=_value(spec, key),
                allowed=f"0 with partition {OWN!r}, since the sites' rows are used as they are",
                hint="leave it out",
            )
    if spec.validation_fraction and spec.data_dir:
        raise DataError(
            "validation-fraction",
            got=spec.validation_fraction,
            allowed=f"0 with partition {OWN!r} and a data-dir, since the server evaluates on its own file",
            hint="leave data-dir out, and the sites hold rows out",
        )


def _known(key: str, got: str, allowed: Iterable[str]) -> None:
    names = list(allowed)
    if got in names:
        return
    close = difflib.get_close_matches(got, names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise DataError(
        key,
        got=repr(got),
        allowed=f"{', '.join(names)}{hint}",
        hint=f"`python -m simulations list {key}s` explains them",
    )


def _inside(spec: DataSpec, key: str, holds: bool, allowed: str) -> None:
    if not holds:
        raise DataError(key, got=repr(_value(spec, key)), allowed=allowed, hint=f"see {PAGE}")


def _value(spec: DataSpec, key: str) -> Any:
    return getattr(spec, key.replace("-", "_").replace(".", "_"))
