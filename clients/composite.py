"""The client halves of composite federated learning: f_i is the mean loss of the site's samples plus a ridge term, g a
penalty of which only the prox is used. `payloads.composite` has the symbols."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from flwr.common import Scalar
from torch import Tensor

from clients.base import Site
from clients.local_sgd import SampleLossClient
from payloads.composite import SMOOTHNESS, CompositeSettings, CorrectionState, Smoothness, StepSizes
from payloads.record import FloatArray, Payload
from payloads.settings import Settings, TrainingSettings
from payloads.wire import PHASE
from problems.models import FlatModel, Layout
from problems.objectives.classification import SAMPLE_LOSSES
from problems.objectives.composite import linear_smoothness
from problems.penalties import Penalty, make_penalty, selected


def correction(start: FloatArray, gradient: FloatArray, point: FloatArray, step: float) -> FloatArray:
    """(d,) c_i^{r+1} of Algorithm 1, line 19: the mean of all clients' gradients in round r minus the client's own.

    Args:
        start: (d,) P(x-bar^r), from which all clients set out.
        gradient: (d,) the mean of the client's gradients in round r.
        point: (d,) x-bar^{r+1}, which the server made of all their steps.
        step: eta-tilde of round r.
    """
    made: FloatArray = (start - point) / step - gradient
    return made


@lru_cache(maxsize=64)
def _terms(
    composite: CompositeSettings, layout: Layout, dtype: torch.dtype, device: torch.device
) -> tuple[Penalty, Tensor | None]:
    """The penalty, and (d,) the factors of the ridge term, if there is one."""
    penalty = make_penalty(composite.penalty, layout, **composite.penalty_options)
    if not composite.ridge:
        return penalty, None
    return penalty, selected(layout, composite.parameters).to(device, dtype) * composite.ridge


class ProximalClient(SampleLossClient):
    """Base of the composite clients: K local steps, and what the sites tell the server about their smoothness."""

    phases: ClassVar[dict[str, type[Payload]]] = {SMOOTHNESS: Smoothness}

    settings_type = CompositeSettings
    settings: CompositeSettings

    def __init__(
        self, site: Site, model: FlatModel, training: TrainingSettings, settings: Settings | None = None
    ) -> None:
        super().__init__(site, model, training, settings)
        self.sizes = StepSizes(training, self.settings)
        self.penalty, self.ridge = _terms(self.settings, model.layout, model.dtype, model.device)

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        if config.get(PHASE) == SMOOTHNESS:
            self.outbox = Smoothness(estimate=self.smoothness())
            return [], len(self.site), {}
        arrived = self.update(server_round)
        if arrived is not self.model.parameters:
            self.model.parameters.copy_(arrived)
        return self.fitted()

    @abstractmethod
    def update(self, server_round: int) -> Tensor:
        """K local steps from the model that came down; returns (d,) what goes back."""

    def smoothness(self) -> FloatArray | None:
        """(1,) the Lipschitz constant of grad f_i, where the model is linear."""
        largest = linear_smoothness(self.model.module, self.site.features, SAMPLE_LOSSES[self.loss])
        if largest is None:
            return None
        return np.array([largest + self.settings.ridge], dtype=np.dtype(self.training.dtype))


class CompositeClient(ProximalClient):
    """Algorithm 1: corrected gradients at the post-proximal point z move the pre-proximal z-hat, which is sent.

    The correction for a round is made when its model comes down, from what the client kept of the round before. A model
    of the round it has just trained in says that the server discarded that round: it trains again, with the correction
    it had. So a round whose upload was lost leaves no trace. Without a record of the round before, the correction is 0;
    the server, who is told of which round the record was, then has all clients begin afresh.
    """

    memory = CorrectionState

    def update(self, server_round: int) -> Tensor:
        """Lines 6 to 13: z-hat <- z-hat - eta (grad f_i(z) + c_i), z <- P_{(t+1) eta g}(z-hat)."""
        sizes, z, own = self.sizes, self.model.parameters, self.own_correction(server_round)
        eta, shift = sizes.local(server_round), self.vector(own)
        pre = self.penalty.prox(z, sizes.between(server_round - 1), out=z).clone()
        start = pre.cpu().numpy().copy()
        for t, (_, batch) in enumerate(self.steps(server_round), start=1):
            pre.sub_(self.gradient(batch).add_(shift), alpha=eta)
            if t < self.training.local_steps:  # nothing is computed at z_tau
                self.penalty.prox(pre, t * eta, out=z)
        gradient = (start - pre.cpu().numpy()) / (eta * self.training.local_steps) - own
        number = np.array([server_round])
        self.state = CorrectionState(server_round=number, correction=own, start=start, gradient=gradient)
        return pre

    def own_correction(self, server_round: int) -> FloatArray:
        """(d,) c_i of a round; 0 in the first, and where the client knows nothing of the round before."""
        point = self.model.point()
        state: CorrectionState | None = self.state and self.state.check({"d": len(point)}, finite=False)
        kept = 0 if state is None else int(state.server_round[0])
        if state is not None and kept == server_round:
            return state.correction
        if state is None or kept != server_round - 1:
            return np.zeros_like(point)
        return correction(state.start, state.gradient, point, self.sizes.between(kept))


class FedMidClient(ProximalClient):
    """FedMid: proximal SGD (Yuan, Zaheer, Reddi, "Federated Composite Optimization", ICML 2021)."""

    def update(self, server_round: int) -> Tensor:
        """x <- P_{eta g}(x - eta grad f_i(x))."""
        x, eta = self.model.parameters, self.sizes.local(server_round)
        for _, batch in self.steps(server_round):
            self.penalty.prox(x.sub_(self.gradient(batch), alpha=eta), eta, out=x)
        return x


class FedDAClient(ProximalClient):
    """FedDA, there FedDualAvg: steps of a dual point z, gradients at its prox, whose parameter sums all steps."""

    def update(self, server_round: int) -> Tensor:
        """w = P_{(eta_g eta r K + eta k) g}(z), z <- z - eta grad f_i(w), in rounds r = 0, 1, ..."""
        w, eta, before = self.model.parameters, self.sizes.local(server_round), self.sizes.until(server_round - 1)
        z = w.clone()
        for k, (_, batch) in enumerate(self.steps(server_round)):
            self.penalty.prox(z, before + k * eta, out=w)
            z.sub_(self.gradient(batch), alpha=eta)
        return z


class FastFedDAClient(ProximalClient):
    """Fast-FedDA (Bao, Crawshaw, Luo, Liu, "Fast Composite Optimization and Statistical Recovery in Federated
    Learning", ICML 2022) with equal weights: dual averaging for a strongly convex f, over all points and gradients.

    With b_t = gamma + mu t / 2 after t local steps of the run,

        w_t = P_{t/b_t g}(v_t),   v_{t+1} = v_t + (mu/2 (w_t - v_t) - grad f_i(w_t)) / b_{t+1},   v_0 = w_0.

    The paper's clients send the sum of their gradients and that of their points; v is all the method uses of both.
    """

    def update(self, server_round: int) -> Tensor:
        w, half = self.model.parameters, self.settings.mu / 2
        v = w.clone()
        iterations = self.local_iterations(server_round)
        for t, (_, batch) in zip(iterations, self.steps(server_round), strict=True):
            self.penalty.prox(v, self.sizes.averaged(t), out=w)
            change = self.gradient(batch).neg_()
            change.add_(w, alpha=half).sub_(v, alpha=half)
            v.add_(change, alpha=1 / self.sizes.weight(t + 1))
        return v
