"""Pairs of several findings: the mean over the findings of the risk of `methods.pairwise`.

A finding's S_1 are the rows in which it is known to be 1, and its partners have a known value, too. Each finding has
its own batches, u, history and pool; only the network, its momentum and the steps are common. One pass of the network
scores the batches of all findings, and a row's score for a finding is one of the network's outputs.

The functions of `methods.fedx` and `methods.local_pair` compute each finding's part, on a `Task` and a `Plan` that know
this finding only. `methods.finding_records` puts the findings' records into one record.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from methods.adam import Point
from methods.checks import Checks
from methods.finding_records import join_records, split_records
from methods.method import ClientHalf, Phase
from methods.pair_batches import ActiveBatch
from methods.pairwise import PairwiseRisk, PairwiseTask, descend
from methods.server import Plan, Replies, ServerHalf
from problems.errors import InputError
from problems.models import FlatModel
from problems.models.dense import add_scaled
from problems.site import Site

# (head's carry, scores of its positives (b,), of its partners (m,), its batch, its task) -> the derivatives of its risk
# in these scores
Slopes = Callable[[Any, Tensor, Tensor, Any, Any], tuple[Tensor, Tensor]]
# a finding's (b,) and (m,) scores, or derivatives in them; b and m differ between findings
Scores = tuple[Tensor, Tensor]


class FindingsRisk:
    """The mean over l findings of the risk F at one site.

    Attributes:
        heads: The risk of each finding.
        sites: The site as each finding sees it.
        tracked: See `PairwiseRisk`.
        adjust: See `PairwiseRisk`.
        weights: The weight of each finding's risk. Without ``local`` 1 / l. With ``local`` also the share of the site's
            rows in which the finding is known, divided by this share at all sites: if sites count by their rows, each
            finding's risk then counts by its known rows.

    Args:
        kind: `PairwiseRisk`, perhaps with tracked u.
        model: The model, with an output for each finding.
        site: The site.
        local: Whether the server averages the sites by their rows.
        settings: The further arguments of `PairwiseRisk`.
    """

    def __init__(
        self, kind: Callable[..., PairwiseRisk], model: FlatModel, site: Site, local: bool, *settings: Any
    ) -> None:
        assert site.findings is not None
        self.model = model
        self.sites = [site.of_finding(index) for index in range(len(site.findings.names))]
        self.heads = [kind(model, own, *settings) for own in self.sites]
        for index, head in enumerate(self.heads):
            head.output = index
        factors = site.findings.known.mean(axis=0) / site.findings.shares if local else np.ones(len(self.heads))
        self.weights = torch.tensor(factors / len(self.heads), dtype=model.dtype, device=model.device)
        self.tracked, self.adjust, self.score = self.heads[0].tracked, self.heads[0].adjust, self.heads[0].score

    def forward(
        self, w: Float[Tensor, "d"], batches: Sequence[ActiveBatch | None]
    ) -> tuple[list[Scores | None], Callable[..., Float[Tensor, "d"]]]:
        """Score the batches of all findings in one pass.

        Args:
            w: The weights.
            batches: The batch of each finding; None for a finding without pairs.

        Returns:
            The scores of each finding's positives and partners, and a function `pull`. It maps the derivatives of the
            findings' risks in these scores to the gradient of their mean, like the `pull` of `PairwiseRisk.forward`.
        """
        outputs, back = self.model.forward(w, torch.cat([batch.features for batch in batches if batch is not None]))
        scores, found, spans, start = self.score.value(outputs), list[Scores | None](), list[slice](), 0
        for index, batch in enumerate(batches):
            rows = 0 if batch is None else len(batch.features)
            spans.append(slice(start, start + rows))
            start += rows
            if batch is None:
                found.append(None)
                continue
            own = scores[spans[-1], index].double()
            count = len(batch.u_rows)
            found.append((own[:count], own[count:]))

        def pull(parts: Sequence[Scores | None], into: Tensor | None = None, alpha: float = 1.0) -> Tensor:
            slopes = torch.zeros_like(scores)
            for index, (span, part) in enumerate(zip(spans, parts, strict=True)):
                if part is not None:
                    slopes[span, index] = torch.cat(part).to(slopes.dtype)
            slopes.mul_(self.score.slope(scores)).mul_(self.weights)
            if self.adjust is None:
                return back(slopes, into=into, alpha=alpha)
            return add_scaled(self.adjust(back(slopes), w), into, alpha)

        return found, pull


@dataclass(frozen=True, kw_only=True)
class Carry(Point):
    """A client's state between two steps: w, G, and the task and the carry of each finding.

    The w and G of a finding's carry have no effect.
    """

    momentum: Float[Tensor, "d"] | None
    tasks: tuple[PairwiseTask, ...]
    heads: tuple[Any, ...]


def tasks_of(task: PairwiseTask) -> list[PairwiseTask]:
    """Return the client's task for each finding."""
    f: Any = task.f
    return [replace(task, site=site, f=head) for site, head in zip(f.sites, f.heads, strict=True)]


