"""Reading of image files as arrays of pixels, whatever their size, depth, orientation and transparency.

8-bit images stay bytes. Grey images of 16 bits become numbers in [0, 1]: they are divided by the largest number of the
bits in use (12-bit images by 4095), which is the same for all images of a run. Other depths are an error.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Shaped, UInt8

from problems.data.image_size import Change, ImageSize
from problems.data.spec import DataError

Kind = Literal["8-bit", "16-bit", "float"]

GREY = ("1", "L")  # PIL's modes
DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
BITS = (8, 10, 12, 14, 16)
"""The numbers of bits that 16-bit images may use. By default a run takes the smallest number that fits all images."""
SQUARE = (1.0, 1.0)
"""The spacing of pixels along both axes in images whose files have no other spacing."""
FLOATS = 1.0
"""``pixel_max`` of images that store numbers in [0, 1]."""
_ORIENTATION, _BITS_PER_SAMPLE, _PHOTOMETRIC = 0x0112, 258, 262  # tags of EXIF and TIFF
_WHITE_IS_ZERO = 0
_SAVE_GREY = "save it as 8-bit, or as grey 16-bit PNG"

_log = logging.getLogger(__name__)


class PixelError(ValueError):
    """An image with unusable pixels; the message continues the text "an image with"."""


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images of equal size.

    Attributes:
        pixels: The pixels (n, channels, height, width), bytes or numbers in [0, 1].
        pixel_max: The pixel value in the files that became 1, for images of more than 8 bits. None for bytes.
    """

    pixels: UInt8[np.ndarray, "n channels height width"] | Float32[np.ndarray, "n channels height width"]
    pixel_max: float | None = None


def read_images(
    paths: list[Path], channels: int = 0, *, bits: int = 0, like: float | None = 0, size: str = ""
) -> Pictures:
    """Read images.

    Args:
        paths: The files.
        channels: 1 for grey images; 3 for colour images, to which grey images are converted. 0: 1 if all images are
            grey, else 3.
        bits: The bits in use of 16-bit images. 0: the smallest number in `BITS` that fits all images.
        like: The ``pixel_max`` of the training images, which the images must match. 0: the images are for training.
        size: The value of `image-size`. "": the images must have equal sizes.

    Raises:
        DataError: Images differ in size or depth, cannot be read, or are coloured although grey images are needed;
            names the file.
    """
    kinds: dict[Kind, Path] = {}
    grey = True
    for path in paths:
        with _open_picture(path) as picture:
            _check_frames(picture)
            kinds.setdefault(_kind_of(picture), path)
            grey &= picture.mode in (*GREY, *DEEP, "I", "F")
    where = paths[0].parent
    if len(kinds) > 1:
        got = " and ".join(f"{kind} images ({path.name})" for kind, path in kinds.items())
        raise DataError(
            f"images in {where}", got=got, allowed="images of equal depth", hint="save all images in the same depth"
        )
    if channels == 1 and not grey:
        raise DataError(
            where, got="coloured images", allowed="grey images, as in training", hint="convert the images to grey"
        )
    (kind,) = kinds
    _check_kind(where, kind, bits, like)
    dtype = np.uint8 if kind == "8-bit" else np.float32
    pixels, ranges = _read_pixels(paths, channels or (1 if grey else 3), dtype, ImageSize.parse(size))
    if kind == "8-bit":
        return Pictures(pixels)
    pixel_max = float(like) if like else FLOATS if kind == "float" else _largest(ranges, bits)
    _check_range(
        paths, ranges, pixel_max, "rescale the images" if like or not bits else "raise pixel-bits, or set it to 0"
    )
    if pixel_max != FLOATS:
        np.divide(pixels, np.float32(pixel_max), out=pixels)
        if not like:
            words = "the images in %s have 16 bits, of which %d are used: 0 to %d become 0 to 1 (pixel-bits)"
            _log.warning(words, where.parent, int(pixel_max).bit_length(), pixel_max)
    return Pictures(pixels, pixel_max)


def pixels_of(picture: Any) -> UInt8[np.ndarray, "channels height width"]:
    """Return the pixels of a PIL image: grey if the image is grey, else red, green and blue.

    Args:
        picture: The image, from a user's code or another library.

    Raises:
        DataError: The image has more than 8 bits in a channel.
    """
    try:
        kind = _kind_of(picture)
    except PixelError as error:
        raise DataError("image", got=f"an image with {error}", allowed="8-bit channels", hint=_SAVE_GREY) from None
    if kind != "8-bit":
        hint = "return an array of numbers in [0, 1] instead of the image"
        raise DataError("image", got=f"a {kind} image (mode {picture.mode})", allowed="8-bit channels", hint=hint)
    return channels_first(_render(picture, "L" if picture.mode in GREY else "RGB")[0])


@contextmanager
def _open_picture(path: Path) -> Iterator[Any]:
    """Open an image file in a context; errors in the context name the file."""
    from PIL import Image, UnidentifiedImageError

    try:
        # pass a stream: from a path, Pillow would memory-map a TIFF, and read a rotated TIFF wrongly
        with path.open("rb") as file, Image.open(file) as picture:
            yield picture
    except DataError:
        raise
    except PixelError as error:
        allowed = "a single frame with 8-bit channels, 16-bit grey levels, or grey floating-point numbers"
        got, hint = f"{path}, an image with {error}", "convert the file, or remove it"
        raise DataError(path.parent, got=got, allowed=allowed, hint=hint) from error
    except Exception as error:  # the library raises many unrelated types for damaged files
        why = "an unknown format" if isinstance(error, UnidentifiedImageError) else error
        got = f"{path}, which cannot be read as an image ({why})"
        raise DataError(path.parent, got=got, allowed="a complete image", hint="replace or remove the file") from error


