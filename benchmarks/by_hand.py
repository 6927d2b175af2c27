"""Federated training loops as one writes them by hand: plain PyTorch, one model that is reused, no messages.

The benchmarks compare the engine with them. Each does its algorithm's arithmetic with autograd on written-out losses,
draws its batches, scores and lazy scores as the federation does, and averages lists of tensors. Sites have equal sizes
here, so that FedX's weights are all one and left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

Site = tuple[Tensor, Tensor]  # (n, features) and (n,) labels

MARGIN, TEMPERATURE, GAMMA, BETA = 1.0, 3.0, 0.9, 0.1


@dataclass(frozen=True)
class Plan:
    """A round's clients and local steps, and the samples in a step (of each class if the loss takes pairs)."""

    cohort: int
    steps: int
    batch: int
    learning_rate: float = 0.01


def mlp(features: int) -> nn.Module:
    """One hidden layer of 64, one score a row."""
    return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))


def linear(features: int) -> nn.Module:
    """One linear score a row."""
    return nn.Sequential(nn.Linear(features, 1), nn.Flatten(0))


class Averaging:
    """Local SGD on cross-entropy, and the base of the other loops: sample, load, train, sum, average."""

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module) -> None:
        self.sites, self.plan, self.model = sites, plan, model
        self.parameters: list[Tensor] = list(model.parameters())
        self.weights = [parameter.detach().clone() for parameter in self.parameters]
        self.rng = np.random.default_rng(0)
        self.optimizer = torch.optim.SGD(self.parameters, lr=plan.learning_rate)

    def round(self) -> None:
        """One round over a fresh cohort."""
        totals = [torch.zeros_like(weight) for weight in self.weights]
        for site in self.rng.choice(len(self.sites), self.plan.cohort, replace=False):
            self.load()
            self.train(int(site))
            for total, parameter in zip(totals, self.parameters, strict=True):
                total += parameter.detach()
        self.weights = [total / self.plan.cohort for total in totals]

    def load(self) -> None:
        with torch.no_grad():
            for parameter, weight in zip(self.parameters, self.weights, strict=True):
                parameter.copy_(weight)

    def batches(self, count: int) -> Iterator[Tensor]:
        """The batches of a round from ``count`` samples, reshuffled when they run out."""
        size = min(self.plan.batch, count)
        order, start = torch.from_numpy(self.rng.permutation(count)), 0
        for _ in range(self.plan.steps):
            if start + size > count:
                order, start = torch.from_numpy(self.rng.permutation(count)), 0
            yield order[start : start + size]
            start += size

    def train(self, site: int) -> None:
        features, labels = self.sites[site]
        for rows in self.batches(len(labels)):
            loss = functional.binary_cross_entropy_with_logits(self.model(features[rows]), labels[rows])
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()


