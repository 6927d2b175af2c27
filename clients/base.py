"""Base classes of all clients: a Flower ``NumPyClient`` that also exchanges typed records (payloads).

The caller sets the attribute `inbox` to the record from the server before ``fit``, and reads the record for the server
from `outbox` after ``fit``. The client's memory between rounds is `state`. docs/architecture.md shows an example.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import Scalar
from torch import Tensor

from clients.local_norms import LocalNorms, put_norms, take_norms
from clients.progress import follow
from methods.method import Method, Task
from methods.private import Guard, PrivateSite, protect, refuse_phase
from methods.samples import HazardObjective
from payloads.record import FloatArray, Payload, PayloadError
from payloads.settings import Settings, TrainingSettings, refuse_other
from payloads.wire import MEAN_STEPS, MOST_ROWS, PHASE, ROUND, ready_to_send
from problems.models import FlatModel
from problems.models.vectors import Copy
from problems.objectives.classification import CROSS_ENTROPY, SAMPLE_LOSSES, cross_entropy
from problems.objectives.hazard import hazard_loss
from problems.randomness import Purpose, seed_sequence
from problems.site import Site as Site


class Trained(Protocol):
    """The interface of a client's model: a `FlatModel`, or the oracle of a minimax problem."""

    stochastic: bool
    device: torch.device
    parameters: Tensor

    def load(self, arrays: Sequence[FloatArray]) -> None:
        """Set the parameters to the received arrays."""

    def arrays(self, copy: Copy) -> list[FloatArray]:
        """Return the parameters to send back.

        Args:
            copy: The function that copies each array, such as `ready_to_send`; the model's own arrays keep changing.
        """


M = TypeVar("M", bound=Trained)
Config = dict[str, Scalar]
# the result of ``fit``: the model, the number of samples, metrics
Fitted = tuple[list[FloatArray], int, Config]


class PayloadClient(NumPyClient, Generic[M]):
    """Base class of all clients. Subclasses set the types of their records, and implement `fit` and `evaluate`.

    Attributes:
        down: The type of the record from the server, `inbox`.
        up: The type of the record for the server, `outbox`.
        memory: The type of the client's memory, `state`.
        summed: With secure sums, the minimum number of clients in each sum that the server sees.
    """

    down: type[Payload] | None = None
    up: type[Payload] | None = None
    memory: type[Payload] | None = None
    # the type of the record for the server in each additional exchange, by the exchange's name
    phases: Mapping[str, type[Payload]] = MappingProxyType({})
    settings_type: type[Settings] = Settings
    settings: Any
    default_loss = CROSS_ENTROPY

    def __init__(self, site: Site, model: M, training: TrainingSettings, settings: Settings | None = None) -> None:
        self.site = site
        self.model = model
        self.training = training
        refuse_other(self, self.settings_type, settings)
        self.settings = settings or self.settings_type()
        self.loss = self.default_loss if training.loss == "auto" else training.loss
        self.inbox: Any = None
        self.outbox: Any = None
        self.state: Any = None
        self.summed = 1

    def begin(self, parameters: list[FloatArray], config: Config) -> int:
        """Prepare a round: load the model, seed torch (for dropout) and the site's augmentation, and clear the outbox.

        Returns:
            The round's number.

        Raises:
            TypeError: The inbox or the state contains another algorithm's record.
        """
        refuse_other(self, self.down, self.inbox)
        refuse_other(self, self.memory, self.state)
        server_round = int(config[ROUND])
        self.model.load(parameters)
        self.outbox = None
        if self.model.stochastic:
            sequence = seed_sequence(self.training.seed, Purpose.TORCH, self.site.partition_id, server_round)
            seed = int(sequence.generate_state(1, np.uint64)[0])
            # torch.manual_seed would also record a stack trace on each call until CUDA is initialised.
            torch.default_generator.manual_seed(seed)
            if self.model.device.type == "cuda":
                torch.cuda.manual_seed(seed)
        if isinstance(self.site, Site) and self.site.augmentation is not None:
            self.site.augmentation.server_round = server_round
        return server_round


