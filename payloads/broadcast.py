"""Messages with a common content, and their replies as blocks of arrays with a first axis of clients.

A strategy sends a `Broadcast`. An engine that trains many clients in one computation answers with `BlockReplies`. For
all other code both are sequences of Flower's messages: a message is made when somebody reads it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from payloads.flower_internals import readdress
from payloads.handshake import SiteReport
from payloads.record import BoolArray, FloatArray, IntArray, Payload, PayloadError, specs_of
from payloads.wire import NUM_EXAMPLES, ROUND, STATE_ROUND, content, model_record, ready_to_send


class _Messages(Sequence[Message]):
    """A sequence that makes its messages when they are read, each once."""

    def __init__(self, count: int) -> None:
        self._count, self._made = count, dict[int, Message]()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self[place] for place in range(self._count)[index]]
        place = range(self._count)[index]
        if place not in self._made:
            self._made[place] = self.make(place)
        return self._made[place]

    @abstractmethod
    def make(self, place: int) -> Message:
        """Make a message."""


class Broadcast(_Messages):
    """The messages to several nodes, with a common content.

    Args:
        content: The content.
        nodes: Flower's ids of the receivers, at least one.
        kind: Flower's type of the messages.

    Attributes:
        stamp: A function that gives a message the id under which it was sent; None before the cohort was sent unread.

    Example:
        >>> cohort = Broadcast(RecordDict(), [7, 8], "train")
        >>> len(cohort), cohort.is_read
        (2, False)
    """

    def __init__(self, content: RecordDict, nodes: Sequence[int], kind: str) -> None:
        super().__init__(len(nodes))
        self.content, self.nodes, self.kind = content, nodes, kind
        self.stamp: Callable[[int, Message], None] | None = None
        self._first: Message | None = None

    @property
    def is_read(self) -> bool:
        """Whether somebody has read a message, and may have changed it."""
        return bool(self._made)

    def stamp_with(self, stamp: Callable[[int, Message], None]) -> None:
        """Mark all messages as sent, also messages that are made later.

        Args:
            stamp: A function of a message's place and the message.
        """
        self.stamp = stamp
        for place, message in self._made.items():
            stamp(place, message)

    def make(self, place: int) -> Message:
        """Make the message to a node."""
        node = self.nodes[place]
        self._first = self._first or Message(self.content, dst_node_id=node, message_type=self.kind)
        message = readdress(self._first, node)
        if self.stamp is not None:
            self.stamp(place, message)
        return message


@dataclass(frozen=True)
class ReplyBlock:
    """The values in the replies of C clients that trained in one round.

    Attributes:
        server_round: The round.
        points: The (C, d) trained models.
        up: The clients' payloads as one record, whose fields have a first axis of clients. None: no payload.
        examples: The number of samples of each client.
        state_rounds: The (C,) rounds of the memories from which the clients started; 0: no memory yet. None: the
            clients keep no memory.
    """

    server_round: int
    points: FloatArray
    up: Payload | None
    examples: Sequence[int]
    state_rounds: IntArray | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of all values, as `payloads.wire.count_bytes` counts them."""
        return self.points.nbytes + (0 if self.up is None else sum(value.nbytes for value in self.up.arrays().values()))

    @property
    def lengths(self) -> dict[str, int]:
        """The lengths of a client's payload that a letter other than d stands for."""
        found: dict[str, int] = {}
        for name, value in ({} if self.up is None else self.up.arrays()).items():
            found |= dict(zip(specs_of(type(self.up))[name].dims, value.shape[1:], strict=False))  # type: ignore[arg-type]
        return {letter: length for letter, length in found.items() if isinstance(letter, str) and letter != "d"}

    def payload(self, row: int) -> Payload | None:
        """Return a client's payload, whose arrays share the block's memory."""
        if self.up is None:
            return None
        return type(self.up)(**{name: value[row] for name, value in self.up.arrays().items()})

    def content(self, row: int) -> RecordDict:
        """Return the content of a client's reply."""
        payload, metrics = self.payload(row), {NUM_EXAMPLES: self.examples[row], ROUND: self.server_round}
        if self.state_rounds is not None:
            metrics[STATE_ROUND] = int(self.state_rounds[row])
        arrays = model_record([ready_to_send(self.points[row])])
        return content(arrays=arrays, payload=None if payload is None else payload.to_record(), metrics=metrics)

    def find_sound(self, server_round: int, model: Sequence[FloatArray], kind: type[Payload] | None) -> BoolArray:
        """Find the rows that have the declared shapes and number types, and are finite.

        Args:
            server_round: The round that the server expects.
            model: A model of the right shape and number type.
            kind: The declared type of the payload. None: no payload.

        Returns:
            (C,) booleans. `lengths` must also be within the limits of each client.
        """
        like, up, count = model[0], self.up, len(self.points)
        nothing = np.zeros(count, dtype=bool)
        if (
            self.server_round != server_round
            or len(model) > 1
            or self.points.shape[1:] != like.shape
            or self.points.dtype != like.dtype
        ):
            return nothing
        if (None if up is None else type(up)) is not kind:
            return nothing
        sound: list[BoolArray] = [_are_finite(self.points)]
        if (rounds := self.state_rounds) is not None:
            sound.append((rounds >= 0) & (rounds <= self.server_round))
        if up is not None:
            values, specs = up.arrays(), specs_of(type(up))
            if any(len(value) != count or specs[name].kind != "float" for name, value in values.items()):
                return nothing
            try:  # all rows have the same shapes and number types
                self.payload(0).check({"d": len(like)}, finite=False)  # type: ignore[union-attr]
            except PayloadError:
                return nothing
            sound += [_are_finite(value) for name, value in values.items() if specs[name].finite]
        return np.logical_and.reduce(sound)  # type: ignore[no-any-return]


