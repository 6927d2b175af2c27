"""The memories of many simulated clients in common files, one for each stack of clients and round.

The files are in a folder beside the folders of single clients, see `apps.sites.state_store`. A resumed run reads both,
on every engine.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from apps.sites.files import read_sealed, write_sealed
from payloads.record import IntArray, Payload, take_row
from problems.files import make_folder

BLOCKS_FORMAT, BLOCKS_VERSION = "florilegium-client-states", "1"
P = TypeVar("P", bound=Payload)
# the partition ids of the clients, beside the fields of their memories
_CLIENTS = "partition-ids"


class MemoryBlocks:
    """The files of a run.

    Args:
        folder: The folder of the clients' files of the run. Its name is the run's token.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, server_round: int, kind: type[Payload], clients: IntArray, fields: Mapping[str, Any]) -> None:
        """Write memories. The file is not flushed, since the server flushes all files before its next checkpoint.

        Args:
            server_round: The round at whose end the clients had these memories.
            kind: The type of the memories.
            clients: The partition ids (C,) of the clients.
            fields: The memories. Floats have a first axis of clients; all other values are the same for all.
        """
        path = self.folder / "blocks" / f"round-{server_round:06d}-{clients[0]:06d}.safetensors"
        make_folder(path.parent, private=True)
        arrays = {**fields, _CLIENTS: clients}
        header = self._describe(kind, server_round)
        write_sealed(path, BLOCKS_FORMAT, BLOCKS_VERSION, arrays, header, private=True, flushed=False)

    def find(self, kind: type[P], clients: Collection[int], since: int, before: int) -> dict[int, tuple[P, int]]:
        """Return the newest memories of clients in the rounds from ``since`` to ``before`` - 1, and their rounds.

        Args:
            kind: The type of the memories.
            clients: The partition ids. Clients without such a memory are left out of the result.
            since: The first round.
            before: The round after the last round.

        Raises:
            PayloadError: A file is truncated, damaged, or belongs to another run or round.
        """
        found: dict[int, tuple[P, int]] = {}
        for number, path in sorted(self._files(), reverse=True):
            if not since <= number < before or len(found) == len(clients):
                continue
            arrays, _ = read_sealed(path, BLOCKS_FORMAT, BLOCKS_VERSION, self._describe(kind, number))
            owners = arrays.pop(_CLIENTS, np.zeros(0, dtype=np.int64))
            for row, client in enumerate(owners.tolist()):
                if client in clients and client not in found:
                    found[client] = kind.from_arrays(take_row(arrays, row)), number
        return found

    def remove(self, checkpoint_round: int, needed: Collection[int]) -> None:
        """Remove the files that no resumed run can need.

        Args:
            checkpoint_round: The round of the server's newest checkpoint. Files of later rounds stay.
            needed: The rounds in which clients stored their newest memories up to the checkpoint.
        """
        for number, path in list(self._files()):
            if number <= checkpoint_round and number not in needed:
                path.unlink(missing_ok=True)

    def remove_after(self, checkpoint_round: int) -> None:
        """Remove the files of rounds that a resumed run repeats."""
        for number, path in list(self._files()):
            if number > checkpoint_round:
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[int, Path]]:
        """Yield the round and the path of each file."""
        for path in (self.folder / "blocks").glob("round-*-*.safetensors"):
            number = path.name.split("-")[1]
            if number.isdecimal():
                yield int(number), path

    def _describe(self, kind: type[Payload], server_round: int) -> dict[str, str]:
        """Return the metadata of a file: the run, and the type and the round of the memories."""
        return {"owner": self.folder.name, "kind": kind.__name__, "round": str(server_round)}
