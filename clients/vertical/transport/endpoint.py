"""How a party reaches the others of a segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from clients.vertical.transport.addresses import Address
from clients.vertical.transport.identity import Identity
from clients.vertical.transport.limits import Limits


@dataclass(frozen=True)
class Endpoint:
    """How a party reaches the others.

    Attributes:
        addresses: of all parties.
        identity: its own.
        certificates: (DER) of all parties.
        authority: file of the authority that signed them; None where each is pinned.
        limits: when it gives up on the others.
    """

    addresses: Sequence[Address]
    identity: Identity
    certificates: Sequence[bytes]
    authority: str | None = None
    limits: Limits = field(default_factory=Limits)
