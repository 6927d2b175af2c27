"""Tests of DICOM images: values against pydicom's own, proportions of pixels, and no patient's tag in any message."""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut
from pydicom.uid import ExplicitVRLittleEndian, JPEGLSLossless

from problems.data import DataError, DataSpec, load
from problems.data.formats.dicom import _read_tags
from problems.data.formats.pixels import read_images
from problems.data.image_rows import ImageRows
from tests.refusals import refuses

RNG = np.random.default_rng(0)
CT = RNG.integers(0, 4096, (6, 8)).astype(np.uint16)
CT[0, :2] = 0, 4095
SIGNED = CT.astype(np.int16) - 2048
NAME, UID = "Jane^Doe", "1.2.3.04567.89"


@pydicom.config.disable_value_validation()
def write(path: Path, array: np.ndarray, bits: int = 12, **tags: Any) -> None:
    """Write an image with a patient's name, and an invalid number of the image."""
    data, syntax = Dataset(), tags.pop("syntax", ExplicitVRLittleEndian)
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = syntax
    data.file_meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = pydicom.uid.UID(UID)
    data.PatientName = NAME
    data.Rows, data.Columns = array.shape[:2]
    data.SamplesPerPixel, data.PlanarConfiguration = 3 if array.ndim == 3 else 1, 0
    data.PhotometricInterpretation = "RGB" if array.ndim == 3 else "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit = 8 * array.itemsize, bits, bits - 1
    data.PixelRepresentation = int(array.dtype.kind == "i")
    content = encapsulate([array.tobytes()]) if syntax.is_compressed else array.tobytes()
    data.add_new("PixelData", "OB" if array.itemsize == 1 or syntax.is_compressed else "OW", content)
    for name, value in tags.items():
        setattr(data, name, value)
    data.save_as(path, enforce_file_format=True)


def lut(first: int, values: list[int], bits: int) -> list[Dataset]:
    item = Dataset()
    item.add_new("LUTDescriptor", "US", [len(values), first, bits])
    item.add_new("LUTData", "US", values)
    return [item]


CASES: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
    "plain": (CT, {}),
    "signed": (SIGNED, {}),
    "rescaled": (CT, {"RescaleSlope": 2, "RescaleIntercept": -1024}),
    "linear": (CT, {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 400}),
    "exact": (SIGNED, {"WindowCenter": [40, 0], "WindowWidth": [400, 1], "VOILUTFunction": "LINEAR_EXACT"}),
    "sigmoid": (CT, {"WindowCenter": 2000, "WindowWidth": 900, "VOILUTFunction": "SIGMOID"}),
    "inverted": (CT, {"PhotometricInterpretation": "MONOCHROME1", "WindowCenter": 2000, "WindowWidth": 4000}),
    "curve": (CT, {"RescaleSlope": 1, "RescaleIntercept": 0, "VOILUTSequence": lut(0, [*range(4096)][::-1], 14)}),
    "modality": (CT, {"ModalityLUTSequence": lut(0, [16 * x for x in range(4096)], 16)}),
}
# The ends of the range of numbers of pydicom's result.
RANGES = {
    "signed": (-2048, 2047),
    "rescaled": (-1024, 7166),
    "linear": (-1024, 3071),
    "exact": (-2048, 2047),
    "curve": (0, 2**14 - 1),
    "modality": (0, 65535),
}


@pytest.mark.parametrize("name", CASES)
def test_grey_values_equal_those_of_pydicom(tmp_path: Path, name: str) -> None:
    array, tags = CASES[name]
    write(tmp_path / "a.dcm", array, **tags)
    data = pydicom.dcmread(tmp_path / "a.dcm")
    values = apply_modality_lut(data.pixel_array, data)
    if name == "curve":
        values = values.astype(int)
    low, high = RANGES.get(name, (0, 4095))
    expected = (apply_voi_lut(values, data) - low) / (high - low)
    expected = 1 - expected if name == "inverted" else expected
    read = read_images([tmp_path / "a.dcm"])
    assert read.pixel_max == 1
    np.testing.assert_allclose(read.pixels[0, 0], expected, atol=1e-6)
    assert np.ptp(expected) > 0.2


