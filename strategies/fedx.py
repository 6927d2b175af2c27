"""FedX's server half: Algorithms 1-3 of "FedX: Federated Learning for Compositional Pairwise Risk Optimization"
(Guo, Jin, Luo, Yang), with the larger buffers of Appendices E and F.

| paper                    | here                                                      |
|--------------------------|-----------------------------------------------------------|
| H_1, H_2, U of a round   | one `Block` a contributing client and round               |
| R_1, R_2, P              | the `FedXPool` that goes down: blocks of the last ``tau`` rounds |
| omega_1i, omega_2j       | in the runs' weights, see `run_weights`                   |
| P^r                      | the clients sampled by ``fraction-train``                 |
| G^r                      | ``momentum``, the mean over the participants               |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from payloads.fedx import SCORING, SCORING_ROUND, FedXPool, FedXPredictions
from payloads.record import BoolArray, FloatArray, IntArray, Payload, PayloadError, array
from payloads.settings import Settings, TrainingSettings
from strategies.pairwise import PairwiseStrategy
from strategies.replies import Reply, mean_model
from strategies.roster import SetupError


@dataclass(frozen=True, eq=False)
class FedXState(Payload):
    """The server's state: the blocks of the last ``tau`` rounds, oldest first, and the momentum.

    A block is one client's predictions of one round. Letters: n blocks, t rounds, p and q entries.
    """

    # every block: its round, the client's place, and how many entries of each kind it holds
    block_rounds: IntArray = array("n", kind="int")
    block_places: IntArray = array("n", kind="int")
    positive_lengths: IntArray = array("n", kind="int")
    partner_lengths: IntArray = array("n", kind="int")
    tracked: BoolArray = array("n", kind="bool")
    # every round: how many clients took part, those without an entry counted
    participants: IntArray = array("t", kind="int")
    # the entries
    positive_scores: FloatArray = array("p")
    positive_u: FloatArray | None = array("p", "k", optional=True)
    partner_scores: FloatArray = array("q")
    partner_labels: BoolArray | None = array("q", kind="bool", optional=True)
    # the participants' mean G
    momentum: FloatArray | None = array("d", optional=True)


@dataclass(frozen=True, eq=False)
class Block:
    """One client's predictions of one round, as the pool keeps them."""

    server_round: int
    place: int
    participants: int
    predictions: FedXPredictions


