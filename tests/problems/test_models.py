"""Tests of the model zoo: sizes, seeds, rejections, and the flat view against plain autograd."""

import copy
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from methods.penalised import CompositeSettings, PenalisedObjective
from payloads.settings import TrainingSettings
from problems.models import MODELS, FlatModel, ModelError, build_model, freeze
from problems.models.networks import Linear, SaddleNetwork
from problems.models.resnet import BasicBlock
from problems.objectives.composite import linear_features
from problems.site import Site
from tests.refusals import refuses, spell, states

FLAT_MODELS = [
    ("linear", (5,)),
    ("mlp", (5,)),
    ("table3-cnn", (1, 12, 9)),
    ("tutorial-cnn", (1, 18, 19)),
    ("resnet20", (3, 8, 8)),
]

FACTORIES = '''
import torch
from torch import nn

def column(input_shape):
    return nn.Linear(input_shape[0], 1)

def two_classes(input_shape):
    return nn.Linear(input_shape[0], 2)

class Squeezed(nn.Linear):
    """Loses the batch axis of a single sample."""
    def __init__(self, input_shape):
        super().__init__(input_shape[0], 1)
    def forward(self, x):
        return super().forward(x).squeeze()

class Counting(nn.Module):
    """A buffer that moves in eval mode too, and draws from the global generator."""
    def __init__(self, input_shape):
        super().__init__()
        self.output = nn.Linear(input_shape[0], 1)
        self.register_buffer("calls", torch.zeros(1))
    def forward(self, x):
        self.calls.add_(1)
        return self.output(x).flatten() + 0 * torch.rand(())

class Pair(nn.Linear):
    def __init__(self, input_shape):
        super().__init__(input_shape[0], 1)
    def forward(self, x):
        return x, x

def lazy(input_shape):
    return nn.LazyLinear(1)

def not_a_module(input_shape):
    return 3

def fails(input_shape):
    raise RuntimeError("no weights here\\nsecond line")

number = 3
'''


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of an importable module of factories."""
    (tmp_path / "zoo_test_factories.py").write_text(FACTORIES)
    (tmp_path / "zoo_test_broken.py").write_text("raise OSError('disk on fire')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "zoo_test_factories"


def data(shape: tuple[int, ...], batch: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


# Building


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("linear", (30,), 30 + 1),
        ("linear", (1, 8, 8), 64 + 1),
        ("linear-no-intercept", (1, 8, 8), 64),
        ("mlp", (30,), 30 * 64 + 64 + 64 + 1),
        # conv1 + bn1 + conv2 + bn2 + fc 2304-600-120-1
        (
            "table3-cnn",
            (1, 28, 28),
            (9 * 32 + 32) + 64 + (9 * 32 * 64 + 64) + 128 + (2304 * 600 + 600) + (600 * 120 + 120) + 121,
        ),
        # conv1 + conv2 + conv3 + fc 1024-64-1: the tutorial's 122,570 less nine of ten outputs
        ("tutorial-cnn", (3, 32, 32), 122_570 - 9 * 65),
        ("resnet20", (3, 32, 32), 269_722 - 9 * 65),  # the ten-class network of He et al., less nine outputs
        ("resnet18", (3, 32, 32), 11_173_962 - 9 * 513),  # also less nine outputs
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], parameters: int) -> None:
    assert count(build_model(name, shape, seed=0)) == parameters


def test_densenet121_takes_small_images() -> None:
    pytest.importorskip("monai")
    module = build_model("densenet121", (1, 28, 28), seed=0)
    assert count(module) == 6_948_609  # 7.98 million of the ImageNet network, less 999 outputs and two colours
    assert "class_layers.out.weight" in module.state_dict()
    module.eval()
    images = data((1, 28, 28), 2)
    with torch.no_grad():
        padded = torch.zeros(2, 1, 32, 32)
        padded[:, :, 2:30, 2:30] = images
        assert torch.equal(module(images), module(padded))


@pytest.mark.parametrize(("name", "least"), [("table3-cnn", 8), ("tutorial-cnn", 18)])
def test_every_side_from_the_least_is_taken(name: str, least: int) -> None:
    for side in (least, least + 1, least + 7):
        build_model(name, (2, side, least), seed=0)
        build_model(name, (2, least, side), seed=0)
    with refuses(ModelError, f"at least {least}"):
        build_model(name, (2, least, least - 1), seed=0)


@pytest.mark.parametrize(("name", "shape"), FLAT_MODELS)
def test_seed_decides_the_weights_and_nothing_else_does(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = FlatModel(build_model(name, shape, seed=7)).parameters
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(FlatModel(build_model(name, shape, seed=7)).parameters, first)
    assert not torch.equal(FlatModel(build_model(name, shape, seed=8)).parameters, first)


@pytest.mark.parametrize("name", ["table3-cnn", "tutorial-cnn", "resnet20", "resnet18", "densenet121"])
@pytest.mark.parametrize("shape", [(30,), (28, 28), (3, 32, 7)])
def test_image_models_refuse_other_shapes(name: str, shape: tuple[int, ...]) -> None:
    with refuses(ModelError, re.escape("(channels, height, width)")) as caught:
        build_model(name, shape, seed=0)
    assert name in spell(caught.value)
    assert str(shape) in spell(caught.value)


def test_a_user_s_column_of_scores_is_flattened_and_its_names_stay(factories: str) -> None:
    module, again = (build_model(f"{factories}:column", (4,), seed=3) for _ in range(2))
    assert module(data((4,), 6)).shape == (6,)
    assert module(data((4,), 1)).shape == (1,)
    assert list(module.state_dict()) == ["weight", "bias"]
    assert copy.deepcopy(module)(data((4,), 6)).shape == (6,)
    assert torch.equal(FlatModel(module).parameters, FlatModel(again).parameters)


def test_the_shape_check_leaves_no_trace(factories: str) -> None:
    state = torch.get_rng_state()
    module = build_model(f"{factories}:Counting", (4,), seed=0)
    assert module.get_buffer("calls").item() == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert build_model(f"{factories}:lazy", (4,), seed=0)(data((4,), 2)).shape == (2,)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("{here}:missing", ["no attribute 'missing'"]),
        ("{here}:number", ["callable", "int"]),
        ("{here}:not_a_module", ["torch.nn.Module", "int"]),
        ("{here}:fails", ["(4,)", "RuntimeError: no weights here"]),
        ("{here}:two_classes", ["one score per sample", "shape (2, 2)", "input of shape (2, 4)", "(2,) or (2, 1)"]),
        ("{here}:Squeezed", ["one score per sample", "returned shape ()", "input of shape (1, 4)", "(1,) or (1, 1)"]),
        ("{here}:Pair", ["a single floating-point tensor", "tuple"]),
        ("no_such_package.models:net", ["cannot import", "ModuleNotFoundError"]),
        ("zoo_test_broken:net", ["cannot import", "OSError: disk on fire"]),
        (".relative:net", ["cannot import"]),
        ("package.module:", ["unknown model"]),
        (":factory", ["unknown model"]),
        ("resnet50", ["unknown model", *MODELS, "package.module:factory"]),
    ],
)
def test_a_name_that_leads_to_no_model_is_named(factories: str, name: str, words: list[str]) -> None:
    name = name.format(here=factories)
    with pytest.raises(ModelError) as caught:
        build_model(name, (4,), seed=0)
    message = spell(caught.value)
    assert "\n" not in message
    assert [word for word in [name, *words] if not states(message, word)] == []


# Residual blocks


@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_with_a_silent_branch_is_its_shortcut(stride: int) -> None:
    images = data((4, 7, 8), 3)
    same = BasicBlock(4, 4, 1, projection=True).eval()
    padded = BasicBlock(4, 6, stride, projection=False).eval()
    projected = BasicBlock(4, 6, stride, projection=True).eval()
    for block in (same, padded, projected):
        nn.init.zeros_(block.norm2.weight)  # f(x) = 0
    assert torch.equal(same(images), images.relu())
    option_a = torch.zeros(3, 6, math.ceil(7 / stride), 8 // stride)
    option_a[:, :4] = images[:, :, ::stride, ::stride].relu()
    assert torch.equal(padded(images), option_a)
    assert torch.equal(projected(images), projected.shortcut(images).relu())
    assert projected(images).shape == option_a.shape


# The flat view


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "shape"), FLAT_MODELS)
def test_round_trips(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    source, target, other = (FlatModel(build_model(name, shape, seed=seed), dtype=dtype) for seed in range(3))
    source.scores(data(shape, 4))  # changes the running statistics
    arrays = source.arrays()
    named = source.name_arrays(arrays)
    assert [array.shape for array in arrays] == [(source.dim,), (source.num_buffers,)][: 1 + (source.num_buffers > 0)]
    expected = source.predict(data(shape, 3))
    target.load(arrays)
    assert torch.equal(target.predict(data(shape, 3)), expected)
    plain = build_model(name, shape, seed=2).to(dtype)
    plain.load_state_dict({key: torch.tensor(value) for key, value in named.items()})  # strict: every name is present
    assert torch.equal(plain.eval()(data(shape, 3, dtype)), expected)

    untouched = other.arrays()
    assert all(np.array_equal(value, named[key]) for key, value in other.name_arrays(arrays).items())
    assert same(other.arrays(), untouched)

    before = [array.copy() for array in arrays]
    source.parameters.zero_()
    source.buffers.zero_()
    assert same(arrays, before)  # copies, not views


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ([], ["expected 1 arrays", "got 0"]),
        ([np.zeros(4), np.zeros(0)], ["expected 1 arrays", "[parameters]", "got 2"]),
        ([np.zeros((2, 2))], ["parameters", "expected shape (4,)", "got (2, 2)"]),
        ([np.zeros(4, dtype=np.int64)], ["expected a float dtype", "got int64"]),
        ([[0.0] * 4], ["expected a NumPy array", "got list"]),
        ([np.array([0, np.nan, np.inf, 1])], ["finite", "got 2 of 4"]),
        ([np.array([0, 1e300, 0, 0])], ["finite", "got 1 of 4"]),  # overflows float32
    ],
)
def test_load_refuses_what_does_not_fit(arrays: list[np.ndarray], words: list[str]) -> None:
    model = FlatModel(build_model("linear", (3,), seed=0))
    before = model.arrays()
    for act in (model.load, model.name_arrays):
        with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
            act(arrays)
        assert [word for word in words if word not in str(caught.value)] == []
    assert same(model.arrays(), before)


def test_the_same_bytes_are_looked_at_once_and_others_always() -> None:
    model = FlatModel(build_model("linear", (2,), seed=0))
    sent = np.array([1, 2, 3, np.nan, np.inf], np.float32).tobytes()
    whole = np.frombuffer(sent, np.float32)
    for _ in range(2):
        model.load([whole[:3]])
        assert model.parameters.tolist() == [1, 2, 3]
        with pytest.raises(ValueError, match="got 1 of 3"):
            model.load([whole[1:4]])
        with pytest.raises(ValueError, match="got 1 of 3"):
            model.load([whole[::2]])  # starts at the address of the first
    own = np.zeros(3, np.float32)
    model.load([own])
    own[1] = np.inf
    with pytest.raises(ValueError, match="got 1 of 3"):
        model.load([own])


@pytest.mark.parametrize(("name", "shape"), FLAT_MODELS)
def test_vjp_is_autograd_and_keeps_its_views(name: str, shape: tuple[int, ...]) -> None:
    plain = build_model(name, shape, seed=0).to(torch.float64)
    model = FlatModel(build_model(name, shape, seed=0), dtype=torch.float64)
    views = [parameter.grad for parameter in model.module.parameters()]
    for step in range(3):
        features, weights = data(shape, 6, torch.float64, step), data((), 6, torch.float64, 10 + step)
        expected = torch.autograd.grad(weights @ plain(features), list(plain.parameters()))
        gradient = model.vjp(model.scores(features), weights)
        assert gradient is model.gradient
        flat = torch.cat([part.flatten() for part in expected])
        torch.testing.assert_close(gradient, flat, rtol=1e-10, atol=1e-12)
        assert all(p.grad is view for p, view in zip(model.module.parameters(), views, strict=True))
        model.module.zero_grad(set_to_none=True)  # as a user's own code may


LINEAR_MODELS = [("linear", (2, 3, 2)), ("linear-no-intercept", (5,)), ("linear-no-intercept", (2, 3))]


@pytest.mark.parametrize(("name", "shape"), [*FLAT_MODELS, *LINEAR_MODELS, ("mlp", (2, 3))])
@pytest.mark.parametrize("saddle", [False, True])
def test_a_forward_pass_takes_any_weights_and_is_pulled_back_anywhere(
    name: str, shape: tuple[int, ...], saddle: bool
) -> None:
    def built() -> FlatModel:
        module = build_model(name, shape, seed=0)
        return FlatModel(SaddleNetwork(module) if saddle else module, dtype=torch.float64)

    model, other = built(), built()
    own = model.parameters.clone()
    for step in range(3):
        features = data(shape, 6, torch.float32, step)
        w, vector = (data((model.dim,), 1, torch.float64, 20 + step + i)[0] / 10 for i in range(2))
        other.parameters.copy_(w)
        expected = other.scores(features)
        slopes = torch.cos(expected.detach())
        expected_gradient = other.vjp(expected, slopes)
        scores, pull = model.forward(w, features)
        assert (scores.shape, scores.requires_grad) == ((6,), False)
        model.gradient.fill_(torch.nan)  # as a diverged step leaves it, in a process that goes on
        torch.testing.assert_close(scores, expected.detach(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(pull(slopes), expected_gradient, rtol=1e-10, atol=1e-12)
        sums = vector - 0.3 * expected_gradient
        assert model.forward(w, features)[1](slopes, into=vector, alpha=-0.3) is vector
        torch.testing.assert_close(vector, sums, rtol=1e-10, atol=1e-12)
        stepped = w - 0.3 * expected_gradient
        model.forward(w, features)[1](slopes, into=w, alpha=-0.3)  # the weights themselves
        torch.testing.assert_close(w, stepped, rtol=1e-10, atol=1e-12)
    assert torch.equal(model.parameters, own)  # the model's own weights and predictions are unchanged
    fresh = built()
    fresh.buffers.copy_(model.buffers)
    torch.testing.assert_close(model.predict(features), fresh.predict(features))


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_frozen_parameters_are_not_among_the_parameters(frozen: str) -> None:
    """Nothing that acts on the parameters, such as a ridge term, can move them; the scores still depend on them."""
    whole, module = (build_model("linear", (3,), seed=0) for _ in range(2))
    freeze(module, f"output.{frozen}")
    model, site = FlatModel(module), Site.from_arrays(0, data((3,), 4).numpy(), np.ones(4))
    assert model.dim == (1 if frozen == "weight" else 3)
    torch.testing.assert_close(model.predict(site.features), whole(site.features).detach())
    f = PenalisedObjective(
        model, site, "cross-entropy", TrainingSettings(), CompositeSettings(ridge=0.0, parameters="all")
    )
    gradient = f.gradient(model.parameters, (site.features, site.labels))
    expected = FlatModel(whole)
    expected.forward(expected.parameters, site.features)[1]((torch.sigmoid(whole(site.features)) - 1).detach() / 4)
    torch.testing.assert_close(gradient, expected.gradient[3:] if frozen == "weight" else expected.gradient[:3])


@pytest.mark.parametrize(
    ("patterns", "norms", "frozen", "still"),
    [
        ("block1", False, {"block1.0.weight", "block1.0.bias", "block1.1.weight", "block1.1.bias"}, ["block1.1"]),
        ("block*.0.*, classifier.4.bias", False, {"block1.0.weight", "block1.0.bias"}, []),
        ("", True, {"block1.1.weight", "block1.1.bias"}, ["block1.1", "block2.1"]),
        ("all-but-head", False, {"classifier.2.weight", "block2.1.bias"}, ["block1.1", "block2.1"]),
        ("", False, set(), []),
    ],
)
def test_frozen_norms_keep_their_statistics(patterns: str, norms: bool, frozen: set[str], still: list[str]) -> None:
    module = build_model("table3-cnn", (1, 8, 8), seed=0)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    freeze(module, patterns, norms=norms)
    model = FlatModel(module)
    assert frozen.isdisjoint(model.parameter_names)
    assert "classifier.4.weight" in model.parameter_names
    for step in range(2):
        model.scores(data((1, 8, 8), 5, seed=step))
        model.parameters.mul_(0.9)
        model.predict(data((1, 8, 8), 2))
    after = module.state_dict()
    same = {name for name, value in before.items() if torch.equal(after[name], value)}
    unmoved = {f"{norm}.running_{kind}" for norm in still for kind in ("mean", "var")}
    assert frozen | unmoved <= same
    assert {name for name in same if "running" in name} == unmoved


@pytest.mark.parametrize(
    ("name", "patterns", "norms", "message"),
    [
        ("mlp", "hidden, features.*", False, "frozen: got 'features.*', allowed: .* begin with hidden, output"),
        (
            "linear",
            "all-but-head",
            False,
            "frozen: got 'all-but-head', allowed: '', since the model has a single layer",
        ),
        ("mlp", "*", False, "frozen: got '*', allowed: patterns that leave a parameter to train"),
        ("mlp", "", True, "batch-norm: got 'frozen' for a model without batch norm, allowed: 'averaged'"),
    ],
)
def test_freeze_refuses_what_has_no_effect(name: str, patterns: str, norms: bool, message: str) -> None:
    with refuses(ModelError, re.escape(message).replace(r"\ \.\*\ ", ".* ")):
        freeze(build_model(name, (3,), seed=0), patterns, norms=norms)


class Squashed(Linear):
    """A linear layer with scores that are not linear."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().forward(features))


