"""Artificial delays of computations and messages, for experiments that run all parties in one process."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from vertical.transport.endpoint import Delays

# the delays of each party, by its index, in all runs of this process
_added: list["Injection"] = []


@dataclass(frozen=True)
class Injection:
    """A party's added delays.

    Attributes:
        compute: The seconds by which each update of the party takes longer.
        delays: The delays of the party's messages. None: no delay.
    """

    compute: float = 0.0
    delays: Delays | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.compute < math.inf:
            raise ValueError(f"compute must be a finite number of seconds >= 0, got {self.compute}")


def make_injections(parties: int, compute: float = 0.0, delay: float = 0.0, slowest: float = 1.0) -> list[Injection]:
    """Return the delays of all parties. The last party may compute more slowly than the other parties.

    Args:
        parties: The number of parties.
        compute: The seconds that each update takes in addition.
        delay: The seconds that each message takes in addition.
        slowest: The factor by which the last party's ``compute`` is larger.
    """
    delays = Delays(one_way=delay) if delay else None
    return [Injection(compute * (slowest if party == parties - 1 else 1.0), delays) for party in range(parties)]


@contextmanager
def inject(injections: Sequence[Injection]) -> Iterator[None]:
    """Delay the parties of all runs in this process.

    Args:
        injections: The delays of each party, by its index.
    """
    _added[:] = injections
    try:
        yield
    finally:
        _added.clear()


def injection_of(party: int) -> Injection:
    """Return a party's delays; no delays outside `inject`.

    Args:
        party: The party's index.
    """
    return _added[party] if party < len(_added) else Injection()
