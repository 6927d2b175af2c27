"""Command-line options that several commands share, and their conversion to run configs and node configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from apps.config import ConfigError, Scalar

AUTO: Literal["auto"] = "auto"
# The maximum number of clients that train as one batched computation. `AUTO`: the fastest number.
Stack = int | Literal["auto"]


@dataclass(frozen=True)
class Cluster:
    """The workers of a run on Ray.

    Attributes:
        address: The address of a Ray cluster's head, or "auto" for a Ray on this machine. Empty: a new local Ray.
        workers: The number of workers. None: one for each CPU, at most one for each client.
        gpus: The share of a GPU that each worker takes.
    """

    address: str = ""
    workers: int | None = None
    gpus: float = 0.0


Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", help="run-config keys, e.g. 'strategy=\"fedx2\" fedx.gamma=0.5', or the path of a TOML file"
    ),
]
Out = Annotated[Path, typer.Option("--out", help="the run directory to write")]
Clients = Annotated[int, typer.Option("--clients", min=1, help="number of clients")]
ClientsOrSites = Annotated[
    int | None, typer.Option("--clients", min=1, help="number of clients; default: 8, or one for each --node-config")
]
NodeConfigs = Annotated[
    list[str] | None,
    typer.Option(
        "--node-config",
        "-n",
        help="settings of a site, e.g. 'data-path=\"/srv/a.csv\"', or the path of a TOML file; repeat it for each site",
    ),
]
Stacked = Annotated[
    str,
    typer.Option(
        "--stack",
        help="maximum number of clients to train as one batched computation, or auto for the fastest number; "
        "results change by rounding errors",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="print only errors and missing sites (and the output of --json)")]
ProfileName = Literal["smoke", "quick", "full"]  # the size of an experiment's reproduction, smallest first
Json = Annotated[bool, typer.Option("--json", help="print only the result, as a JSON object on stdout")]


def overrides_of(texts: Sequence[str] | None) -> dict[str, Scalar]:
    """Return the flat run config of ``key=value`` strings or TOML files. Later values win.

    Raises:
        ConfigError: A text has another form, or sets a key that ``--out`` determines.
    """
    from apps.config import ConfigError
    from apps.run_config.pairs import parse_pairs

    flat: dict[str, Scalar] = {}
    for text in texts or []:
        flat |= parse_pairs("--config", text)
    for key in ("output-dir", "run-name"):
        if key in flat:
            allowed = "no value in --config, since --out sets the run directory"
            raise ConfigError(key, got=repr(flat[key]), allowed=allowed, hint=f"remove {key} from --config")
    return flat


def sites_of(clients: int | None, texts: Sequence[str] | None) -> tuple[int, list[dict[str, Scalar]]]:
    """Return the number of clients, and each client's node config.

    Args:
        clients: The value of ``--clients``.
        texts: The values of ``--node-config``: ``key=value`` strings or TOML files, one for each client.

    Raises:
        ConfigError: A text has another form, or sets a site's partition, which follows from the order of the texts; or
            the numbers of texts and clients differ.
    """
    from apps.config import ConfigError
    from apps.run_config.pairs import parse_pairs

    nodes = [parse_pairs("--node-config", text) for text in texts or []]
    for key in ("partition-id", "num-partitions"):
        if any(key in node for node in nodes):
            allowed = f"keys except {key}, which the order and the number of the --node-config options determine"
            raise ConfigError("--node-config", got=key, allowed=allowed, hint=f"remove {key}")
    if nodes and clients not in (None, len(nodes)):
        got, hint = f"{len(nodes)} for --clients {clients}", "remove --clients, or repeat --node-config"
        raise ConfigError("--node-config", got=got, allowed="a node config for each client", hint=hint)
    return clients or len(nodes) or 8, nodes


def stack_of(text: str) -> Stack:
    """Return the value of ``--stack``.

    Raises:
        ConfigError: The text is neither "auto" nor a number above 0.
    """
    if text == AUTO:
        return AUTO
    if not text.isdecimal() or not int(text):
        raise wrong_stack("--stack", text)
    return int(text)


def wrong_stack(key: str, value: object) -> ConfigError:
    """Return the error about a value that is not a number of clients to stack."""
    from apps.config import ConfigError

    hint = f"set {key} to auto for the fastest number"
    return ConfigError(key, got=repr(value), allowed="auto, or an integer >= 1", hint=hint)


def add_directory(flat: Mapping[str, Scalar], directory: Path) -> dict[str, Scalar]:
    """Return the flat run config of a run whose directory is ``directory``.

    Returns:
        A copy with ``output-dir``, the absolute path of the parent folder, and ``run-name``, the directory's name.
    """
    target = directory.expanduser().resolve()
    return {**flat, "output-dir": str(target.parent), "run-name": target.name}


def nest(flat: Mapping[str, Scalar]) -> dict[str, Any]:
    """Convert ``{"fedx.gamma": 0.5}`` to ``{"fedx": {"gamma": 0.5}}``, the form of a TOML file.

    Args:
        flat: Values by key. The part before a key's last dot is the name of a table, and must not be a key itself.

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
