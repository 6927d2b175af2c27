"""Reader of NIfTI volumes by nibabel: orientation, spacing of voxels, and a scale for each volume."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from problems.data.formats.picture import Picture, PixelError
from problems.data.spec import DataError
from problems.errors import require

VOLUME_ENDINGS = (".nii", ".nii.gz")
PERCENTILES = (1, 99)
"""The percentiles of a volume's voxels that become 0 and 1."""


@contextmanager
def open_volume(path: Path) -> Iterator[Picture]:
    """Open a NIfTI file with a single volume.

    Raises:
        DataError: The file is damaged; names the file.
        PixelError: The file has several volumes, or voxels that are not numbers.
        MissingExtraError: The extra ``medical`` is not installed.
    """
    require("NIfTI volumes", "medical", "nibabel")
    with _name_errors(path):
        import nibabel

        image: Any = nibabel.load(path)
        if len(image.shape) < 3 or max(image.shape[3:], default=1) > 1:
            raise PixelError(f"axes {'x'.join(map(str, image.shape))}, which are not a single volume")
        if image.get_data_dtype().kind not in "iuf":
            raise PixelError(f"voxels of type {image.get_data_dtype()}")
        order = nibabel.io_orientation(image.affine)[:, 0].astype(int)
        spacing = np.empty(3)
        spacing[order] = image.header.get_zooms()[:3]
        if not (np.isfinite(spacing).all() and spacing.min() > 0):
            raise PixelError("voxels without a size")
    yield Picture("volume", True, partial(_read, path, image), tuple((spacing[::-1] / spacing.min()).tolist()))


@contextmanager
def _name_errors(path: Path) -> Iterator[None]:
    """Replace errors of nibabel, whose texts may quote the header, by an error that names the file."""
    try:
        yield
    except PixelError:
        raise
    except Exception as error:  # nibabel raises many types for damaged files
        got = f"{path}, which cannot be read as NIfTI ({type(error).__name__})"
        raise DataError(path.parent, got=got, allowed="a complete volume", hint="replace or remove the file") from None


def _read(path: Path, image: Any, channels: int) -> tuple[Float32[np.ndarray, "1 depth height width"], bool]:
    """Return the voxels from 0 to 1: depth from feet to head, height from back to front, width from left to right."""
    with _name_errors(path):
        import nibabel

        voxels = np.asarray(nibabel.as_closest_canonical(image).dataobj, dtype=np.float32)
    voxels = voxels.reshape(voxels.shape[:3]).transpose(2, 1, 0)
    if not np.isfinite(voxels).all():
        raise PixelError("voxels that are not finite")
    low, high = np.percentile(voxels, PERCENTILES).astype(np.float32)
    if low == high:  # a mask, of which less than a hundredth is set
        low, high = voxels.min(), voxels.max()
    if low == high:
        raise PixelError("the same number in all voxels")
    return np.clip((voxels - low) / (high - low), 0, 1, dtype=np.float32)[None], False