class Pairwise(Averaging):
    """What the pairwise loops share: rows by class, u of every positive, the momentum and its step."""

    score: nn.Module = nn.Sigmoid()

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module) -> None:
        super().__init__(sites, plan, model)
        self.positives = [features[labels > 0.5] for features, labels in sites]
        self.negatives = [features[labels < 0.5] for features, labels in sites]
        self.num_negatives = sum(len(rows) for rows in self.negatives)
        self.u = [torch.full((len(rows),), torch.nan) for rows in self.positives]  # log u, not yet observed
        # the mean of the last cohort's momenta, and the sum of this one's
        self.momentum: list[Tensor] | None = None
        self.summed = [torch.zeros_like(weight) for weight in self.weights]

    def round(self) -> None:
        for total in self.summed:
            total.zero_()
        super().round()
        self.momentum = [total / self.plan.cohort for total in self.summed]

    def pairs(self, site: int) -> Iterator[tuple[Tensor, Tensor]]:
        """A batch of positives and one of negatives for each step, as indices."""
        return zip(
            self.batches(len(self.positives[site])),
            self.batches(len(self.negatives[site])),
            strict=True,
        )

    def scores(self, site: int, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.cat([self.positives[site][first], self.negatives[site][second]])
        scores = self.score(self.model(rows))
        return scores[: len(first)], scores[len(first) :]

    def observe(self, site: int, rows: Tensor, hinge: Tensor) -> Tensor:
        """Average the log mean of exp(hinge / lambda) into the log u of the positives ``rows``; returns these."""
        new = torch.logsumexp(hinge.detach() / TEMPERATURE, dim=1) - np.log(hinge.shape[1])
        old = self.u[site][rows]
        averaged = torch.logaddexp(old + np.log(1 - GAMMA), new + np.log(GAMMA))
        self.u[site][rows] = u = torch.where(old.isnan(), new, averaged)
        return u

    def momentum_step(self, momentum: list[Tensor] | None, loss: Tensor) -> list[Tensor]:
        gradients = torch.autograd.grad(loss, self.parameters)
        if momentum is None:
            momentum = [gradient.clone() for gradient in gradients]
        else:
            for average, gradient in zip(momentum, gradients, strict=True):
                average.mul_(1 - BETA).add_(gradient, alpha=BETA)
        with torch.no_grad():
            for parameter, average in zip(self.parameters, momentum, strict=True):
                parameter.add_(average, alpha=-self.plan.learning_rate)
        return momentum

    def start_momentum(self) -> list[Tensor] | None:
        return None if self.momentum is None else [average.clone() for average in self.momentum]

    def keep_momentum(self, momentum: list[Tensor] | None) -> None:
        assert momentum is not None
        for total, average in zip(self.summed, momentum, strict=True):
            total += average


def squared_hinge(partners: Tensor, positives: Tensor) -> Tensor:
    """The (n, m) squared hinges of all pairs."""
    return torch.clamp(MARGIN + partners[None, :] - positives[:, None], min=0) ** 2


def tilted(hinge: Tensor, u: Tensor, most: float = math.inf) -> Tensor:
    """A loss whose gradient is that of lambda * log u, u = mean exp(hinge / lambda), for a given log u (``u``).

    exp(hinge / lambda) / u is at most the number of partners for an exact u; for a stale one ``most`` bounds its log.
    """
    return ((hinge / TEMPERATURE - u[:, None]).clamp(max=most).exp().detach() * hinge).mean()


class LocalPair(Pairwise):
    """SOX on each site's own pairs."""

    def train(self, site: int) -> None:
        momentum = self.start_momentum()
        for first, second in self.pairs(site):
            a, b = self.scores(site, first, second)
            hinge = squared_hinge(b, a)
            momentum = self.momentum_step(momentum, tilted(hinge, self.observe(site, first, hinge)))
        self.keep_momentum(momentum)


class FedX1(Pairwise):
    """FedX with the pairwise sigmoid: every active score is paired with scores of the last round's pool."""

    score: nn.Module = nn.Identity()

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module) -> None:
        super().__init__(sites, plan, model)
        count = plan.cohort * plan.steps * plan.batch
        # scores of positives, their log u and scores of partners: those of the last round, and those of this one
        untrained = MARGIN**2 / TEMPERATURE  # log u where all scores are equal
        self.pool = [torch.zeros(count), torch.full((count,), untrained), torch.zeros(count)]
        self.made: list[list[Tensor]] = [[], [], []]

    def round(self) -> None:
        self.made = [[], [], []]
        super().round()
        self.pool = [torch.cat(parts) if parts else self.pool[1] for parts in self.made]

    def lazy(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each step the next positives (score and log u) and partners of a shuffled pool."""
        first, second = (torch.from_numpy(self.rng.permutation(len(self.pool[i]))) for i in (0, 2))
        for step in range(self.plan.steps):
            take = slice(step * self.plan.batch, (step + 1) * self.plan.batch)
            yield self.pool[0][first[take]], self.pool[1][first[take]], self.pool[2][second[take]]

    def train(self, site: int) -> None:
        for (first, second), (lazy_a, _, lazy_b) in zip(self.pairs(site), self.lazy(), strict=True):
            a, b = self.scores(site, first, second)
            loss = torch.sigmoid(lazy_b[None, :] - a[:, None]).mean()
            loss = loss + torch.sigmoid(b[None, :] - lazy_a[:, None]).mean()
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.made[0].append(a.detach())
            self.made[2].append(b.detach())


class FedX2(FedX1):
    """FedX for the partial AUC: the pool carries log u too, and steps follow a momentum."""

    score: nn.Module = nn.Sigmoid()

    def train(self, site: int) -> None:
        momentum = self.start_momentum()
        most = math.log(self.num_negatives)
        for (first, second), (lazy_a, lazy_u, lazy_b) in zip(self.pairs(site), self.lazy(), strict=True):
            a, b = self.scores(site, first, second)
            hinge = squared_hinge(lazy_b, a)
            u = self.observe(site, first, hinge)
            loss = tilted(hinge, u) + tilted(squared_hinge(b, lazy_a), lazy_u, most)
            momentum = self.momentum_step(momentum, loss)
            for made, values in zip(self.made, (a.detach(), u, b.detach()), strict=True):
                made.append(values)
        self.keep_momentum(momentum)


class Minimax(Averaging):
    """AUC as a minimax problem: a, b and lambda besides the weights; lambda's gradient is negated, so all descend."""

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module) -> None:
        super().__init__(sites, plan, model)
        self.saddle = torch.zeros(3, requires_grad=True)
        self.parameters.append(self.saddle)
        self.weights.append(torch.zeros(3))
        self.prior = float(torch.cat([labels for _, labels in sites]).mean())
        self.rate = plan.learning_rate

    def value(self, scores: Tensor, labels: Tensor, saddle: Tensor) -> Tensor:
        """Equation (63) on a batch."""
        (a, b, dual), p, rest, scores = saddle, self.prior, 1 - labels, torch.tanh(scores)
        squares = (1 - p) * (scores - a) ** 2 * labels + p * (scores - b) ** 2 * rest
        linear = 2 * (1 + dual) * scores * (p * rest - (1 - p) * labels)
        value: Tensor = (squares + linear).mean() - p * (1 - p) * dual**2
        return value

    def gradients(self, features: Tensor, labels: Tensor) -> list[Tensor]:
        """The gradients of equation (63) on a batch, at the current point."""
        loss = self.value(self.model(features), labels, self.saddle)
        found = list(torch.autograd.grad(loss, self.parameters))
        found[-1][2].neg_()
        return found

    def batch_gradients(self, site: int, rows: Tensor) -> list[Tensor]:
        features, labels = self.sites[site]
        return self.gradients(features[rows], labels[rows])

    def step(self, directions: Sequence[Tensor], rate: float) -> None:
        with torch.no_grad():
            for parameter, direction in zip(self.parameters, directions, strict=True):
                parameter.add_(direction, alpha=-rate)

    def to(self, point: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, point, strict=True):
                parameter.copy_(value)


