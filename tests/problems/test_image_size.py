"""Tests of `image-size`: values against Pillow's own functions, proportions, and new images as in training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from problems.data import DataError, DataSpec, load
from problems.data.formats.new_rows import read_array_rows
from problems.data.formats.pixels import read_images
from problems.data.image_size import ImageSize
from tests.refusals import refuses

RNG = np.random.default_rng(0)
BILINEAR = Image.Resampling.BILINEAR


@pytest.mark.parametrize(("text", "make"), [("5x8", ImageOps.fit), ("5x8 pad", ImageOps.pad)])
@pytest.mark.parametrize("shape", [(20, 11), (7, 31), (5, 8), (10, 16), (3, 3)])
def test_images_are_resized_as_pillow_does(tmp_path: Path, text: str, make: Any, shape: tuple[int, int]) -> None:
    bytes_ = RNG.integers(0, 256, (*shape, 3)).astype(np.uint8)
    deep = RNG.integers(0, 65536, shape).astype(np.uint16)
    for array, name in ((bytes_, "a.png"), (deep, "b.png")):
        Image.fromarray(array).save(tmp_path / name)
    pixels = read_images([tmp_path / "a.png"], size=text).pixels[0]
    expected = np.asarray(make(Image.fromarray(bytes_), (8, 5), BILINEAR))
    np.testing.assert_array_equal(pixels, expected.transpose(2, 0, 1))
    pixels = read_images([tmp_path / "b.png"], bits=16, size=text).pixels[0, 0]
    expected = np.asarray(make(Image.fromarray(deep.astype(np.float32)), (8, 5), BILINEAR))
    np.testing.assert_allclose(pixels, expected / 65535, atol=1e-6)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=3), st.booleans(), st.lists(st.integers(1, 9), min_size=3))
def test_resizing_keeps_proportions_and_constants(lengths: list[int], pads: bool, gaps: list[int]) -> None:
    size, spacing = ImageSize((12,), pads), [float(gap) for gap in gaps[: len(lengths)]]
    resized, change = size.resize(np.full((1, *lengths), 0.5, np.float32), spacing)
    assert resized.shape == (1, *[12] * len(lengths))
    true = [length * gap for length, gap in zip(lengths, spacing, strict=True)]
    shown = np.isclose(resized[0], 0.5)
    if not pads:
        assert shown.all()
        assert change.share == pytest.approx(1 - min(true) / max(true), abs=1e-6)
        return
    assert np.isin(resized, (0, resized.max())).all()
    sides = [int(shown.any(axis=tuple(set(range(len(true))) - {axis})).sum()) for axis in range(len(true))]
    assert sides == [max(round(12 * length / max(true)), 1) for length in true]


def test_a_folder_of_sizes_trains_and_new_images_are_read_in_the_same_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10):
        for name in ("ill", "well"):
            (tmp_path / name).mkdir(exist_ok=True)
            array = RNG.integers(0, 256, (8 + 4 * (number % 2), 8)).astype(np.uint8)
            Image.fromarray(array).save(tmp_path / name / f"{number}.png")
    spec = DataSpec("image-folder", str(tmp_path), partition="consecutive", positive_label="ill", image_size="4")
    data = load(spec, 2)
    assert data.input_shape == (1, 4, 4)
    assert data.sample_format is not None
    line = "image-size 4: 20 of 20 images are scaled by 0.5, 10 are cropped by at most 33% of a side"
    assert line in caplog.text
    form = type(data.sample_format).from_json(data.sample_format.to_json())
    assert form == data.sample_format
    new = form.scale(np.asarray(read_array_rows(tmp_path, form, DataSpec("image-folder")).features))
    seen = {image.tobytes() for image in (*data.train.features, *data.test.features)}
    assert {image.tobytes() for image in new} == seen
    with refuses(DataError, r"allowed: images of equal size; set image-size to resize the images"):
        load(DataSpec("image-folder", str(tmp_path)), 2)
    for size, line in (("4x", "image-size: got '4x'"), ("4x4x4", "image-size: got 3 sides, 4x4x4, with images")):
        with refuses(DataError, line):
            load(DataSpec("image-folder", str(tmp_path), image_size=size), 2)
    with refuses(DataError, "image-size: got '4', allowed: '' with dataset 'digits'"):
        load(DataSpec(image_size="4"), 2)