def test_a_negative_slope_inverts_only_once(tmp_path: Path) -> None:
    for name, window in (("a.dcm", {}), ("b.dcm", {"WindowCenter": -2047, "WindowWidth": 4096})):
        write(tmp_path / name, CT, RescaleSlope=-1, RescaleIntercept=0, **window)
        np.testing.assert_allclose(read_images([tmp_path / name]).pixels[0, 0], 1 - CT / 4095, atol=1e-3)


def test_a_folder_mixes_sizes_depths_colours_and_formats(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    colour = RNG.integers(0, 256, (12, 12, 3)).astype(np.uint8)
    write(tmp_path / "a.dcm", colour, bits=8)
    write(tmp_path / "b.DICOM", CT.repeat(2, axis=1), ImagerPixelSpacing=[0.4, 0.2])
    Image.fromarray(CT).save(tmp_path / "c.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(colour[:6]).save(tmp_path / "d.png", exif=turned)
    Image.fromarray((CT / 4095).astype(np.float32)).save(tmp_path / "e.tif")
    names = sorted(tmp_path.iterdir())
    read = read_images(names, size="3x4")
    assert read.pixels.shape == (5, 3, 3, 4)
    assert "1 16-bit, 2 8-bit, 2 floating-point images" in caplog.text
    small = Image.fromarray(CT.astype(np.float32)).resize((4, 3), Image.Resampling.BILINEAR)
    for index in (1, 2, 4):  # the same picture: pixels of b are twice as high as wide
        assert read.pixels[index] == pytest.approx(np.stack([np.asarray(small) / 4095] * 3), abs=0.2)
    np.testing.assert_allclose(read.pixels[2, 0], np.asarray(small) / 4095, atol=1e-6)
    single = read_images(names[:1]).pixels
    assert single.dtype == np.uint8
    np.testing.assert_array_equal(single[0], colour.transpose(2, 0, 1))
    read_images(names[1:2])
    assert "in 1 of 1 images rows and columns have different distances" in caplog.text
    monkeypatch.setattr("problems.data.formats.pixels.largest_in_memory", lambda: 0)
    filters = [*warnings.filters]
    from_files = read_images(names, size="3x4", workers=4).pixels
    assert isinstance(from_files, ImageRows)
    np.testing.assert_array_equal(from_files, read.pixels)
    assert warnings.filters == filters


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "frames": ({"NumberOfFrames": 3}, "3 frames"),
    "jpeg-ls": ({"syntax": JPEGLSLossless}, r"compressed by JPEG-LS .*; run pip install \"pylibjpeg"),
    "private": ({"syntax": pydicom.uid.UID("1.2.840.10008.1.2.4.100")}, "which pydicom does not decode"),
    "rows": ({"Rows": 600}, r"cannot be read as DICOM \(ValueError\)"),
    "window": ({"WindowCenter": 40, "WindowWidth": 0}, r"cannot be read as DICOM \(ValueError\)"),
    "function": (
        {"WindowCenter": 40, "WindowWidth": 9, "VOILUTFunction": NAME},
        r"cannot be read as DICOM \(ValueError\)",
    ),
    "empty": ({"Rows": None}, "no pixels"),
    "deep": ({"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3}, "12 bits in each channel of colour"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unusable_files_are_refused_without_a_tag_of_the_patient(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    tags, line = REFUSED[name]
    for folder in ("ill", "well"):
        (tmp_path / folder).mkdir()
        for number in range(5):
            write(tmp_path / folder / f"{number}.dcm", CT, **({} if folder == "ill" else tags))
    spec = DataSpec("image-folder", str(tmp_path))
    with caplog.at_level(logging.DEBUG), refuses(DataError, line) as caught:
        load(spec, 2)
    error: BaseException | None = caught.value
    texts = [caplog.text, *(str(warning.message) for warning in recwarn)]
    while error is not None:
        texts += [str(error), repr(vars(error))]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert not any(secret in text.lower() for text in texts for secret in ("jane", UID))
    assert not {"PatientName", "SOPInstanceUID"} & {*_read_tags(tmp_path / "ill" / "0.dcm").dir()}
    (tmp_path / "well" / "0.dcm").write_bytes(b"no DICOM")
    with refuses(DataError, r"0.dcm, which cannot be read as DICOM \(InvalidDicomError\)"):
        load(spec, 2)