class FedSGDA(Minimax):
    """FedSGDA; ``estimator`` is mb, storm, spider or svrg, with a large batch of all sites every tenth round."""

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module, estimator: str) -> None:
        super().__init__(sites, plan, model)
        self.estimator, self.t, self.rate = estimator, 0, 0.1
        self.estimate = [torch.zeros_like(weight) for weight in self.weights]
        self.reference, self.carried = self.weights, self.estimate

    def round(self) -> None:
        large = self.estimator in ("spider", "svrg") and self.t % 10 == 0
        cohort = range(len(self.sites)) if large else self.rng.choice(len(self.sites), self.plan.cohort, replace=False)
        weight = 0.0 if large or self.estimator == "mb" else 1.0
        if self.estimator == "storm":
            weight = 1 - min(1.0, (self.t + 1) ** (-2 / 3)) if self.t else 0.0
        self.estimate = [torch.zeros_like(value) for value in self.weights]
        for site in cohort:
            for point, factor in ((self.weights, 1.0), (self.reference, -weight)):
                if factor:
                    self.to(point)
                    for total, gradient in zip(self.estimate, self.gradients(*self.sites[int(site)]), strict=True):
                        total.add_(gradient, alpha=factor / len(cohort))
        for total, carried in zip(self.estimate, self.carried, strict=True):
            total.add_(carried, alpha=weight)
        if self.estimator != "svrg" or large:
            self.reference, self.carried = self.weights, self.estimate
        super().round()
        self.t += 1

    def train(self, site: int) -> None:
        rate = self.rate / ((self.t + 1) ** (1 / 3) if self.estimator == "storm" else 1)
        for rows in self.batches(len(self.sites[site][1])):
            own = [parameter.detach().clone() for parameter in self.parameters]
            here = self.batch_gradients(site, rows)
            self.to(self.weights)
            there = self.batch_gradients(site, rows)
            self.to(own)
            self.step([a - b + c for a, b, c in zip(here, there, self.estimate, strict=True)], rate)


class Coda(Minimax):
    """CoDA's proximal steps in x, ascent in lambda."""

    PULL = 0.002

    def train(self, site: int) -> None:
        for rows in self.batches(len(self.sites[site][1])):
            self.step(self.batch_gradients(site, rows), self.rate)
            with torch.no_grad():
                for parameter, weight in zip(self.parameters[:-1], self.weights[:-1], strict=True):
                    parameter.add_(weight, alpha=self.rate * self.PULL).div_(1 + self.rate * self.PULL)
                x, reference = self.saddle[:2], self.weights[-1][:2]
                x.add_(reference, alpha=self.rate * self.PULL).div_(1 + self.rate * self.PULL)


