"""The table of models, and `build_model`, which builds, seeds and checks a model by its name.

A model is a `torch.nn.Module` that maps float features `(b, *input_shape)` to one raw logit per sample, `(b,)`. A
user's model is named `package.module:factory`; `factory(input_shape)` returns the module. A library's network has a
name such as `torchvision:resnet18`; see `problems.models.libraries`.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from problems.errors import InputError
from problems.importing import first_line, import_named, is_dotted
from problems.models.libraries import LIBRARIES, Build, library_builder
from problems.models.networks import MLP, TUTORIAL_SIDE, Linear, LinearNoIntercept, Table3CNN, TutorialCNN
from problems.models.resnet import resnet18, resnet20
from problems.objectives.classification import find_log_odds
from problems.randomness import seed_sequence

# the largest default step of deep networks; docs/networks.md has measurements
DEEP_STEP = 0.03
MINIMUM_SIDE = 8  # pixels; Table 3's two poolings leave one pixel of eight
DOTTED_FORM = "package.module:factory"
# the forms of the names of libraries' networks, with a line of description
LIBRARY_FORMS = {f"{name}:name": f"A network of {name} with one output." for name in LIBRARIES}
PAGE = "docs/configuration.md"
# the list of the models, and the requirements on a user's factory
_LISTED = "see `florilegium list models`"
_PAGE = f"see model in {PAGE}"
_FACTORY = f"'{DOTTED_FORM}' with factory(input_shape) -> torch.nn.Module"


class ModelError(InputError, ValueError):
    """An error: a model cannot be built or used, or does not return one score per sample."""


@dataclass(frozen=True)
class ModelEntry:
    """A row of the table of models.

    Attributes:
        description: A line of description.
        build: The factory, a function of the shape of a sample.
        largest_step: The largest step size that ``learning-rate = "auto"`` may choose.
    """

    description: str
    build: Build
    largest_step: float = math.inf


def largest_step(name: str) -> float:
    """Return the largest step size that ``learning-rate = "auto"`` may choose for a model.

    Args:
        name: The model's name. A user's own model has no such limit.
    """
    if name in MODELS:
        return MODELS[name].largest_step
    return DEEP_STEP if name.partition(":")[0] in LIBRARIES else math.inf


def build_model(
    name: str, input_shape: tuple[int, ...], seed: int, outputs: int = 1, *, exclusive: bool = False
) -> nn.Module:
    """Build a model in train mode, with weights that depend on the seed only.

    The factory runs on a fork of torch's CPU generator, so the global generators are not changed. Then forward passes
    on two samples and on one sample check the output, which must be `(2,)` and `(1,)`. If it is a column, `(2, 1)` and
    `(1, 1)`, a forward hook drops the last axis. With several outputs it must be `(2, outputs)` and `(1, outputs)`.

    Args:
        name: A key of `MODELS`, a library's network such as `torchvision:resnet18`, or `package.module:factory`.
        input_shape: The shape of one sample, such as `(30,)` or `(3, 32, 32)`.
        seed: The run's seed, not negative.
        outputs: The number of logits of a sample. If it is above 1, it replaces the single output of the last fully
            connected layer.
        exclusive: Whether the outputs are logits of a softmax. The model then returns the log-odds of each class, see
            `problems.objectives.classification.find_log_odds`.

    Raises:
        ModelError: The name is unknown, the factory cannot be imported, fails or returns no module, the model cannot
            accept the shape, or the output is not one score per sample.

    Example:
        >>> module = build_model("linear", input_shape=(64,), seed=0)
        >>> sum(parameter.numel() for parameter in module.parameters())
        65
    """
    shape = tuple(input_shape)
    if not shape or not all(isinstance(size, int) and size >= 1 for size in shape):
        got, allowed = str(shape), "positive integers, such as (30,) or (3, 32, 32)"
        raise ModelError("input_shape", got=got, allowed=allowed, hint="correct the shape of the samples")
    build = MODELS[name].build if name in MODELS else _import_factory(name)
    (state,) = seed_sequence(seed, "model weights").generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it would also seed the accelerators' generators, which are not forked here.
        torch.default_generator.manual_seed(int(state))
        try:
            module = build(shape)
        except ModelError as error:
            raise _unfit(f"'{name}' {error.got}", error.allowed, error.hint) from error.__cause__
        except Exception as error:
            raise _unfit(f"'{name}', which failed on input_shape {shape} ({first_line(error)})") from error
        if not isinstance(module, nn.Module):
            raise _unfit(f"'{name}', which returned {type(module).__name__}")
        if outputs > 1:
            _widen(module, outputs)
        _check_scores(name, module, shape, outputs)
    if exclusive:
        module.register_forward_hook(_compare_classes)
    return module


def _widen(module: nn.Module, outputs: int) -> None:
    """Replace the last fully connected layer by a layer with several outputs, if the last layer has one output."""
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if layers and layers[-1][1].out_features == 1:
        path, last = layers[-1]
        home, _, name = path.rpartition(".")
        wide = nn.Linear(last.in_features, outputs, bias=last.bias is not None)
        if not last.weight.any():  # the model's weights start at zero
            nn.init.zeros_(wide.weight)
        setattr(module.get_submodule(home), name, wide)


def check_module(module: nn.Module) -> None:
    """Check that flat vectors can carry a module's parameters and buffers.

    Raises:
        ModelError: There is no parameter to train, a parameter is not floating point, or a batch norm has a cumulative
            average.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise _unfit(
            f"{type(module).__name__}, which has no parameters to train", "at least one parameter", f"see {PAGE}"
        )
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point():
            raise _unfit(f"parameter '{name}' of {parameter.dtype}", "floating point", f"see {PAGE}")
    for name, child in module.named_modules():
        if isinstance(child, _BatchNorm) and child.track_running_stats and child.momentum is None:
            raise _unfit(
                f"batch norm '{name}' with momentum=None",
                "a number, since a cumulative average needs its count of batches, and counts do not travel",
                "set a momentum, such as momentum=0.1",
            )


