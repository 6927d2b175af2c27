"""The server's metrics of a composite objective f + g: a loss over the sites' samples plus a penalty or constraint.

For linear models of moderate size the server also computes the exact minimiser x*, to measure the distance from it.
"""

from collections.abc import Hashable, Sequence
from logging import INFO, WARNING

import numpy as np
import torch
from flwr.common import log
from numpy.typing import NDArray
from torch import Tensor

from apps.evaluation.models import ModelEvaluator, RowEvaluation
from apps.evaluation.networks import NetworkEvaluator
from apps.run_config.algorithm import Evaluator, RunConfig
from apps.run_config.settings import ConfigError
from methods.penalised import CompositeSettings
from payloads.record import FloatArray
from payloads.settings import Settings
from problems.data import DataSpec, FederatedData, Samples
from problems.data.image_rows import concatenate
from problems.models import FlatModel, Layout
from problems.objectives.classification import SAMPLE_LOSSES
from problems.objectives.composite import LinearObjective, linear_features, ridge_factors
from problems.optimum import Optimum, minimise
from problems.penalties import Penalty, make_penalty
from problems.site import as_tensor

LARGEST_REFERENCE = 20_000_000
"""The largest samples-by-features matrix, in numbers, for which x* is computed. This takes at most a minute."""


def check_penalty(composite: Settings) -> None:
    """Refuse options of the penalty that contradict each other, whatever the model.

    Raises:
        ConfigError: The options contradict each other.
    """
    assert isinstance(composite, CompositeSettings)
    try:
        make_penalty(composite.model_copy(update={"parameters": "all"}), [("x", (1, 1))])
    except ValueError as error:
        raise _wrong_penalty(composite, f"but {error}", "options that fit this penalty") from None


def _wrong_penalty(composite: CompositeSettings, why: str, allowed: str) -> ConfigError:
    got = f"{composite.penalty!r}, {why}"
    return ConfigError("composite.penalty", got=got, allowed=allowed, hint="see docs/composite.md")


class CompositeEvaluator(ModelEvaluator):
    """`ModelEvaluator`'s metrics on rows, ``nonzeros``, and metrics of the parameters x on the sites' samples:

    - ``objective``: f + g. f is the mean of the sites' mean losses, weighted by ``client-weights``, plus the ridge
      term.

    For a linear model, whose f is convex, also:

    - ``stationarity``: the distance of 0 from the subdifferential of f + g at x;
    - ``optimality``: ||x - x*|| / ||x*|| with the minimiser x* that `problems.optimum` finds;
    - ``support_f1``: F1 score of x's nonzeros as a prediction of the nonzeros of x*.
    """

    def __init__(self, config: RunConfig, model: FlatModel, data: FederatedData, rows: Samples) -> None:
        super().__init__(config, model, rows)
        self.count_nonzeros = True
        assert isinstance(config.family, CompositeSettings)
        self.layout = model.layout
        self.penalty, self.ridge = penalty_terms(config, self.layout)
        clients = [data.client(i) for i in range(data.num_clients)]
        weights = _sample_weights([len(client) for client in clients], config.training.by_examples)
        together = concatenate([client.features for client in clients])
        self.sample_weights = torch.tensor(np.concatenate(weights))  # (n,)
        self.sample_labels = torch.tensor(np.concatenate([client.labels for client in clients]), dtype=torch.float64)
        self.sample_loss = SAMPLE_LOSSES[config.training.loss]
        design = linear_features(model.module, as_tensor(together, model.dtype, "cpu"))
        if design is None:
            self.samples = as_tensor(together, model.dtype, model.device)
            self.smooth = self.optimum = None
            return
        self.smooth = LinearObjective(design, self.sample_labels, self.sample_weights, self.sample_loss, self.ridge)
        self.optimum = None
        if design.numel() <= LARGEST_REFERENCE:
            self.optimum = self.find_optimum(data.num_clients)
        else:
            size = " x ".join(f"{length:,}" for length in design.shape)
            log(INFO, "no optimality and no support_f1: finding x* for %s samples and features takes minutes", size)

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        metrics = super().__call__(arrays)
        # The penalty takes x in the run's number type, since constraint sets allow for that type's rounding errors.
        x = torch.tensor(arrays[0])
        point, penalty = x.double(), self.penalty.value(x)
        if self.smooth is None:
            metrics["objective"] = self.mean_loss() + float((self.ridge * point) @ point) / 2 + penalty
            return metrics
        value, gradient = self.smooth(point)
        metrics["objective"] = value + penalty
        metrics["stationarity"] = self.penalty.distance(x, gradient.to(x.dtype))
        if self.optimum is not None:
            metrics["optimality"] = float((point - self.optimum).norm() / self.optimum.norm())
            metrics["support_f1"] = support_f1(point, self.optimum)
        return metrics

    def mean_loss(self) -> float:
        """Return the weighted mean of the samples' losses at the model's parameters."""
        scores = self.model.predict(self.samples).cpu().double()
        return float(self.sample_weights @ self.sample_loss.each(scores, self.sample_labels))

    def find_optimum(self, num_clients: int) -> Tensor | None:
        """Return the minimiser x* (d,) of the objective, found once per process and objective.

        Returns:
            The minimiser. None if it is 0, or if the solver does not converge.
        """
        config = self.config
        training = config.training
        key = (config.data, num_clients, training.loss, training.client_weights, config.run.model, config.family)
        if key not in _optima:
            assert self.smooth is not None
            start = torch.zeros_like(self.ridge)
            _optima[key] = minimise(
                self.smooth, self.penalty, start, lipschitz=self.smooth.lipschitz, convexity=self.smooth.convexity
            )
        optimum = _optima[key]
        if not optimum.converged:
            text = "no optimality and no support_f1: the solver for x* stopped after %d iterations at residual %.1e"
            log(WARNING, text, optimum.iterations, optimum.residual)
        return optimum.point if optimum.converged and optimum.point.any() else None


