"""The common parts of FedX and local pairs: the risk on a site's samples, its batches, u, the momentum and the step.

The risk is F(w) = mean over z in S_1 of f(g(w; z)), with the inner mean g(w; z) = mean over z' in S_2 of
l(h(w; z), h(w; z')). u(z) is a moving average of g(w; z), and G of the gradient.

| FedX's paper (see `methods.fedx`) | here |
|---|---|
| h(w; z) | `PairwiseRisk.forward`: the model's output, its sigmoid or its tanh |
| f, l | `PairwiseRisk.objective`, see `problems.objectives.pairwise` |
| S_1^i, S_2^i | `PairwiseRisk.positives`, `PairwiseRisk.partners` |
| z_{i,k,1}, z_{i,k,2} | `ActiveBatch` |
| u(z), equation (8) | ``u`` of `Carry`, `update_u`; a client keeps it as `InnerEstimates` |
| G | ``momentum`` of `Carry`, `descend` |
| gamma, beta, lambda, tau | the same names in `FedXSettings` |
| B_1, B_2 | ``positive_batch_size``, ``negative_batch_size`` |

"Partners" are the elements of S_2: the negatives, or every sample for ``auprc`` and ``concordance``. The positives of
``concordance`` are the rows with an event, and only its comparable pairs count, see `problems.objectives.concordance`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from methods.adam import Point, adam_step
from methods.adjustment import Adjustment
from methods.fedx_settings import FedXSettings as FedXSettings
from methods.method import Task, as_array, as_tensor, momentum_step
from methods.pair_batches import ActiveBatch, Predictions
from methods.server import Plan, Replies
from payloads.record import BoolArray, FloatArray, IntArray, Payload, array
from payloads.settings import TrainingSettings
from problems.models import FlatModel
from problems.models.dense import add_scaled
from problems.objectives.concordance import find_spans, keep_comparable
from problems.objectives.pairwise import make_objective, pairwise_score
from problems.randomness import Purpose
from problems.sampling import Indices, on_device
from problems.site import Site

ACTIVE = Purpose.POSITIVES, Purpose.PARTNERS


@dataclass(frozen=True, eq=False)
class Momentum(Payload):
    """A local method's record in both directions, and the server's state: the momentum. Absent before round 1."""

    momentum: FloatArray | None = array("d", optional=True, combined="mean")


@dataclass(frozen=True, eq=False)
class InnerEstimates(Payload):
    """A client's memory: u of every local positive (log u for ``kl-opauc``), and whether it has been observed."""

    u: FloatArray = array("n", "k")
    observed: BoolArray = array("n", kind="bool")
    # several findings only, see `methods.finding_records`
    cuts: IntArray | None = array("f", "l", kind="int", optional=True)


@dataclass(frozen=True, kw_only=True)
class Carry(Point):
    """A client's state between two steps, with w. A stack of clients concatenates its tables of u.

    Attributes:
        u: u of the site's positives, NaN if not yet observed. None: u is not tracked.
        momentum: G. None before the first step of a run, if u is not tracked, or with Adam.
    """

    u: Float64[Tensor, "positives k"] | None
    momentum: Float[Tensor, "*stack d"] | None


