"""VFB2's client half: a party introduces itself, loads the block that a segment starts from, and keeps the block that
it ends with. The segment itself runs in `vertical.segment`; `vertical.records` gives the paper and its symbols.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from logging import ERROR
from typing import Any, ClassVar

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from clients.base import Config, Fitted, PayloadClient
from payloads.id_forms import measure_ids
from payloads.record import FloatArray, Payload
from payloads.settings import Settings, TrainingSettings
from payloads.wire import PHASE
from problems.errors import InputError
from vertical.agreed_terms import bind, make_agreement
from vertical.agreement import Agreement
from vertical.alignment import MOST_IDS, digest, find_rows
from vertical.holdings import digest_holding
from vertical.parties import NoModel, Party, find_network, host_mark, sockets
from vertical.policy import PolicyError, RefusalError, StatedRefusalError
from vertical.problem.blocks import GROUP_LASSO
from vertical.problem.blocks.network import make_network
from vertical.problem.errors import NetworkError
from vertical.records import (
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
    join_bytes,
    text,
)
from vertical.segment.party import run_segment
from vertical.segment.plan import Injection, Outcome, PartyState, Plan
from vertical.segment.varying import FEWEST
from vertical.segments import (
    add_segment,
    check_number,
    check_recipients,
    find_state,
    in_order,
    make_plan,
    make_score_plan,
)
from vertical.transport.addresses import Address, free_port
from vertical.transport.endpoint import Delays, Endpoint, Limits
from vertical.transport.frames import FinalError, PartyError
from vertical.transport.identity import Identity, fingerprint

_BY_COLUMNS = (GROUP_LASSO, "columns")


class SegmentError(RuntimeError):
    """A failure of the parties' common work. The text contains no data of a party whose errors are withheld."""


