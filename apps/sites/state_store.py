"""Client state on the site's own disk, so that a resumed run continues where the uninterrupted one would be.

There is one file a round, which says whose state it holds, of which kind and round; docs/architecture.md says where.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from flwr.app import Context

from apps.sites.files import make_folder, read_sealed, write_sealed
from payloads.record import Payload, PayloadError

STATE_DIR = "state-dir"
CHECKPOINT_ROUND = "checkpoint-round"
RUN_TOKEN = "run-token"
STATE_FORMAT, STATE_VERSION = "florilegium-client-state", "1"

P = TypeVar("P", bound=Payload)


def state_dir(node: Mapping[str, Any]) -> Path | None:
    """The folder that a node config names for what the node keeps, or None."""
    named = str(node.get(STATE_DIR, ""))
    return Path(named).expanduser() if named else None


class StateStore:
    """The saved states of one client, in ``folder``, by round."""

    def __init__(self, folder: Path, checkpoint_round: int) -> None:
        self.folder = folder
        self.checkpoint_round = checkpoint_round

    @classmethod
    def of(
        cls, context: Context, config: Mapping[str, Any], local: Mapping[str, Any], partition_id: int
    ) -> Self | None:
        """The store of a node, or None where nothing is to be kept; ``config``, ``local``: the message's records."""
        if CHECKPOINT_ROUND not in config:
            return None
        base, shared = state_dir(context.node_config), state_dir(local)
        if base is None and shared is not None and shared.is_dir():
            base = shared
        if base is None:
            return None
        return cls(base / str(config[RUN_TOKEN]) / f"client-{partition_id}", int(config[CHECKPOINT_ROUND]))

    def rounds(self) -> list[int]:
        """The rounds with a saved state, oldest first."""
        numbers = [path.stem.removeprefix("round-") for path in self.folder.glob("round-*.safetensors")]
        return sorted(int(text) for text in numbers if text.isdecimal())

    def file(self, server_round: int) -> Path:
        """Where a round's state is."""
        return self.folder / f"round-{server_round:06d}.safetensors"

    def described(self, kind: type[Payload], server_round: int) -> dict[str, str]:
        """What a file says of itself: whose state it holds, of which kind and round."""
        owner = f"{self.folder.parent.name}/{self.folder.name}"
        return {"owner": owner, "kind": kind.__name__, "round": str(server_round)}

    def save(self, server_round: int, state: Payload) -> None:
        """Write a round's state, and remove what no resume can need any more."""
        make_folder(self.folder, private=True)
        told = self.described(type(state), server_round)
        write_sealed(self.file(server_round), STATE_FORMAT, STATE_VERSION, state.durable(), told, private=True)
        covered = [number for number in self.rounds() if number <= self.checkpoint_round]
        for number in covered[:-1]:
            self.file(number).unlink(missing_ok=True)

    def load(self, kind: type[P], since: int, before: int) -> tuple[P | None, int]:
        """The newest state made from round ``since`` on but before another round, and the round that made it; None and
        0 where there is none. Later ones belong to a trajectory that was cut off.

        Raises:
            PayloadError: it is truncated, damaged, or not this client's state of that round.
        """
        eligible = [number for number in self.rounds() if since <= number < before]
        if not eligible:
            return None, 0
        path, made = self.file(eligible[-1]), eligible[-1]
        arrays, told = read_sealed(path, STATE_FORMAT, STATE_VERSION)
        for name, wanted in self.described(kind, made).items():
            if told.get(name) != wanted:
                raise PayloadError(f"{path}: {name} {told.get(name)!r}, expected {wanted!r}")
        return kind.from_arrays(arrays), made
