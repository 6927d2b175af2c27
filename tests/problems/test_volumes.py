"""Tests of NIfTI volumes: axes, scale, size and use in a run."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from PIL import Image

from problems.data import DataError, DataSpec, load
from problems.data.formats.new_rows import read_array_rows
from problems.data.formats.pixels import read_images
from problems.data.image_rows import ImageRows
from tests.refusals import refuses

RNG = np.random.default_rng(0)
VOXELS = RNG.integers(-1000, 3000, (4, 5, 6)).astype(np.int16)  # left to right, back to front, feet to head


def write(path: Path, array: np.ndarray = VOXELS, codes: str = "RAS", zooms: tuple[float, ...] = (1, 1, 1)) -> None:
    affine = np.diag([*zooms, 1.0])
    image: Any = nibabel.Nifti1Image(array, affine)
    order = nibabel.orientations.axcodes2ornt(codes)
    nibabel.save(image.as_reoriented(nibabel.orientations.ornt_transform(nibabel.io_orientation(affine), order)), path)


@pytest.mark.parametrize("codes", ["RAS", "LPS", "PIR", "SAL"])
def test_axes_do_not_depend_on_the_order_in_the_file(tmp_path: Path, codes: str) -> None:
    write(tmp_path / "a.nii.gz", codes=codes)
    read = read_images([tmp_path / "a.nii.gz"])
    low, high = np.percentile(VOXELS, (1, 99))
    expected = np.clip((VOXELS.transpose(2, 1, 0) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(read.pixels, expected[None, None], atol=1e-6)
    assert read.pixel_max == 1


def test_volumes_are_resized_by_their_voxels_sizes(tmp_path: Path) -> None:
    mask = np.zeros((12, 16, 10), np.uint8)
    mask[0, 0, 0] = 1
    write(tmp_path / "mask.nii", mask)
    assert read_images([tmp_path / "mask.nii"]).pixels.sum() == 1
    slope = np.tile(np.arange(10.0), (12, 16, 1))  # slices of twice the thickness
    write(tmp_path / "slope.nii", slope, "LPS", (1, 1, 2))
    (volume,) = read_images([tmp_path / "slope.nii"], size="10x8x6").pixels[0]
    assert volume.shape == (10, 8, 6)
    expected = Image.fromarray(slope[0].T.astype(np.float32) / 9).resize((1, 10), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(volume, np.broadcast_to(np.asarray(expected)[:, :, None], volume.shape), atol=0.02)
    padded = read_images([tmp_path / "slope.nii"], size="20 pad").pixels[0, 0]
    assert [int((padded > 0).any(axis=axes).sum()) for axes in ((0, 1), (0, 2))] == [12, 16]


def test_a_folder_of_volumes_trains_and_new_volumes_are_read_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        for name in ("ill", "well"):
            (tmp_path / name).mkdir(exist_ok=True)
            write(tmp_path / name / f"{number}.nii.gz", RNG.normal(size=(4, 5, 6 + number)), zooms=(1, 1, 1 + number))
    data = load(DataSpec("image-folder", str(tmp_path), positive_label="ill", image_size="4"), 2)
    assert data.input_shape == (1, 4, 4, 4)
    assert data.sample_format is not None
    form = data.sample_format
    new = form.scale(np.asarray(read_array_rows(tmp_path / "ill", form, DataSpec("image-folder")).features))
    seen = {image.tobytes() for image in (*data.train.features, *data.test.features)}
    assert {image.tobytes() for image in new} < seen
    with monkeypatch.context() as small:
        small.setattr("problems.data.formats.pixels.largest_in_memory", lambda: 0)
        files = load(DataSpec("image-folder", str(tmp_path), positive_label="ill", image_size="4"), 2)
    assert isinstance(files.train.features, ImageRows)
    np.testing.assert_array_equal(files.train.features, data.train.features)
    with refuses(DataError, r"of \(4, 5, 6\), and .* of \(4, 5, 7\), allowed: images of equal size"):
        load(DataSpec("image-folder", str(tmp_path)), 2)
    with refuses(DataError, "got 2 sides, 4x4, with volumes, allowed: 3 sides, or one"):
        load(DataSpec("image-folder", str(tmp_path), image_size="4x4"), 2)
    Image.new("L", (4, 4)).save(tmp_path / "ill" / "a.png")
    with refuses(DataError, "got 1 images and 20 volumes, allowed: either images or volumes"):
        load(DataSpec("image-folder", str(tmp_path), image_size="4"), 2)


REFUSED: dict[str, tuple[np.ndarray, str]] = {
    "time": (np.zeros((4, 5, 6, 2), np.int16), "axes 4x5x6x2, which are not a single volume"),
    "constant": (np.ones((4, 5, 6), np.int16), "the same number in all voxels"),
    "infinite": (np.full((4, 5, 6), np.inf, np.float32), "voxels that are not finite"),
    "complex": (np.ones((4, 5, 6), np.complex64), "voxels of type complex64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unusable_volumes_are_refused(tmp_path: Path, name: str) -> None:
    array, line = REFUSED[name]
    write(tmp_path / "a.nii", array)
    with refuses(DataError, f"a.nii, an image with {line}"):
        read_images([tmp_path / "a.nii"])
    (tmp_path / "a.nii").write_bytes(b"no NIfTI")
    with refuses(DataError, r"a.nii, which cannot be read as NIfTI \(ImageFileError\)"):
        read_images([tmp_path / "a.nii"])
