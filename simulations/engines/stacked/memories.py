"""The memories of simulated clients as blocks, so a round of many clients reads and writes them together.

A client's memory is either here or in the state of its node's context, from which the guard of memories reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from apps.guards.memory import STATE, STORED_ROUND, put
from payloads.flower_internals import values_of
from payloads.record import IntArray, Payload
from payloads.wire import ROUND
from simulations.engines.stacked.carries import NotAlikeError


class Memories:
    """The memories of a run's clients, by node id.

    Args:
        kind: The type of the memories.
    """

    def __init__(self, kind: type[Payload]) -> None:
        self.kind = kind
        self._rows: dict[int, int] = {}  # node -> row of the blocks
        self._rounds = np.zeros(0, dtype=np.int64)  # the round that made each row; 0: the memory is not here
        self._blocks: dict[str, NDArray[Any]] = {}
        self._lock = threading.Lock()  # several stacks may finish at the same time

    def take(self, contexts: Mapping[int, Context], nodes: Sequence[int]) -> IntArray:
        """Move the memories of nodes from their contexts to the blocks, and return the nodes' rows (C,)."""
        known = self._rows
        for node in nodes:
            if node not in known:
                known[node] = len(known)
        if len(known) > len(self._rounds):
            count = max(len(known), 2 * len(self._rounds))
            self._rounds = _enlarge(self._rounds, count)
            self._blocks = {name: _enlarge(block, count) for name, block in self._blocks.items()}
        rows = np.fromiter((known[node] for node in nodes), np.int64, len(nodes))
        for index in np.flatnonzero(self._rounds[rows] == 0).tolist():
            state = values_of(contexts[nodes[index]].state)
            if STORED_ROUND in state:
                made, record = int(state.pop(STORED_ROUND)[ROUND]), state.pop(STATE, None)
                if record is not None:
                    self._write(rows[index], self.kind.from_record(record).arrays())
                    self._rounds[rows[index]] = made
        return rows

    def find(self, nodes: Sequence[int]) -> int:
        """Return the place of the first of the nodes that has a memory here; 0 if none has."""
        rows = self._rows
        return next((i for i, node in enumerate(nodes) if node in rows and self._rounds[rows[node]]), 0)

    def recall(self, rows: IntArray, since: int, server_round: int) -> IntArray:
        """Return the rounds (C,) of the usable memories; 0: the client has none. See `apps.guards.memory.recall`."""
        rounds = self._rounds[rows]
        return np.where((rounds >= since) & (rounds <= server_round), rounds, 0)

    def read(self, rows: IntArray) -> Payload:
        """Return the memories of rows as one record, whose floats have a first axis of clients.

        Raises:
            NotAlikeError: An integer differs between the clients.
        """
        fields = {name: block[rows] for name, block in self._blocks.items()}
        for name, values in fields.items():
            if values.dtype.kind != "f":
                if (values != values[0]).any():
                    raise NotAlikeError(f"the clients' memories differ in {name}")
                fields[name] = values[0]
        return self.kind(**fields)

    def keep(self, rows: IntArray, fields: Mapping[str, NDArray[Any]], server_round: int) -> None:
        """Store the clients' new memories.

        Args:
            rows: The (C,) rows of the clients.
            fields: The fields of the memories. A field without the axis of clients has the same value for all.
            server_round: The round.
        """
        with self._lock:
            self._write(rows, fields)
            self._rounds[rows] = server_round

    @property
    def rounds(self) -> set[int]:
        """The rounds in which the memories were stored."""
        return set(self._rounds.tolist()) - {0}

    def give_back(self, context: Context) -> None:
        """Move a node's memory from the blocks to its context."""
        row = self._rows.get(context.node_id, -1)
        if row < 0 or not (made := int(self._rounds[row])):
            return
        self._rounds[row] = 0
        put(context, self.kind(**{name: block[row] for name, block in self._blocks.items()}), made)

    def _write(self, rows: Any, fields: Mapping[str, NDArray[Any]]) -> None:
        for name, value in fields.items():
            if name not in self._blocks:
                shape = value.shape if np.ndim(rows) == 0 or value.dtype.kind != "f" else value.shape[1:]
                self._blocks[name] = np.zeros((len(self._rounds), *shape), value.dtype)
            self._blocks[name][rows] = value


def choose_sound(memory: Payload, sound: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], dict[str, NDArray[Any]]]:
    """Choose the finite memories of clients whose model is finite.

    Args:
        memory: The memories of C clients as one record.
        sound: The (C,) clients whose model is finite.

    Returns:
        The chosen clients (C,), and the fields of their memories.
    """
    fields = memory.arrays()
    for value in fields.values():
        if value.dtype.kind == "f":
            sound = sound & np.isfinite(value).reshape(len(value), -1).all(axis=1)
    whole = bool(sound.all())
    return sound, {name: value if whole or value.dtype.kind != "f" else value[sound] for name, value in fields.items()}


def _enlarge(block: NDArray[Any], count: int) -> NDArray[Any]:
    larger = np.zeros((count, *block.shape[1:]), block.dtype)
    larger[: len(block)] = block
    return larger
