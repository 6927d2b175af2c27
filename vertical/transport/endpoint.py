"""A party's access to the other parties: addresses, certificates, time limits, and the delays of experiments."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from vertical.transport.addresses import Address
from vertical.transport.identity import Identity


@dataclass(frozen=True)
class Limits:
    """The limits after which a party gives up.

    Attributes:
        join: The seconds from the call of `Mesh.join` until every peer must have joined.
        beat: The seconds between two heartbeats to a peer, if nothing else is sent.
        silence: The seconds without a byte after which a peer counts as failed. A party whose own event loop is blocked
            for longer also counts as failed.
        body: The maximum body of a frame, in bytes.
        close: The seconds that `Mesh.close` waits for the peers.
        grace: The seconds to wait after a broken connection for an abort that names the party that failed first.
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
                raise ValueError(f"the limit {name} must be a number > 0 and finite, got {value}")
        if self.silence <= self.beat:
            raise ValueError(f"the limit silence must be longer than beat, {self.beat} s, got {self.silence} s")
        if self.body >= 2**32:
            raise ValueError(f"the limit body must be below 2^32 bytes, got {self.body}")


@dataclass(frozen=True)
class Delays:
    """The artificial delay of a party's outgoing frames: one_way + jitter * U seconds, with U uniform on [0, 1).

    The frames of a connection keep their order. Heartbeats and aborts are not delayed.
    """

    one_way: float = 0.0
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.one_way < math.inf and 0 <= self.jitter < math.inf):
            raise ValueError(f"one_way and jitter must be finite numbers >= 0, got {self.one_way} and {self.jitter}")
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more, got {self.seed}")


@dataclass(frozen=True)
class Endpoint:
    """A party's access to the other parties.

    Attributes:
        addresses: The address of each party, by index.
        identity: This party's certificate and key.
        certificates: The certificate (DER) of each party, by index.
        authority: The file of the authority (PEM) that must have signed the certificates. None: each certificate is
            pinned.
        limits: The party's limits.
        listen: The address where this party listens. None: its entry in ``addresses``.
        verbose: Whether failures are sent to the other parties in full. If not, only the public part is sent.
    """

    addresses: Sequence[Address]
    identity: Identity
    certificates: Sequence[bytes]
    authority: str | None = None
    limits: Limits = field(default_factory=Limits)
    listen: Address | None = None
    verbose: bool = True
