"""Reading of image files as arrays of pixels, whatever their size, depth, orientation and transparency.

If all images have 8 bits, they stay bytes. Otherwise they become numbers in [0, 1], each by its own maximum: 8-bit
images are divided by 255, and grey images of 16 bits by the largest number of the bits in use (12-bit images by 4095),
which is the same for all images of a run. Other depths are an error.

All images are read once at the start, which finds damaged files and the largest number. Images that need more memory
than the cache has are dropped then, and read again when a batch needs them (`problems.data.image_rows`).
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped, UInt8

from problems.data.formats.dicom import DICOM_ENDINGS, open_dicom
from problems.data.formats.picture import Kind, Picture, PixelError
from problems.data.formats.volumes import VOLUME_ENDINGS, open_volume
from problems.data.image_rows import ImageRows, ImageStore, run_in_order
from problems.data.image_size import Change, ImageSize
from problems.data.mapped import largest_in_memory
from problems.data.spec import DataError, DataSpec
from problems.errors import MissingExtraError

GREY = ("1", "L")  # PIL's modes
DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
BITS = (8, 10, 12, 14, 16)
"""The numbers of bits that 16-bit images may use. By default a run takes the smallest number that fits all images."""
FLOATS = 1.0
"""``pixel_max`` of images that store numbers in [0, 1]."""
_ORIENTATION, _BITS_PER_SAMPLE, _PHOTOMETRIC = 0x0112, 258, 262  # tags of EXIF and TIFF
_WHITE_IS_ZERO = 0
_CODESTREAM, _PRECISION = b"\xff\x4f\xff\x51", 42  # JPEG 2000: the first markers, and the offset of a channel's bits
_SAVE_GREY = "save it as 8-bit, or as grey 16-bit PNG"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images of equal size.

    Attributes:
        pixels: The pixels (n, channels, *axes), bytes or numbers in [0, 1]. If they are larger than the cache:
            `ImageRows`.
        pixel_max: The number in 16-bit files that became 1. `FLOATS` if no image has 16 bits, but some have
            floating-point numbers, and for volumes. None if all images have 8 bits.
    """

    pixels: UInt8[np.ndarray, "n channels *axes"] | Float32[np.ndarray, "n channels *axes"] | ImageRows
    pixel_max: float | None = None


def read_images(
    paths: list[Path],
    channels: int = 0,
    *,
    bits: int = 0,
    like: float | None = 0,
    size: str = "",
    cache: int = 0,
    workers: int = DataSpec.read_workers,
) -> Pictures:
    """Read images.

    Args:
        paths: The files.
        channels: 1 for grey images; 3 for colour images, to which grey images are converted. 0: 1 if all images are
            grey, else 3.
        bits: The bits in use of 16-bit images. 0: the smallest number in `BITS` that fits all images.
        like: The ``pixel_max`` of the training images. 0: the images are for training.
        size: The value of `image-size`. "": the images must have equal sizes.
        cache: The size in MB up to which images stay in memory, as float32. 0: a share of the free memory.
        workers: The number of threads that read images.

    Raises:
        DataError: Images differ in size, cannot be read, are coloured although grey images are needed, or have 16 bits
            although no training image had; names the file or the folder.
    """
    kinds, grey = list[Kind](), True
    for path in paths:
        with _open_picture(path) as picture:
            kinds.append(picture.kind)
            grey &= picture.grey
    root = Path(os.path.commonpath([path.parent for path in paths]))
    if channels == 1 and not grey:
        raise DataError(
            root, got="coloured images", allowed="grey images, as in training", hint="convert the images to grey"
        )
    deep = [index for index, kind in enumerate(kinds) if kind == "16-bit"]
    if deep and like in (None, FLOATS):
        allowed = "8-bit or floating-point images, since no training image had 16 bits"
        raise DataError(f"images in {root}", got=f"{len(deep):,} 16-bit images", allowed=allowed, hint="save as 8-bit")
    counts = Counter(kinds)
    if volumes := counts["volume"] if len(counts) > 1 else 0:
        got, hint = f"{len(paths) - volumes:,} images and {volumes:,} volumes", "remove one of both"
        raise DataError(f"images in {root}", got=got, allowed="either images or volumes", hint=hint)
    training: Kind = "8-bit" if like is None else "floating-point" if like == FLOATS else "16-bit"
    if len(counts) > 1 or (like != 0 and kinds[0] not in (training, "volume")):
        listed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()))
        _log.warning("%s: %s images: each becomes 0 to 1 by the maximum of its depth", root, listed)
    if bits and not deep:
        _log.warning("%s: pixel-bits has no effect, since no image has 16 bits", root)
    as_bytes = set(kinds) == {"8-bit"} and like in (0, None)
    decoder = _Decoder(channels or (1 if grey else 3), ImageSize.parse(size), as_bytes)
    largest = cache * 10**6 or largest_in_memory()
    pixels, ranges, shape = _read_pixels(root, paths, decoder, largest, workers)

    def rows(deep_max: float) -> ImageRows:
        files = _Files(tuple(map(str, paths)), replace(decoder, deep_max=deep_max), shape)
        dtype = np.uint8 if as_bytes else np.float32
        return ImageRows(ImageStore(files, len(paths), shape, dtype, largest, workers), np.arange(len(paths)))

    if as_bytes:
        return Pictures(rows(FLOATS) if pixels is None else pixels)
    pixel_max = float(like or FLOATS)
    if deep and not like:
        pixel_max = _largest(ranges[deep], bits)
        words = "the images in %s have 16 bits, of which %d are used: 0 to %d become 0 to 1 (pixel-bits)"
        _log.warning(words, root, int(pixel_max).bit_length(), pixel_max)
    hint = "rescale the images" if like or not bits else "raise pixel-bits, or set it to 0"
    _check_range(paths, ranges, [pixel_max if kind == "16-bit" else FLOATS for kind in kinds], hint)
    if pixels is None:
        return Pictures(rows(pixel_max), pixel_max)
    for index in deep:
        pixels[index] /= np.float32(pixel_max)
    return Pictures(pixels, pixel_max)


