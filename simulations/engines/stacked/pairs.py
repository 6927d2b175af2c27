"""Stacking for the pairwise methods (FedX and local pairs, `methods.pairwise`), whose batches pair rows of two kinds.

A pair is a positive and a partner, which is a negative or, for some losses, any row.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from methods.fedx import INDEPENDENT
from methods.histograms import HistogramPool, fill_from_counts
from methods.method import Task
from methods.pair_batches import ActiveBatch, PairBatch, Predictions
from methods.pairwise import ACTIVE, PairwiseRisk, fill_in, observe
from methods.predictions import FedXPool, fill_buffers, queues
from problems.randomness import Purpose
from problems.sampling import Indices
from simulations.engines.stacked.carries import NotAlikeError, stack, unstack
from simulations.engines.stacked.stacking import Stacking, Tasks
from simulations.engines.stacked.streams import draw_rows


class PairStacking(Stacking):
    """The stacking of clients with equal numbers of positives and of partners in their batches.

    u is a method's running average for each positive. The clients' tables of u are concatenated into one table.
    """

    objectives = (PairwiseRisk,)

    def shape(self, task: Task[Any, Any]) -> Hashable:
        counts, settings = (len(task.f.positives), len(task.f.partners)), task.settings
        sizes = min(settings.positive_batch_size, counts[0]), min(settings.negative_batch_size, counts[1])
        return sizes, task.site.features.shape[1:]

    def stack(self, carries: Sequence[Any], together: Task[Any, Any]) -> Any:
        if carries[0].u is None:
            return stack(carries)
        tables = torch.cat([carry.u for carry in carries])
        return replace(stack([replace(carry, u=None) for carry in carries]), u=tables)

    def unstack(self, carry: Any, tasks: Tasks) -> list[Any]:
        apart = unstack(replace(carry, u=None), len(tasks))
        if carry.u is None:
            return apart
        tables = torch.split(carry.u.cpu(), [len(task.f.positives) for task in tasks])
        return [replace(own, u=table) for own, table in zip(apart, tables, strict=True)]

    def batches(self, together: object, tasks: Tasks, down: Any, draw: object) -> Iterator[tuple[float, Any]]:
        return zip(map(tasks[0].eta, tasks[0].iterations), self._batches(tasks, down), strict=False)

    def _batches(self, tasks: Tasks, down: Any) -> Iterator[Any]:
        """Yield the batch of all clients for each local step."""
        first = tasks[0]
        if not isinstance(down, FedXPool | HistogramPool):
            if len(first.f.positives) and len(first.f.partners):
                yield from self._active(tasks, 0, ACTIVE)
            return
        steps, settings = first.training.local_steps, first.settings
        if isinstance(down, HistogramPool):
            positives, partners = fill_from_counts(first, down)
        else:
            positives, partners = fill_buffers(first, down)
        if first.f.tracked and not len(partners.scores):
            raise NotAlikeError("there are no partners, so single clients must leave out positives")
        if isinstance(down, HistogramPool):
            a, b = (pool.take(np.tile(np.arange(len(pool.scores)), (len(tasks), 1))) for pool in (positives, partners))
            for active in self._active(tasks, steps, ACTIVE):
                yield PairBatch(active, a, b)
            return
        drawn = [queues(task, positives, partners) for task in tasks]
        sizes = settings.positive_batch_size, settings.negative_batch_size
        lazy = [
            predictions.take(np.stack([np.stack([queue[side].take(size) for _ in range(steps)]) for queue in drawn]))
            for side, (predictions, size) in enumerate(zip((positives, partners), sizes, strict=True))
        ]
        unknown = first.f.tracked and bool(positives.u.isnan().any())
        independent = self._active(tasks, steps, INDEPENDENT) if settings.independent_history else None
        for step, active in enumerate(self._active(tasks, steps, ACTIVE)):
            a, b = (Predictions._make(None if value is None else value[:, step] for value in side) for side in lazy)
            if unknown:
                a = a._replace(u=fill_in(a.u, observe(first, a.scores, b, a.times)))
            yield PairBatch(active, a, b, None if independent is None else next(independent))

    def _active(self, tasks: Tasks, shift: int, purposes: tuple[Purpose, Purpose]) -> Iterator[ActiveBatch]:
        """Yield all clients' batches of positives and of partners, as `methods.pairwise.active_batches` draws them.

        Args:
            tasks: The clients' tasks.
            shift: The offset of the batches' numbers from the numbers of the round's local steps.
            purposes: The names of the random streams for positives and for partners.
        """
        sites, settings, seed = [task.site for task in tasks], tasks[0].settings, tasks[0].training.seed
        numbers = range(tasks[0].iterations.start + shift, tasks[0].iterations.stop + shift)
        sizes = settings.positive_batch_size, settings.negative_batch_size
        first, second = (
            draw_rows(
                [site.sampler(own, size, seed, purpose) for site, own in zip(sites, indices, strict=True)], numbers
            )
            for indices, size, purpose in zip(zip(*map(_halves, tasks), strict=True), sizes, purposes, strict=True)
        )
        steps, starts = len(numbers), np.cumsum([0, *(len(task.f.positives) for task in tasks[:-1])])
        p, q = first.shape[1] // steps, second.shape[1] // steps
        # the rows of the common table of u
        u_rows = np.stack([
            np.searchsorted(site.positives, rows) + start
            for site, rows, start in zip(sites, first, starts, strict=True)
        ])  # fmt: skip
        # the number of sites is explicit, since sites without positives have an empty array
        tables = torch.from_numpy(u_rows).to(sites[0].labels.device).view(len(sites), steps, p)
        gatherer = self.gatherers[purposes == INDEPENDENT]
        labels: Tensor | None = None
        if tasks[0].f.objective.labelled:
            labels = gatherer.labels(sites, second).double().view(len(sites), steps, q)
        events: Tensor | None = None
        spans: Tensor | None = None
        if tasks[0].f.objective.timed:
            times = [task.f.times(*rows) for task, *rows in zip(tasks, first, second, strict=True)]
            events, spans = (torch.stack(part) for part in zip(*times, strict=True))
            events, spans = events.view(len(sites), steps, p), spans.view(len(sites), steps, q, 2)
        both = np.concatenate([rows.reshape(len(sites), steps, -1) for rows in (first, second)], axis=2)
        for step, features in enumerate(gatherer.features(sites, both.reshape(len(sites), -1), p + q)):
            outcomes = (None if values is None else values[:, step] for values in (labels, events, spans))
            yield ActiveBatch(features, tables[:, step], *outcomes)


def _halves(task: Task[Any, Any]) -> tuple[Indices, Indices]:
    """Return the rows of a site's positives and of its partners."""
    return task.f.positives, task.f.partners