class PairwiseRisk:
    """The risk F at one site: the site's own S_1 and S_2, and the scores that the pair loss compares.

    Attributes:
        tracked: Whether u and a momentum are used: for a non-linear f, and for any f if the argument is True.
        adjust: The clipping and weight decay of a step's gradient, or None.
        spans: The span of each row, see `problems.objectives.concordance`. None: the loss ignores times.
        output: The number of the network's output that is the score. None: the network has a single output.
    """

    output: int | None = None

    def __init__(
        self, model: FlatModel, site: Site, loss: str, run: TrainingSettings, fedx: FedXSettings, tracked: bool = False
    ) -> None:
        self.model, self.positives = model, site.positives
        self.objective = make_objective(loss, **fedx.objective_options)
        self.tracked = tracked or not self.objective.linear
        self.partners = site.everyone if self.objective.partners == "all" else site.negatives
        self.score = pairwise_score(run.score, loss)
        self.adjust = Adjustment.of(run)
        self.spans = None
        if self.objective.timed:
            assert site.periods is not None
            self.spans = find_spans(site.periods, site.labels)

    def times(
        self, positives: Indices, partners: Indices
    ) -> tuple[Int64[Tensor, "*stack b"] | None, Int64[Tensor, "*stack m 2"] | None]:
        """Return the intervals of positives' events, and partners' spans, by row number. None: the loss ignores times.

        A row with an event has its span up to the interval before.
        """
        if self.spans is None:
            return None, None
        p, q = (on_device(rows, self.spans.device) for rows in (positives, partners))
        return self.spans[p, 1] + 1, self.spans[q]

    def forward(
        self, w: Float[Tensor, "*stack d"], batch: ActiveBatch
    ) -> tuple[Float64[Tensor, "*stack b"], Float64[Tensor, "*stack m"], Callable[..., Float[Tensor, "*stack d"]]]:
        """Score a batch in one pass over both halves, so batch norm sees the mixture of the classes.

        Args:
            w: The weights.
            batch: A batch of b positives and m partners.

        Returns:
            The positives' scores, the partners' scores, and a function `pull`. It maps the derivatives in all scores to
            a gradient in the weights, like the `pull` of `FlatModel.forward`. Call it once, before w changes.
        """
        outputs, back = self.model.forward(w, batch.features)
        if self.output is not None:  # `pull` is then not used, see `methods.pair_findings`
            outputs = outputs[:, self.output]
        scores, count = self.score.value(outputs), batch.u_rows.shape[-1]

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
    """Draw mini-batches of positives and of partners, reshuffled independently, for each of the round's iterations.

    Args:
        task: The client's task; provides the partners, and the sizes of both halves of a batch.
        positives: The row numbers of the positives to draw from.
        shift: The number of batches drawn before iteration 0 of the run.
        purposes: The streams of random numbers of positives and partners.
    """
    site, settings, seed, end = task.site, task.settings, task.training.seed, task.iterations.stop + shift
    first = site.sampler(positives, settings.positive_batch_size, seed, purposes[0], end)
    second = site.sampler(task.f.partners, settings.negative_batch_size, seed, purposes[1], end)
    device, labels = site.labels.device, None
    for iteration in task.iterations:
        p, q = first.batch(iteration + shift), second.batch(iteration + shift)
        if task.f.objective.labelled:
            labels = site.labels.index_select(0, on_device(q, device)).double()
        u_rows = on_device(np.searchsorted(site.positives, p), device)
        yield ActiveBatch(site.rows(np.concatenate([p, q])), u_rows, labels, *task.f.times(p, q))


def start(x: Float[Tensor, "d"], down: Any, memory: InnerEstimates | None, task: PairwiseTask) -> Carry:
    """Make the carry at w. If u is tracked, the carry has the u of the client's memory and the received G.

    Args:
        x: w, the message's model.
        down: A record with a field ``momentum``, which may be None, or no record.
        memory: The record with u; None before the client's first round.

    Raises:
        PayloadError: The memory belongs to other positives, or to another loss.
    """
    if not task.f.tracked:
        return Carry(x=x, u=None, momentum=None)
    u = np.full((len(task.f.positives), task.f.objective.inner_dim), np.nan)
    if memory is not None:
        memory.check({"n": u.shape[0], "k": u.shape[1]})
        u[memory.observed] = memory.u[memory.observed]
    momentum = None if down is None or down.momentum is None else as_tensor(down.momentum, x)
    return Carry(x=x, u=torch.from_numpy(u).to(task.site.labels.device), momentum=momentum)


def finish(carry: Carry, task: PairwiseTask) -> tuple[Float[Tensor, "d"], Momentum, InnerEstimates | None]:
    """Send w and G and keep u; G and u are None if u is not tracked."""
    up = Momentum(momentum=None if carry.momentum is None else as_array(carry.momentum))
    if carry.u is None:
        return carry.x, up, None
    known = ~carry.u.isnan().any(dim=1)
    return carry.x, up, InnerEstimates(u=as_array(carry.u.where(known[:, None], 0.0)), observed=known.cpu().numpy())