def test_a_subclass_of_the_linear_model_has_no_closed_form() -> None:
    model = FlatModel(Squashed((3,)), dtype=torch.float64)
    features = data((3,), 5)
    gradient = model.forward(model.parameters, features)[1](torch.full((5,), 0.2).double()).clone()
    torch.testing.assert_close(gradient, model.vjp(model.scores(features), torch.full((5,), 0.2).double()))
    assert linear_features(model.module, features) is None


def test_training_moves_the_buffers_and_predict_does_not() -> None:
    model, other = (FlatModel(build_model("table3-cnn", (1, 8, 8), seed=0)) for _ in range(2))
    images, start = data((1, 8, 8), 5), model.arrays()[1]
    first = model.predict(images)
    assert np.array_equal(model.arrays()[1], start)
    model.scores(images)
    assert not np.array_equal(model.arrays()[1], start)
    running = [value.flatten() for key, value in model.module.named_buffers() if not key.endswith("tracked")]
    assert torch.equal(torch.cat(running), model.buffers)
    other.forward(other.parameters, images)[1](torch.ones(5))
    assert torch.equal(model.buffers, other.buffers)
    assert not torch.equal(first, model.predict(images))  # eval mode reads the statistics
    assert torch.equal(model.buffers, other.buffers)


@pytest.mark.parametrize(("name", "shape"), FLAT_MODELS)
def test_a_used_skeleton_keeps_no_trace(name: str, shape: tuple[int, ...]) -> None:
    def steps(model: FlatModel, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        model.load(arrays)
        for step in range(2):
            gradient = model.vjp(model.scores(data(shape, 4, seed=step)), torch.ones(4))
            model.parameters.add_(gradient, alpha=-0.1)
        return model.name_arrays(model.arrays())

    used, fresh, ours, others = (FlatModel(build_model(name, shape, seed=seed)) for seed in (0, 5, 1, 2))
    steps(used, others.arrays())
    used.predict(data(shape, 3))
    got, expected = steps(used, ours.arrays()), steps(fresh, ours.arrays())
    assert all(np.array_equal(got[key], value) for key, value in expected.items())
    used.load(ours.arrays())
    assert not any(value.item() for key, value in used.module.named_buffers() if key.endswith("tracked"))


class Tied(nn.Module):
    """A network with two layers that share one weight, a frozen layer, and a constant and a table that are not sent."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(3, 1).requires_grad_(False)
        self.register_buffer("scale", torch.tensor([2.0]), persistent=False)
        self.register_buffer("order", torch.tensor([2, 0, 1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order, scale = self.get_buffer("order"), self.get_buffer("scale")
        scores: torch.Tensor = self.frozen(self.second(torch.tanh(self.first(x[:, order]))))
        return scores.squeeze(1) * scale


def test_tied_parameters_count_once_and_frozen_ones_are_buffers() -> None:
    plain = Tied().double()
    model = FlatModel(copy.deepcopy(plain), dtype=torch.float64)
    assert (model.dim, model.num_buffers, model.num_frozen, len(model.statistics)) == (9, 3 + 1, 3 + 1, 0)
    assert model.parameter_names == ("first.weight",)
    features, weights = data((3,), 5, torch.float64), data((), 5, torch.float64, 1)
    (expected,) = torch.autograd.grad(weights @ plain(features), [plain.first.weight])
    gradient = model.vjp(model.scores(features), weights)
    torch.testing.assert_close(gradient, expected.flatten(), rtol=1e-10, atol=1e-12)

    named = model.name_arrays(model.arrays())
    assert set(named) == set(plain.state_dict())
    assert not np.shares_memory(named["first.weight"], named["second.weight"])
    assert named["order"].tolist() == [2, 0, 1]


def test_flat_model_refuses_what_it_cannot_carry() -> None:
    with refuses(ModelError, "momentum=None"):
        FlatModel(nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 1), nn.Flatten(0)))
    with refuses(ModelError, "Flatten, which has no parameters"):
        FlatModel(nn.Flatten(0))
    with refuses(ValueError, r"torch\.float32 or torch\.float64, got torch\.float16"):
        FlatModel(nn.Linear(3, 1), dtype=torch.float16)
    integers = nn.Linear(3, 1)
    integers.index = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    with refuses(ModelError, r"got parameter 'index' of torch\.int64, allowed: floating point"):
        FlatModel(integers)