def _check_frames(picture: Any) -> None:
    # in a phone's .jpg (MPO), frames after the first are a preview or a depth map
    if picture.format != "MPO" and (count := getattr(picture, "n_frames", 1)) > 1:
        raise PixelError(f"{count} frames")


def _kind_of(picture: Any) -> Kind:
    """Return the kind of an image's numbers.

    Raises:
        PixelError: The numbers cannot become pixels without loss.
    """
    tags = getattr(picture, "tag_v2", {})
    stored = max(tags.get(_BITS_PER_SAMPLE, (0,)), default=0)
    if getattr(picture, "format", None) == "PNG" and any(
        ";16" in str(tile[3]) for tile in getattr(picture, "tile", [])
    ):
        stored = 16
    deep = picture.mode in DEEP or (picture.mode == "I" and stored == 16 and not tags)
    if (deep or picture.mode == "F") and tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        raise PixelError(f"{stored} bits of which 0 is white")
    if deep and "transparency" in picture.info:
        raise PixelError("16 bits and a transparent colour")
    if deep or picture.mode == "F":
        return "16-bit" if deep else "float"
    if picture.mode.startswith("I"):
        raise PixelError("32-bit or signed integers, whose largest number is not known")
    if stored > 8:
        raise PixelError(f"{stored} bits in each channel of colour or transparency")
    return "8-bit"


def _check_kind(where: Path, kind: Kind, bits: int, like: float | None) -> None:
    """Raise DataError if the depth differs from the training images', or `pixel-bits` is set without 16-bit images."""
    if like != 0:
        wanted: Kind = "8-bit" if like is None else "float" if like == FLOATS else "16-bit"
        if kind != wanted:
            allowed = f"{wanted} images, as in training"
            raise DataError(f"images in {where}", got=f"{kind} images", allowed=allowed, hint=f"save as {wanted}")
    elif bits and kind != "16-bit":
        got = f"{bits}, with {kind} images in {where}"
        raise DataError("pixel-bits", got=got, allowed=f"0 for {kind} images", hint="remove pixel-bits")


def _read_pixels(
    paths: list[Path], channels: int, dtype: Any, size: ImageSize | None
) -> tuple[Shaped[np.ndarray, "n channels height width"], Float32[np.ndarray, "n 2"]]:
    """Return the pixels of images without scaling of their values, and the smallest and largest pixel of each file."""
    pixels: np.ndarray = np.empty((0, channels, 0, 0), dtype)
    ranges = np.empty((len(paths), 2), np.float32)
    clear, changes = 0, list[Change]()
    for index, path in enumerate(paths):
        with _open_picture(path) as picture:
            rendered, transparent = _render(picture, "" if dtype != np.uint8 else "L" if channels == 1 else "RGB")
            clear += transparent
            array = channels_first(rendered).astype(dtype, copy=False)
        ranges[index] = array.min(), array.max()
        if size is not None:
            array, change = size.resize(array, SQUARE)
            changes.append(change)
        if not index:
            pixels = np.empty((len(paths), channels, *array.shape[1:]), dtype)
        if array.shape[1:] != pixels.shape[2:]:
            first_size, other_size = ((shape[1], shape[0]) for shape in (pixels.shape[2:], array.shape[1:]))
            got = f"{paths[0].name} of {first_size}, and {path} of {other_size}"
            hint = "set image-size to resize the images, such as image-size=224"
            raise DataError(f"images in {path.parent}", got=got, allowed="images of equal size", hint=hint)
        pixels[index] = array
    if size is not None:
        _log.warning("%s: %s", paths[0].parents[1], size.describe(changes))
    if clear:
        _log.warning(
            "%d of %d images in %s have transparent pixels: these become black",
            clear,
            len(paths),
            paths[0].parents[1],
        )
    return pixels, ranges


def _render(picture: Any, mode: str) -> tuple[Any, bool]:
    """Rotate an image upright, fill transparent pixels with black, and convert the image to a mode.

    Args:
        picture: The image.
        mode: The mode of the result. "": the image's own mode.

    Returns:
        The image, and whether it has transparent pixels.
    """
    from PIL import Image, ImageOps

    picture.load()  # also rotates a TIFF
    if picture.getexif().get(_ORIENTATION, 1) != 1:
        picture = ImageOps.exif_transpose(picture)
    if not mode:
        return picture, False
    if "A" in picture.getbands() or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        if layer.getchannel("A").getextrema()[0] < 255:
            ground = Image.new("RGBA", layer.size, (0, 0, 0, 255))
            return Image.alpha_composite(ground, layer).convert(mode), True
    return picture.convert(mode), False


def channels_first(picture: Any) -> Shaped[np.ndarray, "channels height width"]:
    """Return a picture's pixels with the channels first; one-bit pixels become bytes."""
    array = np.asarray(picture)
    if array.dtype == bool:
        array = array.astype(np.uint8)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _largest(ranges: Float32[np.ndarray, "n 2"], bits: int) -> float:
    """Return the largest number that the bits in use can store."""
    return float(2 ** (bits or next(depth for depth in BITS if ranges[:, 1].max() < 2**depth)) - 1)


def _check_range(paths: list[Path], ranges: Float32[np.ndarray, "n 2"], pixel_max: float, hint: str) -> None:
    """Raise DataError if a number is not finite or outside [0, pixel_max]; names the file."""
    for path, (low, high) in zip(paths, ranges.tolist(), strict=True):
        if not (low >= 0 and high <= pixel_max):
            numbers = "floating-point numbers" if pixel_max == FLOATS else "grey levels"
            allowed = f"{numbers} from 0 to {pixel_max:g}"
            got = f"{path} with numbers from {low:g} to {high:g}"
            raise DataError(f"images in {path.parent}", got=got, allowed=allowed, hint=hint)
