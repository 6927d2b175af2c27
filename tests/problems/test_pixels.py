"""Tests of image files of every depth, orientation and transparency, and of folders with other files."""

import logging
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from problems.data import DataError, DataSpec, SampleFormat, load, read_own
from problems.data.formats.image_folders import pictures
from problems.data.formats.new_rows import read_array_rows
from problems.data.formats.pixels import pixels_of, read_images
from tests.refusals import refuses

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 8)).astype(np.uint8)
DEEP = RNG.integers(0, 4096, (6, 8)).astype(np.uint16)
DEEP[0, 0] = 4095


def form_of(pixel_max: float | None, shape: tuple[int, ...] = (1, 6, 8), size: str = "") -> SampleFormat:
    return SampleFormat(shape, pixel_max is None, ("well",), ("ill",), pixel_max, size)


def png16(path: Path, channels: int, kind: int) -> None:
    """Write a PNG file with 16 bits in each of several channels, which Pillow cannot write."""
    rows = RNG.integers(0, 4096, (6, 8 * channels)).astype(">u2")

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 6, 16, kind, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows)))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b""))


@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize(("bits", "pixel_max"), [(0, 4095), (12, 4095), (16, 65535)])
def test_16_bit_images_are_scaled_by_the_bits_in_use(tmp_path: Path, ending: str, bits: int, pixel_max: int) -> None:
    Image.fromarray(DEEP).save(tmp_path / f"a.{ending}")
    Image.fromarray(DEEP // 2).save(tmp_path / f"b.{ending}")
    read = read_images(sorted(tmp_path.iterdir()), bits=bits)
    assert read.pixel_max == pixel_max
    np.testing.assert_array_equal(read.pixels[0, 0], DEEP / np.float32(pixel_max))
    np.testing.assert_array_equal(read.pixels[1, 0], DEEP // 2 / np.float32(pixel_max))


def test_floats_in_the_unit_interval_stay_and_others_are_refused(tmp_path: Path) -> None:
    unit = (DEEP / 4095).astype(np.float32)
    Image.fromarray(unit).save(tmp_path / "a.tif")
    read = read_images([tmp_path / "a.tif"])
    assert read.pixel_max == 1
    np.testing.assert_array_equal(read.pixels[0, 0], unit)
    unit[1, 1] = np.nan
    for values in (unit, DEEP.astype(np.float32), -DEEP.astype(np.float32)):
        Image.fromarray(values).save(tmp_path / "a.tif")
        with refuses(DataError, r"a\.tif with numbers from .* allowed: floating-point numbers from 0 to 1"):
            read_images([tmp_path / "a.tif"])


def save_frames(path: Path, **options: Any) -> None:
    Image.fromarray(GREY).save(path, save_all=True, append_images=[Image.fromarray(255 - GREY)], **options)


REFUSED = {
    "rgb.png": (lambda path: png16(path, 3, 2), "16 bits in each channel of colour"),
    "la.png": (lambda path: png16(path, 2, 4), "16 bits in each channel of colour or transparency"),
    "int.tif": (lambda path: Image.fromarray(DEEP.astype(np.int32)).save(path), "32-bit or signed integers"),
    "pages.tif": (save_frames, "2 frames"),
    "moving.png": (save_frames, "2 frames"),
    "gif.png": (lambda path: save_frames(path, format="GIF"), "2 frames"),
    "webp.png": (lambda path: save_frames(path, format="WEBP"), "2 frames"),
    "white.tif": (lambda path: Image.fromarray(DEEP).save(path, tiffinfo={262: 0}), "16 bits of which 0 is white"),
    "cut.png": (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n"), "cannot be read as an image"),
    "empty.jpg": (lambda path: path.write_bytes(b""), "an unknown format"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused_by_name(tmp_path: Path, name: str) -> None:
    write, told = REFUSED[name]
    write(tmp_path / name)
    with refuses(DataError, f"{name}, .*{told}"):
        read_images([tmp_path / name])


def test_depths_mix_each_by_its_maximum_in_training_and_for_new_images(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unit, colour = (GREY / 255).astype(np.float32), np.dstack([GREY] * 3)
    for name, array in {"a8.png": GREY, "b16.png": DEEP, "c.tif": unit, "d.png": colour}.items():
        Image.fromarray(array).save(tmp_path / name)
    paths = sorted(tmp_path.iterdir())
    read = read_images(paths)
    assert read.pixel_max == 4095
    assert "1 16-bit, 2 8-bit, 1 floating-point images" in caplog.text
    byte, deep = GREY / np.float32(255), DEEP / np.float32(4095)
    for pixels, expected in zip(read.pixels, (byte, deep, unit, byte), strict=True):
        np.testing.assert_array_equal(pixels, np.stack([expected] * 3))
    for index, path in enumerate(paths):
        new = read_array_rows(path, form_of(4095.0, (3, 6, 8)), DataSpec("image-folder")).features
        np.testing.assert_array_equal(np.asarray(new), read.pixels[index : index + 1])
    for maximum in (None, 1.0):
        with refuses(DataError, "1 16-bit images, allowed: 8-bit or floating-point images, since no training image"):
            read_array_rows(tmp_path / "b16.png", form_of(maximum), DataSpec("image-folder"))
    with refuses(DataError, r"b16\.png with numbers from .* to 4095, allowed: grey levels from 0 to 1023"):
        read_images([tmp_path / "b16.png"], like=1023.0)
    assert read_images(paths[:1], bits=12).pixels.dtype == np.uint8
    assert "pixel-bits has no effect" in caplog.text
    with refuses(DataError, "got a 16-bit image"):
        pixels_of(Image.fromarray(DEEP))


@pytest.mark.skipif(not features.check("jpg_2000"), reason="Pillow without OpenJPEG")
def test_jpeg_2000_files_are_read_and_deep_colours_refused(tmp_path: Path) -> None:
    for name, array in {"a.jp2": GREY, "b.j2k": np.dstack([GREY] * 3), "c.jp2": DEEP}.items():
        Image.fromarray(array).save(tmp_path / name)
    assert [path.name for path in pictures(tmp_path)[0]] == ["a.jp2", "b.j2k", "c.jp2"]
    np.testing.assert_array_equal(read_images([tmp_path / "a.jp2"]).pixels[0, 0], GREY)
    np.testing.assert_array_equal(read_images([tmp_path / "b.j2k"]).pixels[0], [GREY] * 3)
    deep = read_images([tmp_path / "c.jp2"], bits=16).pixels[0, 0]
    np.testing.assert_array_equal(deep, DEEP / np.float32(65535))
    content = bytearray((tmp_path / "b.j2k").read_bytes())
    content[42:51:3] = [15] * 3  # the channels' bits, less one
    (tmp_path / "b.j2k").write_bytes(content)
    with refuses(DataError, "b.j2k, .*16 bits in each channel of colour"):
        read_images([tmp_path / "b.j2k"])


def test_arrays_of_deep_pixels_are_scaled_as_the_files_were() -> None:
    form = SampleFormat((2,), False, ("0",), ("1",), 4095.0)
    assert SampleFormat.from_json(form.to_json()) == form
    integers = np.array([[0, 4095], [819, 1]], np.uint16)
    np.testing.assert_array_equal(form.scale(integers), integers / np.float32(4095))
    np.testing.assert_array_equal(form.scale(integers / 4095), form.scale(integers))
    for wrong in (integers.astype(np.uint8), integers + 1, integers.astype(float)):
        with refuses(DataError, "pixels: got"):
            form.scale(wrong)


# The white corner of a wide image as stored -> the corner of the upright image, by the orientation tag.
UPRIGHT = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0), 5: (0, 0), 6: (0, -1), 7: (-1, -1), 8: (-1, 0)}


@pytest.mark.parametrize("ending", ["jpg", "png", "tif"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_images_are_turned_upright(tmp_path: Path, ending: str, orientation: int) -> None:
    array = np.zeros((16, 32), np.uint8)
    array[:8, :16] = 200
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(array).save(tmp_path / f"a.{ending}", exif=exif)
    (pixels,) = read_images([tmp_path / f"a.{ending}"]).pixels[0]
    assert pixels.shape == ((16, 32) if orientation < 5 else (32, 16))
    corners = {(row, column) for row in (0, -1) for column in (0, -1) if pixels[row, column] > 100}
    assert corners == {UPRIGHT[orientation]}


def test_transparent_pixels_are_put_on_black(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    colour = RNG.integers(1, 256, (6, 8, 3)).astype(np.uint8)
    alpha = np.full((6, 8), 255, np.uint8)
    Image.fromarray(np.dstack([colour, alpha])).save(tmp_path / "rgba.png")
    np.testing.assert_array_equal(read_images([tmp_path / "rgba.png"]).pixels[0], colour.transpose(2, 0, 1))
    assert not caplog.records
    alpha[:3] = 0
    Image.fromarray(np.dstack([colour, alpha])).save(tmp_path / "rgba.png")
    seen = np.where(alpha[..., None] > 0, colour, 0).transpose(2, 0, 1)
    np.testing.assert_array_equal(read_images([tmp_path / "rgba.png"]).pixels[0], seen)
    assert "1 of 1 images" in caplog.text
    np.testing.assert_array_equal(pixels_of(Image.open(tmp_path / "rgba.png")), seen)
    Image.fromarray(GREY).save(tmp_path / "grey.png", transparency=int(GREY[0, 0]))
    pixels = read_images([tmp_path / "grey.png"]).pixels[0, 0]
    np.testing.assert_array_equal(pixels, np.where(GREY[0, 0] == GREY, 0, GREY))


def write_classes(root: Path, array: np.ndarray, count: int = 10) -> DataSpec:
    for number in range(count):
        for name in ("ill", "well"):
            (root / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(root / name / f"{number}.png")
    return DataSpec(dataset="image-folder", data_dir=str(root), positive_label="ill")


def test_hidden_files_are_left_out_and_others_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = write_classes(tmp_path, GREY)
    assert len(load(spec, 2).train) == 16
    assert not caplog.records
    for name in (".ipynb_checkpoints/1.png", "__MACOSX/ill/._1.png", "ill/._1.png", "ill/.DS_Store", "well/Thumbs.db"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((tmp_path / "ill" / "1.png").read_bytes())
    (tmp_path / "labels.csv").touch()
    (tmp_path / "ill" / "1.GIF").touch()
    (tmp_path / "well" / "1.png").rename(tmp_path / "well" / "1.PNG")
    data = load(spec, 2)
    assert len(data.train) == 16
    assert data.sample_format is not None
    assert data.sample_format.negative_labels == ("well",)
    (record,) = caplog.records
    told = record.getMessage()
    assert record.levelno == logging.WARNING
    for part in (
        "20 are read",
        "2 hidden in ill",
        "1 hidden in well",
        "1 .GIF in ill",
        "1 .csv",
        "1 hidden in __MACOSX",
    ):
        assert part in told


@pytest.mark.parametrize("home", ["", "train", "test"])
def test_a_class_folder_without_an_image_is_an_error(tmp_path: Path, home: str) -> None:
    tmp_path /= ".data"  # a hidden folder is read if it is the data-dir itself
    spec = write_classes(tmp_path / ("train" if home else ""), GREY)
    if home == "test":
        write_classes(tmp_path / home, GREY)
    (tmp_path / home / "other").mkdir()
    (tmp_path / home / "other" / "1.gif").touch()
    with refuses(DataError, r"other: got no image, but files 1 \.gif, allowed: files .png, "):
        load(DataSpec("image-folder", str(tmp_path), positive_label=spec.positive_label), 2)


def test_a_test_folder_without_class_folders_is_an_error(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", GREY)
    (tmp_path / "test").mkdir()
    Image.fromarray(GREY).save(tmp_path / "test" / "1.png")
    with refuses(DataError, re.escape("test: got no class folder, but files 1 .png")):
        load(DataSpec("image-folder", str(tmp_path)), 2)


def test_sites_report_the_depth_of_their_images(tmp_path: Path) -> None:
    spec = DataSpec(dataset="image-folder", partition="own", positive_label="ill", pixel_bits=14)
    for name, array, pixel_max in (("a", DEEP, 2.0**14 - 1), ("b", GREY, None)):
        write_classes(tmp_path / name, array)
        assert read_own(str(tmp_path / name), spec, 0).pixel_max == pixel_max
    with refuses(DataError, "pixel-bits: got 7, allowed: 0 or 8 to 16"):
        load(DataSpec("image-folder", str(tmp_path / "a"), pixel_bits=7), 2)
    with refuses(DataError, "pixel-bits: got 12, allowed: 0 with dataset 'digits'"):
        load(DataSpec(pixel_bits=12), 2)