def with_findings(half: ClientHalf, slopes: Slopes, active: Callable[[Any], ActiveBatch], *, local: bool) -> ClientHalf:
    """Return the client half of a pairwise method for one label or several findings.

    Args:
        half: The client half for one label.
        slopes: The part of its step between the scores and the gradient.
        active: The part of its batch that the network scores.
        local: Whether the server averages the sites by their rows.
    """

    def objective(model: FlatModel, site: Site, *others: Any) -> Any:
        if site.findings is None:
            return half.objective(model, site, *others)
        return FindingsRisk(half.objective, model, site, local, *others)

    def batches(task: PairwiseTask, down: Any) -> Iterator[tuple[float, Any]]:
        if not isinstance(task.f, FindingsRisk):
            yield from half.batches(task, down)
            return
        tasks = tasks_of(task)
        drawn = [half.batches(own, part) for own, part in zip(tasks, split_records(down, len(tasks)), strict=True)]
        for step in zip_longest(*drawn):
            yield next(pair[0] for pair in step if pair), tuple(pair and pair[1] for pair in step)

    def start(x: Float[Tensor, "d"], down: Any, memory: Any, task: PairwiseTask) -> Any:
        if not isinstance(task.f, FindingsRisk):
            return half.start(x, down, memory, task)
        tasks = tasks_of(task)
        parts = zip(split_records(down, len(tasks)), split_records(memory, len(tasks)), tasks, strict=True)
        heads = tuple(half.start(x, *part) for part in parts)
        return Carry(x=x, momentum=heads[0].momentum, tasks=tuple(tasks), heads=heads)

    def step(carry: Any, batch: Any, eta: float, task: PairwiseTask) -> Any:
        if not isinstance(task.f, FindingsRisk):
            return half.step(carry, batch, eta, task)
        scores, pull = task.f.forward(carry.x, [None if own is None else active(own) for own in batch])
        parts = [
            None if pair is None else slopes(head, *pair, own, own_task)
            for head, pair, own, own_task in zip(carry.heads, scores, batch, carry.tasks, strict=True)
        ]
        return descend(carry, pull, (parts,), eta, task)

    def finish(carry: Any, task: PairwiseTask) -> tuple[Float[Tensor, "d"], Any, Any]:
        if not isinstance(task.f, FindingsRisk):
            return half.finish(carry, task)
        heads = (replace(head, x=carry.x, momentum=carry.momentum) for head in carry.heads)
        _, ups, memories = zip(*map(half.finish, heads, carry.tasks), strict=True)
        return carry.x, join_records(ups), join_records(memories)

    return ClientHalf(objective, batches, start, step, finish)


def phase_with_findings(phase: Phase) -> Phase:
    """Return an exchange of a pairwise method in which clients answer for one label or for several findings."""

    def answer(x: Float[Tensor, "d"], down: Any, task: PairwiseTask) -> Any:
        if not isinstance(task.f, FindingsRisk):
            return phase.answer(x, down, task)
        return join_records([phase.answer(x, down, own) for own in tasks_of(task)])

    return replace(phase, answer=answer)


def plans_of(plan: Plan[Any]) -> list[Plan[Any]]:
    """Return the round's plan for each finding, or the plan itself if rows have one label."""
    counts = plan.finding_counts
    if counts is None:
        return [plan]
    return [replace(plan, class_counts=counts[:, index], finding_counts=None) for index in range(counts.shape[1])]


def server_with_findings(half: ServerHalf) -> ServerHalf:
    """Return the server half of FedX, whose exchanges carry the records of one label or of several findings."""
    of_start, of_round = half.prologue, half.round
    assert of_start is not None
    assert of_round is not None

    def prologue(x: Float[np.ndarray, "d"], plan: Plan[Any]) -> Any:
        if plan.finding_counts is None:
            return (yield from of_start(x, plan))
        return join_records((yield from run_together([of_start(x, own) for own in plans_of(plan)])))

    def run_round(x: Float[np.ndarray, "d"], state: Any, plan: Plan[Any]) -> Any:
        if plan.finding_counts is None:
            return (yield from of_round(x, state, plan))
        plans = plans_of(plan)
        states = split_records(state, len(plans))
        ends = yield from run_together([of_round(x, *own) for own in zip(states, plans, strict=True)])
        return ends[0][0], join_records([state for _, state in ends])

    return replace(half, prologue=prologue, round=run_round)


def run_together(rounds: Sequence[Generator[Any, Any, Any]]) -> Generator[Any, Replies[Any], list[Any]]:
    """Run the exchanges of several findings as one: with joined records down, and the split records of the replies.

    Args:
        rounds: The exchanges of each finding, all of the same form.

    Returns:
        The generators' results.
    """
    requests, results = [next(one) for one in rounds], list[Any]()
    while not results:
        replies = yield replace(requests[0], down=join_records([request.down for request in requests]))
        ups = [split_records(up, len(rounds)) for up in replies.ups]
        requests = []
        for index, one in enumerate(rounds):
            try:
                requests.append(one.send(replace(replies, ups=[parts[index] for parts in ups])))
            except StopIteration as end:
                results.append(end.value)
    return results


def checks_with_findings(checks: Checks, *, pooled: bool = False) -> Checks:
    """Return the checks of a pairwise method for one label or several findings.

    Args:
        checks: The checks for one label.
        pooled: Whether clients share scores.
    """

    def sites(plan: Plan[Any]) -> None:
        if pooled and plan.finding_counts is not None and plan.settings.pool_epsilon:
            allowed, hint = "0 with label-columns", "remove fedx.pool-epsilon"
            raise InputError("fedx.pool-epsilon", got=plan.settings.pool_epsilon, allowed=allowed, hint=hint)
        for own in plans_of(plan):
            checks.sites(own)

    def limits(client: int, model: Any, plan: Plan[Any]) -> dict[str, int]:
        bounds = [checks.limits(client, model, own) for own in plans_of(plan)]
        if plan.finding_counts is None:
            return {**bounds[0], "f": 0, "l": 0}
        total = {letter: sum(bound[letter] for bound in bounds) for letter in bounds[0] if letter != "k"}
        return {**bounds[0], **total, "f": 64, "l": len(bounds)}

    def record(value: Any, model: Any, plan: Plan[Any]) -> None:
        plans = plans_of(plan)
        for part, own in zip(split_records(value, len(plans)) if len(plans) > 1 else [value], plans, strict=True):
            checks.record(part, model, own)

    return replace(checks, sites=sites, limits=limits, record=record)
