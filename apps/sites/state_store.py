"""Client memory on the site's own disk, so that a resumed run continues as the uninterrupted one would.

Keys and files call it state. There is one file per round, with the client, type and round in its metadata;
docs/architecture.md says where it lies.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from flwr.app import Context

from apps.sites.files import read_sealed, write_sealed
from payloads.record import Payload, PayloadError
from payloads.wire import RUN_TOKEN
from problems.files import make_folder

STATE_DIR = "state-dir"
CHECKPOINT_ROUND = "checkpoint-round"
STATE_FORMAT, STATE_VERSION = "florilegium-client-state", "1"

P = TypeVar("P", bound=Payload)


def state_dir(node: Mapping[str, Any]) -> Path | None:
    """Return the folder that a config names for a client's files, or None if it names none.

    Args:
        node: a node config, or the paths that a message brings.
    """
    named = str(node.get(STATE_DIR, ""))
    return Path(named).expanduser() if named else None


def base_folder(node: Mapping[str, Any], local: Mapping[str, Any]) -> Path | None:
    """Return the folder of a client's files of all runs, or None: its ``state-dir``, else a server's on the same disk.

    Args:
        node: its node config.
        local: the paths that a message brings.
    """
    own, shared = state_dir(node), state_dir(local)
    return shared if own is None and shared is not None and shared.is_dir() else own


def is_token(text: str) -> bool:
    """Whether a text can be a run's token, under whose name clients keep files: 32 hexadecimal digits."""
    return re.fullmatch("[0-9a-f]{32}", text) is not None


def client_folder(base: Path, token: str, client: int) -> Path:
    """Return the folder of a client's files of a run.

    Args:
        base: the folder of all runs.
        token: the run's, which comes with a message: a server must not choose a folder outside the base by it.

    Raises:
        ValueError: the token is not 32 hexadecimal digits.
    """
    if not is_token(token):
        raise ValueError(f"{RUN_TOKEN}: got {token[:64]!r}, allowed: 32 hexadecimal digits")
    return base / token / f"client-{client}"


class StateStore:
    """The saved memory of one client, in ``folder``, by round."""

    def __init__(self, folder: Path, checkpoint_round: int) -> None:
        self.folder = folder
        self.checkpoint_round = checkpoint_round

    @classmethod
    def of(
        cls, context: Context, config: Mapping[str, Any], local: Mapping[str, Any], partition_id: int
    ) -> Self | None:
        """Return the store of a node, or None where nothing is to be kept.

        Args:
            config: the message's scalars; without a checkpoint's round among them the run keeps no memory on a disk.
            local: the message's paths, which name a folder that is used if the node config has no ``state-dir``.
        """
        if CHECKPOINT_ROUND not in config:
            return None
        base = base_folder(context.node_config, local)
        if base is None:
            return None
        return cls(client_folder(base, str(config[RUN_TOKEN]), partition_id), int(config[CHECKPOINT_ROUND]))

    def rounds(self) -> list[int]:
        """The rounds with saved memory, oldest first."""
        numbers = [path.stem.removeprefix("round-") for path in self.folder.glob("round-*.safetensors")]
        return sorted(int(text) for text in numbers if text.isdecimal())

    def file(self, server_round: int) -> Path:
        """The path of a round's file."""
        return self.folder / f"round-{server_round:06d}.safetensors"

    def describe(self, kind: type[Payload], server_round: int) -> dict[str, str]:
        """The metadata of a file: owner, type and round of the memory."""
        owner = f"{self.folder.parent.name}/{self.folder.name}"
        return {"owner": owner, "kind": kind.__name__, "round": str(server_round)}

    def save(self, server_round: int, state: Payload) -> None:
        """Write a round's memory, and remove files that no resume can need any more.

        Args:
            server_round: the one that made the memory.
            state: the memory; its secret fields are left out.
        """
        make_folder(self.folder, private=True)
        header = self.describe(type(state), server_round)
        write_sealed(self.file(server_round), STATE_FORMAT, STATE_VERSION, state.durable(), header, private=True)
        covered = [number for number in self.rounds() if number <= self.checkpoint_round]
        for number in covered[:-1]:
            self.file(number).unlink(missing_ok=True)

    def load(self, kind: type[P], since: int, before: int) -> tuple[P | None, int]:
        """Return the newest memory made in rounds ``since`` to ``before`` - 1, and its round; or (None, 0).

        Later files belong to rounds that a resumed run makes again.

        Raises:
            PayloadError: the file is truncated, damaged, or not this client's of that round.
        """
        eligible = [number for number in self.rounds() if since <= number < before]
        if not eligible:
            return None, 0
        path, made = self.file(eligible[-1]), eligible[-1]
        arrays, header = read_sealed(path, STATE_FORMAT, STATE_VERSION)
        for name, wanted in self.describe(kind, made).items():
            if header.get(name) != wanted:
                raise PayloadError(f"{path}: {name} {header.get(name)!r}, expected {wanted!r}")
        return kind.from_arrays(arrays), made
