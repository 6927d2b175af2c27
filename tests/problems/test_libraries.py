"""Networks of torchvision, timm and MONAI by name. A stand-in takes the place of the first two in the fast tests."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from problems.models import ModelError, build_model
from problems.models.published import find_weights, fit_weights
from tests.refusals import refuses


def small(channels: int) -> nn.Module:
    features = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(features, nn.Flatten(), nn.Linear(4, 1))


def make(name: str, *, num_classes: int, weights: None = None, pretrained: bool = False) -> nn.Module:
    assert (num_classes, weights, pretrained) == (1, None, False)  # random weights and one output
    return small(3)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(module: object = None) -> list[str]:
        return ["resnet18", "resnet34", "vgg11"]

    models = SimpleNamespace(get_model=make, list_models=names)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=make, list_models=names))


def same_logits(name: str, own: nn.Module, shape: tuple[int, ...]) -> None:
    """The network has the library's names of weights, and with its weights the library's logits."""
    module = build_model(name, shape, seed=0)
    module.load_state_dict(own.state_dict())  # strict
    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    colour = images.repeat(1, 3, 1, 1) if shape[0] == 1 and not name.startswith("monai") else images
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(images), own.eval()(colour).squeeze(1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18", "timm:resnet18.a1_in1k"])
@pytest.mark.parametrize("channels", [1, 3])
def test_colour_networks_take_grey_images(stand_ins: None, name: str, channels: int) -> None:
    same_logits(name, small(3), (channels, 8, 9))
    first, again, other = (build_model(name, (channels, 8, 9), seed)[2].weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("name", "shape", "names"),
    [
        ("DenseNet121", (1, 32, 32), ("in_channels", "out_channels")),
        ("resnet10", (2, 8, 8, 8), ("n_input_channels", "num_classes")),
        ("SEResNet50", (3, 32, 32), ("in_channels", "num_classes")),
    ],
)
def test_monai(name: str, shape: tuple[int, ...], names: tuple[str, str]) -> None:
    factory: Any = getattr(importlib.import_module("monai.networks.nets"), name)
    own = factory(spatial_dims=len(shape) - 1, **dict(zip(names, (shape[0], 1), strict=True)))
    same_logits(f"monai:{name}", own, shape)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
@pytest.mark.parametrize("channels", [1, 3])
def test_real_libraries(name: str, channels: int) -> None:
    try:
        models, timm = importlib.import_module("torchvision.models"), importlib.import_module("timm")
    except Exception as error:  # a torchvision that does not fit PyTorch raises a RuntimeError
        pytest.skip(str(error))
    same_logits(f"torchvision:{name}", models.get_model(name, num_classes=1), (channels, 64, 64))
    same_logits(f"timm:{name}", timm.create_model(name, num_classes=1), (channels, 64, 64))
    own = models.get_model(name)  # a head of 1000 classes
    module = build_model(f"torchvision:{name}", (channels, 64, 64), seed=0)
    shapes = {key: tuple(value.shape) for key, value in module.state_dict().items() if value.is_floating_point()}
    fit = fit_weights(find_weights({"model": own.state_dict()}), shapes)
    head = list(own.children())[-1]
    module.load_state_dict(
        {**fit.tensors, **dict(zip(fit.random, (head.weight[:1], head.bias[:1]), strict=True))}, False
    )
    images = torch.rand(2, channels, 64, 64)
    with torch.no_grad():
        logits = own.eval()(images.expand(-1, 3, -1, -1))[:, 0]
        torch.testing.assert_close(module.eval()(images), logits, rtol=0, atol=1e-6)
    build_model("torchvision:inception_v3", (channels, 96, 96), seed=0)(torch.rand(2, channels, 96, 96)).sum()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("torchvision:resnet81", (1, 8, 8), "which the library does not have, allowed: .* such as resnet18, resnet34"),
        ("timm:vgg1", (1, 8, 8), "which the library does not have, allowed: .* such as vgg11"),
        ("monai:DenseNet120", (1, 32, 32), "which the library does not have, allowed: .* DenseNet121"),
        ("torchvision:resnet18", (30,), r"input_shape \(30,\), allowed: grey or colour images"),
        ("timm:resnet18", (2, 8, 8), r"input_shape \(2, 8, 8\), allowed: grey or colour images"),
        ("monai:DenseNet121", (30,), r"input_shape \(30,\), allowed: images"),
        ("monai:ViT", (1, 8, 8), "TypeError: .*missing 2 required .* 'img_size' and 'patch_size'"),
        ("monai:HighResNet", (1, 8, 8), r"which returned shape \(2, 1, 8, 8\)"),
    ],
)
def test_other_names_and_shapes(stand_ins: None, name: str, shape: tuple[int, ...], message: str) -> None:
    with refuses(ModelError, f"'{name}'.*{message}"):
        build_model(name, shape, seed=0)


@pytest.mark.parametrize(("name", "extra"), [("torchvision:x", "vision"), ("timm:x", "vision"), ("monai:x", "medical")])
def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch, name: str, extra: str) -> None:
    module = {"torchvision:x": "torchvision.models", "timm:x": "timm", "monai:x": "monai.networks.nets"}[name]
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    with refuses(ModelError, rf"'{name}' without .*extra '{extra}', .*florilegium\[{extra}\]"):
        build_model(name, (1, 8, 8), seed=0)
