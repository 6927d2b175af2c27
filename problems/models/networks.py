"""Small networks: linear scorers, one hidden layer, and the networks of the LocalSCGDAM and FedSGDA papers.

Every module maps features or images to raw logits and is initialised from torch's global generator, which
`problems.models.build_model` seeds.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

HIDDEN_FEATURES = 64
# the scalars of a `SaddleNetwork`, by their names in a model file
SADDLE_NAMES = ("saddle.a", "saddle.b", "saddle.dual")
# the name of the baselines of a `HazardNetwork` in a model file
BASELINE = "hazard.baseline"
SCALARS = len(SADDLE_NAMES)
# the smallest side for which the last convolution of `TutorialCNN` has an output
TUTORIAL_SIDE = 18


def channels_last(images: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b channels height width"]:
    """Return the images with the channels of a pixel adjacent in memory.

    Convolutions keep this order, in which pooling is many times faster on a CPU. Images on other devices, and inside
    `torch.func.vmap`, which does not support the order, are returned unchanged.
    """
    if images.device.type != "cpu":
        return images
    try:
        return images.clone(memory_format=torch.channels_last)
    except RuntimeError:
        return images


def drop_column(scores: Float[Tensor, "b outputs"]) -> Float[Tensor, "b *outputs"]:
    """Return scores (b,) if there is one output, else (b, outputs)."""
    return scores.squeeze(1) if scores.shape[1] == 1 else scores


class Linear(nn.Module):
    """A linear score `w . x + b` of the flattened features: prod(input_shape) weights and one bias."""

    bias = True

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.output = nn.Linear(math.prod(input_shape), 1, bias=self.bias)

    def forward(self, features: Float[Tensor, "b *shape"]) -> Float[Tensor, "b *outputs"]:
        scores: Tensor = self.output(features.flatten(1))  # (b, 1)
        return drop_column(scores)


class LinearNoIntercept(Linear):
    """A linear score `w . x` of the flattened features, prod(input_shape) weights that start at zero."""

    bias = False

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__(input_shape)
        nn.init.zeros_(self.output.weight)


class MLP(nn.Module):
    """One hidden ReLU layer of 64 units on the flattened features."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(input_shape), HIDDEN_FEATURES)
        self.output = nn.Linear(HIDDEN_FEATURES, 1)

    def forward(self, features: Float[Tensor, "b *shape"]) -> Float[Tensor, "b *outputs"]:
        hidden = torch.relu(self.hidden(features.flatten(1)))  # (b, 64)
        scores: Tensor = self.output(hidden)  # (b, 1)
        return drop_column(scores)


class Table3CNN(nn.Module):
    """The FashionMNIST classifier of LocalSCGDAM, for images with any number of channels and sides of at least 8.

    Source: LocalSCGDAM (see `methods.scgdam`), Appendix B, Table 3: two blocks of convolution, batch norm, ReLU and
    max-pooling, then three fully connected layers.

    The table does not specify the kernel size, the padding and the layers between the fully connected ones. We use the
    usual choice for this network: kernel 3 with padding 1 in the first block, kernel 3 without padding in the second
    (28 x 28 -> 14 x 14 -> 6 x 6, 2304 features), and ReLU after the layers of 600 and 120.
    """

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, height, width = input_shape

        def block(inputs: int, outputs: int, padding: int) -> nn.Sequential:
            convolution = nn.Conv2d(inputs, outputs, kernel_size=3, padding=padding)
            return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))

        self.block1 = block(channels, 32, padding=1)
        self.block2 = block(32, 64, padding=0)
        rows, columns = ((side // 2 - 2) // 2 for side in (height, width))
        self.classifier = nn.Sequential(
            nn.Linear(64 * rows * columns, 600), nn.ReLU(), nn.Linear(600, 120), nn.ReLU(), nn.Linear(120, 1)
        )

    def forward(self, images: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b *outputs"]:
        features = self.block2(self.block1(channels_last(images)))  # (b, 64, rows, columns)
        scores: Tensor = self.classifier(features.flatten(1))  # (b, 1)
        return drop_column(scores)


class TutorialCNN(nn.Module):
    """FedSGDA's network for images with sides of at least 18: three convolutions and two fully connected layers.

    Source: "A Federated Learning Framework for Nonconvex-PL Minimax Problems", Section 6.2, which uses the network of
    TensorFlow's image tutorial, here with one score instead of ten. The paper scales pixels to [-1, 1]; this
    project's pixels are in [0, 1], and the network uses them unscaled.
    """

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, height, width = input_shape
        first, second, third = (nn.Conv2d(*sizes, kernel_size=3) for sizes in ((channels, 32), (32, 64), (64, 64)))
        pool = nn.MaxPool2d(2)
        self.features = nn.Sequential(first, nn.ReLU(), pool, second, nn.ReLU(), pool, third, nn.ReLU())
        rows, columns = (((side - 2) // 2 - 2) // 2 - 2 for side in (height, width))
        self.classifier = nn.Sequential(nn.Linear(64 * rows * columns, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, images: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b *outputs"]:
        scores: Tensor = self.classifier(self.features(channels_last(images)).flatten(1))  # (b, 1)
        return drop_column(scores)


class SaddleNetwork(nn.Module):
    """A network plus the three scalars of the AUC loss in `problems.minimax.auc`: a, b and lambda, initially zero.

    The flat vector of the module ends with these scalars: ``saddle.a``, ``saddle.b`` and ``saddle.dual``. With several
    outputs they are vectors with an entry for each output.
    """

    def __init__(self, network: nn.Module, outputs: int = 1) -> None:
        super().__init__()
        self.network = network
        shape = () if outputs == 1 else (outputs,)
        self.saddle = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name in ("a", "b", "dual")})

    def forward(self, features: Float[Tensor, "b *shape"]) -> Float[Tensor, "b *outputs"]:
        scores: Tensor = self.network(features)
        return scores


class HazardNetwork(nn.Module):
    """A network plus the baseline of each interval of time, for the loss in `problems.objectives.hazard`.

    The flat vector of the module ends with the baselines, ``hazard.baseline``.

    Args:
        network: The network of the scores.
        intervals: The number of intervals.
        start: The first value of each baseline.
    """

    def __init__(self, network: nn.Module, intervals: int, start: float) -> None:
        super().__init__()
        self.network = network
        self.hazard = nn.ParameterDict({"baseline": nn.Parameter(torch.full((intervals,), start))})

    def forward(self, features: Float[Tensor, "b *shape"]) -> Float[Tensor, "b *outputs"]:
        scores: Tensor = self.network(features)
        return scores


def network_names(module: nn.Module) -> dict[str, str]:
    """Map the entries of a module's state to their names in a model file, without the prefix of a wrapper."""
    prefix = "network." if isinstance(module, SaddleNetwork | HazardNetwork) else ""
    return {name: name.removeprefix(prefix) for name in module.state_dict()}
