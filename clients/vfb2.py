"""The client half of VFB2, a party of a vertical run: it passes the server's messages on to the package `vertical`.

`vertical.records` names the paper and its symbols.
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
from vertical.settings import VFB2Settings
from vertical.taking_part import find_common_rows, score, train
from vertical.transport.frames import FinalError, PartyError
from vertical.turn import Turn

_ANSWERS: dict[str, Callable[[Turn], Payload]] = {DATA_SUMMARY: describe, INTERSECTION: find_common_rows}
_TRAINING = _ANSWERS | {ALIGNMENT: train, "": train}
_SCORING = _ANSWERS | {"": score}


class SegmentError(RuntimeError):
    """A failure while the parties train together. The text contains no data of a party that withholds its errors."""


class NoModel:
    """The empty model that Flower gets, since a party's block of the model is part of the party's state."""

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
            raise ValueError(f"the model of a vertical run must be empty, got arrays of {[a.shape for a in arrays]}")

    def arrays(self, copy: Copy) -> list[FloatArray]:
        """Return the model without entries."""
        return [copy(self.parameters.numpy())]


class VFB2Client(PayloadClient[NoModel]):
    """Base class of the three VFB2 clients.

    Attributes:
        party: The party's data and settings.
        block: The party's final block and the data needed to predict with it, after the last segment. Never sent.
        scores: The id and the score z of each row, in a run that scores rows, at a party that may learn the scores.
        facts: Entries for the owner's audit log; see `vertical.turn.Turn`.
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
        """Answer a message of the server. In a round, take part in the round's segment, the parties' training.

        Args:
            parameters: The model, which has no entries.
            config: The message's scalars.

        Returns:
            The model ([] in a phase), the number of the party's training rows, and no metrics.

        Raises:
            SegmentError: A party failed. The text names the party.
            RefusalError: The owner's policy forbids the message, or the data cannot be used.
        """
        self.begin(parameters, config)
        phase, state, rows = str(config.get(PHASE, "")), VFB2State.empty() if self.state is None else self.state, 0
        if phase == CREDENTIALS:
            self.facts["salt"] = bytes.fromhex(str(config[SALT])).hex()
            self.outbox, self.state = introduce(self.party, state, self.settings)
        else:
            answers = _SCORING if self.settings.score_run else _TRAINING
            if not isinstance(self.inbox, Segment) or phase not in answers:
                raise ValueError(f"the message has no Segment, or the unknown phase {phase!r}")
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


class VFB2SVRGClient(VFB2Client):
    """VFB2-SVRG (Algorithms 4 and 5)."""

    algorithm = "svrg"


class VFB2SAGAClient(VFB2Client):
    """VFB2-SAGA (Algorithms 6 and 7)."""

    algorithm = "saga"
