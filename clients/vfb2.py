"""VFB2's client half: a party introduces itself, loads the block that a segment starts from, and keeps the block that
it ends with. The segment itself runs in `clients.vertical.segment`; `payloads.vfb2` gives the paper and its symbols.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from flwr.common import Scalar
from numpy.typing import NDArray

from clients.base import PayloadClient
from clients.parties import NoModel, Party, host_mark, run_folder, sockets
from clients.vertical.alignment.common_rows import digest, find_rows
from clients.vertical.policy import PolicyError, RefusalError
from clients.vertical.segment.party import run_segment
from clients.vertical.segment.plan import Outcome, PartyState
from clients.vertical.transport.addresses import Address, local_addresses
from clients.vertical.transport.endpoint import Endpoint, Limits
from clients.vertical.transport.frames import PartyError
from clients.vertical.transport.identity import Identity, fingerprint
from clients.vfb2_plan import facts_of, injection_of, plan_of
from payloads.record import FloatArray, Payload
from payloads.settings import Settings, TrainingSettings
from payloads.vfb2 import (
    ALIGNMENT,
    COUNTERS,
    CREDENTIALS,
    DATA_SUMMARY,
    INTERSECTION,
    PAGE,
    PHASES,
    SALT,
    VERTICAL,
    Credentials,
    DataSummary,
    Report,
    Segment,
    VFB2Settings,
    VFB2State,
    joined,
    text,
)
from payloads.wire import PHASE


class VFB2Client(PayloadClient[NoModel]):
    """Base of the three VFB2 clients.

    Attributes:
        keepsake: what the party keeps for itself after the run's last segment: its block and what predicting needs.
        facts: entries on the current message for the owner's log: the peers, and what the party sent. They contain no
            row's values, label or id.
    """

    down = Segment
    up = Report
    memory = VFB2State
    phases: ClassVar[dict[str, type[Payload]]] = PHASES
    default_loss = VERTICAL
    algorithm: ClassVar[str]
    settings_type = VFB2Settings
    settings: VFB2Settings

    def __init__(
        self, site: Party, model: NoModel, training: TrainingSettings, settings: Settings | None = None
    ) -> None:
        super().__init__(site, model, training, settings)  # type: ignore[arg-type]
        self.party = site
        self.keepsake: dict[str, NDArray[np.float64]] | None = None
        self.facts: dict[str, Any] = {}

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        self.begin(parameters, config)
        if self.state is None:
            self.state = VFB2State.empty()
        phase = str(config.get(PHASE, ""))
        known = phase != CREDENTIALS
        self.outbox = self.answer(phase) if known else self.introduce(bytes.fromhex(str(config[SALT])))
        sent = {name: int(value.nbytes) for name, value in self.outbox.arrays().items()}
        self.facts["to-server"] = {"num-examples": 8, **sent}
        return [] if phase else list(parameters), len(self.party) if known else 0, {}

    def answer(self, phase: str) -> Payload:
        """Do what a message about a segment asks for; returns the reply's record.

        Raises:
            RuntimeError: a party failed; the text names it.
            RefusalError: the policy does not allow it, or the data cannot be used.
        """
        talks: dict[str, Callable[[Segment], Payload]] = {DATA_SUMMARY: self.describe, INTERSECTION: self.find_rows}
        talks |= {ALIGNMENT: self.take_part, "": self.take_part}
        if not isinstance(self.inbox, Segment) or phase not in talks:
            raise ValueError(f"a segment's message without a Segment, or of phase {phase!r}, which is none")
        try:
            self.admit(self.inbox)
            return talks[phase](self.inbox)
        except PartyError as error:
            raise RuntimeError(str(error)) from None
        except PolicyError as error:
            raise error.at(f"party {self.party.partition_id}") from None

    def introduce(self, salt: bytes) -> Credentials:
        """How this party is reached and identified. Its data are not read."""
        party, state, identity = self.party, self.state, self.identity()
        self.facts["salt"] = salt.hex()
        self.state = dataclasses.replace(state, identity=text(identity.to_bytes()))
        certificate, length = joined([identity.certificate], PAGE)
        return Credentials(
            certificate=certificate,
            certificate_length=length,
            folder=text(str(run_folder(salt))),
            advertised=text(party.advertised),
            port=np.array([self.free_port()]),
            host=text(host_mark()),
            share=np.array([party.share]),
            serial=state.serial,
        )

    def admit(self, segment: Segment) -> None:
        """Check the parties against the policy, at every message, since the server chooses which it names."""
        me, certificates = self.party.partition_id, segment.peers()[0]
        names = self.party.policy.check_peers(certificates, me, self.identity().certificate)
        self.facts["peers"] = [
            {"party": party, "name": name, "certificate": fingerprint(certificates[party])}
            for party, name in enumerate(names)
            if party != me
        ]

    def describe(self, segment: Segment) -> DataSummary:
        """What this party holds; RefusalError where its data cannot be used."""
        try:
            data = self.party.data
            return DataSummary(
                rows=self.counts(),
                columns=np.array([data.columns]),
                digest=self.digest(segment.salt.tobytes()),
                labels=np.array([data.labelled]),
            )
        except (ValueError, OSError) as error:
            raise RefusalError(str(error)) from error

    def free_port(self) -> int:
        """A free port of 127.0.0.1, for TCP without an advertised address; else 0."""
        if self.party.advertised or self.settings.transport != "tcp":
            return 0
        return local_addresses(1)[0].port

    def identity(self) -> Identity:
        """The party's own identity, else the one kept since the run began, else a new one."""
        if self.party.identity is not None:
            return self.party.identity
        if self.state.identity is not None:
            return Identity.from_bytes(self.state.identity.tobytes())
        return Identity.create(f"party {self.party.partition_id}")

    def digest(self, salt: bytes) -> NDArray[np.uint8]:
        """(32,) digest of the ids of the rows it takes part with."""
        return text(digest(self.party.data.ids(self.state.aligned), salt))

    def counts(self) -> NDArray[np.int64]:
        """(2,) numbers of training and test rows it takes part with."""
        holding = self.party.data.holding(self.state.aligned)
        return np.array([holding.features.shape[0], holding.test_rows])

    def find_rows(self, segment: Segment) -> Report:
        """Find the rows that all parties have, where the policy allows it, and keep their places."""
        self.party.policy.check_intersection()
        me, ids, salt = self.party.partition_id, self.party.data.ids(None), segment.salt.tobytes()
        endpoint, serial = self.endpoint(segment), int(segment.serial[0])
        self.facts["ids"] = {"offered": len(ids)}
        with sockets(endpoint.addresses[me]):
            aligned, sent = asyncio.run(find_rows(me, int(segment.active[0]), ids, endpoint, serial, salt))
        self.facts["ids"]["common"] = len(aligned)
        self.facts["bytes-to-peers"] = sent
        self.state = dataclasses.replace(self.state, serial=segment.serial, aligned=aligned)
        return Report(
            serial=segment.serial, counters=np.zeros(len(COUNTERS)), rows=self.counts(), digest=self.digest(salt)
        )

    def take_part(self, segment: Segment) -> Report:
        """Run a segment with the other parties and keep the block it ends with."""
        number = int(segment.segment[0])
        held, digest = self.counts(), self.digest(segment.salt.tobytes())
        self.facts |= facts_of(segment, self.settings, held.tolist(), digest)
        start = self.start(segment)
        outcome = self.run(segment, start)
        self.facts["bytes-to-peers"] = int(outcome.counters.get("bytes_sent", 0))
        self.party.keep_flips(self.state.aligned, self.settings.label_epsilon, outcome.flips)
        self.state = dataclasses.replace(
            self.state,
            serial=segment.serial,
            segments=np.array([number - 1, number]),
            older=start.weights if number else None,
            older_table=start.table,
            newer=outcome.weights,
            newer_table=outcome.table,
            flips=outcome.flips,
        )
        if segment.last[0]:
            self.keepsake = {"weights": outcome.weights, **self.party.data.keepsake(self.state.aligned)}
        share = bool(segment.share[0]) and self.party.share
        return Report(
            serial=segment.serial,
            counters=np.array([float(outcome.counters.get(name, 0.0)) for name in COUNTERS]),
            rows=None if number else held,
            digest=None if number else digest,
            weights=outcome.weights if share else None,
            **Report.of_metrics(outcome.metrics),  # type: ignore[arg-type]
        )

    def start(self, segment: Segment) -> PartyState:
        """The state after the segment that this one starts from; ValueError if the party does not have it."""
        state, base = self.state, int(segment.base[0])
        if base < 0:
            if not self.settings.label_epsilon or self.party.partition_id != segment.active[0]:
                return PartyState()
            return PartyState(flips=self.party.label_flips(state, self.settings.label_epsilon, self.facts))
        older, newer = state.segments.tolist()
        if base == newer:
            return PartyState(state.newer, state.newer_table, state.flips)
        if base == older:
            return PartyState(state.older, state.older_table, state.flips)
        held = " and ".join(str(number) for number in (older, newer) if number >= 0) or "none"
        raise ValueError(
            f"segment {int(segment.segment[0])} starts from the weights after segment {base}, but this party has those "
            f"after segment {held} (a state-dir keeps them for a resumed run)"
        )

    def run(self, segment: Segment, start: PartyState) -> Outcome:
        me, vfb2, endpoint = self.party.partition_id, self.settings, self.endpoint(segment)
        injection = injection_of(vfb2, me, self.party.parties, self.training.seed)
        with sockets(endpoint.addresses[me]):
            holding = self.party.data.holding(self.state.aligned)
            plan = plan_of(segment, self.training, vfb2, self.algorithm, self.party.parties, self.counts().tolist())
            running = run_segment(me, plan, holding, start, endpoint, injection=injection, threads=vfb2.threads)
            return asyncio.run(running)

    def endpoint(self, segment: Segment) -> Endpoint:
        """How the other parties are reached and identified."""
        (certificates, addresses), silence = segment.peers(), self.settings.silence_timeout
        limits = Limits(join=self.settings.join_timeout, silence=silence, beat=min(1.0, silence / 4))
        return Endpoint([*map(Address.parse, addresses)], self.identity(), certificates, self.party.authority, limits)


class VFB2SGDClient(VFB2Client):
    """VFB2-SGD (Algorithms 2 and 3)."""

    algorithm = "sgd"


class VFB2SVRGClient(VFB2Client):
    """VFB2-SVRG (Algorithms 4 and 5)."""

    algorithm = "svrg"


class VFB2SAGAClient(VFB2Client):
    """VFB2-SAGA (Algorithms 6 and 7)."""

    algorithm = "saga"
