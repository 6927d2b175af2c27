"""A party's turn: a message of the server, and everything that the party needs to answer it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from payloads.settings import TrainingSettings
from payloads.wire import Values
from vertical.agreed_terms import agreed_terms
from vertical.agreement import Agreement
from vertical.parties import KeptBlock, Party
from vertical.policy import StatedRefusalError
from vertical.records import Segment, VFB2State
from vertical.segment.plan import SHARED, Holding
from vertical.settings import VFB2Settings
from vertical.transport.addresses import Address
from vertical.transport.endpoint import Endpoint, Limits
from vertical.transport.identity import Identity, fingerprint


def find_identity(party: Party, state: VFB2State) -> Identity:
    """Return the party's certificate and key: its owner's, else the pair stored since the run began, else a new pair.

    Args:
        party: The party.
        state: The party's memory.
    """
    own, stored = party.identity, state.identity
    if own is None and stored is not None:
        own = Identity.from_bytes(stored.tobytes())
    return own or Identity.create(f"party {party.partition_id}")


@dataclass
class Turn:
    """A party's work on a message of the server.

    Attributes:
        party: The party.
        algorithm: "sgd", "svrg" or "saga".
        training: The run's common settings.
        settings: The run's VFB2 settings.
        segment: The message's payload.
        state: The party's memory, which an answer may replace.
        scalars: The message's scalars.
        facts: Entries for the owner's log, such as the other parties and the sizes of sent data. They contain no value,
            label or id.
        block: The party's final block and the data needed to predict with it, after the last segment. Never sent.
        scores: The id and the prediction z of each row, at a party that may learn scores in a run that scores rows.
    """

    party: Party
    algorithm: str
    training: TrainingSettings
    settings: VFB2Settings
    segment: Segment
    state: VFB2State
    scalars: Values
    facts: dict[str, Any] = field(default_factory=dict)
    block: KeptBlock | None = None
    scores: tuple[Sequence[str], NDArray[np.float64]] | None = None

    @property
    def me(self) -> int:
        """The party's index."""
        return self.party.partition_id

    def remember(self, **changes: Any) -> None:
        """Change fields of the party's memory.

        Args:
            changes: The fields' new values, by name.
        """
        self.state = dataclasses.replace(self.state, **changes)

    def holding(self) -> Holding:
        """Return the party's rows in this run."""
        return self.party.data.holding(self.state.aligned)

    def count_rows(self) -> NDArray[np.int64]:
        """Return the (2,) numbers of the party's training and test rows in this run.

        Raises:
            PolicyError: There are fewer rows than the owner requires.
        """
        holding = self.holding()
        rows, test_rows = int(holding.features.shape[0]), holding.test_rows
        dominators, shared = max(len(self.segment.active), self.settings.min_active), self.algorithm == SHARED
        self.party.policy.check_rows(rows, test_rows, dominators, shared=shared)
        return np.array([rows, test_rows])

    def check_network(self) -> None:
        """Check that the party's stored weights belong to its present network.

        Raises:
            RefusalError: The network has changed since the start of the run.
        """
        network = self.state.network
        if network is not None and network.tobytes().decode() != self.party.model:
            fault = "its weights belong to another network"
            raise StatedRefusalError(f"party {self.me}: {fault}: restore model as at the start of the run")

    def agreement(self) -> Agreement:
        """Return the values that all parties compare: the server's message, the dealer, and the parties with labels."""
        terms = agreed_terms(self.party.run_config, self.scalars, self.segment)
        if self.algorithm == SHARED and self.settings.deals:
            dealer = self.party.dealer
            terms["site setting dealer"] = fingerprint(dealer.certificate) if dealer else ""
        # in a run that scores rows, the blocks determine the active parties
        wanted = 1 if self.algorithm == SHARED else self.settings.max_active
        wanted = 0 if self.settings.score_run else wanted
        return Agreement(terms, tuple(self.segment.active.tolist()), wanted, self.party.data.labelled)

    def endpoint(self) -> Endpoint:
        """Return the party's access to the other parties: their addresses and certificates, and time limits.

        Raises:
            PolicyError: See `vertical.parties.Party.resolve`.
            ValueError: The segment's addresses or certificates cannot be read.
        """
        (certificates, shown), silence = self.segment.peers(), self.settings.silence_timeout
        party, port = self.party, 0 if self.state.port is None else int(self.state.port[0])
        salt, serial = self.segment.salt.tobytes(), int(self.segment.serial[0])
        addresses = party.resolve([*map(Address.parse, shown)], salt, serial, port)
        listen = party.listen if addresses[self.me].kind == "tcp" else None
        limits = Limits(join=self.settings.join_timeout, silence=silence, beat=min(1.0, silence / 4))
        return Endpoint(
            addresses,
            find_identity(party, self.state),
            certificates,
            party.authority,
            limits,
            listen,
            verbose=party.verbose,
        )
