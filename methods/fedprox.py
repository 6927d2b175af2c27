"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys
2020): local SGD on f_i + mu/2 |w - w_server|^2.

w_server is the model that the client received. mu is sent in each message's config under the key of Flower's FedProx,
so our client works with Flower's strategy, and our strategy with Flower's clients.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from methods.adam import Point, adam_step
from methods.local_sgd import finish
from methods.method import ClientHalf, Method, SampleGradients, Task
from methods.samples import LOSSES, Batch, SampleObjective, sample_batches, sample_objective
from payloads.settings import Settings, setting

# the key in every message's config
PROXIMAL_MU = "proximal-mu"


class FedProxSettings(Settings):
    """Hyper-parameters of FedProx (table ``fedprox``).

    Example:
        >>> FedProxSettings.model_validate({"proximal-mu": 0.1})
        FedProxSettings(proximal_mu=0.1)
    """

    proximal_mu: float = setting("The weight mu of the pull towards the server's model.", 0.01, ge=0)


FedProxTask = Task[FedProxSettings, SampleObjective]


@dataclass(frozen=True, kw_only=True)
class Carry(Point):
    """A client's state between two steps: w, the server's model, and mu."""

    reference: Float[Tensor, "*stack d"]
    mu: float


def start(x: Float[Tensor, "*stack d"], mu: float | None, memory: None, task: FedProxTask) -> Carry:
    """Take mu from the message, or from the settings if the message has none."""
    return Carry(x=x, reference=x.clone(), mu=task.settings.proximal_mu if mu is None else mu)


def step(carry: Carry, batch: Batch, eta: float, task: FedProxTask) -> Carry:
    """w <- w - eta (grad f_i(w) + mu (w - w_server)), or Adam's step with this gradient."""
    gradient = task.f.gradient(carry.x, batch)
    if task.training.has_adam:
        pulled = gradient.add_(carry.x - carry.reference, alpha=carry.mu)
        return adam_step(carry, pulled, eta, task.f.adjust)
    if pull := eta * carry.mu:
        carry.x.lerp_(carry.reference, pull)
    carry.x.sub_(gradient, alpha=eta)
    return carry


FEDPROX = Method(
    ClientHalf(sample_objective, sample_batches, start, step, finish),
    settings=FedProxSettings,
    table="fedprox",
    losses=LOSSES,
    offsets=True,
    findings=True,
    keeps_norms=True,
    averages=True,
    plain_clients=True,
    taken=SampleGradients(),
    adjusts=True,
    stacked=True,
    has_adam=True,
)
