"""How a party reaches the others of a segment, when it gives up on them, and the delays that experiments inject."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from vertical.transport.addresses import Address
from vertical.transport.identity import Identity


@dataclass(frozen=True)
class Limits:
    """When a party gives up.

    Attributes:
        join: Seconds from `Mesh.join` until every peer must have joined.
        beat: Seconds between two signs of life to a peer that is sent nothing else.
        silence: Seconds without any byte from a peer after which it counts as failed. If a party's own loop is blocked
            for longer, its peers name it as failed.
        body: Largest body of a frame, bytes.
        close: Seconds `Mesh.close` waits for the peers.
        grace: Seconds that a broken connection waits for an abort that names the party that failed first.
    """

    join: float = 10.0
    beat: float = 1.0
    silence: float = 5.0
    body: int = 64 * 2**20
    close: float = 3.0
    grace: float = 0.1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"limit {name} is a positive number, not {value}")
        if self.silence <= self.beat:
            raise ValueError(f"silence ({self.silence} s) must be longer than the beat ({self.beat} s)")
        if self.body >= 2**32:
            raise ValueError(f"a body has fewer than 2^32 bytes, not {self.body}")


@dataclass(frozen=True)
class Delays:
    """Delay of a party's outgoing frames: one_way + jitter * U, U uniform on [0, 1), in seconds.

    The frames of one link keep their order. Signs of life and aborts are not delayed.
    """

    one_way: float = 0.0
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.one_way < math.inf and 0 <= self.jitter < math.inf):
            raise ValueError(f"delays are seconds of at least 0, not {self.one_way} and {self.jitter}")
        if self.seed < 0:
            raise ValueError(f"the seed of delays is at least 0, not {self.seed}")


@dataclass(frozen=True)
class Endpoint:
    """How a party reaches the others.

    Attributes:
        addresses: At which each party is reached, by index.
        identity: Its own certificate and key.
        certificates: (DER) of every party, by index.
        authority: File of the authority (PEM) that must have signed them; None where each certificate is pinned.
        limits: When it gives up on the others.
        listen: Where this party listens; None: at its own of the addresses.
        verbose: Whether failures are sent to the peers in full; else the public part of the reason.
    """

    addresses: Sequence[Address]
    identity: Identity
    certificates: Sequence[bytes]
    authority: str | None = None
    limits: Limits = field(default_factory=Limits)
    listen: Address | None = None
    verbose: bool = True