class Codasca(Coda):
    """CoDA with control variates."""

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module) -> None:
        super().__init__(sites, plan, model)
        self.control = [torch.zeros_like(weight) for weight in self.weights]
        self.controls: dict[int, list[Tensor]] = {}

    def train(self, site: int) -> None:
        own = self.controls.get(site) or [torch.zeros_like(weight) for weight in self.weights]
        total = [torch.zeros_like(weight) for weight in self.weights]
        for rows in self.batches(len(self.sites[site][1])):
            gradients = self.batch_gradients(site, rows)
            for summed, gradient in zip(total, gradients, strict=True):
                summed += gradient
            with torch.no_grad():
                for parameter, weight in zip(self.parameters[:-1], self.weights[:-1], strict=True):
                    parameter.lerp_(weight, self.rate * self.PULL)
                self.saddle[:2].lerp_(self.weights[-1][:2], self.rate * self.PULL)
            self.step([g - a + c for g, a, c in zip(gradients, own, self.control, strict=True)], self.rate)
        self.controls[site] = [summed / self.plan.steps for summed in total]
        for control, new, old in zip(self.control, self.controls[site], own, strict=True):
            control.add_(new - old, alpha=1 / len(self.sites))


class LocalSGDAM(Minimax):
    """Descent ascent along a momentum, which is averaged too."""

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module) -> None:
        super().__init__(sites, plan, model)
        self.momentum = [torch.zeros_like(weight) for weight in self.weights]
        self.summed = self.momentum

    def round(self) -> None:
        self.summed = [torch.zeros_like(weight) for weight in self.weights]
        super().round()
        self.momentum = [total / self.plan.cohort for total in self.summed]

    def train(self, site: int) -> None:
        momentum = [value.clone() for value in self.momentum]
        for rows in self.batches(len(self.sites[site][1])):
            self.step(momentum, 0.099)
            for average, gradient in zip(momentum, self.batch_gradients(site, rows), strict=True):
                average.mul_(0.01).add_(gradient, alpha=0.99)
        for total, average in zip(self.summed, momentum, strict=True):
            total += average


class LocalSCGDAM(Minimax):
    """Momentum descent ascent on equation (63) after one cross-entropy step from the model, by double backward."""

    RHO = 0.01

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module) -> None:
        super().__init__(sites, plan, model)
        self.names = [name for name, _ in model.named_parameters()]
        # the estimates of the inner point and the momenta, averaged
        self.inner = self.weights
        self.momentum = [torch.zeros_like(weight) for weight in self.weights]
        self.sums = (self.inner, self.momentum)

    def round(self) -> None:
        self.sums = tuple([torch.zeros_like(weight) for weight in self.weights] for _ in range(2))  # type: ignore[assignment]
        super().round()
        self.inner, self.momentum = ([total / self.plan.cohort for total in totals] for totals in self.sums)

    def train(self, site: int) -> None:
        inner, momentum = ([value.clone() for value in values] for values in (self.inner, self.momentum))
        for rows in self.batches(len(self.sites[site][1])):
            self.step(momentum, 0.099)
            for average, gradient in zip(momentum, self.composed(site, rows, inner), strict=True):
                average.mul_(0.01).add_(gradient, alpha=0.99)
        for totals, values in zip(self.sums, (inner, momentum), strict=True):
            for total, value in zip(totals, values, strict=True):
                total += value

    def composed(self, site: int, rows: Tensor, inner: list[Tensor]) -> list[Tensor]:
        """Move the inner point; returns the gradient there times the derivative of the step that led there."""
        features, labels = self.sites[site][0][rows], self.sites[site][1][rows]
        loss = functional.binary_cross_entropy_with_logits(self.model(features), labels)
        descent = torch.autograd.grad(loss, self.parameters[:-1], create_graph=True)
        for average, parameter in zip(inner, self.parameters, strict=True):
            average.lerp_(parameter.detach(), 0.9)
        for average, gradient in zip(inner, descent, strict=False):
            average.add_(gradient.detach(), alpha=-0.9 * self.RHO)
        inner[-1][2] = self.saddle.detach()[2]
        point = [value.clone().requires_grad_() for value in inner]
        scores = functional_call(self.model, dict(zip(self.names, point, strict=False)), (features,))
        found = list(torch.autograd.grad(self.value(scores, labels, point[-1]), point))
        products = torch.autograd.grad(descent, self.parameters[:-1], found[:-1])
        for gradient, product in zip(found, products, strict=False):
            gradient.add_(product, alpha=-self.RHO)
        found[-1][2].neg_()
        return found


