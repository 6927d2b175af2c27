"""Delays that experiments add to parties in the same process, which have no network between them."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from vertical.transport.endpoint import Delays

# the injection of each party of the runs in this process
_added: list["Injection"] = []


@dataclass(frozen=True)
class Injection:
    """A party's added delays.

    Attributes:
        compute: The seconds that each update keeps a worker asleep.
        delays: The delays of the party's messages.
    """

    compute: float = 0.0
    delays: Delays | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.compute < math.inf:
            raise ValueError(f"compute is seconds of at least 0, got {self.compute}")


def make_injections(parties: int, compute: float = 0.0, delay: float = 0.0, slowest: float = 1.0) -> list[Injection]:
    """Return the injections of all parties. The last party computes more slowly.

    Args:
        parties: The number of parties.
        compute: The seconds that each update takes in addition.
        delay: The seconds that each message takes in addition.
        slowest: The factor of the last party's compute.
    """
    delays = Delays(one_way=delay) if delay else None
    return [Injection(compute * (slowest if party == parties - 1 else 1.0), delays) for party in range(parties)]


@contextmanager
def inject(injections: Sequence[Injection]) -> Iterator[None]:
    """Delay the parties of all runs in this process.

    Args:
        injections: The injection of each party, by its index.
    """
    _added[:] = injections
    try:
        yield
    finally:
        _added.clear()


def injection_of(party: int) -> Injection:
    """Return a party's injection, without delays by default.

    Args:
        party: The party's index.
    """
    return _added[party] if party < len(_added) else Injection()
