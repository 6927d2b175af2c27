"""VFB2's client half: each message of the server becomes a call of the package `vertical`, which does the work.

A client is a *party* of vertical federated learning: it has some columns of the rows that all parties share. Its part
of the model (its block) stays in its state, so Flower sees an empty model. `vertical.records` names the paper and its
symbols.
"""

from collections.abc import Callable, Sequence
from logging import ERROR
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.common import log
from numpy.typing import NDArray

from clients.base import Config, Fitted, PayloadClient
from payloads.record import FloatArray, Payload
from payloads.settings import Settings, TrainingSettings
from payloads.wire import PHASE
from problems.models.vectors import Copy
from vertical.introductions import admit, describe, introduce
from vertical.parties import KeptBlock, Party
from vertical.policy import PolicyError, StatedRefusalError
from vertical.records import (
    ALIGNMENT,
    CREDENTIALS,
    DATA_SUMMARY,
    INTERSECTION,
    PHASES,
    SALT,
    VERTICAL,
    Report,
    Segment,
    VFB2State,
)
from vertical.segment.plan import SHARED
from vertical.settings import VFB2Settings
from vertical.taking_part import find_common_rows, score, train
from vertical.transport.frames import FinalError, PartyError
from vertical.turn import Turn

_ANSWERS: dict[str, Callable[[Turn], Payload]] = {DATA_SUMMARY: describe, INTERSECTION: find_common_rows}
_TRAINING = _ANSWERS | {ALIGNMENT: train, "": train}
_SCORING = _ANSWERS | {"": score}


class SegmentError(RuntimeError):
    """A failure during the parties' work together. The text contains no data of a party that withholds its errors."""


class NoModel:
    """The empty model that Flower sees: a party's block is part of its state."""

    stochastic = False
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.parameters = torch.zeros(0, dtype=torch.float64)

    def load(self, arrays: Sequence[FloatArray]) -> None:
        """Accept a model without entries.

        Raises:
            ValueError: The model has entries.
        """
        if len(arrays) != 1 or arrays[0].size:
            shapes = [array.shape for array in arrays]
            raise ValueError(
                f"model: got arrays of shapes {shapes}, allowed: one empty array; VFB2's blocks stay at the parties"
            )

    def arrays(self, copy: Copy) -> list[FloatArray]:
        """Return the model without entries."""
        return [copy(self.parameters.numpy())]


class VFB2Client(PayloadClient[NoModel]):
    """Base class of the three VFB2 clients.

    Attributes:
        party: The party: its data, identity and owner's policy.
        block: The party's final block and the data needed to predict with it, after the last segment. Never sent.
        scores: The id and the prediction z of each row, at a party that may learn scores in a run that scores rows.
        facts: Entries for the owner's log; see `vertical.turn.Turn`.
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
        self.block: KeptBlock | None = None
        self.scores: tuple[Sequence[str], NDArray[np.float64]] | None = None
        self.facts: dict[str, Any] = {}

    def fit(self, parameters: list[FloatArray], config: Config) -> Fitted:
        """Answer a message of the server. In a round, train its segment with the other parties.

        Args:
            parameters: The model, which has no entries.
            config: The message's scalars.

        Returns:
            The model ([] before round 1), the number of the party's training rows, and no metrics.

        Raises:
            SegmentError: A party failed. The text names the party.
            RefusalError: The owner's policy forbids the run, or the data cannot be used.
        """
        self.begin(parameters, config)
        phase, state, rows = str(config.get(PHASE, "")), VFB2State.empty() if self.state is None else self.state, 0
        if phase == CREDENTIALS:
            self.facts["salt"] = bytes.fromhex(str(config[SALT])).hex()
            self.outbox, self.state = introduce(self.party, state, self.settings)
        else:
            answers = _SCORING if self.settings.score_run else _TRAINING
            if not isinstance(self.inbox, Segment) or phase not in answers:
                known = ", ".join(repr(name) for name in (CREDENTIALS, *answers))
                got = f"{type(self.inbox).__name__} in phase {phase!r}"
                raise ValueError(f"payload: got {got}, allowed: Segment in one of the phases {known}")
            own = self.party, self.algorithm, self.training, self.settings
            turn = Turn(*own, self.inbox, state, config, self.facts)
            self.outbox = self._answer(turn, answers[phase])
            rows = int(turn.count_rows()[0])
            self.state, self.block, self.scores = turn.state, turn.block, turn.scores
        sent = {name: int(value.nbytes) for name, value in self.outbox.arrays().items()}
        self.facts["to-server"] = {"num-examples": 8, **sent}
        return [] if phase else list(parameters), rows, {}

    def _answer(self, turn: Turn, work: Callable[[Turn], Payload]) -> Payload:
        try:
            admit(turn)
            return work(turn)
        except FinalError as error:
            raise StatedRefusalError(str(error)) from None
        except PartyError as error:
            if not self.party.verbose:
                log(ERROR, "the server gets the public part of this error only: %s", error)
            raise SegmentError(str(error if self.party.verbose else error.redact())) from None
        except PolicyError as error:
            raise error.at(f"party {self.party.partition_id}") from None


class VFB2SGDClient(VFB2Client):
    """VFB2-SGD (Algorithms 2 and 3)."""

    algorithm = "sgd"


class SharedSGDClient(VFB2Client):
    """SGD on secret shares (`vertical.shares`)."""

    algorithm = SHARED


class VFB2SVRGClient(VFB2Client):
    """VFB2-SVRG (Algorithms 4 and 5)."""

    algorithm = "svrg"


class VFB2SAGAClient(VFB2Client):
    """VFB2-SAGA (Algorithms 6 and 7)."""

    algorithm = "saga"
