"""An open image file of any format, as the reader of images uses it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Shaped

Kind = Literal["8-bit", "16-bit", "floating-point", "volume"]

SQUARE = (1.0, 1.0)
"""The spacing of pixels in files without another spacing."""


class PixelError(ValueError):
    """An image with unusable pixels; the message continues the text "an image with"."""


@dataclass(frozen=True)
class Picture:
    """An open image file, whose pixels are not read yet.

    Attributes:
        kind: The kind of the numbers: bytes, integers of up to 16 bits, or numbers in [0, 1] of an image or a volume.
        grey: Whether the image is grey.
        read: A function of the number of channels, 1 or 3, for the conversion of 8-bit images. It returns the pixels
            (channels, *axes), with a single channel if other images are grey, and whether transparent pixels became
            black.
        spacing: The distance of pixels along each axis.
    """

    kind: Kind
    grey: bool
    read: Callable[[int], tuple[Shaped[np.ndarray, "channels *axes"], bool]]
    spacing: tuple[float, ...] = SQUARE