class VFB2Client(PayloadClient[NoModel]):
    """Base of the three VFB2 clients.

    Attributes:
        keepsake: what the party keeps for itself after the run's last segment: its block and what predicting needs.
        active, epochs: the parties whose labels that run used, and how many epochs it had.
        scores: what the party has learnt in a run that scores rows: the id and z of each.
        facts: entries on the current message for the owner's log: the peers, and what the party sent. They contain no
            row's values, label or id.
    """

    down = Segment
    up = Report
    memory = VFB2State
    phases = PHASES
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
        self.active: tuple[int, ...] = ()
        self.epochs = 0
        self.scores: tuple[Sequence[str], NDArray[np.float64]] | None = None
        self.facts: dict[str, Any] = {}
        self.scalars: Config = {}

    def fit(self, parameters: list[FloatArray], config: Config) -> Fitted:
        self.begin(parameters, config)
        self.scalars = config
        if self.state is None:
            self.state = VFB2State.empty()
        phase = str(config.get(PHASE, ""))
        known = phase != CREDENTIALS
        self.outbox = self.answer(phase) if known else self.introduce(bytes.fromhex(str(config[SALT])))
        sent = {name: int(value.nbytes) for name, value in self.outbox.arrays().items()}
        self.facts["to-server"] = {"num-examples": 8, **sent}
        return [] if phase else list(parameters), int(self.counts()[0]) if known else 0, {}

    def answer(self, phase: str) -> Payload:
        """Do what a message about a segment asks for; returns the reply's record.

        Raises:
            SegmentError: a party failed; the text names it.
            RefusalError: the policy does not allow it, or the data cannot be used.
        """
        talks: dict[str, Callable[[Segment], Payload]] = {DATA_SUMMARY: self.describe, INTERSECTION: self.find_rows}
        talks |= {"": self.score} if self.settings.score_run else {ALIGNMENT: self.take_part, "": self.take_part}
        if not isinstance(self.inbox, Segment) or phase not in talks:
            raise ValueError(f"a segment's message without a Segment, or of phase {phase!r}, which is none")
        try:
            self.admit(self.inbox)
            return talks[phase](self.inbox)
        except FinalError as error:
            raise StatedRefusalError(str(error)) from None
        except PartyError as error:
            if not self.party.verbose:
                log(ERROR, "the server gets the public part of this error only: %s", error)
            raise SegmentError(str(error if self.party.verbose else error.redact())) from None
        except PolicyError as error:
            raise error.at(f"party {self.party.partition_id}") from None

    def introduce(self, salt: bytes) -> Credentials:
        """Say how this party is reached and identified. Its data are not read.

        Args:
            salt: random bytes of this run.
        """
        party, state, identity = self.party, self.state, self.identity()
        self.facts["salt"] = salt.hex()
        certificate, length = join_bytes([identity.certificate], PAGE)
        local = self.settings.transport == "tcp" and not party.advertised
        port = np.array([free_port() if local else 0])
        self.state = dataclasses.replace(state, identity=text(identity.to_bytes()), port=port)
        return Credentials(
            certificate=certificate,
            certificate_length=length,
            advertised=text(party.advertised),
            port=port,
            host=text(host_mark()),
            share=np.array([party.share]),
            serial=state.serial,
        )

    def admit(self, segment: Segment) -> None:
        """Check the parties against the policy, at every message, since the server chooses which it names.

        Raises:
            PolicyError: they are too few, other than ``num-partitions``, or one of them is under no pin or under
                another's.
        """
        me, certificates = self.party.partition_id, segment.peers()[0]
        check_number(len(certificates), self.party.parties)
        names = self.party.policy.check_peers(certificates, me, self.identity().certificate)
        self.facts["peers"] = [
            {"party": party, "name": name, "certificate": fingerprint(certificates[party])}
            for party, name in enumerate(names)
            if party != me
        ]

    def describe(self, segment: Segment) -> DataSummary:
        """Say what this party holds.

        Raises:
            RefusalError: its data, or its network for them, cannot be used.
        """
        me = f"party {self.party.partition_id}"
        try:
            data = self.party.data
            if self.settings.label_epsilon and self.party.flips is not None and data.training_marks(None) is not None:
                self.party.flips.check()
            k = self.settings.embedding
            if self.settings.alignment == "intersection" and (rows := len(data.ids(None))) > MOST_IDS:
                key, got, allowed = f"{me}: vfb2.alignment", f"'intersection' of {rows:,} ids", f"{MOST_IDS:,} at most"
                raise StatedRefusalError(str(InputError(key, got=got, allowed=allowed, hint="bring fewer rows")))
            if data.block is None and data.classes and len(data.classes) != k:
                key, allowed = f"{me}: vfb2.embedding", f"{len(data.classes)}, the number of classes"
                raise RefusalError(str(InputError(key, got=k, allowed=allowed, hint="set it to that")))
            if data.block is None and data.keys and (self.settings.penalty, self.settings.groups) == _BY_COLUMNS:
                allowed, hint = "'party', since the data set's encoding is not known here", "set it to that"
                raise StatedRefusalError(str(InputError("vfb2.groups", got="'columns'", allowed=allowed, hint=hint)))
            if data.block is None and k:
                # refused now, before any segment
                make_network(find_network(self.party, self.training.seed), data.columns, k)
            self.check_data(me)
            id_lengths, id_marks = measure_ids(data.ids(None))
            return DataSummary(
                rows=self.counts(),
                columns=np.array([data.columns]),
                labels=np.array([data.labelled]),
                id_lengths=id_lengths,
                id_marks=id_marks,
            )
        except NetworkError as error:
            if self.party.data.keys or self.party.model == self.settings.model:
                raise StatedRefusalError(str(NetworkError.of(error, me))) from error
            log(ERROR, "%s: model in the node config: %s", me, error)
            raise StatedRefusalError(f"{me}: its own network does not fit, its log says why") from error
        except RefusalError:
            raise
        except (ValueError, OSError) as error:
            raise RefusalError(str(error)) from error

    def check_data(self, me: str) -> None:
        """Compare the party's network and rows with those that the run began with.

        Args:
            me: The party, for errors.

        Raises:
            RefusalError: They differ.
        """
        self.check_network()
        if self.state.data is None:
            return
        if self.state.data.tobytes() != digest_holding(self.party.data.holding(self.state.aligned)):
            got = "other rows, values, labels or order of rows than the run began with"
            allowed, hint = "the same data", "restore the file, or begin a new run"
            raise StatedRefusalError(str(InputError(f"resume: {me}", got=got, allowed=allowed, hint=hint)))

    def check_network(self) -> None:
        """Compare the party's network with the network of its weights; raises a RefusalError if they differ."""
        network = self.state.network
        if network is not None and network.tobytes().decode() != self.party.model:
            text = "its weights are those of another network: take the model that it began with"
            raise StatedRefusalError(f"party {self.party.partition_id}: {text}")

    def identity(self) -> Identity:
        """The party's own identity, else the one kept since the run began, else a new one."""
        own, kept = self.party.identity, self.state.identity
        if own is None and kept is not None:
            own = Identity.from_bytes(kept.tobytes())
        return own or Identity.create(f"party {self.party.partition_id}")

    def digest(self, segment: Segment) -> NDArray[np.uint8]:
        """Compute the digest of the ids of the rows it takes part with.

        Args:
            segment: Gives the salt of the (32,) bytes, which stay at the party.
        """
        return text(digest(self.party.data.ids(self.state.aligned), segment.salt.tobytes()))

    def counts(self) -> NDArray[np.int64]:
        """Return the (2,) numbers of training and test rows that the party takes part with.

        Raises:
            PolicyError: There are fewer than the owner demands.
        """
        holding = self.party.data.holding(self.state.aligned)
        rows, test_rows = int(holding.features.shape[0]), holding.test_rows
        dominators = len(self.inbox.active) if isinstance(self.inbox, Segment) else 0
        self.party.policy.check_rows(rows, test_rows, max(dominators, self.settings.min_active))
        return np.array([rows, test_rows])

    def find_rows(self, segment: Segment) -> Report:
        """Find the rows that all parties have, and keep their places.

        Raises:
            RefusalError: its data cannot be used; or, a PolicyError, the policy does not allow it.
            PartyError: a party failed, or too few rows are common to all: one is enough to be scored, but not to train.
        """
        self.party.policy.check_intersection()
        me, ids, salt = self.party.partition_id, self.party.data.ids(None), segment.salt.tobytes()
        endpoint, serial = self.endpoint(segment), int(segment.serial[0])
        theirs: dict[int, int] = {}
        self.facts["ids"] = {"offered": len(ids), "theirs": theirs}
        reporter, fewest = int(segment.active[0]), 1 if self.settings.score_run else 2
        if self.party.data.block is not None:
            check_recipients(segment, self.party.data.block, self.party.parties, self.settings)
        agreement = self.agreement(segment)
        with sockets(endpoint.addresses[me]):
            found = find_rows(
                me, reporter, ids, endpoint, serial, salt, fewest=fewest, offered=theirs, agreement=agreement
            )
            aligned, sent = asyncio.run(found)
        self.facts["ids"]["common"] = len(aligned)
        self.facts["bytes-to-peers"] = sent
        self.state = dataclasses.replace(self.state, serial=segment.serial, aligned=aligned)
        try:
            rows = self.counts()
        except PolicyError:
            raise
        except ValueError as error:
            raise RefusalError(f"party {me}: of the rows that all parties have: {error}") from error
        return Report(serial=segment.serial, counters=np.zeros(len(COUNTERS)), rows=rows)

    def agreement(self, segment: Segment) -> Agreement:
        """Return everything that this party compares with its peers about a segment."""
        return make_agreement(self.party, self.settings, self.scalars, segment)

    def take_part(self, segment: Segment) -> Report:
        """Run a segment with the other parties and keep the block it ends with.

        Returns:
            What this party counted and, from the reporter, the metrics; the block if it is wanted and may leave.

        Raises:
            PartyError: a party failed.
        """
        held, digest = self.counts(), self.digest(segment)
        parties, training, settings = self.party.parties, self.training, self.settings
        plan = make_plan(self.algorithm, segment, parties, held, digest.tobytes(), training, settings)
        number = plan.segment
        if not number:
            content = digest_holding(self.party.data.holding(self.state.aligned))
            self.state = dataclasses.replace(self.state, data=text(content))
        self.note(plan, held)
        start = self.start(segment)
        plan = bind(plan, self.agreement(segment), start.history)
        outcome = self.run(segment, plan, start)
        self.facts["bytes-to-peers"] = int(outcome.counters.get("bytes_sent", 0))
        self.party.keep_flips(self.state.aligned, self.settings.label_epsilon, outcome.flips)
        self.state = add_segment(self.state, segment, start, outcome, plan.digest())
        if plan.embedding:
            self.state = dataclasses.replace(self.state, network=text(self.party.model))
        if segment.last[0]:
            self.active, self.epochs = plan.active, plan.first_epoch + plan.epochs
            head = {} if outcome.head is None else {"head": outcome.head}
            self.keepsake = {"weights": outcome.weights, **head}
        share = bool(segment.share[0]) and self.settings.assemble and self.party.share
        return Report(
            serial=segment.serial,
            counters=in_order(outcome),
            rows=None if number else held,
            weights=outcome.weights if share else None,
            **Report.of_metrics(outcome.metrics),  # type: ignore[arg-type]
        )

    def score(self, segment: Segment) -> Report:
        """Score rows with the other parties, and keep the scores if this party may learn them.

        Returns:
            What this party counted, and nothing about rows.

        Raises:
            PartyError: a party failed.
            PolicyError: others than the run config says are to learn the scores.
        """
        data, held, parties = self.party.data, self.counts(), self.party.parties
        assert data.block is not None
        check_recipients(segment, data.block, parties, self.settings)
        training, settings, ids = self.training, self.settings, self.digest(segment).tobytes()
        plan = make_score_plan(segment, parties, held, ids, training, settings, data.block)
        plan = bind(plan, self.agreement(segment))
        self.note(plan, held)
        self.facts["score-run"] = self.settings.score_run
        outcome = self.run(segment, plan, PartyState(data.block.weights, head=data.block.head))
        self.facts["bytes-to-peers"] = int(outcome.counters.get("bytes_sent", 0))
        self.state = dataclasses.replace(self.state, serial=segment.serial)
        if outcome.scores is not None:
            self.scores = data.ids(self.state.aligned), outcome.scores
        return Report(serial=segment.serial, counters=in_order(outcome))

    def note(self, plan: Plan, held: NDArray[np.int64]) -> None:
        """Note for the owner's log what a segment does.

        Args:
            held: (2,) numbers of rows that take part.
        """
        self.facts |= {
            "rows": int(held[0]),
            "test-rows": int(held[1]),
            "digest": plan.ids,
            "segment": plan.segment,
            "attempt": plan.serial,
            "epochs": plan.epochs,
            "active": list(plan.active),
            "masking": plan.masking,
            "label-epsilon": plan.label_epsilon,
            "embedding": plan.embedding,
            "evaluated": plan.evaluate,
        }

    def start(self, segment: Segment) -> PartyState:
        """Return what the segment starts from: what an earlier one left, or weights 0 and the labels' flips.

        Raises:
            ValueError: this party no longer has what that one left.
        """
        if segment.base[0] >= 0:
            self.check_network()
            return find_state(segment, self.state)
        epsilon = self.settings.label_epsilon
        draws = epsilon and self.party.partition_id == segment.active[0]
        return PartyState(flips=self.party.label_flips(self.state, epsilon, self.facts) if draws else None)

    def run(self, segment: Segment, plan: Plan, start: PartyState) -> Outcome:
        # simulated parties share one data set and hide nothing
        plan = dataclasses.replace(plan, counted=not self.party.data.keys)
        fewest = max(FEWEST, self.party.policy.fewest_parties)
        data = self.party.data
        # at weights 0 an evaluation shows nothing of the columns
        shows = plan.epochs or plan.embedding or start.weights is not None
        if self.party.looks is not None and shows:
            weights = None if data.block is None else data.block.weights
            self.facts["looks"] = self.party.looks.spend(plan, data.columns, weights)
        me, parties, vfb2, endpoint = self.party.partition_id, self.party.parties, self.settings, self.endpoint(segment)
        compute, one_way, jitter = (vfb2.seconds(name, parties)[me] for name in ("extra_compute", "delay", "jitter"))
        injection = Injection(compute, Delays(one_way, jitter, self.training.seed))
        with sockets(endpoint.addresses[me]):
            held = self.party.data.holding(self.state.aligned)
            if vfb2.groups == "party" and held.groups is not None:
                held = dataclasses.replace(held, groups=np.minimum(held.groups, 0))
            network = find_network(self.party, self.training.seed) if plan.embedding else None
            return asyncio.run(
                run_segment(
                    me,
                    plan,
                    held,
                    start,
                    endpoint,
                    network=network,
                    injection=injection,
                    threads=vfb2.threads,
                    fewest=fewest,
                )
            )

    def endpoint(self, segment: Segment) -> Endpoint:
        """Say how the other parties are reached and identified.

        Raises:
            PolicyError: as for `Party.resolve`.
            ValueError: the segment's addresses or certificates cannot be read.
        """
        (certificates, shown), silence = segment.peers(), self.settings.silence_timeout
        party, port = self.party, 0 if self.state.port is None else int(self.state.port[0])
        salt, serial = segment.salt.tobytes(), int(segment.serial[0])
        addresses = party.resolve([*map(Address.parse, shown)], salt, serial, port)
        listen = party.listen if addresses[party.partition_id].kind == "tcp" else None
        limits = Limits(join=self.settings.join_timeout, silence=silence, beat=min(1.0, silence / 4))
        verbose = party.verbose
        return Endpoint(addresses, self.identity(), certificates, party.authority, limits, listen, verbose=verbose)


class VFB2SGDClient(VFB2Client):
    """VFB2-SGD (Algorithms 2 and 3)."""

    algorithm = "sgd"


class VFB2SVRGClient(VFB2Client):
    """VFB2-SVRG (Algorithms 4 and 5)."""

    algorithm = "svrg"


class VFB2SAGAClient(VFB2Client):
    """VFB2-SAGA (Algorithms 6 and 7)."""

    algorithm = "saga"