def read_set(paths: list[Path], spec: DataSpec) -> Pictures:
    """Read the images of a data set.

    Args:
        paths: The files.
        spec: The options of the data set.

    Raises:
        DataError: See `read_images`.
    """
    options = {"cache": spec.image_cache, "workers": spec.read_workers}
    return read_images(paths, bits=spec.pixel_bits, size=spec.image_size, **options)


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
def _open_picture(path: Path) -> Iterator[Picture]:
    """Open an image file in a context; errors in the context name the file."""
    from PIL import Image, UnidentifiedImageError

    try:
        if path.name.lower().endswith(DICOM_ENDINGS):
            with open_dicom(path) as picture:
                yield picture
            return
        if path.name.lower().endswith(VOLUME_ENDINGS):
            with open_volume(path) as picture:
                yield picture
            return
        # pass a stream: from a path, Pillow would memory-map a TIFF, and read a rotated TIFF wrongly
        with path.open("rb") as file, Image.open(file) as image:
            _check_frames(image)
            kind, grey = _kind_of(image), image.mode in (*GREY, *DEEP, "I", "F")
            yield Picture(kind, grey, partial(_read, image, kind))
    except (DataError, MissingExtraError):
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
    if getattr(picture, "format", None) == "JPEG2000" and picture.fp:
        stored = _jpeg2000_bits(picture.fp)
    deep = picture.mode in DEEP or (picture.mode == "I" and stored == 16 and not tags)
    if (deep or picture.mode == "F") and tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        raise PixelError(f"{stored} bits of which 0 is white")
    if deep and "transparency" in picture.info:
        raise PixelError("16 bits and a transparent colour")
    if deep or picture.mode == "F":
        return "16-bit" if deep else "floating-point"
    if picture.mode.startswith("I"):
        raise PixelError("32-bit or signed integers, whose largest number is not known")
    if stored > 8:
        raise PixelError(f"{stored} bits in each channel of colour or transparency")
    return "8-bit"


def _jpeg2000_bits(file: Any) -> int:
    """Return the bits of a channel of an open JPEG 2000 file, which Pillow reduces to 8 if the image has colours."""
    position = file.seek(0, os.SEEK_CUR)
    file.seek(0)
    head = file.read(2**16)
    file.seek(position)
    start = head.find(_CODESTREAM)
    return (head[start + _PRECISION] & 0x7F) + 1 if start >= 0 else 0


@dataclass(frozen=True)
class _Decoded:
    """The pixels of an image, and properties of its file.

    Attributes:
        pixels: The pixels, resized.
        range: The smallest and largest number of the file.
        transparent: Whether transparent pixels became black.
        oblong: Whether the axes have different spacings.
        change: The effect of `image-size`; None without it.
    """

    pixels: Shaped[np.ndarray, "channels *axes"]
    range: tuple[np.float32, np.float32]
    transparent: bool
    oblong: bool
    change: Change | None


