"""Augmentation: the images of a row in a round, runs that agree to the bit, and the refusals."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from apps.config import ConfigError, Scalar, parse_run_config
from apps.server_app import RunFailedError
from apps.sites.resources import new_model
from clients.base import Site
from clients.scoring import LocalSGDClient
from methods.private import Ledger, PrivateSite
from payloads.settings import TrainingSettings
from privacy.budget import Releases
from problems.augmentation import STRENGTHS, AugmentError, Strength, Warp, check_augmentation, make_augmentation
from problems.minimax import AUCOracle
from problems.models import FlatModel, build_model
from problems.models.networks import SaddleNetwork
from tests.battery.federation import federate, save_npz
from tests.battery.test_resume import assert_same_run
from tests.refusals import refuses

HERE = "tests.problems.test_augmentation"
EVERY = (*STRENGTHS, f"{HERE}:make_noisy")
ROWS = 20
rng = np.random.default_rng(0)
LABELS = np.arange(ROWS) % 2
IMAGES = (rng.normal(size=(ROWS, 1, 12, 10)) + LABELS[:, None, None, None]).astype(np.float32)


def add_noise(image: Tensor) -> Tensor:
    return image + torch.randn(image.shape) + random.random() + np.random.rand()


def make_noisy() -> Any:
    return add_noise


def make_augmented(name: str = "xray", server_round: int = 1, seed: int = 0) -> Site:
    augmentation = make_augmentation(name, seed, 3, ROWS)
    augmentation.server_round = server_round
    site = Site.from_arrays(3, IMAGES, LABELS)
    object.__setattr__(site, "augmentation", augmentation)
    return site


@pytest.mark.parametrize("name", EVERY)
def test_a_row_has_one_image_a_round(name: str) -> None:
    rows, other = np.array([7, 3, 7, 11]), np.array([3, 5])
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    images = make_augmented(name).rows(rows)
    again = make_augmented(name)
    assert torch.equal(again.rows(other)[0], images[1])  # another batch
    features, labels = again.samples(rows)
    assert torch.equal(features, images)
    assert torch.equal(labels, again.labels[rows])
    assert torch.equal(images[0], images[2])
    assert not torch.equal(make_augmented(name, server_round=2).rows(rows), images)
    assert not torch.equal(make_augmented(name, seed=1).rows(rows), images)
    assert np.array_equal(again.features, IMAGES)
    assert not len(again.rows(np.arange(0)))
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == state[1:]  # type: ignore[union-attr]


@settings(max_examples=20, deadline=None)
@given(st.integers(8, 40), st.integers(8, 40), st.integers(0, 2**31))
def test_without_strength_images_stay(height: int, width: int, seed: int) -> None:
    images = torch.rand(6, 3, height, width, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(Warp(seed, 0, 6, strength=Strength())(images, np.arange(6)), images)
    # so little rotation that only the interpolation's rounding is left
    torch.testing.assert_close(Warp(seed, 0, 6, strength=Strength(angle=1e-9))(images, np.arange(6)), images)


def test_flips_shifts_and_rotations_move_pixels() -> None:
    dot = torch.zeros(200, 1, 9, 15)
    dot[:, 0, 4, 5] = 1
    rows = np.arange(200)
    flipped = Warp(0, 0, 200, strength=Strength(flips=True))(dot, rows)
    same, mirrored = ((flipped == other).flatten(1).all(1) for other in (dot, dot.flip(-1)))
    assert (same ^ mirrored).all()
    assert 60 < int(mirrored.sum()) < 140
    shifted = Warp(0, 0, 200, strength=Strength(shift=0.2))(dot, rows)
    places = shifted.flatten(1).argmax(1)
    assert set((places // 15).tolist()) == {2, 3, 4, 5, 6}
    assert set((places % 15).tolist()) == {2, 3, 4, 5, 6, 7, 8}
    # a rotation keeps distances from the middle, also if height and width differ
    turned = Warp(0, 0, 200, strength=Strength(angle=180))(dot, rows)
    y, x = torch.meshgrid(torch.arange(9) - 4, torch.arange(15) - 7, indexing="ij")
    mass = turned.sum((1, 2, 3))
    distance = (turned[:, 0] * (x**2 + y**2).sqrt()).sum((1, 2)) / mass
    assert (distance - 2).abs().max() < 0.4
    bright = Warp(0, 0, 200, strength=Strength(contrast=0.2, brightness=0.2))(dot, rows)
    ratio = bright.std((1, 2, 3)) / dot.std((1, 2, 3))
    moved = (bright.mean((1, 2, 3)) - dot.mean((1, 2, 3))) / dot.std((1, 2, 3))
    assert 0.8 <= ratio.min() < 0.82 < 1.18 < ratio.max() <= 1.2001
    assert -0.2001 <= moved.min() < -0.18 < 0.18 < moved.max() <= 0.2001


def test_gradients_on_a_batch_and_on_all_rows_agree() -> None:
    site = make_augmented()
    model = FlatModel(SaddleNetwork(build_model("table3-cnn", (1, 12, 10), seed=0)))
    oracle = AUCOracle(model, site.features, site.labels).weigh(0.5)
    z, rows = model.parameters.clone(), np.arange(ROWS)
    plain = oracle.gradient(z, None).clone()
    oracle.augmentation = site.augmentation
    whole = oracle.gradient(z, None).clone()
    assert torch.equal(oracle.gradient(z, rows), whole)
    assert (whole - plain).norm() > 0.01 * plain.norm()


def test_batches_of_all_rows_and_private_batches_are_augmented() -> None:
    site = make_augmented()
    private = PrivateSite.of(site, Ledger(Releases(1.0, 9, 0)))
    assert torch.equal(private.rows(np.arange(4)), site.rows(np.arange(4)))
    training = TrainingSettings(batch_size=0, local_steps=1)
    models = {}
    for name, own in {"plain": Site.from_arrays(3, IMAGES, LABELS), "augmented": site}.items():
        client = LocalSGDClient(own, FlatModel(build_model("linear", (1, 12, 10), seed=0)), training)
        before = client.evaluate(client.model.arrays(), {})
        models[name] = client.fit(client.model.arrays(), {"server-round": 1})[0][0], before
    assert models["plain"][1] == models["augmented"][1]
    assert np.abs(models["plain"][0] - models["augmented"][0]).max() > 1e-3


@pytest.mark.parametrize(
    ("strategy", "name", "more"),
    [
        ("local-sgd", "light", {"model": "linear"}),
        ("fedx2", "xray", {"model": "resnet20"}),
        ("fedsgda-storm", EVERY[2], {"model": "table3-cnn"}),
    ],
)
def test_runs_agree_to_the_bit(
    strategy: str, name: str, more: dict[str, Scalar], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    features = np.concatenate([IMAGES, IMAGES[:, :, ::-1]] * 2)
    config: dict[str, Scalar] = {**save_npz(tmp_path / "images.npz", features, np.tile(LABELS, 4)), **more}
    config |= {"strategy": strategy, "augment": name, "checkpoint-every": 1}
    run, _ = federate(tmp_path / "run", config)
    repeated, _ = federate(tmp_path / "repeated", config, threads=3, stack="auto")
    assert_same_run(repeated, run)
    assert "clients train one by one" in caplog.text
    federate(tmp_path / "cut", {**config, "num-server-rounds": 2})
    resumed, _ = federate(tmp_path / "cut", {**config, "resume": True})
    assert_same_run(resumed, run)
    plain, _ = federate(tmp_path / "plain", {**config, "augment": "none"})
    assert run.model_bytes != plain.model_bytes
    assert run.untimed[0] == plain.untimed[0]  # the evaluation of the same model


def make_nothing() -> None: ...


def make_failing() -> Any:
    return lambda image: image[:, :, :, 5]


def make_smaller() -> Any:
    return lambda image: image[:, 1:]


def make_infinite() -> Any:
    return lambda image: image / 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("make_missing", "has no attribute"),
        ("make_nothing", "returned NoneType"),
        ("make_failing", r"failed on an image of shape \(1, 12, 10\)"),
        ("make_smaller", r"returned shape \(1, 11, 10\)"),
        ("make_infinite", "not finite"),
    ],
)
def test_a_transform_is_checked(name: str, text: str) -> None:
    with refuses(AugmentError, f"augment: got .*{text}"):
        make_augmented(f"{HERE}:{name}").rows(np.arange(2))


def test_monai_transforms_are_seeded() -> None:
    pytest.importorskip("monai")
    name = f"{HERE}:make_monai"
    assert torch.equal(make_augmented(name).rows(np.arange(6)), make_augmented(name).rows(np.arange(6)))
    assert not torch.equal(make_augmented(name).rows(np.arange(6)), torch.from_numpy(IMAGES[:6]))


def make_monai() -> Any:
    from monai.transforms import Compose, RandGaussianNoise, RandRotate

    return Compose([RandRotate(0.3, prob=0.9), RandGaussianNoise(prob=0.9)])


def test_only_images_are_augmented(tmp_path: Path) -> None:
    for name in EVERY:
        with refuses(AugmentError, "augment: .*allowed: 'none' with samples that are not images"):
            check_augmentation(name, (30,))
    with refuses(AugmentError, "augment: .*or package.module:factory with volumes"):
        check_augmentation("xray", (1, 8, 8, 8))
    check_augmentation(EVERY[2], (1, 8, 8, 8))
    with refuses((AugmentError, RunFailedError), "augment: .*not images"):
        federate(tmp_path / "table", {"dataset": "breast-cancer", "augment": "light"}, clients=2)
    config: dict[str, Scalar] = {"privacy.epsilon": 1.0, "strategy": "local-sgd", "model": "linear"}
    new_model(parse_run_config({**config, "augment": "light"}), (1, 12, 10))
    with refuses(AugmentError, "augment: .*with privacy.epsilon"):
        new_model(parse_run_config({**config, "augment": EVERY[2]}), (1, 12, 10))
    for strategy in ("newton", "vfb2-sgd", "describe"):
        with refuses(ConfigError, "augment: .*allowed: 'none', since"):
            parse_run_config({"strategy": strategy, "augment": "light"})
    with refuses(ConfigError, "augment: .*allowed: none, light, xray, or package.module:factory"):
        parse_run_config({"augment": "heavy"})
