"""Federated averaging as a plain PyTorch loop with one model and without messages, to compare the engine's speed with.

The loop draws batches, computes scores and averages models like a run of local SGD.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Site = tuple[Tensor, Tensor]  # (n, features) and (n,) labels


@dataclass(frozen=True)
class Plan:
    """The sizes of a round: the clients, their local steps, and the samples in a step."""

    cohort: int
    steps: int
    batch: int
    learning_rate: float = 0.01


def mlp(features: int) -> nn.Module:
    """Return a network with one hidden layer of 64 and one score a row."""
    return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))


def linear(features: int) -> nn.Module:
    """Return a network with one linear score a row."""
    return nn.Sequential(nn.Linear(features, 1), nn.Flatten(0))


class BareLoop:
    """Local SGD on cross-entropy: sample, load, train, sum, average."""

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module) -> None:
        self.sites, self.plan, self.model = sites, plan, model
        self.parameters = list(model.parameters())
        self.weights = [parameter.detach().clone() for parameter in self.parameters]
        self.rng = np.random.default_rng(0)
        self.optimizer = torch.optim.SGD(self.parameters, lr=plan.learning_rate)

    def round(self) -> None:
        """Compute a round with newly drawn clients."""
        totals = [torch.zeros_like(weight) for weight in self.weights]
        for site in self.rng.choice(len(self.sites), self.plan.cohort, replace=False):
            self.load()
            self.train(int(site))
            for total, parameter in zip(totals, self.parameters, strict=True):
                total += parameter.detach()
        self.weights = [total / self.plan.cohort for total in totals]

    def load(self) -> None:
        """Copy the average weights into the model."""
        with torch.no_grad():
            for parameter, weight in zip(self.parameters, self.weights, strict=True):
                parameter.copy_(weight)

    def train(self, site: int) -> None:
        """Compute the local steps of a site."""
        features, labels = self.sites[site]
        for rows in self.batches(len(labels)):
            loss = functional.binary_cross_entropy_with_logits(self.model(features[rows]), labels[rows])
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def batches(self, count: int) -> Iterator[Tensor]:
        """Yield a round's batches from ``count`` samples, which are shuffled again after each pass."""
        size = min(self.plan.batch, count)
        order, start = torch.from_numpy(self.rng.permutation(count)), 0
        for _ in range(self.plan.steps):
            if start + size > count:
                order, start = torch.from_numpy(self.rng.permutation(count)), 0
            yield order[start : start + size]
            start += size