def _are_finite(block: FloatArray) -> BoolArray:
    """Return whether all values of each row are finite, (C,)."""
    finite: BoolArray = np.all(np.isfinite(block).reshape(len(block), -1), axis=1)
    return finite


class Introductions(_Messages):
    """The answers to the handshake of nodes that differ only in their data.

    Args:
        cohort: The messages.
        reports: The report of each node, in the order of the messages.
        facts: The device and the library versions, which are the same for all nodes.
        reply: A function that makes a reply from its content and the message that it answers.
    """

    def __init__(
        self,
        cohort: Broadcast,
        reports: Sequence[SiteReport],
        facts: Mapping[str, str],
        reply: Callable[[RecordDict, Message], Message],
    ) -> None:
        super().__init__(len(cohort))
        self.cohort, self.reports, self.facts, self._reply = cohort, reports, facts, reply

    def make(self, place: int) -> Message:
        """Make the answer of a node."""
        records = content(config=ConfigRecord(dict(self.facts)), payload=self.reports[place].to_record())
        return self._reply(records, self.cohort[place])


class BlockReplies(_Messages):
    """The replies to a cohort.

    Args:
        cohort: The cohort.
        blocks: The values of clients that trained together, and the place in the cohort of each of a block's C rows.
        apart: The replies that are messages already, by place: clients that trained alone or failed.
        reply: A function that makes a reply from its content and the message that it answers.
    """

    def __init__(
        self,
        cohort: Broadcast,
        blocks: Sequence[tuple[ReplyBlock, Sequence[int]]],
        apart: Mapping[int, Message],
        reply: Callable[[RecordDict, Message], Message],
    ) -> None:
        super().__init__(len(cohort))
        self.cohort, self.blocks, self.apart, self._reply = cohort, blocks, apart, reply
        self._places: dict[int, tuple[ReplyBlock, int]] | None = None

    def make(self, place: int) -> Message:
        """Make the reply of a client."""
        if place in self.apart:
            return self.apart[place]
        if self._places is None:
            self._places = {own: (block, row) for block, rows in self.blocks for row, own in enumerate(rows)}
        block, row = self._places[place]
        return self._reply(block.content(row), self.cohort[place])
