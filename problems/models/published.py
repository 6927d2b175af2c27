"""Published weights of a network, fitted to a model of the same kind by their names and shapes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# the entries of a file that contain the weights, if the file has more
_CONTAINERS = ("state_dict", "model_state_dict", "model")
# beginnings of names that wrappers of a network add
_PREFIXES = ("module.", "model.", "backbone.")


@dataclass(frozen=True)
class FittedWeights:
    """The entries of a file of weights that fit a model.

    Attributes:
        tensors: The weights by the model's names.
        random: The names of the model's other weights and statistics, which start at random.
        unused: The file's other weights, with their shapes.
        summed: The model's first layers whose weights are sums over the file's three colours.
    """

    tensors: dict[str, Tensor]
    random: list[str]
    unused: dict[str, tuple[int, ...]]
    summed: list[str]


def find_weights(content: Any) -> dict[str, Tensor]:
    """Return the tensors of floating-point numbers in the content of a file, by name.

    Args:
        content: The content: a dictionary of weights, perhaps among other things within further dictionaries.
    """
    while isinstance(content, Mapping):
        inner = next((content[key] for key in _CONTAINERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
            return {name: value for name, value in tensors.items() if value.is_floating_point()}
        content = inner
    return {}


def fit_weights(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> FittedWeights:
    """Choose the weights that a model can start from.

    A name in the file may begin with ``module.``, ``model.`` or ``backbone.``, and may be torchvision's for a DenseNet
    of MONAI. Weights of a first convolution of three colours fit a model of grey images: their sum over the colours
    gives the result of the same grey image in all three colours.

    Args:
        tensors: The file's weights by name.
        expected: The shapes of the model's weights and statistics by name.
    """
    fitting: dict[str, Tensor] = {}
    unused, summed = {}, []
    for name, value in sorted(tensors.items(), key=lambda item: item[0] not in expected):
        target = next((spelled for spelled in _spell(name) if spelled in expected), "")
        shape = tuple(value.shape)
        if target and target not in fitting and shape == expected[target]:
            fitting[target] = value
        elif target and target not in fitting and shape[1:2] == (3,) and (shape[0], 1, *shape[2:]) == expected[target]:
            fitting[target] = value.sum(dim=1, keepdim=True)
            summed.append(target)
        else:
            unused[name] = shape
    return FittedWeights(fitting, [name for name in expected if name not in fitting], unused, summed)


def _spell(name: str) -> Iterator[str]:
    """Yield the names that the model may have for an entry of the file."""
    while True:
        # torchvision's published DenseNets are older than its names; MONAI's have one more level
        newer = re.sub(r"(denselayer\d+\.(?:norm|conv))\.(\d)", r"\1\2", name)
        yield from (name, newer, re.sub(r"(denselayer\d+)\.(norm|conv)", r"\1.layers.\2", newer))
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
        if not prefix:
            return
        name = name.removeprefix(prefix)
