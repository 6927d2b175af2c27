"""The common part of all evaluators of networks, and the evaluator of numbers at the sites that only they see."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from apps.run_config.algorithm import Evaluator, RunConfig
from payloads.digit_sums import from_digits
from payloads.held_out import SCORE_COUNTS
from payloads.record import FloatArray
from payloads.wire import model_record
from problems.data import SampleFormat
from problems.models import FlatModel
from problems.models.networks import network_names
from problems.number_metrics import ErrorSums
from strategies.base import PayloadStrategy
from strategies.rounds.errors import SetupError
from strategies.rounds.schema import Schema

# a function: the arrays of a model -> the sums of its errors on the sites' held-out rows
AddErrors = Callable[[list[FloatArray]], ErrorSums]


class NetworkEvaluator(Evaluator):
    """The base of all evaluators of networks.

    Attributes:
        count_nonzeros: Whether ``nonzeros``, the number of parameters other than zero, is a metric too.
    """

    count_nonzeros = False

    def __init__(self, config: RunConfig, model: FlatModel) -> None:
        self.config = config
        self.model = model
        self.layout, self.num_frozen = model.layout, model.num_frozen
        names = network_names(model.module)
        self.frozen = frozenset(names[name] for name in model.frozen_names)
        if model.keeps_norms:
            self.at_sites = frozenset(names[name] for name in model.norm_names)
        self.summary = f"model {config.run.model}: {model.dim} parameters"
        self.summary += f", {model.num_frozen} frozen" if model.num_frozen else ""
        self.summary += f", {len(model.norm_entries)} kept by each site" if model.keeps_norms else ""

    def start(self) -> list[FloatArray]:
        return self.model.arrays()

    def start_from(self, tensors: Mapping[str, torch.Tensor]) -> list[FloatArray]:
        names = network_names(self.model.module)
        state = {name: tensors[short] for name, short in names.items() if short in tensors}
        # the module's parameters are views of the model's flat vectors, so this also sets the vectors
        self.model.module.load_state_dict(state, strict=False)
        return self.model.arrays()

    def name_arrays(self, arrays: Sequence[FloatArray]) -> dict[str, Any]:
        names = network_names(self.model.module)
        return {names[name]: value for name, value in self.model.name_arrays(arrays).items()}

    def nonzeros(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        """Return the metric ``nonzeros``, if it is wanted; else {}."""
        return {"nonzeros": float(np.count_nonzero(arrays[0]))} if self.count_nonzeros else {}

    def explain_divergence(self) -> ValueError:
        """Return the error for scores that are not finite."""
        steps = self.config.algorithm.strategy.steps()
        return ValueError(f"the global model's test scores are not finite: the run has diverged; lower {steps}")


class SumEvaluator(NetworkEvaluator):
    """Metrics of a network on the sites' held-out rows, whose labels are numbers. The server sees only sums of errors.

    Args:
        config: The run config.
        model: The network.
        add_errors: The function that asks the sites.
    """

    def __init__(self, config: RunConfig, model: FlatModel, add_errors: AddErrors) -> None:
        super().__init__(config, model)
        self.summary += "; evaluated by the sites"
        self.add_errors = add_errors

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        return self.add_errors(list(arrays)).metrics() | self.nonzeros(arrays)


def add_errors(
    strategy: PayloadStrategy, server_round: int, arrays: list[FloatArray], phase: str = SCORE_COUNTS
) -> ErrorSums:
    """Ask the sites for the sums of a model's errors on their held-out rows.

    Args:
        strategy: The strategy.
        server_round: The round.
        arrays: The model.
        phase: The rows, an element of `payloads.held_out.EVALUATIONS`.

    Raises:
        StrategyError: Fewer than ``min-train-nodes`` sites answer.
        SetupError: The sites that answer have no such rows.
    """
    replies = strategy.ask(server_round, list(range(len(strategy.roster))), model_record(arrays), None, phase)
    digits = np.stack([reply.payload.digits for reply in replies]).sum(axis=0, dtype=np.int64)
    sums = ErrorSums.of(from_digits(digits))
    if not sums.rows:
        key, allowed = f"round {server_round}: the sites' held-out rows", "at least one row"
        raise SetupError(key, got="no row", allowed=allowed, hint="raise test-fraction, or set data-dir to a test file")
    return sums


def format_of(config: RunConfig, schema: Schema) -> SampleFormat:
    """Return the form of the samples in the sites' files."""
    # None for npz: such a file may contain pixels or other numbers, and a site's report does not distinguish them
    pixels = (
        None if config.data.dataset == "npz" else config.data.dataset == "image-folder" and schema.pixel_max is None
    )
    return SampleFormat(
        schema.shape, pixels, schema.negative_labels, schema.positive_labels, schema.pixel_max, config.data.image_size
    )
