"""A block whose party has a network: party p maps row x to k numbers f_p(x; w_p), instead of the single number x w_p.

The leader (*dominator*) of an update gets the sums o = sum_p f_p(x_p; w_p) (b, k) over all parties. It returns theta
(b, k), the derivatives (*slopes*) of the losses in o. Each party then updates its weights by SGD, with the Jacobian J_p
of f_p in w_p:

    w_p <- w_p - step (J_p' theta / b + weight g'(w_p))

For f_p(x) = x w_p and k = 1, this is the update of `vertical.problem.blocks.base`. J_p is evaluated at the weights that
the update changes. The network is therefore evaluated again when theta arrives, and no activations are stored.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, cast

import numpy as np
from jaxtyping import Float64, Int64

from problems.importing import is_dotted
from vertical.problem.blocks.base import SGD, Block, Features, Rows
from vertical.problem.errors import NetworkError
from vertical.problem.objectives import Array, Objective

LINEAR, MLP = "linear", "mlp"
NETWORKS = (LINEAR, MLP)
HIDDEN = 64
"""The number of units in the hidden layer of `MLP`."""
DOTTED_FORM = "package.module:factory"


class Network(Protocol):
    """A function f(x; w) from rows to k numbers each, differentiable in its weights.

    Attributes:
        weights: The (p,) weights w, which the block changes in place.
    """

    weights: Array

    def embed(self, rows: Features) -> Float64[np.ndarray, "b k"]:
        """Return f(x; w) of (b, d) rows, dense or sparse."""

    def pull(self, rows: Features, slopes: Float64[np.ndarray, "b k"]) -> Float64[np.ndarray, "p"]:
        """Return the gradient J' slopes at w: sum_i sum_j slopes_ij df_j(x_i; w)/dw.

        The next call may overwrite the returned array.
        """


@dataclass(frozen=True)
class Architecture:
    """A party's network: its name and the seed of its initial weights.

    Attributes:
        model: An element of `NETWORKS`, or ``package.module:factory`` of a torch module.
        seed: The seed of the initial weights, >= 0. It must be secret if the initial weights must be secret.
    """

    model: str
    seed: int


class NetworkBlock(Block):
    """A block with a network. Partials and thetas have k numbers per row and are flat: (b * k,), row by row.

    Attributes:
        width: The number k of the network's outputs.
    """

    def __init__(self, features: Features, network: Network, width: int, objective: Objective, step: float) -> None:
        if isinstance(features, np.ndarray):
            features = np.ascontiguousarray(features, dtype=np.float64)
        super().__init__(features, SGD, objective, step)
        self._network, self.width = network, width
        self._w = network.weights

    def partials(self, rows: Int64[np.ndarray, "b"] | None = None) -> Float64[np.ndarray, "_"]:
        return self._network.embed(self._features if rows is None else self._take(rows)).ravel()

    def apply(self, rows: Int64[np.ndarray, "b"], theta: Float64[np.ndarray, "_"]) -> None:
        theta = self._slopes(theta, len(rows) * self.width).reshape(len(rows), self.width)
        direction = self._network.pull(self._take(rows), theta / len(rows))
        direction += self.objective.penalty_slope(self._w)
        self._w -= self.step * direction

    def predict(self, features: Features) -> Float64[np.ndarray, "_"]:
        return self._network.embed(self._accept(features)).ravel()

    def _take(self, rows: Rows) -> Features:
        if len(rows) and rows.view(np.uint64).max() >= self.rows:  # negative numbers are large as unsigned integers
            raise self._outside(rows)
        return self._features.take(rows, axis=0) if isinstance(self._features, np.ndarray) else self._features[rows]

    def _settle(self) -> None:
        """Do nothing, since no update is postponed."""


class Layers:
    """Fully connected layers with ReLUs between them, with NumPy gradients. Initialised like `torch.nn.Linear`.

    Args:
        sizes: The number d of inputs, the number of units of each hidden layer, and the number k of outputs.
        seed: The seed of the initial weights.
    """

    def __init__(self, sizes: tuple[int, ...], seed: int) -> None:
        shapes = list(pairwise(sizes))
        count = sum((inputs + 1) * outputs for inputs, outputs in shapes)
        self.weights, self._gradient = np.empty(count), np.empty(count)
        self._layers, self._slopes = _cut(self.weights, shapes), _cut(self._gradient, shapes)
        rng = np.random.default_rng(seed)
        for matrix, bias in self._layers:
            bound = 1.0 / math.sqrt(len(matrix))
            matrix[:] = rng.uniform(-bound, bound, matrix.shape)
            bias[:] = rng.uniform(-bound, bound, bias.shape)

    def embed(self, rows: Features) -> Float64[np.ndarray, "b k"]:
        matrix, bias = self._layers[-1]
        embedded = cast(Array, self._inputs(rows)[-1].dot(matrix))
        embedded += bias
        return embedded

    def pull(self, rows: Features, slopes: Float64[np.ndarray, "b k"]) -> Float64[np.ndarray, "p"]:
        inputs = self._inputs(rows)
        for layer in reversed(range(len(inputs))):
            to_matrix, to_bias = self._slopes[layer]
            to_matrix[:] = inputs[layer].T.dot(slopes)
            np.add.reduce(slopes, out=to_bias)
            if layer:
                slopes = slopes.dot(self._layers[layer][0].T)
                slopes *= cast(Array, inputs[layer]) > 0.0
        return self._gradient

    def _inputs(self, rows: Features) -> list[Features]:
        """Return the input of each layer: the rows, and the activations of each hidden layer."""
        inputs = [rows]
        for matrix, bias in self._layers[:-1]:
            hidden = cast(Array, inputs[-1].dot(matrix))
            hidden += bias
            inputs.append(np.maximum(hidden, 0.0, out=hidden))
        return inputs


def make_network(architecture: Architecture, columns: int, width: int) -> Network:
    """Return a party's network.

    Args:
        architecture: The party's architecture.
        columns: The number d of the party's columns.
        width: The number k of outputs, the same at all parties.

    Raises:
        NetworkError: The name is unknown, or the factory does not return a module from (b, d) to (b, k).
    """
    name, seed = architecture.model, architecture.seed
    if name in NETWORKS:
        return Layers((columns, width) if name == LINEAR else (columns, HIDDEN, width), seed)
    check_name("vfb2.model", name)
    # imported inside the function, so a process without its own module does not wait for torch
    from vertical.problem.blocks.modules import make_module

    return make_module(name, columns, width, seed)


def check_name(key: str, name: str) -> None:
    """Check the form of a network's name, without importing it.

    Args:
        key: The key that contains the name, for the error.
        name: The name.

    Raises:
        NetworkError: The name is neither in `NETWORKS` nor of the form ``package.module:factory``.
    """
    if name not in NETWORKS and not is_dotted(name):
        allowed = f"{', '.join(NETWORKS)}, or '{DOTTED_FORM}'"
        hint = f"set {key} to an allowed model, see docs/vertical-models.md"
        raise NetworkError(key, got=f"'{name}', an unknown model", allowed=allowed, hint=hint)


def _cut(vector: Array, shapes: list[tuple[int, int]]) -> list[tuple[Array, Array]]:
    """Return each layer's matrix (inputs, outputs) and bias (outputs,), as views of a flat vector."""
    layers, start = [], 0
    for inputs, outputs in shapes:
        middle = start + inputs * outputs
        layers.append((vector[start:middle].reshape(inputs, outputs), vector[middle : middle + outputs]))
        start = middle + outputs
    return layers