class Momentum(Averaging):
    """Local SGD with a momentum that is averaged too; with weights by class for the ratio loss."""

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module, ratio: bool = False) -> None:
        super().__init__(sites, plan, model)
        labels = torch.cat([labels for _, labels in sites])
        positives = float(labels.sum())
        negatives = len(labels) - positives
        # 1 + 0.1 * (samples of the other class) / (samples of the class)
        self.by_class = (1 + 0.1 * positives / negatives, 1 + 0.1 * negatives / positives) if ratio else None
        self.momentum: list[Tensor] | None = None
        self.summed = [torch.zeros_like(weight) for weight in self.weights]

    def round(self) -> None:
        self.summed = [torch.zeros_like(weight) for weight in self.weights]
        super().round()
        self.momentum = [total / self.plan.cohort for total in self.summed]

    def train(self, site: int) -> None:
        features, labels = self.sites[site]
        momentum = None if self.momentum is None else [value.clone() for value in self.momentum]
        for rows in self.batches(len(labels)):
            targets = labels[rows]
            weight = None if self.by_class is None else torch.where(targets > 0.5, self.by_class[1], self.by_class[0])
            loss = functional.binary_cross_entropy_with_logits(self.model(features[rows]), targets, weight=weight)
            gradients = torch.autograd.grad(loss, self.parameters)
            if momentum is None:
                momentum = [gradient.clone() for gradient in gradients]
            else:
                for average, gradient in zip(momentum, gradients, strict=True):
                    average.mul_(0.9).add_(gradient, alpha=0.1)
            with torch.no_grad():
                for parameter, average in zip(self.parameters, momentum, strict=True):
                    parameter.add_(average, alpha=-self.plan.learning_rate)
        assert momentum is not None
        for total, average in zip(self.summed, momentum, strict=True):
            total += average


class Scaffold(Averaging):
    """SCAFFOLD, option II."""

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module) -> None:
        super().__init__(sites, plan, model)
        self.control = [torch.zeros_like(weight) for weight in self.weights]
        self.changes = [torch.zeros_like(weight) for weight in self.weights]
        self.controls: dict[int, list[Tensor]] = {}

    def round(self) -> None:
        self.changes = [torch.zeros_like(weight) for weight in self.weights]
        super().round()
        for control, change in zip(self.control, self.changes, strict=True):
            control.add_(change, alpha=1 / len(self.sites))

    def train(self, site: int) -> None:
        features, labels = self.sites[site]
        own = self.controls.get(site) or [torch.zeros_like(weight) for weight in self.weights]
        for rows in self.batches(len(labels)):
            loss = functional.binary_cross_entropy_with_logits(self.model(features[rows]), labels[rows])
            gradients = torch.autograd.grad(loss, self.parameters)
            with torch.no_grad():
                for parameter, g, mine, c in zip(self.parameters, gradients, own, self.control, strict=True):
                    parameter.add_(g - mine + c, alpha=-self.plan.learning_rate)
        scale = 1 / (self.plan.steps * self.plan.learning_rate)
        new = [
            mine - c + scale * (start - parameter.detach())
            for mine, c, start, parameter in zip(own, self.control, self.weights, self.parameters, strict=True)
        ]
        for change, after, before in zip(self.changes, new, own, strict=True):
            change += after - before
        self.controls[site] = new


class FedProx(Averaging):
    """Local SGD with a pull towards the server's model."""

    def train(self, site: int) -> None:
        features, labels = self.sites[site]
        for rows in self.batches(len(labels)):
            loss = functional.binary_cross_entropy_with_logits(self.model(features[rows]), labels[rows])
            for parameter, weight in zip(self.parameters, self.weights, strict=True):
                loss = loss + 0.005 * ((parameter - weight) ** 2).sum()
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()


