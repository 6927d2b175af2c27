"""What rows begin with: a run that has finished."""

from __future__ import annotations

from pathlib import Path

from simulations.arguments import overrides_of, placed
from simulations.launch import run_federation
from simulations.output import log_off

CONFIG = (
    'strategy="scaffold" dataset="breast-cancer" model="linear" num-server-rounds=2 local-steps=1 checkpoint-every=1'
)


def finished(folder: Path) -> Path:
    """The directory of a run of two clients and two rounds that keep state, with a checkpoint of each round."""
    path = folder / "finished"
    with log_off(True):
        run_federation(2, placed(overrides_of([CONFIG]), path))
    return path
