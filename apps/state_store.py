"""Client state on the site's own disk, so that a resumed run continues where the uninterrupted one would be.

Flower keeps ``Context.state`` in memory for one run. When checkpoints are on, a client with state also writes it to
its state directory, one file a round: the node config's ``state-dir``, or in simulation, where server and clients
share a disk, a folder of the run directory named by the server. Files older than the newest one that the server's
durable checkpoint covers are removed, so a few are there at a time. A run has a token of its own, kept through a
resume, so that no run reads the state of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from flwr.app import Context

from apps.files import read_tensors, write_tensors
from payloads.record import Payload

STATE_DIR = "state-dir"
CHECKPOINT_ROUND = "checkpoint-round"
RUN_TOKEN = "run-token"

P = TypeVar("P", bound=Payload)


class StateStore:
    """The saved states of one client, in ``folder``, by round."""

    def __init__(self, folder: Path, checkpoint_round: int) -> None:
        self.folder = folder
        self.checkpoint_round = checkpoint_round

    @classmethod
    def of(
        cls, context: Context, config: Mapping[str, Any], local: Mapping[str, Any], partition_id: int
    ) -> Self | None:
        """The store of a node, or None where nothing is to be kept.

        Args:
            config, local: the message's records of those names.
        """
        if CHECKPOINT_ROUND not in config:
            return None
        own = str(context.node_config.get(STATE_DIR, ""))
        named = str(local.get(STATE_DIR, ""))
        base = own or (named if named and Path(named).is_dir() else "")
        if not base:
            return None
        folder = Path(base) / str(config[RUN_TOKEN]) / f"client-{partition_id}"
        return cls(folder, int(config[CHECKPOINT_ROUND]))

    def rounds(self) -> dict[int, Path]:
        """The rounds with a saved state, oldest first."""
        found = {int(path.stem.removeprefix("round-")): path for path in self.folder.glob("round-*.safetensors")}
        return dict(sorted(found.items()))

    def save(self, server_round: int, state: Payload) -> None:
        """Write a round's state, and remove what no resume can need any more."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_tensors(self.folder / f"round-{server_round:06d}.safetensors", state.durable(), {})
        covered = [number for number in self.rounds() if number <= self.checkpoint_round]
        for number in covered[:-1]:
            (self.folder / f"round-{number:06d}.safetensors").unlink(missing_ok=True)

    def load(self, kind: type[P], since: int, before: int) -> tuple[P | None, int]:
        """The newest state made from round ``since`` on but before another round, and the round that made it; None and
        0 where there is none. Later ones belong to a trajectory that was cut off."""
        found = self.rounds()
        eligible = [number for number in found if since <= number < before]
        if not eligible:
            return None, 0
        arrays, _ = read_tensors(found[eligible[-1]])
        return kind(**arrays).check(), eligible[-1]
