"""The stages of CoDA and CODASCA: their settings, lengths and reference points. `methods.coda` explains the symbols."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from methods.server import Plan
from payloads.record import FloatArray, Payload, array
from payloads.settings import Settings, setting
from problems.minimax import AUC_MINIMAX
from problems.randomness import Purpose, stream


class CodaSettings(Settings):
    """Hyper-parameters of CoDA and CODASCA (table ``coda``)."""

    proximal: float = setting("The weight 1/gamma of the pull towards the stage's reference.", 0.002, ge=0)
    # the stages
    stage_rounds: int = setting("The rounds of the first stage. 0: a single stage for the whole run.", 0, ge=0)
    stage_growth: float = setting("The factor of a stage's rounds from one stage to the next.", 1.0, ge=1)
    stage_decay: float = setting("The divisor of the learning rate at each new stage.", 3.0, ge=1)
    restart_dual: bool = setting("Whether a new stage starts from the best lambda for its scores (auc-minimax).", True)
    # departures of the published code from the formula
    scaled_dual: bool = setting("Whether to divide lambda's gradient by p (1 - p), as the published code does.", False)
    reference_noise: float = setting(
        "The standard deviation of a noisy first reference. 0: the initial model.", 0.0, ge=0
    )


CodaPlan = Plan[CodaSettings]


@dataclass(frozen=True)
class Stage:
    """A round's stage: the stage's number, counted from 0, and its first round."""

    index: int
    first: int


def stage_of(server_round: int, settings: CodaSettings) -> Stage:
    """Find the stage of a round; stage s has round(stage_rounds * stage_growth^s) rounds.

    Args:
        server_round: The round's number, counted from 1.
        settings: The settings. If ``stage_rounds`` is 0, stage 0 never ends.
    """
    stage = Stage(0, 1)
    while settings.stage_rounds:
        # bounded by server_round, since stages may grow without limit; a stage of this length does not end yet
        rounds = round(min(settings.stage_rounds * settings.stage_growth**stage.index, server_round))
        if server_round < stage.first + rounds:
            break
        stage = Stage(stage.index + 1, stage.first + rounds)
    return stage


@dataclass(frozen=True, eq=False)
class StageState(Payload):
    """The server's state, in float64: the stage's reference, the sum of the stage's points so far, and CODASCA's c."""

    reference: FloatArray | None = array("d", optional=True)
    total: FloatArray | None = array("d", optional=True)
    control: FloatArray | None = array("d", optional=True)


def init(x: Float[np.ndarray, "d"], plan: CodaPlan) -> StageState:
    """Return the first stage's reference: the initial model, or noise."""
    if not plan.settings.proximal:
        return StageState()
    noise, spread = stream(plan.training.seed, Purpose.REFERENCE_NOISE), plan.settings.reference_noise
    return StageState(reference=noise.normal(0, spread, len(x)) if spread else x.astype(np.float64))


def tell_reference(x: Float[np.ndarray, "d"], state: StageState, plan: CodaPlan) -> Float[np.ndarray, "d"] | None:
    """Prepare v_0 for a message.

    Args:
        x: The model in the message.
        state: The server's state, with the stage's reference if there is a proximal term.
        plan: The round's plan. The loss determines the part of x that the proximal term pulls.

    Returns:
        The reference in the model's number type. None if the model itself serves as the reference.
    """
    if state.reference is None:
        return None
    reference = state.reference.astype(x.dtype)
    # The proximal term acts on v only, so alpha (for auc-minimax the last entry) is left out of the comparison.
    pulled = slice(-1) if plan.loss == AUC_MINIMAX else slice(None)
    return None if np.array_equal(reference[pulled], x[pulled]) else reference


def follow_stage(state: StageState, point: Float[np.ndarray, "d"], plan: CodaPlan) -> StageState:
    """Add a round's point to the stage's sum. At the stage's end, the points' mean becomes the next reference.

    Args:
        state: The state after the previous round.
        point: The model that the round has made.
        plan: The round's plan.

    Returns:
        The new state; unchanged without a proximal term, or if there is only one stage.
    """
    settings, stage = plan.settings, stage_of(plan.server_round, plan.settings)
    if not (settings.proximal and settings.stage_rounds):
        return state
    total = point.astype(np.float64) if state.total is None else state.total + point
    if stage_of(plan.server_round + 1, settings) == stage:
        return replace(state, total=total)
    return replace(state, reference=total / (plan.server_round + 1 - stage.first), total=None)
