"""Networks of torchvision, timm and MONAI by their names in the library, with one output and random weights.

A model ``torchvision:resnet18`` is the network ``resnet18`` of torchvision. The networks of torchvision and timm have
three input channels, as their published weights need: a grey image is passed to each of them. With these weights that
is the same as a first layer whose weights are summed over the colours. The networks of MONAI have the images' own
number of channels, for 2-D and 3-D images.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from types import ModuleType
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from problems.errors import InputError, install

DENSENET_SIDE = 32  # pixels; DenseNet halves the sides five times
Build = Callable[[tuple[int, ...]], nn.Module]
# (got, allowed, hint) -> the error; `got` continues a sentence that begins with the model's name
Refuse = Callable[[str, str, str], InputError]
# the networks of torchvision that return a second tensor in train mode by default
_WITH_SECOND_HEAD = ("googlenet", "inception_v3")
# MONAI's names of the numbers of input and output channels
_SPELLINGS = (("in_channels", "out_channels"), ("in_channels", "num_classes"), ("n_input_channels", "num_classes"))
_PAGE = "see docs/networks.md"


def library_builder(name: str, refuse: Refuse) -> Build | None:
    """Return the factory of a library's network. None: the name does not begin with a library's name.

    Args:
        name: The model's name, such as ``torchvision:resnet18``.
        refuse: The function that makes the factory's errors.
    """
    library, _, network = name.partition(":")
    return partial(LIBRARIES[library], network, refuse) if library in LIBRARIES else None


def _build_torchvision(network: str, refuse: Refuse, shape: tuple[int, ...]) -> nn.Module:
    models = _import("torchvision.models", "vision", refuse)
    _check_name(network, models.list_models(module=models), refuse)
    options: dict[str, Any] = {"weights": None, "num_classes": 1}
    if network in _WITH_SECOND_HEAD:
        options |= {"aux_logits": False, "init_weights": True}
    return _prepare(network, partial(models.get_model, network, **options), shape, refuse)


def _build_timm(network: str, refuse: Refuse, shape: tuple[int, ...]) -> nn.Module:
    timm = _import("timm", "vision", refuse)
    _check_name(network.partition(".")[0], timm.list_models(), refuse)  # a name may end in a tag of weights
    return _prepare(network, partial(timm.create_model, network, pretrained=False, num_classes=1), shape, refuse)


def _build_monai(network: str, refuse: Refuse, shape: tuple[int, ...]) -> nn.Module:
    nets = _import("monai.networks.nets", "medical", refuse)
    _check_name(network, [name for name, value in vars(nets).items() if _makes_network(value)], refuse)
    if len(shape) not in (3, 4):
        allowed = "images, (channels, height, width) or (channels, depth, height, width)"
        raise refuse(f"with input_shape {shape}", allowed, "set model to linear or mlp, which accept any shape")
    module = _call_monai(getattr(nets, network), len(shape) - 1, shape[0])
    _pad_for(network, module, shape)
    return module


LIBRARIES: dict[str, Callable[[str, Refuse, tuple[int, ...]], nn.Module]] = {
    "torchvision": _build_torchvision,
    "timm": _build_timm,
    "monai": _build_monai,
}


def _import(module: str, extra: str, refuse: Refuse) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a build of torchvision that does not fit PyTorch's raises a RuntimeError
        library = module.partition(".")[0]
        got = f"without {library}" if isinstance(error, ImportError) else f"with a {library} that fails ({error})"
        raise refuse(got, f"with {library}, the optional extra '{extra}'", install(extra)) from error


def _check_name(network: str, names: Iterable[str], refuse: Refuse) -> None:
    if network not in (names := sorted(names)):
        near = get_close_matches(network, names, 5, 0.4) or names[:5]
        raise refuse("which the library does not have", f"a network of the library, such as {', '.join(near)}", _PAGE)


def _makes_network(value: object) -> bool:
    return inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, nn.Module))


def _call_monai(factory: Callable[..., nn.Module], dims: int, channels: int) -> nn.Module:
    """Call a factory with the names of its channels that it accepts.

    Raises:
        TypeError: The factory accepts none of them, or needs further arguments.
    """
    refusals = []
    for inputs, outputs in _SPELLINGS:
        try:
            return factory(spatial_dims=dims, **{inputs: channels, outputs: 1})
        except TypeError as error:
            refusals.append(error)
    raise next((error for error in refusals if "unexpected keyword" not in str(error)), refusals[0])


def _prepare(network: str, build: Callable[[], nn.Module], shape: tuple[int, ...], refuse: Refuse) -> nn.Module:
    """Build a network of three input channels, and let it accept the images of a shape."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        allowed = "grey or colour images, (1, height, width) or (3, height, width)"
        raise refuse(f"with input_shape {shape}", allowed, "set model to linear or mlp, which accept any shape")
    module = build()
    if shape[0] == 1:
        module.register_forward_pre_hook(_to_colour)
    _pad_for(network, module, shape)
    return module


def _pad_for(network: str, module: nn.Module, shape: tuple[int, ...]) -> None:
    if "densenet" in network.lower() and min(shape[1:]) < DENSENET_SIDE:
        module.register_forward_pre_hook(_pad_images)


def _to_colour(
    module: nn.Module, inputs: tuple[Float[Tensor, "b 1 height width"]]
) -> Float[Tensor, "b 3 height width"]:
    """Pass a grey image to all three channels; a forward pre-hook."""
    (images,) = inputs
    return images.expand(-1, 3, -1, -1)


def _pad_images(module: nn.Module, inputs: tuple[Float[Tensor, "b channels *sides"]]) -> Float[Tensor, "b channels *_"]:
    """Pad images with zeros, evenly, to sides of at least `DENSENET_SIDE`; a forward pre-hook."""
    (images,) = inputs
    missing = [max(DENSENET_SIDE - side, 0) for side in reversed(images.shape[2:])]  # the last side comes first
    return functional.pad(images, [part for side in missing for part in (side // 2, side - side // 2)])