class MethodClient(PayloadClient[M]):
    """A Flower client that runs a `Method`'s client half. Subclasses set `method`."""

    method: Method
    guard: Guard | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if method := cls.__dict__.get("method"):
            declare(cls, method)

    def __init__(self, site: Site, model: M, training: TrainingSettings, settings: Settings | None = None) -> None:
        super().__init__(site, model, training, settings)
        declare(self, self.method.of(self.settings, self.loss))
        self.objective = self.method.client.objective(model, site, self.loss, training, self.settings)

    def fit(self, parameters: list[FloatArray], config: Config) -> Fitted:
        """Train for one round. In a message of one of the method's phases, answer the server's question instead.

        Args:
            config: The message's scalars, with the round under `ROUND` and the phase, if there is one, under `PHASE`.

        Returns:
            The new model ([] in a phase), the number of the site's samples, and no metrics.
        """
        self.begin(parameters, config)
        task, method, x = self.task(config), self.method, self.model.parameters
        down = self.received(config)
        if (phase := config.get(PHASE)) is not None:
            if self.guard is not None and (method.taken is None or phase not in method.taken.phases):
                raise refuse_phase(str(phase))
            self.outbox = method.phases[str(phase)].answer(x, down, task)
            return [], len(self.site), {}
        half, origin = method.client, x.clone() if self.training.steps_by_rows else None
        carry = half.start(x, down, self.recall(), task)
        drawn = half.batches(task, down)
        with closing(follow(drawn, self.site.partition_id, task.server_round, len(task.iterations))) as batches:
            for eta, batch in batches:
                carry = half.step(carry, batch, eta, task)
        arrived, self.outbox, self.state = half.finish(carry, task)
        if origin is not None:
            arrived = origin.lerp(arrived, task.stretch)
        if arrived is not x:
            x.copy_(arrived)
        return self.model.arrays(ready_to_send), len(self.site), {}

    def protect(self, guard: Guard) -> None:
        """Turn on differential privacy of the site's samples; see `methods.private`.

        Raises:
            ModelError: The model's score of a sample depends on other samples, or is random.
        """
        self.site, self.objective = PrivateSite.of(self.site, guard.ledger), protect(self.objective, guard)
        self.guard = guard

    def task(self, config: Config) -> Task[Any, Any]:
        """Return the inputs of a round.

        Args:
            config: The message's scalars.

        Raises:
            PayloadError: With ``steps-by-rows``, missing scalars, or more steps than ``local-steps``.
        """
        training, stretch, server_round = self.training, 1.0, int(config[ROUND])
        if training.steps_by_rows:
            most, mean = int(config.get(MOST_ROWS, 0)), float(config.get(MEAN_STEPS, 0))
            if most < 1 or not 0 < mean <= training.local_steps:
                allowed = f"a mean above 0, at most {training.local_steps}"
                raise PayloadError(f"{MOST_ROWS} {most} and {MEAN_STEPS} {mean:g}; allowed: {allowed}")
            steps = training.count_steps(len(self.site), most)
            training, stretch = training.model_copy(update={"local_steps": steps}), mean / steps
        rest = self.settings, self.site, self.objective, self.loss, self.summed
        return Task(server_round, training, *rest, stretch=stretch)

    def recall(self) -> Any:
        """Return the client's memory, or None.

        Raises:
            PayloadError: The memory belongs to a model of another size.
        """
        return None if self.state is None else self.state.check({"d": len(self.model.parameters)}, finite=False)

    def received(self, config: Config) -> Any:
        """Return the server's record for this round: the inbox.

        Args:
            config: The message's scalars, which a subclass may use instead of the inbox.
        """
        return self.inbox


class ScoringClient(MethodClient[FlatModel]):
    """Base class of the clients that train a network's scores."""

    def __init__(
        self, site: Site, model: FlatModel, training: TrainingSettings, settings: Settings | None = None
    ) -> None:
        super().__init__(site, model, training, settings)
        if model.keeps_norms:
            self.memory = LocalNorms

    def fit(self, parameters: list[FloatArray], config: Config) -> Fitted:
        """Train for one round; see `MethodClient.fit`. Batch norms may stay at the site, see `clients.local_norms`."""
        if self.memory is not LocalNorms:
            return super().fit(parameters, config)
        arrays, examples, metrics = super().fit(put_norms(self.model, parameters, self.state), config)
        self.state = take_norms(self.model, arrays)
        return put_norms(self.model, arrays, take_norms(self.model, parameters)), examples, metrics

    def evaluate(self, parameters: list[FloatArray], config: Config) -> tuple[float, int, Config]:
        """Measure a model on the site's own samples.

        Returns:
            The cross-entropy, the number of samples, and the ``accuracy`` with the threshold at logit 0. If the labels
            are numbers or times: the mean loss, the number of samples, and no metrics.
        """
        self.model.load(parameters)
        logits = self.model.predict(self.site.features)
        if self.site.offsets is not None:
            logits = logits + self.site.offsets
        if isinstance(self.objective, HazardObjective):
            baseline = self.model.parameters[-self.objective.intervals :]
            return float(hazard_loss(logits, self.site.outcomes, baseline).mean()), len(self.site), {}
        if self.site.periods is not None:
            raise ValueError(f"the loss {self.loss!r} is not a sum over rows, so a site cannot evaluate it")
        if self.site.numeric:
            return float(SAMPLE_LOSSES[self.loss].each(logits, self.site.labels).mean()), len(self.site), {}
        correct = ((logits > 0) == (self.site.labels > 0.5)).double().mean()
        loss = float(cross_entropy(logits, self.site.labels))
        return loss, len(self.site), {"accuracy": float(correct)}


def declare(target: Any, method: Method) -> None:
    """Copy a method's declarations to the attributes of `PayloadClient`.

    Args:
        target: The client or its class.
        method: The method.
    """
    target.method, records = method, method.records
    target.down, target.up, target.memory = records.down, records.up, records.memory
    target.default_loss, target.settings_type = method.loss, method.settings
    target.phases = {name: phase.up for name, phase in method.phases.items()}


def client_of(method: Method, name: str, base: type[MethodClient[Any]] = ScoringClient) -> type[MethodClient[Any]]:
    """Make the client class of a method.

    Args:
        name: The strategy's name, e.g. FedAvgM.
        base: The base class. Methods that do not train a network's scores need another than the default.
    """
    module = sys._getframe(1).f_globals["__name__"]  # the caller's module, in which pickle looks for the class
    about = {"__doc__": f"The client half of {name}.", "__module__": module}
    return type(f"{name}Client", (base,), {"method": method, **about})
