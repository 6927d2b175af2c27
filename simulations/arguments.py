"""Command-line options that several commands share, and the run and node configs and directories they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from apps.config import ConfigError, Scalar

AUTO: Literal["auto"] = "auto"
# how many clients are computed as one, at most: a number above 0, or `AUTO`, which tries what is fastest
Stack = int | Literal["auto"]


@dataclass(frozen=True)
class Cluster:
    """Where the workers of a run on Ray are.

    Attributes:
        address: Of a Ray cluster's head, or "auto" for one that runs on this machine; empty: a Ray of its own.
        workers: Their number; None: one for each CPU, and no more than there are clients.
        gpus: The share of a GPU that each worker takes.
    """

    address: str = ""
    workers: int | None = None
    gpus: float = 0.0


Overrides = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="run-config overrides, e.g. 'strategy=\"fedx2\" fedx.gamma=0.5'"),
]
Out = Annotated[Path, typer.Option("--out", help="the run directory to write")]
Clients = Annotated[int, typer.Option("--clients", min=1, help="number of clients")]
ClientsOrSites = Annotated[
    int | None, typer.Option("--clients", min=1, help="number of clients; 8, or one a --node-config")
]
NodeConfigs = Annotated[
    list[str] | None,
    typer.Option("--node-config", "-n", help="once a site: its node config, e.g. 'data-path=\"/srv/a.csv\"'"),
]
Stacked = Annotated[
    str,
    typer.Option("--stack", help="clients that are computed as one, at most, or auto; changes results by rounding"),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="print nothing but errors and missing sites (and what --json asks for)")
]
ProfileName = Literal["smoke", "quick", "full"]  # how much of an experiment is run
Json = Annotated[bool, typer.Option("--json", help="print the outcome on stdout as one JSON object, nothing else")]


def overrides_of(texts: Sequence[str] | None) -> dict[str, Scalar]:
    """Return the flat run config of some ``key=value`` strings or TOML files; later ones win.

    Raises:
        ConfigError: A text is neither, or names a key that the command line sets itself.
    """
    from apps.config import ConfigError
    from apps.run_config.pairs import parse_pairs

    flat: dict[str, Scalar] = {}
    for text in texts or []:
        flat |= parse_pairs("--config", text)
    for key in ("output-dir", "run-name"):
        if key in flat:
            raise ConfigError(
                key, got=f"{flat[key]!r} by --config", allowed="by --out alone", hint="leave it out of --config"
            )
    return flat


def sites_of(clients: int | None, texts: Sequence[str] | None) -> tuple[int, list[dict[str, Scalar]]]:
    """Return the number of clients, and their node configs, from ``key=value`` strings or TOML files, if there are any.

    Raises:
        ConfigError: A text is neither; it sets a site's partition, which follows from the order of the texts; or there
            are more or fewer texts than clients.
    """
    from apps.config import ConfigError
    from apps.run_config.pairs import parse_pairs

    nodes = [parse_pairs("--node-config", text) for text in texts or []]
    for key in ("partition-id", "num-partitions"):
        if any(key in node for node in nodes):
            allowed = "any other, since it follows from the order and the number of these options"
            raise ConfigError("--node-config", got=key, allowed=allowed, hint="leave it out")
    if nodes and clients not in (None, len(nodes)):
        got = f"{len(nodes)}, but --clients {clients}"
        raise ConfigError("--node-config", got=got, allowed="one for each client", hint="leave --clients out")
    return clients or len(nodes) or 8, nodes


def stack_of(text: str) -> Stack:
    """Return the value of ``--stack``.

    Raises:
        ConfigError: It is neither "auto" nor a number above 0.
    """
    if text == AUTO:
        return AUTO
    if not text.isdecimal() or not int(text):
        raise wrong_stack("--stack", text)
    return int(text)


def wrong_stack(key: str, given: object) -> ConfigError:
    """Return the error about a number of clients to stack that is none."""
    from apps.config import ConfigError

    return ConfigError(key, got=repr(given), allowed="auto, or an integer >= 1", hint="auto tries what is fastest")


def add_directory(flat: Mapping[str, Scalar], directory: Path) -> dict[str, Scalar]:
    """Return the flat run config of a run whose directory is ``directory``.

    Returns:
        A copy with ``output-dir``, the absolute path of the folder above it, and ``run-name``, its own name.
    """
    target = directory.expanduser().resolve()
    return {**flat, "output-dir": str(target.parent), "run-name": target.name}


def nest(flat: Mapping[str, Scalar]) -> dict[str, Any]:
    """``{"fedx.gamma": 0.5}`` -> ``{"fedx": {"gamma": 0.5}}``, the form a TOML file has.

    Args:
        flat: Value by key; what stands before a key's last dot names a table, and no other key may have that name.

    Example:
        >>> nest({"seed": 1, "fedx.gamma": 0.5})
        {'seed': 1, 'fedx': {'gamma': 0.5}}
    """
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *tables, name = key.split(".")
        level = tree
        for table in tables:
            level = level.setdefault(table, {})
        level[name] = value
    return tree