def _unfit(got: str, allowed: str = _FACTORY, hint: str = _PAGE) -> ModelError:
    """Make the error for an object that cannot be a model; by default, for a factory that does not follow the rules."""
    return ModelError("model", got=got, allowed=allowed, hint=hint)


def _import_factory(name: str) -> Build:
    if not is_dotted(name):
        raise _unfit(
            f"'{name}', an unknown model", f"{', '.join([*MODELS, *LIBRARY_FORMS])}, or '{DOTTED_FORM}'", _LISTED
        )
    if (build := library_builder(name, _unfit)) is not None:
        return build
    factory: Build = import_named(name, _unfit)
    if not callable(factory) or isinstance(factory, nn.Module):
        raise _unfit(f"'{name}', a {type(factory).__name__}, which is not callable")
    return factory


def _check_scores(name: str, module: nn.Module, input_shape: tuple[int, ...], count: int) -> None:
    """Check the number of scores per sample. If it is 1 and scores form a column, add a hook that drops the column."""
    before = {key: value.clone() for key, value in module.named_buffers() if not is_lazy(value)}
    weights = next(module.parameters(), torch.empty(0))
    generator = torch.Generator().manual_seed(0)
    outputs = []
    module.eval()
    for batch in (2, 1):
        features = torch.randn(batch, *input_shape, generator=generator).to(weights.device, weights.dtype)
        try:
            with torch.no_grad():
                output = module(features)
        except Exception as error:
            failed = f"'{name}', which failed on an input of shape {tuple(features.shape)}"
            raise _unfit(f"{failed} ({first_line(error)})") from error
        if not isinstance(output, Tensor) or not output.is_floating_point():
            got = output.dtype if isinstance(output, Tensor) else type(output).__name__
            raise _unfit(f"'{name}', which returned {got}", "a single floating-point tensor of scores")
        outputs.append((batch, tuple(output.shape)))
    module.train()
    with torch.no_grad():
        after = dict(module.named_buffers())
        for key, value in before.items():
            after[key].copy_(value)
    is_column = count == 1 and all(shape == (batch, 1) for batch, shape in outputs)
    for batch, shape in outputs:
        if shape != ((batch,) if count == 1 else (batch, count)) and not is_column:
            allowed = f"exactly one score per sample, ({batch},) or ({batch}, 1)"
            if count > 1:
                allowed = f"a score per sample and finding, ({batch}, {count})"
            got = f"'{name}', which returned shape {shape} for an input of shape {(batch, *input_shape)}"
            raise _unfit(got, allowed)
    if is_column:
        module.register_forward_hook(_drop_last_axis)


def _drop_last_axis(module: nn.Module, inputs: Any, scores: Float[Tensor, "b 1"]) -> Float[Tensor, "b"]:
    """Turn a column of scores into a vector; a forward hook."""
    return scores.squeeze(1)


def _compare_classes(module: nn.Module, inputs: Any, logits: Float[Tensor, "b outputs"]) -> Float[Tensor, "b outputs"]:
    """Turn the logits of a softmax into log-odds; a forward hook."""
    return find_log_odds(logits)


def _images_only(build: Build, side: int = MINIMUM_SIDE) -> Build:
    """Return a factory that refuses shapes other than `(channels, height, width)` with sides of at least `side`."""

    def check_and_build(input_shape: tuple[int, ...]) -> nn.Module:
        if len(input_shape) != 3 or min(input_shape[1:]) < side:
            raise _unfit(
                f"with input_shape {input_shape}",
                f"images, (channels, height, width) with sides of at least {side}",
                f"set model to linear or mlp, which accept any shape; {_LISTED}",
            )
        return build(input_shape)

    return check_and_build


def _densenet121(input_shape: tuple[int, ...]) -> nn.Module:
    """Make DenseNet-121 from MONAI.

    Source: Huang et al., "Densely Connected Convolutional Networks", CVPR 2017.
    """
    return _import_factory("monai:DenseNet121")(input_shape)


MODELS: dict[str, ModelEntry] = {
    "linear": ModelEntry("Linear score of the flattened features, with one bias.", Linear),
    "linear-no-intercept": ModelEntry(
        "Linear score of the flattened features, without a bias; its weights start at zero.", LinearNoIntercept
    ),
    "mlp": ModelEntry("One hidden ReLU layer of 64 units on the flattened features.", MLP),
    "table3-cnn": ModelEntry(
        "FashionMNIST network of LocalSCGDAM, Table 3: two convolutions, three fully connected layers.",
        _images_only(Table3CNN),
    ),
    "tutorial-cnn": ModelEntry(
        "FedSGDA's network: three 3 x 3 convolutions of 32, 64 and 64 channels, 64 features.",
        _images_only(TutorialCNN, TUTORIAL_SIDE),
    ),
    "resnet20": ModelEntry(
        "ResNet-20 for CIFAR (He et al. 2016): 16, 32 and 64 channels, 0.27 million parameters.",
        _images_only(resnet20),
        DEEP_STEP,
    ),
    "resnet18": ModelEntry(
        "ResNet-18 with a 3 x 3 stem for 32 x 32 images, 11.2 million parameters.", _images_only(resnet18), DEEP_STEP
    ),
    "densenet121": ModelEntry(
        "DenseNet-121 from MONAI for medical images (extra 'medical'), 7 million parameters.",
        _images_only(_densenet121),
        DEEP_STEP,
    ),
}
