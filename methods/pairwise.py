"""What FedX and local pairs share: settings, the risk on a site's samples, its batches, u, the momentum and the step.

| FedX's paper | here |
|---|---|
| h(w; z) | `PairwiseRisk.forward`: the model's output, its sigmoid or its tanh |
| f, l | `PairwiseRisk.objective`, see `problems.objectives.pairwise` |
| S_1^i, S_2^i | `PairwiseRisk.positives`, `PairwiseRisk.partners` |
| z_{i,k,1}, z_{i,k,2} | `ActiveBatch` |
| u(z), equation (8) | ``u`` of `Carry`, `update_u`; a client keeps it as `InnerEstimates` |
| G | ``momentum`` of `Carry`, `descend` |
| gamma, beta, lambda, tau | the same in `FedXSettings` |
| B_1, B_2 | ``positive_batch_size``, ``negative_batch_size`` |

"Partners" are the elements of S_2: the negatives, or every sample for ``auprc``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from methods.adjustment import Adjustment
from methods.fedx_settings import FedXSettings as FedXSettings
from methods.method import Task, as_array, as_tensor, momentum_step
from methods.server import Plan, Replies
from payloads.record import BoolArray, FloatArray, Payload, array
from payloads.settings import TrainingSettings
from problems.models import FlatModel
from problems.models.dense import add_scaled
from problems.objectives.pairwise import make_objective, pairwise_score
from problems.randomness import Purpose
from problems.sampling import Indices, on_device
from problems.site import Site

ACTIVE = Purpose.POSITIVES, Purpose.PARTNERS


@dataclass(frozen=True, eq=False)
class Momentum(Payload):
    """Down, up, and the server's state: the momentum of a local method. Absent before the first round."""

    momentum: FloatArray | None = array("d", optional=True, combined="mean")


@dataclass(frozen=True, eq=False)
class InnerEstimates(Payload):
    """A client's memory: u of every local positive (log u for ``kl-opauc``), and which have been observed."""

    u: FloatArray = array("n", "k")
    observed: BoolArray = array("n", kind="bool")


class ActiveBatch(NamedTuple):
    """The samples of a local step: features (*stack, b + m, *shape) of b positives and then of m partners, the places
    of the positives in the table of u, and the labels of the partners, or None if the loss reads none."""

    features: Tensor
    places: Int64[Tensor, "*stack b"]
    labels: Float64[Tensor, "*stack m"] | None


class Predictions(NamedTuple):
    """Predictions of positives or of partners from the pool.

    Attributes:
        scores: one of each.
        weights: the weight of each in a mean.
        u: of positives, NaN where unknown; None unless it is tracked.
        labels: of partners; None where the loss reads none.
    """

    scores: Float64[Tensor, "*stack entries"]
    weights: Float64[Tensor, "*stack entries"]
    u: Any = None  # Float64[Tensor, "*stack entries k"] | None
    labels: Float64[Tensor, "*stack entries"] | None = None

    def take(self, rows: Indices) -> "Predictions":
        places = on_device(rows, self.scores.device)
        return Predictions._make(None if value is None else value[places] for value in self)


class PairBatch(NamedTuple):
    """The input of a local step: the active halves of its pairs (the site's samples), the lazy halves (predictions from
    the pool) and, with ``independent-history``, the sample to record instead of the active one."""

    active: ActiveBatch
    positives: Predictions
    partners: Predictions
    independent: ActiveBatch | None = None


@dataclass(frozen=True)
class Carry:
    """w. Where u is tracked also u of the site's positives, NaN for those not yet observed, and G, None before the
    first step of a run. In a stack of clients the tables of u lie one after another."""

    x: Float[Tensor, "*stack d"]
    u: Float64[Tensor, "positives k"] | None
    momentum: Float[Tensor, "*stack d"] | None


