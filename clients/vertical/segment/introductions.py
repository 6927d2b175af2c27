"""What parties tell each other when they join: a fresh public key, their row counts and the plan they are on."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from clients.vertical.masking.pairwise import agree, pair_info
from clients.vertical.segment.plan import Holding, Plan
from clients.vertical.transport.failures import PartyError

_FORM = struct.Struct("<32s32sQQ")


@dataclass(frozen=True)
class Hello:
    """One party's.

    Attributes:
        key: its X25519 public key, of this segment only.
        plan: the plan's digest.
        rows: training rows it holds.
        test_rows: test rows it holds.
    """

    key: bytes
    plan: bytes
    rows: int
    test_rows: int

    @classmethod
    def of(cls, private: X25519PrivateKey, plan: Plan, holding: Holding) -> Hello:
        key = private.public_key().public_bytes_raw()
        return cls(key, plan.digest(), int(holding.features.shape[0]), holding.test_rows)

    def to_bytes(self) -> bytes:
        return _FORM.pack(self.key, self.plan, self.rows, self.test_rows)

    @classmethod
    def from_bytes(cls, party: int, body: bytes) -> Hello:
        """Read a party's; PartyError when it is none."""
        if len(body) != _FORM.size:
            raise PartyError(party, f"its hello has {len(body)} bytes, not {_FORM.size}")
        return cls(*_FORM.unpack(body))


def check_hellos(plan: Plan, hellos: Mapping[int, Hello]) -> None:
    """PartyError naming the first party that is on another plan than most, or holds another number of rows."""
    common, _ = Counter(hello.plan for hello in hellos.values()).most_common(1)[0]
    for party, hello in sorted(hellos.items()):
        if hello.plan != common:
            raise PartyError(
                party, f"its plan is {hello.plan.hex()[:12]}, that of the others {common.hex()[:12]} (SHA-256)"
            )
    for party, hello in sorted(hellos.items()):
        for name, held, planned in (
            ("training", hello.rows, plan.rows),
            ("test", hello.test_rows, plan.test_rows),
        ):
            if held != planned:
                raise PartyError(party, f"it holds {held:,} {name} rows, the plan says {planned:,}")


def agree_keys(plan: Plan, me: int, private: X25519PrivateKey, hellos: Mapping[int, Hello]) -> dict[int, bytes]:
    """The 32-byte secret shared with each other party, for this segment.

    Raises:
        PartyError: a party's public key makes no secret.
    """
    keys = {}
    for party, hello in hellos.items():
        if party != me:
            try:
                keys[party] = agree(private, hello.key, info=pair_info(plan.serial, me, party))
            except ValueError as error:
                raise PartyError(party, f"its public key: {error}") from error
    return keys
