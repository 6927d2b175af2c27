"""Scores and gradients of linear scorers and fully connected networks in closed form.

The closed form needs two matrix products for each layer and no autograd graph, whose bookkeeping would take longer than
the products. A gradient can be added to a vector in place, `W <- W + alpha * delta^T h` with the layer's input h and
the derivatives delta in its output, so a step of SGD never stores the gradient.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from problems.models.networks import MLP, HazardNetwork, Linear, LinearNoIntercept, SaddleNetwork

# weight and bias of every layer, as views of a flat vector; a linear scorer may have no bias
Layers = list[tuple[Float[Tensor, "outputs inputs"], Float[Tensor, "outputs"] | None]]
# (slopes (b,), into (d,) or None, alpha) -> (d,): see `problems.models.flat.FlatModel.forward`
Pullback = Callable[..., Tensor]


class DenseNetwork:
    """The scores and gradients of fully connected layers with ReLUs between them, from flat weights.

    Args:
        shapes: (outputs, inputs, whether there is a bias) for every layer, in the order of the flat vector. The last
            layer has one output. Further entries of the vector do not affect the scores.
    """

    def __init__(self, shapes: list[tuple[int, int, bool]]) -> None:
        self.shapes = shapes
        self.size = sum(outputs * inputs + outputs * bias for outputs, inputs, bias in shapes)
        self._cut: tuple[tuple[Tensor, Layers], ...] = ()

    def forward(
        self, weights: Float[Tensor, "d"], rows: Float[Tensor, "b f"], gradient: Float[Tensor, "d"]
    ) -> tuple[Float[Tensor, "b"], Pullback]:
        """Score rows. Return the scores and the function `pull`, see `FlatModel.forward`.

        Args:
            weights: The flat weights, see the class.
            rows: The flattened features.
            gradient: The tensor for a gradient that is not added to another vector.
        """
        if len(self.shapes) == 1 and rows.device.type == "cpu" and rows.is_contiguous():
            return self._linear(weights, rows, gradient)
        layers = self.layers(weights)
        values = [rows]  # the input of each layer
        for weight, bias in layers:
            last = values[-1]
            values.append(torch.mm(last, weight.t()) if bias is None else torch.addmm(bias, last, weight.t()))
            if len(values) <= len(layers):
                values[-1].relu_()

        def pull(slopes: Tensor, into: Tensor | None = None, alpha: float = 1.0) -> Tensor:
            target = gradient.zero_() if into is None else into
            delta = slopes.unsqueeze(1)  # (b, outputs of the layer)
            for index, (to_weight, to_bias) in reversed(list(enumerate(self.layers(target)))):
                below, taken = delta, values[index]
                if index:  # before the layer's weights change, since `target` may be the weights
                    below = torch.mm(delta, layers[index][0]).mul_(taken > 0)
                to_weight.addmm_(delta.t(), taken, alpha=alpha)
                if to_bias is not None:
                    to_bias.add_(delta.sum(0), alpha=alpha)
                delta = below
            return target

        return values[-1].squeeze(1), pull

    def record_lengths(self, weights: Float[Tensor, "d"], rows: Float[Tensor, "b f"]) -> Float64[Tensor, "b"]:
        """Return the length of the gradient of each row's score. It is not finite if an intermediate value is not.

        The gradient in a layer's weights is a product of two vectors, delta h^T, so its length is the product of their
        lengths, and no gradient of a single row is computed. Squares are in float64, in which they do not underflow.

        Args:
            weights: The flat weights, see the class.
            rows: The flattened features.
        """
        layers, values = self.layers(weights), [rows]
        for weight, bias in layers[:-1]:
            assert bias is not None
            values.append(torch.addmm(bias, values[-1], weight.t()).relu_())
        squares, delta = torch.zeros(len(rows), dtype=torch.float64, device=rows.device), rows.new_ones(len(rows), 1)
        for index, (weight, bias) in reversed(list(enumerate(layers))):
            squares += delta.double().square().sum(1) * (values[index].double().square().sum(1) + (bias is not None))
            if index:
                delta = torch.mm(delta, weight).mul_(values[index] > 0)
        return squares.sqrt_()

    def _linear(
        self, weights: Float[Tensor, "d"], rows: Float[Tensor, "b f"], gradient: Float[Tensor, "d"]
    ) -> tuple[Float[Tensor, "b"], Pullback]:
        """Score by a single layer with NumPy, whose product of a tall matrix and a vector is faster than PyTorch's."""
        count, matrix = rows.shape[1], rows.numpy()
        scores = torch.from_numpy(np.dot(matrix, weights.numpy()[:count]))
        if self.shapes[0][2]:
            scores += weights[count]

        def pull(slopes: Tensor, into: Tensor | None = None, alpha: float = 1.0) -> Tensor:
            host = gradient.numpy()
            np.dot(slopes.numpy(), matrix, out=host[:count])
            if self.shapes[0][2]:
                torch.sum(slopes, 0, out=gradient[count])
            if self.size < len(host):
                host[self.size :] = 0
            return add_scaled(gradient, into, alpha)

        return scores, pull

    def layers(self, vector: Float[Tensor, "d"]) -> Layers:
        """Return the layers' weights and biases as views of a flat vector. The last four results are cached."""
        for known, layers in self._cut:
            if known is vector:
                return layers
        layers, start = [], 0
        for outputs, inputs, bias in self.shapes:
            stop = start + outputs * inputs
            weight = vector[start:stop].view(outputs, inputs)
            start = stop + outputs * bias
            layers.append((weight, vector[stop:start] if bias else None))
        self._cut = (*self._cut[-3:], (vector, layers))
        return layers


def add_scaled(
    gradient: Float[Tensor, "*stack d"], into: Float[Tensor, "*stack d"] | None, alpha: float
) -> Float[Tensor, "*stack d"]:
    """Add a scaled gradient to a vector, or scale it.

    Args:
        gradient: The gradient, scaled in place if there is no ``into``.
        into: The vector, changed in place.
        alpha: The factor of the gradient.

    Returns:
        ``into``, or the gradient if there is no ``into``.
    """
    if into is None:
        return gradient if alpha == 1 else gradient.mul_(alpha)
    return into.add_(gradient, alpha=alpha)


def dense_network(module: nn.Module) -> DenseNetwork | None:
    """Return the closed form of a module. None: not one of this project's dense networks, or with frozen parameters."""
    network = module.network if isinstance(module, SaddleNetwork | HazardNetwork) else module
    if type(network) not in (Linear, LinearNoIntercept, MLP):
        return None
    if not all(parameter.requires_grad for parameter in module.parameters()):
        return None
    children = [child for child in network.children() if isinstance(child, nn.Linear)]
    return DenseNetwork([(child.out_features, child.in_features, child.bias is not None) for child in children])