class PairwiseRisk:
    """The risk F as one site sees it: its own S_1 and S_2, and the scores that the pair loss compares.

    Attributes:
        tracked: whether there are u and a momentum: for non-linear f, and if the argument says so, for every f.
        adjust: what is done to the gradient of a step, or None.
    """

    def __init__(
        self, model: FlatModel, site: Site, loss: str, run: TrainingSettings, fedx: FedXSettings, tracked: bool = False
    ) -> None:
        self.model, self.positives = model, site.positives
        self.objective = make_objective(loss, **fedx.objective_options)
        self.tracked = tracked or not self.objective.linear
        self.partners = site.everyone if self.objective.partners == "all" else site.negatives
        self.score = pairwise_score(run.score, loss)
        self.adjust = Adjustment.of(run, model)

    def forward(
        self, w: Float[Tensor, "*stack d"], batch: ActiveBatch
    ) -> tuple[Float64[Tensor, "*stack b"], Float64[Tensor, "*stack m"], Callable[..., Float[Tensor, "*stack d"]]]:
        """Score a batch in one pass over both halves, so that batch norm sees the mixture of the classes.

        Args:
            w: the weights to score with.
            batch: of b positives and m partners.

        Returns:
            The scores of the positives, those of the partners, and `pull`, to be called once, before anything changes
            w: it takes the slopes of both back to the weights, like the `pull` of `FlatModel.forward`.
        """
        outputs, back = self.model.forward(w, batch.features)
        scores, count = self.score.value(outputs), batch.places.shape[-1]

        def pull(positives: Tensor, partners: Tensor, into: Tensor | None = None, alpha: float = 1.0) -> Tensor:
            slopes = torch.cat([positives, partners], -1).to(scores.dtype).mul_(self.score.slope(scores))
            if self.adjust is None:
                return back(slopes, into=into, alpha=alpha)
            return add_scaled(self.adjust(back(slopes), w), into, alpha)

        exact = scores.double()
        return exact[..., :count], exact[..., count:], pull


PairwiseTask = Task[FedXSettings, PairwiseRisk]
C = TypeVar("C", bound=Carry)


def active_batches(
    task: PairwiseTask, positives: Indices, shift: int = 0, purposes: tuple[Purpose, Purpose] = ACTIVE
) -> Iterator[ActiveBatch]:
    """Mini-batches of positives and of partners for each of the round's iterations, reshuffled independently.

    Args:
        task: has the partners, and the sizes of both halves of a batch.
        positives: the positives to draw from.
        shift: how many batches were taken before iteration 0 of the run.
        purposes: the streams of random numbers of positives and partners.
    """
    site, settings, seed = task.site, task.settings, task.training.seed
    first = site.sampler(positives, settings.positive_batch_size, seed, purposes[0])
    second = site.sampler(task.f.partners, settings.negative_batch_size, seed, purposes[1])
    device, labels = site.labels.device, None
    for iteration in task.iterations:
        p, q = first.batch(iteration + shift), second.batch(iteration + shift)
        if task.f.objective.partners == "all":
            labels = site.labels.index_select(0, on_device(q, device)).double()
        places = on_device(np.searchsorted(site.positives, p), device)
        yield ActiveBatch(site.rows(np.concatenate([p, q])), places, labels)


def start(x: Float[Tensor, "d"], down: Any, memory: InnerEstimates | None, task: PairwiseTask) -> Carry:
    """The carry at w; where u is tracked, with the u of the client's memory and the G that came down.

    Args:
        x: w, the message's model.
        down: a record with a field ``momentum``, which may be None, or no record.
        memory: u; None before the client's first round.

    Raises:
        PayloadError: the memory is of other positives, or of another loss.
    """
    if not task.f.tracked:
        return Carry(x, None, None)
    u = np.full((len(task.f.positives), task.f.objective.inner_dim), np.nan)
    if memory is not None:
        memory.check({"n": u.shape[0], "k": u.shape[1]})
        u[memory.observed] = memory.u[memory.observed]
    momentum = None if down is None or down.momentum is None else as_tensor(down.momentum, x)
    return Carry(x, torch.from_numpy(u).to(task.site.labels.device), momentum)