def differences(
    positives: Float64[Tensor, "*stack b"], partners: Float64[Tensor, "*stack m"], events: Any = None, spans: Any = None
) -> Float64[Tensor, "*stack b m"]:
    """Return each partner's score minus each positive's score, for all pairs; -inf for pairs that are not comparable.

    Args:
        positives: The positives' scores.
        partners: The partners' scores.
        events: The interval of each positive's event (..., b). None: all pairs are comparable.
        spans: The partners' spans (..., m, 2). None: all pairs are comparable.
    """
    s = partners[..., None, :] - positives[..., None]
    return s if events is None else keep_comparable(s, events, spans)


def observe(
    task: PairwiseTask, scores: Float64[Tensor, "*stack b"], partners: Predictions, events: Any = None
) -> Float64[Tensor, "*stack b k"]:
    """Observe the inner mean g of some positives, in the form in which u is stored.

    Args:
        task: The client's task; provides the pair loss l.
        scores: The positives' scores.
        partners: The pool's partners; each positive is paired with all of them.
        events: The interval of each positive's event (..., b). None: the loss ignores times.
    """
    s = differences(scores, partners.scores, events, partners.times)
    return task.f.objective.observe(s, partners.labels, partners.weights)


def fill_in(u: Float64[Tensor, "*stack b k"], seen: Float64[Tensor, "*stack b k"]) -> Float64[Tensor, "*stack b k"]:
    """Complete u of some positives.

    Args:
        u: The values of u, NaN where unknown.
        seen: The inner means observed now, which replace the unknown values.
    """
    return torch.where(u.isnan(), seen, u)


def update_u(
    u: Float64[Tensor, "positives k"],
    rows: Int64[Tensor, "*stack b"],
    seen: Float64[Tensor, "*stack b k"],
    task: PairwiseTask,
) -> Float64[Tensor, "*stack b k"]:
    """Equation (8): u <- (1 - gamma) u + gamma seen, or u <- seen the first time.

    Args:
        u: The table of all positives, changed in place.
        rows: The row numbers of some positives in the table.
        seen: The inner means of these positives, as observed now.
        task: The client's task; provides gamma, and the form in which the objective stores u.

    Returns:
        The new u of these positives.
    """
    u[rows] = current = fill_in(task.f.objective.average(u[rows], seen, task.settings.gamma), seen)
    return current


def descend(
    carry: C,
    pull: Callable[..., Float[Tensor, "*stack d"]],
    slopes: tuple[Any, ...],
    eta: float,
    task: PairwiseTask,
) -> C:
    """Take the step w <- w - eta G. G is the gradient or, if u is tracked, G <- (1 - beta) G + beta gradient.

    With Adam, the step is Adam's on the gradient: its first moment replaces G, and is not sent.

    Args:
        carry: The step's carry; its w, G and moments are changed in place.
        pull: The map from slopes of the batch's scores to a gradient in the weights, see `PairwiseRisk.forward`.
        slopes: The arguments of `pull`: the derivatives of the risk in the scores of the batch's positives (*stack, b)
            and partners (*stack, m).
        eta: The step size.
        task: The client's task; provides beta and the optimizer.

    Returns:
        The carry of the next step.
    """
    if task.training.has_adam:
        return adam_step(carry, pull(*slopes), eta, task.f.adjust)
    if not task.f.tracked:
        pull(*slopes, into=carry.x, alpha=-eta)
        return carry
    return replace(carry, momentum=momentum_step(carry.x, carry.momentum, pull(*slopes), task.settings.beta, eta))


def average(
    x: Float[np.ndarray, "d"], state: Any, replies: Replies[Any], plan: Plan[Any]
) -> tuple[Float[np.ndarray, "d"], Any]:
    """Average the models, and the momenta of those clients that sent one.

    Args:
        x: The model before the round; without effect.
        state: A record with a field ``momentum``. None stands for a `Momentum` without a value.
        replies: The replies, whose records also have a field ``momentum``. The weights in its mean are rescaled to the
            clients with a momentum.
        plan: The round's plan; without effect.

    Returns:
        The mean model, and the state with the mean momentum; the state is unchanged if no client sent a momentum.
    """
    state, sent = Momentum() if state is None else state, replies.having("momentum")
    if sent.ups:
        state = replace(state, momentum=sent.mean("momentum"))
    return replies.mean_point(), state