class CompositeEvaluation(RowEvaluation):
    """Evaluation of composite objectives: a loss plus a penalty."""

    def check(self, strategy: str, spec: DataSpec, settings: Settings, /) -> None:
        check_penalty(settings)

    def of_model(self, config: RunConfig, model: FlatModel, data: FederatedData, rows: Samples) -> Evaluator:
        return CompositeEvaluator(config, model, data, rows)

    def of_scores(self, config: RunConfig, scored: NetworkEvaluator) -> Evaluator:
        scored.layout = scored.model.layout
        penalty_terms(config, scored.layout)  # refuses a penalty that does not fit the model
        scored.count_nonzeros = True
        return scored


def penalty_terms(config: RunConfig, layout: Layout) -> tuple[Penalty, Tensor]:
    """Return the penalty, and the factors (d,) of the ridge term.

    Raises:
        ConfigError: The options do not fit the model's parts in ``layout``.
    """
    assert isinstance(config.family, CompositeSettings)
    try:
        return make_penalty(config.family, layout), ridge_factors(config.family, layout)
    except ValueError as error:
        why = f"but with model {config.run.model!r}: {error}"
        raise _wrong_penalty(config.family, why, "options that fit the model's parameters") from None


def _sample_weights(sizes: Sequence[int], by_examples: bool) -> list[NDArray[np.float64]]:
    """Return the weight of each sample in f: for each site i an array (n_i,). All weights together sum to 1."""
    mean_size = sum(sizes) / len(sizes)
    shares = [size / mean_size if by_examples else 1.0 for size in sizes]
    return [np.full(size, share / size / len(sizes)) for size, share in zip(sizes, shares, strict=True)]


_optima: dict[Hashable, Optimum] = {}  # the minimisers that this process has computed


def support_f1(x: Tensor, true: Tensor) -> float:
    """Return the F1 score of x's nonzeros as a prediction of the true vector's nonzeros. 1 if both vectors are 0."""
    both = int(((x != 0) & (true != 0)).sum())
    total = int(torch.count_nonzero(x) + torch.count_nonzero(true))
    return 2 * both / total if total else 1.0
