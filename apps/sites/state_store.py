"""Client memory (the values that a client keeps between rounds) on the site's own disk.

With the memory, a resumed run continues like an uninterrupted run. In the names of keys and files the memory is called
state. Each round has one file, with the client, type and round in its metadata. docs/architecture.md explains the
folders.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from flwr.app import Context

from apps.sites.files import read_sealed, write_sealed
from apps.sites.memory_blocks import MemoryBlocks
from payloads.record import Payload
from payloads.wire import RUN_TOKEN
from problems.files import make_folder

STATE_DIR = "state-dir"
CHECKPOINT_ROUND = "checkpoint-round"
STATE_FORMAT, STATE_VERSION = "florilegium-client-state", "1"

P = TypeVar("P", bound=Payload)


def state_dir(node: Mapping[str, Any]) -> Path | None:
    """Return the ``state-dir`` of a node config: the folder for a client's files. None if the key is missing.

    Args:
        node: A node config, or the paths in a message.
    """
    folder = str(node.get(STATE_DIR, ""))
    return Path(folder).expanduser() if folder else None


def base_folder(node: Mapping[str, Any], local: Mapping[str, Any]) -> Path | None:
    """Return the folder of a client's files of all runs: its ``state-dir``, else a folder of a server on this disk.

    Args:
        node: The client's node config.
        local: The paths in a message. Only a server on the same disk sends paths.

    Returns:
        The folder. None if the node config and the message name no folder.
    """
    own, shared = state_dir(node), state_dir(local)
    return shared if own is None and shared is not None and shared.is_dir() else own


def is_token(text: str) -> bool:
    """Return whether a text has the form of a run's token: 32 hexadecimal digits."""
    return re.fullmatch("[0-9a-f]{32}", text) is not None


def client_folder(base: Path, token: str, client: int) -> Path:
    """Return the folder of a client's files of a run.

    Args:
        base: The folder of all runs.
        token: The run's token. It comes from the server, which must not choose a folder outside ``base``.
        client: The client's partition id.

    Raises:
        ValueError: The token is not 32 hexadecimal digits.
    """
    if not is_token(token):
        raise ValueError(f"{RUN_TOKEN}: got {token[:64]!r}, allowed: 32 hexadecimal digits")
    return base / token / f"client-{client}"


class StateStore:
    """A client's memory on disk, with one file for each round.

    Args:
        folder: The folder of the client's files of a run.
        checkpoint_round: The round of the server's newest checkpoint, from which a resumed run would continue.
        flushed: Whether each file is on the disk when it is written. A server on the same disk flushes all files before
            its next checkpoint, so they need not be.
    """

    def __init__(self, folder: Path, checkpoint_round: int, *, flushed: bool = True) -> None:
        self.folder = folder
        self.checkpoint_round = checkpoint_round
        self.flushed = flushed

    @classmethod
    def of(
        cls, context: Context, config: Mapping[str, Any], local: Mapping[str, Any], partition_id: int
    ) -> Self | None:
        """Return the store of a node. None if the run stores no memory on the node's disk.

        Args:
            context: The node's context.
            config: The message's scalars. They name a checkpoint's round if the run stores memory on disks.
            local: The paths in the message. Their folder is used if the node config has no ``state-dir``.
            partition_id: The node's partition id.
        """
        if CHECKPOINT_ROUND not in config:
            return None
        base = base_folder(context.node_config, local)
        if base is None:
            return None
        folder = client_folder(base, str(config[RUN_TOKEN]), partition_id)
        return cls(folder, int(config[CHECKPOINT_ROUND]), flushed=state_dir(context.node_config) is not None)

    def rounds(self) -> list[int]:
        """Return the rounds with saved memory, oldest first."""
        numbers = [path.stem.removeprefix("round-") for path in self.folder.glob("round-*.safetensors")]
        return sorted(int(text) for text in numbers if text.isdecimal())

    def file(self, server_round: int) -> Path:
        """Return the path of a round's file."""
        return self.folder / f"round-{server_round:06d}.safetensors"

    def describe(self, kind: type[Payload], server_round: int) -> dict[str, str]:
        """Return the metadata of a file: owner, type and round of the memory."""
        owner = f"{self.folder.parent.name}/{self.folder.name}"
        return {"owner": owner, "kind": kind.__name__, "round": str(server_round)}

    def save(self, server_round: int, state: Payload) -> None:
        """Write a round's memory, and remove files that a resumed run cannot need any more.

        Args:
            server_round: The round at whose end the client had this memory.
            state: The memory. Its secret fields are not written.
        """
        make_folder(self.folder, private=True)
        header = self.describe(type(state), server_round)
        path, values = self.file(server_round), state.durable()
        write_sealed(path, STATE_FORMAT, STATE_VERSION, values, header, private=True, flushed=self.flushed)
        covered = [number for number in self.rounds() if number <= self.checkpoint_round]
        for number in covered[:-1]:
            self.file(number).unlink(missing_ok=True)

    def load(self, kind: type[P], since: int, before: int) -> tuple[P | None, int]:
        """Return the newest memory of the rounds from ``since`` to ``before`` - 1, and its round; or (None, 0).

        Files of later rounds are ignored: a resumed run repeats those rounds. A newer memory may be in a file of many
        clients, see `apps.sites.memory_blocks`.

        Args:
            kind: The type of the memory.
            since: The first round.
            before: The round after the last round.

        Raises:
            PayloadError: The file is truncated, damaged, or belongs to another client or round.
        """
        client, (own, stored) = int(self.folder.name.removeprefix("client-")), self.load_own(kind, since, before)
        shared = MemoryBlocks(self.folder.parent).find(kind, [client], max(since, stored + 1), before)
        return shared.get(client, (own, stored))

    def load_own(self, kind: type[P], since: int, before: int) -> tuple[P | None, int]:
        """Return the newest memory in the client's own files, as `load` does."""
        eligible = [number for number in self.rounds() if since <= number < before]
        if not eligible:
            return None, 0
        path, newest = self.file(eligible[-1]), eligible[-1]
        arrays, _ = read_sealed(path, STATE_FORMAT, STATE_VERSION, self.describe(kind, newest))
        return kind.from_arrays(arrays), newest


def load_all(folder: Path, kind: type[P], clients: Collection[int], before: int) -> dict[int, tuple[P, int]]:
    """Return the newest memories of clients of a run in the rounds before a round, and their rounds.

    Args:
        folder: The folder of the clients' files of the run.
        kind: The type of the memories.
        clients: The partition ids. Clients without a memory are left out of the result.
        before: The round after the last round.

    Raises:
        PayloadError: A file is truncated, damaged, or belongs to another client, run or round.
    """
    found = MemoryBlocks(folder).find(kind, clients, 0, before)
    for path in folder.glob("client-*"):
        client = int(path.name.removeprefix("client-"))
        if client in clients:
            own, number = StateStore(path, 0).load_own(kind, 0, before)
            if own is not None and number >= found.get(client, (own, 0))[1]:
                found[client] = own, number
    return found
