"""A run on the SuperLink of a kit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from logging import INFO
from pathlib import Path

from flwr.common import log

from apps.config import parse_run_config
from apps.run_config.pairs import parse_pairs
from apps.run_config.settings import ConfigError, Scalar
from simulations.engines.flower import PROJECT, FlowerError, Flwr, require_checkout
from simulations.kits.kit import RUN_FILE, Kit
from simulations.kits.start import environment_of

_POLL = 3.0
NODES, STATUS, ONLINE = "nodes", "status", "online"


def submit(folder: Path, texts: Sequence[str], name: str, app: Path | None) -> Path:
    """Wait for all sites, start a run, and follow it to its end.

    Args:
        folder: The kit of the SuperLink.
        texts: Run-config keys, or TOML files, in addition to the kit's run config.
        name: The name of the run directory. "": the time of the start.
        app: The folder of the Flower app. None: this project.

    Returns:
        The folder of the run directories, or the run directory if it has a name.

    Raises:
        ConfigError: The run config is wrong, or the folder is not the kit of a SuperLink.
        FlowerError: The run was refused, failed or was stopped.
    """
    folder = folder.resolve()
    kit = Kit.read(folder)
    if kit.kind != "superlink":
        raise ConfigError(
            "kit", got=f"the kit of a {kit.kind}", allowed="the SuperLink's kit", hint="choose its folder"
        )
    flat: dict[str, Scalar] = {"output-dir": str(folder / "results"), **({"run-name": name} if name else {})}
    for text in [*([str(folder / RUN_FILE)] if (folder / RUN_FILE).exists() else []), *texts]:
        flat |= parse_pairs("--config", text)
    if app is None:
        require_checkout("florilegium kit run")
        parse_run_config(flat)
    flwr = Flwr(environment_of(folder), kit.project)
    _await_sites(flwr, kit)
    flwr.run(app or PROJECT, flat)
    results = Path(str(flat["output-dir"]))
    return results / str(flat["run-name"]) if "run-name" in flat else results


def _await_sites(flwr: Flwr, kit: Kit) -> None:
    """Return when as many sites are online as the kit has. The log has the number while it changes."""
    seen = -1
    while True:
        try:
            nodes = flwr.ask("supernode", "list", kit.project)[NODES]
            online = sum(node[STATUS] == ONLINE for node in nodes)
        except FlowerError as error:
            log(INFO, "waiting for the SuperLink: %s", error)
            online = -1
        if online != seen:
            log(INFO, "%d of %d sites are online", max(online, 0), len(kit.members))
        if online >= len(kit.members):
            return
        seen = online
        time.sleep(_POLL)
