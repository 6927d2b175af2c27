"""VFB2's server half: it introduces the parties to each other, defines each segment, and collects the results.

VFB2 is vertical federated learning: the parties have different columns of the same rows, and train a segment (one
round) without the server. The server gets the metrics from the reporter, the first party whose labels are used, and at
checkpoints the parts of the model (blocks), if ``vfb2.assemble`` is set and each party agrees. `vertical.records` names
the paper.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.common import log
from flwr.serverapp import Grid

from payloads.id_forms import check_lengths
from payloads.record import FloatArray, Payload, PayloadError
from payloads.settings import Settings, TrainingSettings
from payloads.wire import RUN_TOKEN
from strategies.rounds.errors import SetupError, StrategyError
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import Reply
from strategies.vertical.meeting import (
    check_number,
    check_rows,
    check_step,
    choose_active,
    forms_of,
    log_common_rows,
    peers_of,
    warn_of_exposure,
)
from strategies.vertical.strategy import VerticalStrategy
from vertical.records import (
    ALIGNMENT,
    COUNTERS,
    CREDENTIALS,
    DATA_SUMMARY,
    INTERSECTION,
    METRICS,
    PAGE,
    PHASES,
    SALT,
    Credentials,
    DataSummary,
    Report,
    Segment,
    VFB2Progress,
    text,
)
from vertical.settings import VFB2Settings

# maximum lengths of fields in bytes, by their symbol in `vertical.records`: "c" a certificate, "a" host:port
MAX_CREDENTIALS = {"c": 16 * PAGE, "a": 512}
# the text by which the server recognises a party's error about too few common rows
NONE_IN_COMMON = "rows in common"
EIGENVALUE = "largest_eigenvalue"


class VFB2(VerticalStrategy):
    """Base class of the three variants of VFB2, which differ only in the parties' updates."""

    introductions = (CREDENTIALS, DATA_SUMMARY)
    down_type = Segment
    up_type = Report
    state_type = VFB2Progress
    settings_type = VFB2Settings
    settings: VFB2Settings
    phases = PHASES

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        # the parties' answers, the active parties and the run's random bytes, set by `introduce`
        self.credentials: list[Credentials] = []
        self.summaries: list[DataSummary] = []
        self.active: tuple[int, ...] = ()
        self.salt = ""
        # the numbers of training and test rows, known after the parties have found or compared their rows
        self.rows: tuple[int, int] | None = None
        # the numbers of the newest attempt, of the newest segment that all parties finished, and of the current segment
        self.serial = 0
        self.finished = -1
        self.under_way = 0
        # the parties' blocks, if the server has them
        self.blocks: list[FloatArray] = []

    def meet(self, roster: Roster) -> None:
        """Check the number of parties against the settings.

        Raises:
            SetupError: Too few parties, or too many active parties.
        """
        check_number(len(roster), self.fewest_clients, self.settings)

    def prepare(self, arrays: ArrayRecord, grid: Grid) -> Roster:
        """Do the handshake and the prologue. In a resumed run, exchange the credentials again."""
        roster = super().prepare(arrays, grid)
        if not self.credentials:
            self.introduce(self.finished + 1, arrays)
        return roster

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Introduce the parties, find their common rows, and run segment 0, which measures the metrics at weights 0.

        A run that scores rows has no segment 0.

        Raises:
            StrategyError: A party failed, or rows differ. Or the learning rate is too large and ``check-step`` is
                "refuse".
        """
        self.introduce(0, arrays)
        everyone, names = range(len(self.credentials)), ", ".join(map(str, self.active))
        self.under_way = 0
        if self.rows is None:
            self.rows = self.find_rows(arrays)
        if self.settings.score_run:
            log(INFO, "%d parties score %d rows each, for party %s", len(everyone), self.rows[0], names)
            return
        replies = self.ask(0, everyone, arrays, self.segment(), ALIGNMENT)
        check_rows([reply.payload for reply in replies])
        self.finish(replies)
        eigenvalue = self.measured.pop(EIGENVALUE, None)
        columns = [int(shown.columns[0]) for shown in self.summaries]
        agreed = "%d parties have the same %d training and %d test rows, %s columns; labels of party %s"
        log(INFO, agreed, len(replies), *self.rows, " + ".join(map(str, columns)), names)
        self.warn(columns)
        if eigenvalue is not None:
            check_step(self.training.learning_rate, eigenvalue, len(self.active), self.settings)

    def warn(self, columns: Sequence[int]) -> None:
        """Warn if updates could reveal the parties' columns.

        Args:
            columns: The number of columns of each party.
        """
        warn_of_exposure(self.training.num_server_rounds * self.settings.epochs, columns, self.settings.embedding)

    def find_rows(self, arrays: ArrayRecord) -> tuple[int, int]:
        """Ask the parties to find their common rows, and log each party's number of rows.

        Returns:
            The numbers of common training and test rows.

        Raises:
            StrategyError: A party failed, or the parties have too few rows in common. If their ids have different
                forms, such as "007" and "7", the error describes the forms.
        """
        try:
            replies = self.ask(0, range(len(self.credentials)), arrays, self.segment(), INTERSECTION)
        except StrategyError as error:
            if NONE_IN_COMMON in str(error) and (forms := forms_of(self.summaries)):
                raise StrategyError(f"{error}; {forms}") from error
            raise
        rows = check_rows([reply.payload for reply in replies])
        log_common_rows(sum(rows), self.summaries)
        return rows

    def introduce(self, server_round: int, arrays: ArrayRecord) -> None:
        """Send the parties each other's credentials, choose the active parties, and compare the numbers of rows.

        Raises:
            SetupError: Too few parties have labels, or the numbers of rows differ between the parties or from the
                numbers at the start of the run.
        """
        self.salt = secrets.token_hex(16)
        everyone = range(len(self.roster))
        replies = self.ask(server_round, everyone, arrays, None, CREDENTIALS, {SALT: self.salt})
        self.credentials = [reply.payload for reply in replies]
        self.serial = max([self.serial, *(int(shown.serial[0]) for shown in self.credentials)])
        replies = self.ask(server_round, everyone, arrays, self.meeting(), DATA_SUMMARY)
        self.summaries = [reply.payload for reply in replies]
        self.active = choose_active(self.summaries, self.settings)
        if self.settings.alignment == "digest" or self.rows is not None:
            # the forms of ids describe all rows of a party, so they explain a difference only if all rows are compared
            rows = check_rows(self.summaries, forms=self.settings.alignment == "digest")
            if self.rows is not None and rows != self.rows:
                got = f"{rows} training and test rows at the parties"
                allowed, hint = f"{self.rows}, as at the start of this run", "restore the parties' files of that time"
                raise SetupError("rows", got=got, allowed=allowed, hint=hint)
            self.rows = rows

    def down(self, server_round: int) -> Segment:
        self.under_way = server_round
        return self.segment()

    def segment(self) -> Segment:
        """Return the message of a new attempt at the present segment."""
        self.serial += 1
        return self.meeting()

    def meeting(self) -> Segment:
        """Return the message of the newest attempt, with the certificates and addresses of all parties."""
        training, number = self.training, self.under_way
        last, every = number == training.num_server_rounds, training.checkpoint_every
        return Segment(
            serial=np.array([self.serial]),
            segment=np.array([number]),
            base=np.array([number - 1]),
            step=np.array([self.settings.step(training, number)]),
            salt=text(bytes.fromhex(self.salt)),
            rows=None if self.rows is None else np.array(self.rows),
            active=np.array(self.active, dtype=np.int64),
            curvature=np.array([number == 0 and self.settings.check_step != "off" and not self.settings.embedding]),
            evaluate=np.array([self.evaluates()]),
            share=np.array([self.shares and (last or (every > 0 and number % every == 0))]),
            last=np.array([last]),
            **peers_of(self.credentials, self.settings.transport, self.serial),
        )

    @property
    def shares(self) -> bool:
        """Whether the server gets the blocks: in a run that trains, with ``vfb2.assemble``, if every party agrees."""
        wanted = self.settings.assemble and not self.settings.score_run
        return wanted and all(bool(shown.share[0]) for shown in self.credentials)

    def meet_again(self, server_round: int, arrays: ArrayRecord) -> Segment:
        """Introduce the parties again, since a party that lost its memory has a new certificate."""
        self.introduce(server_round, arrays)
        return self.segment()

    def limits(self, party: int) -> Mapping[str, int]:
        columns = int(self.summaries[party].columns[0]) if self.summaries else 0
        return {**MAX_CREDENTIALS, "k": len(METRICS), "w": columns}

    def check_report(self, party: int, payload: Any, phase: str) -> None:
        """Check a party's reply.

        Raises:
            PayloadError: The report belongs to another attempt, or is incomplete.
        """
        if isinstance(payload, DataSummary):
            check_lengths(payload.id_lengths)
        if not isinstance(payload, Report):
            return
        if payload.serial[0] != self.serial:
            raise PayloadError(f"Report.serial: got attempt {payload.serial[0]}, expected {self.serial}")
        if phase and payload.rows is None:
            raise PayloadError(f"Report.rows: got no rows in phase {phase}, expected the numbers of rows")
        if phase != INTERSECTION and party == self.active[0] and self.evaluates() and not payload.metrics():
            raise PayloadError("Report.metric_names: got no metrics, expected metrics from the first active party")
        columns = int(self.summaries[party].columns[0])
        if payload.weights is not None and len(payload.weights) != columns:
            raise PayloadError(f"Report.weights: got {len(payload.weights)}, expected {columns}, one for each column")

    def evaluates(self) -> bool:
        """Return whether the present segment measures the metrics."""
        training = self.training
        if self.settings.score_run:
            return False
        return self.under_way == training.num_server_rounds or self.under_way % training.evaluate_every == 0

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        """Store a segment's results. Return the empty model, and the maximum of each counter over the parties."""
        self.finish(replies)
        largest = np.max([reply.payload.counters for reply in replies], axis=0)
        token = self.extra_config.get(RUN_TOKEN)
        if server_round == self.training.num_server_rounds and token and not self.settings.score_run:
            shared = " and vfb2.keep-shared=true" * self.settings.keep_shared
            log(INFO, "to score new rows with the parties' blocks, set vfb2.score-run=%s%s", f'"{token}"', shared)
        return self.model, dict(zip(COUNTERS, largest.tolist(), strict=True))

    def finish(self, replies: Sequence[Reply]) -> None:
        """Store a segment's metrics, times and blocks."""
        reports: list[Report] = [reply.payload for reply in replies]
        self.finished = self.under_way
        self.measured = reports[self.active[0]].metrics()
        seconds = [float(report.counters[COUNTERS.index("seconds_training")]) for report in reports]
        self.report.extras = {"training_seconds": max(seconds)}
        blocks = [report.weights for report in reports if report.weights is not None]
        self.blocks = blocks if len(blocks) == len(reports) else []

    def output(self, server_round: int, arrays: list[FloatArray]) -> list[FloatArray]:
        """Return the blocks of all parties, in their order, if the server has them."""
        return self.blocks or arrays

    def snapshot(self) -> VFB2Progress | None:
        if self.rows is None or self.finished < 0:
            return None
        return VFB2Progress.of(self.serial, self.finished, self.rows, self.blocks)

    def restore(self, state: Payload) -> None:
        assert isinstance(state, VFB2Progress)
        self.serial, self.finished = int(state.serial[0]), int(state.segment[0])
        self.rows = int(state.rows[0]), int(state.rows[1])
        self.blocks = state.split_blocks()


class VFB2SGD(VFB2):
    """VFB2-SGD (Algorithms 2 and 3)."""

    traits = replace(
        VFB2.traits, sends="between parties, masked partial sums and slopes; to the server, the reporter's metrics"
    )


class VFB2SVRG(VFB2):
    """VFB2-SVRG (Algorithms 4 and 5)."""

    traits = replace(VFB2.traits, sends="the same; all slopes once an epoch")


class VFB2SAGA(VFB2):
    """VFB2-SAGA (Algorithms 6 and 7)."""

    traits = replace(VFB2.traits, sends="the same; all slopes once a run")
