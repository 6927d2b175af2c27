"""CoDA's and CODASCA's records and settings.

CoDA: Guo, Liu, Yuan, Shen, Liu, Yang, "Communication-Efficient Distributed Stochastic AUC Maximization with Deep
Neural Networks" (ICML 2020). CODASCA: Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous
Data with a Constant Communication Complexity" (ICML 2021).

| paper                        | here                                      |
|------------------------------|-------------------------------------------|
| (v, alpha), one flat point z | the message's model                       |
| v_0 of a stage               | ``reference``                             |
| 1 / gamma                    | ``proximal``                              |
| eta_s = eta_0 / 3^s          | ``learning-rate`` and ``stage_decay``     |
| T_s / I, rounds of stage s   | ``stage_rounds`` and ``stage_growth``     |
| alpha_s between two stages   | ``restart_dual``, from `ClassScores`      |
| I; eta_g (CODASCA)           | ``local-steps``; ``server-learning-rate`` |
| c_k, c (CODASCA)             | `payloads.scaffold`; ``control``          |
"""

from __future__ import annotations

import dataclasses

from pydantic import Field

from payloads.record import FloatArray, IntArray, Payload, array
from payloads.settings import Settings

# the exchange before the first round of a stage: clients send what their scores sum to and take no step
CLASS_SCORES = "class-scores"


class CodaSettings(Settings):
    """Hyper-parameters of CoDA and CODASCA (table ``coda``)."""

    proximal: float = Field(
        0.002, ge=0, description="weight 1/gamma of the pull towards the stage's reference point, a number >= 0"
    )
    # the stages
    stage_rounds: int = Field(
        0, ge=0, description="rounds of the first stage, an integer >= 0 (0: one stage without end)"
    )
    stage_growth: float = Field(1.0, ge=1, description="factor of a stage's rounds from one to the next, a number >= 1")
    stage_decay: float = Field(3.0, ge=1, description="what each new stage divides the learning rate by, a number >= 1")
    restart_dual: bool = Field(
        True, description="true: a new stage starts from the best lambda for its scores (auc-minimax); or false"
    )
    # where the published code departs from the formula
    scaled_dual: bool = Field(
        False,
        description="true: divide lambda's gradient by p(1-p), as the published code does (auc-minimax); or false",
    )
    reference_noise: float = Field(
        0.0,
        ge=0,
        description="standard deviation of the Gaussian noise that is the first stage's reference, a number >= 0 "
        "(0: the initial model)",
    )


@dataclasses.dataclass(frozen=True)
class Stage:
    """Where a round stands: the stage's number, counted from 0, and its first round."""

    index: int
    first: int


def stage_of(server_round: int, settings: CodaSettings) -> Stage:
    """The stage of a round; stage s has round(stage_rounds * stage_growth^s) rounds."""
    stage = Stage(0, 1)
    while settings.stage_rounds:
        # at most server_round, which ends no stage too early and keeps the number small
        rounds = round(min(settings.stage_rounds * settings.stage_growth**stage.index, server_round))
        if server_round < stage.first + rounds:
            break
        stage = Stage(stage.index + 1, stage.first + rounds)
    return stage


@dataclasses.dataclass(frozen=True, eq=False)
class CodaDown(Payload):
    """Down. Without a ``reference`` it is the point that the message carries."""

    # the share p of positives and the mean number n / N of samples of all sites, where f_i needs them
    population: FloatArray | None = array(2, optional=True)
    reference: FloatArray | None = array("d", optional=True)


@dataclasses.dataclass(frozen=True, eq=False)
class CodascaDown(CodaDown):
    """Down, for CODASCA: c too, once it is not zero."""

    control: FloatArray | None = array("d", optional=True)


@dataclasses.dataclass(frozen=True, eq=False)
class ClassScores(Payload):
    """Up, in the phase `CLASS_SCORES`: the sums of a site's scores by class, negatives first, and of how many."""

    sums: FloatArray = array(2)
    counts: IntArray = array(2, kind="int")


@dataclasses.dataclass(frozen=True, eq=False)
class StageState(Payload):
    """What the server keeps from round to round, in float64: the stage's reference, the sum of the stage's points so
    far, and CODASCA's c."""

    reference: FloatArray | None = array("d", optional=True)
    total: FloatArray | None = array("d", optional=True)
    control: FloatArray | None = array("d", optional=True)