def finish(carry: Carry, task: PairwiseTask) -> tuple[Float[Tensor, "d"], Momentum, InnerEstimates | None]:
    """w and G go up, u stays; G and u are None where there are none."""
    up = Momentum(momentum=None if carry.momentum is None else as_array(carry.momentum))
    if carry.u is None:
        return carry.x, up, None
    known = ~carry.u.isnan().any(dim=1)
    return carry.x, up, InnerEstimates(u=as_array(carry.u.where(known[:, None], 0.0)), observed=known.cpu().numpy())


def differences(
    positives: Float64[Tensor, "*stack b"], partners: Float64[Tensor, "*stack m"]
) -> Float64[Tensor, "*stack b m"]:
    """A partner's score minus a positive's, for all pairs."""
    return partners[..., None, :] - positives[..., None]


def observe(
    task: PairwiseTask, scores: Float64[Tensor, "*stack b"], partners: Predictions
) -> Float64[Tensor, "*stack b k"]:
    """Observe the inner mean g of some positives, in the form in which u is kept.

    Args:
        task: has the pair loss l.
        scores: of the positives.
        partners: of the pool, with which all of them are paired.
    """
    return task.f.objective.observe(differences(scores, partners.scores), partners.labels, partners.weights)


def fill_in(u: Float64[Tensor, "*stack b k"], seen: Float64[Tensor, "*stack b k"]) -> Float64[Tensor, "*stack b k"]:
    """Complete u of some positives.

    Args:
        u: NaN where unknown.
        seen: the inner means observed now, which take the places of the unknown values.
    """
    return torch.where(u.isnan(), seen, u)


def update_u(
    u: Float64[Tensor, "positives k"],
    places: Int64[Tensor, "*stack b"],
    seen: Float64[Tensor, "*stack b k"],
    task: PairwiseTask,
) -> Float64[Tensor, "*stack b k"]:
    """Equation (8): u <- (1 - gamma) u + gamma seen, or u <- seen the first time.

    Args:
        u: the table of all positives, changed in place.
        places: of some positives in the table.
        seen: the inner means of these, as observed now.
        task: has gamma, and the form in which the objective keeps u.

    Returns:
        The new u of these positives.
    """
    u[places] = current = fill_in(task.f.objective.average(u[places], seen, task.settings.gamma), seen)
    return current


def descend(
    carry: C,
    pull: Callable[..., Float[Tensor, "*stack d"]],
    slopes: tuple[Float64[Tensor, "*stack b"], Float64[Tensor, "*stack m"]],
    eta: float,
    task: PairwiseTask,
) -> C:
    """w <- w - eta G: G is the gradient or, where u is tracked, G <- (1 - beta) G + beta gradient.

    Args:
        carry: with w and G, which are changed in place.
        pull: takes slopes of the batch's scores back to the weights, see `PairwiseRisk.forward`.
        slopes: the derivatives of the risk in the scores of the batch's positives and partners.
        eta: the step size.
        task: has beta.

    Returns:
        The carry of the next step.
    """
    if carry.u is None:
        pull(*slopes, into=carry.x, alpha=-eta)
        return carry
    return replace(carry, momentum=momentum_step(carry.x, carry.momentum, pull(*slopes), task.settings.beta, eta))


def average(
    x: Float[np.ndarray, "d"], state: Any, replies: Replies[Any], plan: Plan[Any]
) -> tuple[Float[np.ndarray, "d"], Any]:
    """Average the models, and the momenta of those clients that sent one.

    Args:
        x: the model before the round, which has no effect.
        state: a record with a field ``momentum``; None stands for a `Momentum` without one.
        replies: with records that have such a field, too. Their weights are scaled to the clients with a momentum.

    Returns:
        The mean model, and the state with the mean momentum, or as it was if no client sent a momentum.
    """
    state, sent = Momentum() if state is None else state, replies.having("momentum")
    if sent.ups:
        state = replace(state, momentum=sent.mean("momentum"))
    return replies.mean_point(), state