class Composite(Averaging):
    """Local steps on cross-entropy plus a ridge, with an l1 penalty by its prox; neither acts on the biases."""

    RIDGE, WEIGHT = 0.01, 1e-4

    def gradients(self, site: int, rows: Tensor) -> list[Tensor]:
        features, labels = self.sites[site]
        loss = functional.binary_cross_entropy_with_logits(self.model(features[rows]), labels[rows])
        weights = [parameter for parameter in self.parameters if parameter.ndim > 1]
        loss = loss + self.RIDGE / 2 * sum((weight**2).sum() for weight in weights)
        return list(torch.autograd.grad(loss, self.parameters))

    def shrink(self, values: Sequence[Tensor], step: float) -> list[Tensor]:
        """The prox of the penalty."""
        return [functional.softshrink(value, step * self.WEIGHT) if value.ndim > 1 else value for value in values]

    def stand_at(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.copy_(value)


class Corrected(Composite):
    """Algorithm 1 of composite federated learning."""

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module) -> None:
        super().__init__(sites, plan, model)
        # each client's starting point and mean gradient of the round before
        self.kept: dict[int, tuple[list[Tensor], list[Tensor]]] = {}

    def load(self) -> None:
        pass

    def train(self, site: int) -> None:
        rate, steps = self.plan.learning_rate, self.plan.steps
        start = self.shrink(self.weights, rate * steps)
        if site in self.kept:
            anchor, mean = self.kept[site]
            terms = zip(anchor, self.weights, mean, strict=True)
            correction = [(before - now) / (rate * steps) - own for before, now, own in terms]
        else:
            correction = [torch.zeros_like(weight) for weight in self.weights]
        pre, total = [value.clone() for value in start], [torch.zeros_like(value) for value in start]
        self.stand_at(start)
        for t, rows in enumerate(self.batches(len(self.sites[site][1])), start=1):
            for value, summed, c, g in zip(pre, total, correction, self.gradients(site, rows), strict=True):
                summed += g
                value.add_(g + c, alpha=-rate)
            self.stand_at(self.shrink(pre, t * rate))
        self.kept[site] = (start, [summed / steps for summed in total])
        self.stand_at(pre)


class FedMid(Composite):
    """Local proximal SGD."""

    def round(self) -> None:
        super().round()
        self.weights = self.shrink(self.weights, self.plan.learning_rate * self.plan.steps)

    def train(self, site: int) -> None:
        rate = self.plan.learning_rate
        for rows in self.batches(len(self.sites[site][1])):
            moved = zip(self.parameters, self.gradients(site, rows), strict=True)
            self.stand_at(self.shrink([parameter.detach() - rate * g for parameter, g in moved], rate))


class DualAveraging(Composite):
    """Dual averaging: with constant steps or, if ``fast``, over all points with decaying steps."""

    def __init__(self, sites: Sequence[Site], plan: Plan, model: nn.Module, fast: bool = False) -> None:
        super().__init__(sites, plan, model)
        self.fast, self.taken = fast, 0

    def load(self) -> None:
        pass

    def round(self) -> None:
        super().round()
        self.taken += self.plan.steps

    def train(self, site: int) -> None:
        rate, half = self.plan.learning_rate, self.RIDGE / 2
        dual = [weight.clone() for weight in self.weights]
        for t, rows in enumerate(self.batches(len(self.sites[site][1])), start=self.taken):
            point = self.shrink(dual, t / (1 / rate + half * t) if self.fast else t * rate)
            self.stand_at(point)
            for value, w, g in zip(dual, point, self.gradients(site, rows), strict=True):
                if self.fast:
                    value.add_(half * (w - value) - g, alpha=1 / (1 / rate + half * (t + 1)))
                else:
                    value.add_(g, alpha=-rate)
        self.stand_at(dual)


LOOPS: dict[str, Callable[[Sequence[Site], Plan, nn.Module], Averaging]] = {
    "fedx1": FedX1,
    "fedx2": FedX2,
    "local-pair": LocalPair,
    "local-sgd": Averaging,
    "local-sgdm": Momentum,
    "local-sgdm-rl": partial(Momentum, ratio=True),
    "scaffold": Scaffold,
    "fedprox": FedProx,
    "fedsgda-mb": partial(FedSGDA, estimator="mb"),
    "fedsgda-storm": partial(FedSGDA, estimator="storm"),
    "fedsgda-spider": partial(FedSGDA, estimator="spider"),
    "fedsgda-svrg": partial(FedSGDA, estimator="svrg"),
    "coda": Coda,
    "codasca": Codasca,
    "local-sgdam": LocalSGDAM,
    "local-scgdam": LocalSCGDAM,
    "composite": Corrected,
    "fedmid": FedMid,
    "fedda": DualAveraging,
    "fast-fedda": partial(DualAveraging, fast=True),
}
