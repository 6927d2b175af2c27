"""Reader of DICOM images by pydicom: rescaling, window, inversion, spacing of pixels.

Only the tags of the image itself are read, so no patient's name or other identity enters the process. Errors quote no
value of a file and no text of pydicom.
"""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped
from numpy.typing import NDArray

from problems.data.formats.picture import SQUARE, Picture, PixelError
from problems.data.spec import DataError
from problems.errors import require

DICOM_ENDINGS = (".dcm", ".dicom")
_MONOCHROME = ("MONOCHROME1", "MONOCHROME2")
_SPACINGS = ("PixelSpacing", "ImagerPixelSpacing", "PixelAspectRatio")
_SHAPE = ("Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration")
_BITS = ("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation")
_VALUES = ("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "VOILUTSequence", "VOILUTFunction")
_WINDOW = ("WindowCenter", "WindowWidth")
_PALETTE = tuple(
    f"{colour}PaletteColorLookupTable{part}" for colour in ("Red", "Green", "Blue") for part in ("Descriptor", "Data")
)
_TAGS = (*_SHAPE, *_BITS, *_SPACINGS, *_VALUES, *_WINDOW, *_PALETTE)
_PIXELS = ("PixelData", "ExtendedOffsetTable", "ExtendedOffsetTableLengths")

_settings_lock = threading.RLock()  # threads share the settings of pydicom and the filters of warnings


@contextmanager
def open_dicom(path: Path) -> Iterator[Picture]:
    """Open a DICOM file with a single grey or coloured image.

    Raises:
        DataError: The file is damaged, or has a compression that no installed package decodes; names the file.
        PixelError: The pixels cannot become an image.
        MissingExtraError: The extra ``medical`` is not installed.
    """
    require("DICOM images", "medical", "pydicom")
    tags = _read_tags(path, stop_before_pixels=True)
    _check_tags(path, tags)
    grey = tags.PhotometricInterpretation in _MONOCHROME
    read = partial(_read_grey, path) if grey else partial(_read_colours, path)
    yield Picture("floating-point" if grey else "8-bit", grey, read, _read_spacing(tags))


@contextmanager
def _quiet(path: Path) -> Iterator[None]:
    """Suppress warnings of pydicom, which may quote tags, and replace its errors by an error without its text."""
    from pydicom import config

    try:
        with _settings_lock, warnings.catch_warnings(), config.disable_value_validation():
            warnings.simplefilter("ignore")
            yield
    except PixelError:
        raise
    except Exception as error:  # pydicom raises many types for damaged files
        got = f"{path}, which cannot be read as DICOM ({type(error).__name__})"
        allowed, hint = "a complete DICOM image", "export the file again, or remove it"
        raise DataError(path.parent, got=got, allowed=allowed, hint=hint) from None


def _read_tags(path: Path, **options: Any) -> Any:
    from pydicom import dcmread

    with _quiet(path):
        return dcmread(path, specific_tags=[*_TAGS, *_PIXELS], **options)


def _check_tags(path: Path, tags: Any) -> None:
    """Check that the pixels can be decoded.

    Raises:
        DataError: No installed package decodes the compression.
        PixelError: The file has no image, several frames, or other numbers than integers.
    """
    from pydicom.pixels.decoders.base import get_decoder

    with _quiet(path):
        frames, syntax = int(tags.get("NumberOfFrames") or 1), tags.file_meta.TransferSyntaxUID
        if not all(tags.get(name) for name in ("Rows", "Columns", "PhotometricInterpretation")):
            raise PixelError("no pixels")
        if frames > 1:
            raise PixelError(f"{frames} frames")
        if tags.get("BitsStored") is None:
            raise PixelError("floating-point pixels")
        coloured = tags.PhotometricInterpretation not in (*_MONOCHROME, "PALETTE COLOR")
        if coloured and tags.BitsStored > 8:
            raise PixelError(f"{tags.BitsStored} bits in each channel of colour")
        try:
            has_decoder = get_decoder(syntax).is_available
        except NotImplementedError:
            raise PixelError(f"the transfer syntax {syntax.name!r}, which pydicom does not decode") from None
    if not has_decoder:
        got = f"{path}, whose pixels are compressed by {syntax.name}"
        allowed = "a compression that an installed package decodes"
        raise DataError(path.parent, got=got, allowed=allowed, hint='run pip install "pylibjpeg[all]"')


def _read_spacing(tags: Any) -> tuple[float, float]:
    """Return the distance of rows and of columns, in units of the smaller."""
    for name in _SPACINGS:
        try:
            rows, columns = map(float, tags.get(name))
        except (TypeError, ValueError):
            continue
        if min(rows, columns) > 0 and np.isfinite([rows, columns]).all():
            return rows / min(rows, columns), columns / min(rows, columns)
    return SQUARE


def _read_grey(path: Path, channels: int) -> tuple[Float32[np.ndarray, "1 height width"], bool]:
    """Return the pixels as a screen shows them: after rescaling, the window and inversion, from 0, black, to 1."""
    from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

    tags = _read_tags(path)
    with _quiet(path):
        values: NDArray[Any] = apply_modality_lut(tags.pixel_array, tags)
        low, high = _find_range(tags)
        if curve := tags.get("VOILUTSequence"):
            values, low, high = np.rint(values).astype(np.int64), 0, 2 ** int(curve[0].LUTDescriptor[2]) - 1
        elif None in [tags.get(name) for name in _WINDOW]:
            low, high = sorted((low, high))
        shown = (apply_voi_lut(values, tags).astype(np.float64) - low) / (high - low)
        if tags.PhotometricInterpretation == "MONOCHROME1":
            shown = 1 - shown
    return shown.astype(np.float32)[None], False


def _find_range(tags: Any) -> tuple[float, float]:
    """Return the numbers that the smallest and the largest stored pixel become by rescaling; a window fills them."""
    if curve := tags.get("ModalityLUTSequence"):
        return 0, 2 ** int(curve[0].LUTDescriptor[2]) - 1
    low = -(2 ** (tags.BitsStored - 1)) if tags.PixelRepresentation else 0
    high = low + 2**tags.BitsStored - 1
    slope, intercept = tags.get("RescaleSlope"), tags.get("RescaleIntercept")
    if slope is None or intercept is None:
        return low, high
    return low * float(slope) + float(intercept), high * float(slope) + float(intercept)


def _read_colours(path: Path, channels: int) -> tuple[Shaped[np.ndarray, "3 height width"], bool]:
    """Return the pixels as bytes of red, green and blue."""
    from pydicom.pixels.processing import apply_color_lut

    tags = _read_tags(path)
    with _quiet(path):
        values = tags.pixel_array
        if tags.PhotometricInterpretation == "PALETTE COLOR":
            values = apply_color_lut(values, tags)
            values = values >> 8 if values.dtype == np.uint16 else values
    return values.astype(np.uint8).transpose(2, 0, 1), False