def run_weights(
    rounds: IntArray, lengths: IntArray, participants: dict[int, int], omegas: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(r,) the weight of an entry of each run, so that the mean over the pool estimates (2) and (6).

    The inner mean is (1/N) sum_j omega_j mean_j. A pool of P entries from T rounds, in which run r was made in a
    round of |P_r| participants and has n_r entries, estimates it when an entry weighs omega_j P / (T |P_r| n_r):
    exactly omega_j where all clients send equally many, and right also where a small site sends fewer or a site
    with one class sends none.
    """
    num_rounds = len(participants)
    sizes = np.array([participants[int(r)] for r in rounds], dtype=np.float64)
    weights: NDArray[np.float64] = omegas * lengths.sum() / (num_rounds * sizes * lengths)
    return weights


class FedX1(PairwiseStrategy):
    """Algorithm 1 (linear f): averages the models plainly, keeps the pool of the last ``tau`` rounds, sends it down."""

    needs_examples = "has a risk over the pairs of all sites for its objective, whatever each holds"
    weighted_gradients = True
    down_type = FedXPool
    up_type = FedXPredictions
    state_type = FedXState
    phases: ClassVar[dict[str, type[Payload]]] = {SCORING: FedXPredictions}
    default_loss: ClassVar[str] = "psm"
    tracks: ClassVar[bool] = False

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        if not self.tracks and not self.objective.linear:
            raise SetupError(
                "loss",
                got=f"{self.loss!r}, whose f is not linear",
                allowed="a linear f with strategy fedx1",
                hint="set strategy to fedx2",
            )
        # the pool, oldest round first
        self.blocks: list[Block] = []
        # (d,) the participants' mean G
        self.momentum: FloatArray | None = None

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Lines 3-4: every client scores K batches with the initial model, whatever ``fraction-train`` says."""
        assert self.roster is not None
        everyone = range(len(self.roster))
        self.admit(SCORING_ROUND, self.ask(SCORING_ROUND, everyone, arrays, None, SCORING))

    def down(self, server_round: int) -> FedXPool:
        dtype = np.dtype(self.training.dtype)
        positive = [block for block in self.blocks if len(block.predictions.positive_scores)]
        partner = [block for block in self.blocks if len(block.predictions.partner_scores)]
        participants = {block.server_round: block.participants for block in self.blocks}
        num_clients = len(self.positives)

        def weights(blocks: list[Block], lengths: IntArray, counts: NDArray[np.int64]) -> FloatArray:
            places = [block.place for block in blocks]
            omegas = num_clients * counts[places] / counts.sum()  # omega_1i or omega_2j
            rounds = np.array([block.server_round for block in blocks], dtype=np.int64)
            return run_weights(rounds, lengths, participants, omegas).astype(dtype)

        positive_lengths = np.array([len(b.predictions.positive_scores) for b in positive], dtype=np.int64)
        partner_lengths = np.array([len(b.predictions.partner_scores) for b in partner], dtype=np.int64)
        return FedXPool(
            totals=np.array([num_clients, self.positives.sum(), self.partners.sum()], dtype=np.int64),
            positive_scores=_join([b.predictions.positive_scores for b in positive], dtype),
            positive_lengths=positive_lengths,
            positive_weights=weights(positive, positive_lengths, self.positives),
            positive_tracked=np.array([_tracked(b) for b in positive]) if self.tracks and positive else None,
            positive_u=self._joined_u(positive, dtype),
            partner_scores=_join([b.predictions.partner_scores for b in partner], dtype),
            partner_lengths=partner_lengths,
            partner_weights=weights(partner, partner_lengths, self.partners),
            partner_labels=self._joined_labels(partner),
            momentum=self.momentum,
        )

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        """Line 26 (FedX2: 27): the mean of the models and momenta; the round's predictions join the pool."""
        self.admit(server_round, replies)
        self.momentum = self.mean_momentum(replies, self.momentum)
        return mean_model(replies, self.weights(replies)), {}

    def admit(self, server_round: int, replies: list[Reply]) -> None:
        """Append a round's blocks and let go of those older than ``tau`` rounds."""
        fresh = [
            Block(server_round, reply.place, len(replies), dataclasses.replace(reply.payload, momentum=None))
            for reply in replies
        ]
        rounds = sorted({block.server_round for block in self.blocks} | {server_round})[-self.settings.tau :]
        self.blocks = [block for block in [*self.blocks, *fresh] if block.server_round in rounds]

    def limits(self, place: int) -> Mapping[str, int]:
        """Predictions: those of K batches, no larger than what the site holds, or ``history-size`` of them."""
        fedx, steps = self.settings, self.training.local_steps
        positives = steps * min(fedx.positive_batch_size, int(self.positives[place]))
        partners = steps * min(fedx.negative_batch_size, int(self.partners[place]))
        most = fedx.history_size or max(positives, partners)
        return {"p": min(most, positives), "q": min(most, partners), "k": self.objective.inner_dim}

    def check_payload(self, payload: Any) -> None:
        if payload.positive_u is not None and payload.positive_u.shape[1] != self.objective.inner_dim:
            raise PayloadError(
                f"positive_u: {payload.positive_u.shape[1]} components, expected {self.objective.inner_dim}"
            )
        if (payload.partner_labels is None) != (self.objective.partners == "negatives"):
            raise PayloadError("partner_labels: needed for auprc and for no other loss")

    def snapshot(self) -> FedXState | None:
        if not self.blocks:
            return None
        dtype = np.dtype(self.training.dtype)
        predictions = [block.predictions for block in self.blocks]
        participants = {block.server_round: block.participants for block in self.blocks}
        return FedXState(
            block_rounds=np.array([block.server_round for block in self.blocks], dtype=np.int64),
            block_places=np.array([block.place for block in self.blocks], dtype=np.int64),
            positive_lengths=np.array([len(p.positive_scores) for p in predictions], dtype=np.int64),
            partner_lengths=np.array([len(p.partner_scores) for p in predictions], dtype=np.int64),
            tracked=np.array([_tracked(block) for block in self.blocks]),
            participants=np.array(list(participants.values()), dtype=np.int64),
            positive_scores=_join([p.positive_scores for p in predictions], dtype),
            positive_u=self._joined_u(self.blocks, dtype),
            partner_scores=_join([p.partner_scores for p in predictions], dtype),
            partner_labels=self._joined_labels(self.blocks),
            momentum=self.momentum,
        )

    def restore(self, state: Payload) -> None:
        assert isinstance(state, FedXState)
        rounds = list(dict.fromkeys(int(r) for r in state.block_rounds))
        participants = dict(zip(rounds, state.participants, strict=True))
        positive_ends, partner_ends = np.cumsum(state.positive_lengths), np.cumsum(state.partner_lengths)
        self.momentum = state.momentum
        self.blocks = []
        for i, (server_round, place) in enumerate(zip(state.block_rounds, state.block_places, strict=True)):
            p = slice(positive_ends[i] - state.positive_lengths[i], positive_ends[i])
            q = slice(partner_ends[i] - state.partner_lengths[i], partner_ends[i])
            predictions = FedXPredictions(
                positive_scores=state.positive_scores[p],
                partner_scores=state.partner_scores[q],
                positive_u=state.positive_u[p] if state.positive_u is not None and state.tracked[i] else None,
                partner_labels=None if state.partner_labels is None else state.partner_labels[q],
            )
            count = int(participants[int(server_round)])
            self.blocks.append(Block(int(server_round), int(place), count, predictions))

    def _joined_u(self, blocks: list[Block], dtype: np.dtype[Any]) -> FloatArray | None:
        """u of all entries, zero where a block has none, or None where no block has any."""
        if not any(_tracked(block) for block in blocks):
            return None
        shapes = [(len(block.predictions.positive_scores), self.objective.inner_dim) for block in blocks]
        known = [block.predictions.positive_u for block in blocks]
        filled = [np.zeros(shape) if u is None else u for shape, u in zip(shapes, known, strict=True)]
        joined: FloatArray = np.concatenate(filled).astype(dtype)
        return joined

    def _joined_labels(self, blocks: list[Block]) -> BoolArray | None:
        if self.objective.partners == "negatives":
            return None
        empty = np.zeros(0, dtype=np.bool_)
        return np.concatenate([empty, *(b.predictions.partner_labels for b in blocks)])


class FedX2(FedX1):
    """Algorithms 2 and 3 (non-linear f): the pool carries u, and the momenta are averaged with the models."""

    default_loss: ClassVar[str] = "kl-opauc"
    tracks: ClassVar[bool] = True

    def check_payload(self, payload: Any) -> None:
        super().check_payload(payload)
        noisy = self.settings.prediction_noise > 0
        if payload.momentum is not None and payload.positive_u is None and not noisy:
            raise PayloadError("positive_u: missing beside a momentum")
        if payload.positive_u is not None and noisy:
            raise PayloadError("positive_u: would undo the noise of fedx.prediction-noise, which is on")


def _tracked(block: Block) -> bool:
    return block.predictions.positive_u is not None


def _join(parts: list[FloatArray], dtype: np.dtype[Any]) -> FloatArray:
    joined: FloatArray = np.concatenate([np.zeros(0), *parts]).astype(dtype)
    return joined
