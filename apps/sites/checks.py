"""What an algorithm refuses of a run config beyond the types of its keys."""

from __future__ import annotations

from apps.run_config.settings import ConfigError
from methods.penalised import CompositeSettings
from payloads.settings import Settings
from payloads.vfb2 import VFB2Settings
from problems.data import DataSpec
from problems.data.spec import DRAWN
from problems.penalties import make_penalty
from problems.vertical.objectives import make_objective

# What `partition` means where columns are spread instead of rows.
COLUMN_PARTITIONS = {"iid": "random", "consecutive": "consecutive"}


def check_penalty(strategy: str, spec: DataSpec, composite: Settings) -> None:
    """Refuse options of the penalty that do not fit each other."""
    assert isinstance(composite, CompositeSettings)
    try:
        make_penalty(composite.penalty, [("x", (1, 1))], **{**composite.penalty_options, "parameters": "all"})
    except ValueError as error:
        raise ConfigError(
            "composite.penalty",
            got=f"{composite.penalty!r}, but {error}",
            allowed="options that fit it",
            hint="see docs/composite.md",
        ) from None


def check_columns(strategy: str, spec: DataSpec, vfb2: Settings) -> None:
    """Refuse what has no meaning where all clients hold the same rows."""
    assert isinstance(vfb2, VFB2Settings)
    clients_columns = f"since the clients of strategy {strategy!r} hold columns of the same rows"
    if spec.dataset in DRAWN:
        raise ConfigError(
            "dataset",
            got=f"{spec.dataset!r}, whose clients draw rows of their own",
            allowed=f"any but {', '.join(DRAWN)}, {clients_columns}",
            hint="see docs/vertical.md",
        )
    if spec.partition not in COLUMN_PARTITIONS:
        raise ConfigError(
            "partition",
            got=repr(spec.partition),
            allowed=f"{' or '.join(COLUMN_PARTITIONS)}, {clients_columns}",
            hint="leave it out, see docs/vertical.md",
        )
    for key, got, allowed in (
        ("feature-columns", spec.feature_columns, ""),
        ("standardise", spec.standardise, True),
        ("client-shift", spec.client_shift, 0.0),
        ("partition-sites", spec.partition_sites, 0),
    ):
        if got != allowed:
            raise ConfigError(
                key, got=repr(got), allowed=f"{allowed!r}, {clients_columns}", hint="leave it out, see docs/vertical.md"
            )
    if vfb2.label_epsilon and not make_objective(vfb2.problem).classification:
        raise ConfigError(
            "vfb2.label-epsilon",
            got=vfb2.label_epsilon,
            allowed=f"0, since problem {vfb2.problem!r} has no classes",
            hint="leave it out, or set vfb2.problem",
        )