@dataclass(frozen=True)
class _Decoder:
    """A function that reads the pixels of a file.

    Attributes:
        channels: 1 or 3.
        size: The size of the pixels. None: the size in the file.
        as_bytes: Whether pixels are bytes, else float32.
        deep_max: The number in 16-bit images that becomes 1.
    """

    channels: int
    size: ImageSize | None
    as_bytes: bool
    deep_max: float = FLOATS

    def __call__(self, path: Path) -> _Decoded:
        with _open_picture(path) as picture:
            array, transparent = picture.read(self.channels)
        if array.dtype != np.uint8:
            array = array.astype(np.float32, copy=False)
        scale = np.float32(255 if array.dtype == np.uint8 and not self.as_bytes else 1)
        low, high = np.float32(array.min()) / scale, np.float32(array.max()) / scale
        change = None
        if self.size is not None:
            array, change = self.size.resize(array, picture.spacing)
        if scale != 1:
            array = array / scale
        if picture.kind == "16-bit" and self.deep_max != FLOATS:
            array = array / np.float32(self.deep_max)
        array = np.broadcast_to(array, (self.channels, *array.shape[1:]))  # a grey image among coloured images
        return _Decoded(array, (low, high), transparent, len(set(picture.spacing)) > 1, change)


@dataclass(frozen=True)
class _Files:
    """A function that reads an image by its number.

    Attributes:
        paths: The files, as text, which is pickled faster than paths.
        decoder: The function that reads a file.
        shape: The shape of all images.
    """

    paths: tuple[str, ...]
    decoder: _Decoder
    shape: tuple[int, ...]

    def __call__(self, number: int) -> Shaped[np.ndarray, "channels *axes"]:
        path = Path(self.paths[number])
        pixels = self.decoder(path).pixels
        if pixels.shape != self.shape:
            got, allowed = f"{path}, which has changed since the start", "the image at the start of the run"
            raise DataError(path.parent, got=got, allowed=allowed, hint="restore the file, or begin a new run")
        return pixels


def _read_pixels(
    root: Path, paths: list[Path], decoder: _Decoder, cache: int, workers: int
) -> tuple[Shaped[np.ndarray, "n channels *axes"] | None, Float32[np.ndarray, "n 2"], tuple[int, ...]]:
    """Read all images, 16-bit images undivided.

    Returns:
        The pixels if they fit into the cache (else None), the smallest and largest pixel of each file, and the shape of
        an image.
    """
    dtype = np.dtype(np.uint8 if decoder.as_bytes else np.float32)
    pixels: np.ndarray | None = np.empty((0, decoder.channels, 0, 0), dtype)
    ranges = np.empty((len(paths), 2), np.float32)
    clear, changes, oblong, shape = 0, list[Change | None](), 0, tuple[int, ...]()
    for index, image in enumerate(run_in_order(decoder, paths, workers)):
        array = image.pixels
        if not index:
            shape, needed = array.shape, len(paths) * array.size * np.dtype(np.float32).itemsize
            pixels = np.empty((len(paths), *shape), dtype) if needed <= cache else None
            if pixels is None:
                words = "%s: %d images of %.1f GB are read when batches need them; the cache has %.1f GB (image-cache)"
                _log.warning(words, root, len(paths), needed / 1e9, cache / 1e9)
        if array.shape[1:] != shape[1:]:
            first_size, other_size = (axes[:0:-1] for axes in (shape, array.shape))
            got = f"{paths[0].name} of {first_size}, and {paths[index]} of {other_size}"
            hint = "set image-size to resize the images, such as image-size=224"
            raise DataError(f"images in {paths[index].parent}", got=got, allowed="images of equal size", hint=hint)
        ranges[index] = image.range
        clear += image.transparent
        oblong += image.oblong
        changes.append(image.change)
        if pixels is not None:
            pixels[index] = array
    if decoder.size is not None:
        _log.warning("%s: %s", root, decoder.size.describe(changes))
    elif oblong:
        words = "%s: in %d of %d images rows and columns have different distances: image-size makes them equal"
        _log.warning(words, root, oblong, len(paths))
    if clear:
        _log.warning("%d of %d images in %s have transparent pixels: these become black", clear, len(paths), root)
    return pixels, ranges, shape


def _read(picture: Any, kind: Kind, channels: int) -> tuple[Shaped[np.ndarray, "channels height width"], bool]:
    """Return the pixels of a PIL image, and whether it has transparent pixels; see `Picture.read`."""
    rendered, transparent = _render(picture, "" if kind != "8-bit" else "L" if channels == 1 else "RGB")
    return channels_first(rendered), transparent


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


def _check_range(paths: list[Path], ranges: Float32[np.ndarray, "n 2"], maxima: Sequence[float], hint: str) -> None:
    """Raise DataError if a number is not finite or outside [0, maximum]; names the file."""
    for path, (low, high), maximum in zip(paths, ranges.tolist(), maxima, strict=True):
        if not (low >= 0 and high <= maximum):
            numbers = "floating-point numbers" if maximum == FLOATS else "grey levels"
            allowed = f"{numbers} from 0 to {maximum:g}"
            got = f"{path} with numbers from {low:g} to {high:g}"
            raise DataError(f"images in {path.parent}", got=got, allowed=allowed, hint=hint)
