"""The size to which images and volumes are resized: `image-size` of a run config.

Pillow's bilinear filter averages over all pixels below a new pixel when an image shrinks (antialiasing). Volumes are
resized by the same filter, along one axis after the other.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Shaped

from problems.data.spec import DataError

KEY = "image-size"
FORMS = "a side such as 224, sides such as 224x320 (height x width) or 64x64x64, each with ' pad' or not, or empty"


@dataclass(frozen=True)
class Change:
    """The effect of `ImageSize.resize` on an image.

    Attributes:
        scale: The factor along the axis with the smallest spacing.
        share: The largest share of an axis that was cut off, or that is padding in the result.
    """

    scale: float
    share: float


@dataclass(frozen=True)
class ImageSize:
    """A size, and the way to reach it without changing proportions.

    Attributes:
        sides: The lengths of the axes, such as (height, width). A single length applies to all axes.
        pads: Whether images are scaled to fit into the size, and padded with zeros. Else they are scaled to cover the
            size, and the centre is cropped.
    """

    sides: tuple[int, ...]
    pads: bool = False

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read the value of `image-size`; None if it is empty.

        Raises:
            DataError: The value has another form.
        """
        if not text:
            return None
        if not (match := re.fullmatch(r"([1-9]\d{0,4}(?:x[1-9]\d{0,4}){0,2})( pad)?", text)):
            raise DataError(KEY, got=repr(text), allowed=FORMS, hint="set image-size to a size such as '224'")
        return cls(tuple(map(int, match[1].split("x"))), bool(match[2]))

    def axes(self, number: int) -> tuple[int, ...]:
        """Return the length of each of several axes.

        Raises:
            DataError: The size is for another number of axes.
        """
        if len(self.sides) == 1:
            return self.sides * number
        if len(self.sides) != number:
            kind = {2: "images", 3: "volumes"}[number]
            got = f"{len(self.sides)} sides, {'x'.join(map(str, self.sides))}, with {kind}"
            raise DataError(KEY, got=got, allowed=f"{number} sides, or one", hint=f"set image-size for {kind}")
        return self.sides

    def resize(
        self, pixels: Shaped[np.ndarray, "channels *axes"], spacing: Sequence[float]
    ) -> tuple[Shaped[np.ndarray, "channels *sides"], Change]:
        """Resize an image or a volume.

        Args:
            pixels: The pixels, bytes or float32.
            spacing: The distance of pixels along each axis. Resized pixels have equal distances along all axes.

        Returns:
            The resized pixels, and the effect.

        Raises:
            DataError: See `axes`.
        """
        lengths, sides = pixels.shape[1:], self.axes(pixels.ndim - 1)
        scales = [side / (length * gap) for side, length, gap in zip(sides, lengths, spacing, strict=True)]
        scale = min(scales) if self.pads else max(scales)
        spans, targets = [float(length) for length in lengths], list(sides)
        for axis, own in enumerate(scales):
            if own == scale:
                continue
            if self.pads:
                targets[axis] = min(max(round(lengths[axis] * spacing[axis] * scale), 1), sides[axis])
            else:
                spans[axis] = min(sides[axis] / (spacing[axis] * scale), lengths[axis])
        kept = [
            target / side if self.pads else span / length
            for target, side, span, length in zip(targets, sides, spans, lengths, strict=True)
        ]
        resized = np.stack([_resample(channel, spans, targets) for channel in pixels])
        if self.pads:
            before = [round((side - target) / 2) for side, target in zip(sides, targets, strict=True)]
            margins = [
                (start, side - target - start) for start, side, target in zip(before, sides, targets, strict=True)
            ]
            resized = np.pad(resized, [(0, 0), *margins])
        return resized, Change(scale * min(spacing), 1 - min(kept))

    def describe(self, changes: Iterable[Change | None]) -> str:
        """Describe the effect on images: the numbers of resized and of cropped or padded images, and the extremes.

        Args:
            changes: The effect on each image.
        """
        made = [change for change in changes if change is not None]
        scaled = [change.scale for change in made if change.scale != 1]
        shares = [change.share for change in made if change.share > 0]
        text = f"image-size {self}: {len(scaled):,} of {len(made):,} images are scaled"
        if scaled:
            ends = dict.fromkeys(f"{factor:.3g}" for factor in (min(scaled), max(scaled)))
            text += f" by {' to '.join(ends)}"
        if shares:
            most = f"by at most {max(shares):.0%} of a side"
            text += f", {len(shares):,} are " + (f"padded {most}" if self.pads else f"cropped {most}")
        return text

    def __str__(self) -> str:
        return "x".join(map(str, self.sides)) + " pad" * self.pads


def _resample(
    pixels: Shaped[np.ndarray, "*axes"], spans: Sequence[float], sides: Sequence[int]
) -> Shaped[np.ndarray, "*sides"]:
    """Return the centre of an image or a volume, with new lengths of the axes.

    Args:
        pixels: The pixels, with two or three axes.
        spans: The length of the centre along each axis.
        sides: The new length of each axis.
    """
    if pixels.ndim == 3:
        flat = _resample(pixels.reshape(len(pixels), -1), (spans[0], pixels[0].size), (sides[0], pixels[0].size))
        return np.stack([_resample(layer, spans[1:], sides[1:]) for layer in flat.reshape(-1, *pixels.shape[1:])])
    from PIL import Image

    (top, bottom), (left, right) = (
        ((length - span) / 2, (length + span) / 2) for length, span in zip(pixels.shape, spans, strict=True)
    )
    picture: Any = Image.fromarray(np.ascontiguousarray(pixels))
    height, width = sides
    return np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR, box=(left, top, right, bottom)))
