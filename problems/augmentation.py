"""Augmentation: random changes of the images that a site trains on, drawn again for each round.

The change of a row depends only on the run's seed, the site, the round and the row's number. So all batches of a round
have the same image of a row: in any engine, after a resume, and if a method computes several gradients on a batch.
"""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn import functional

from problems.errors import InputError
from problems.importing import first_line, import_named
from problems.randomness import Purpose, seed_sequence, stream

NONE = "none"
PAGE = "docs/augmentation.md"
Transform = Callable[[Tensor], Tensor]


class AugmentError(InputError, ValueError):
    """An error: the samples cannot be augmented, or a user's transform cannot be used."""


@dataclass(frozen=True)
class Strength:
    """The ranges of the changes. Each change is uniform between minus and plus its range.

    Attributes:
        angle: The rotation, in degrees.
        zoom: The change of size, as a share.
        shift: The shift in each direction, as a share of the side.
        contrast: The change of the pixels' distance from the image's mean, as a share.
        brightness: The number added to all pixels, in standard deviations of the image.
        flips: Whether half of the images are mirrored, left to right.
    """

    angle: float = 0.0
    zoom: float = 0.0
    shift: float = 0.0
    contrast: float = 0.0
    brightness: float = 0.0
    flips: bool = False

    @property
    def keeps_pixels(self) -> bool:
        """Whether images are only mirrored and shifted by whole pixels, so no pixel gets a new value."""
        return not (self.angle or self.zoom or self.contrast or self.brightness)


STRENGTHS = {
    "light": Strength(shift=0.125, flips=True),
    "xray": Strength(angle=10, zoom=0.1, shift=0.05, contrast=0.2, brightness=0.2),
}


@dataclass(eq=False)
class Augmentation(ABC):
    """The changes of a site's images in the current round.

    Attributes:
        seed: The run's seed.
        partition_id: The site's number.
        num_rows: The number of the site's rows.
        server_round: The current round, which the client sets.
    """

    seed: int
    partition_id: int
    num_rows: int
    server_round: int = field(default=0, init=False)

    # whether `change` draws from the global generators of Python, NumPy and PyTorch
    draws: ClassVar[bool] = False

    def __call__(self, images: Float[Tensor, "b *shape"], rows: Int64[np.ndarray, "b"]) -> Float[Tensor, "b *shape"]:
        """Return the round's images of some rows.

        Args:
            images: The rows' unchanged images.
            rows: The rows' numbers.

        Raises:
            AugmentError: A user's transform fails, or returns something else than a finite image of the same shape.
        """
        return self.change(images, rows) if len(rows) else images

    @abstractmethod
    def change(self, images: Float[Tensor, "b *shape"], rows: Int64[np.ndarray, "b"]) -> Float[Tensor, "b *shape"]:
        """Return the round's images of at least one row; see `__call__`."""


@dataclass(eq=False, kw_only=True)
class Warp(Augmentation):
    """An affine map of the pixels' places and of their values. Pixels beyond the border repeat the border.

    Attributes:
        strength: The ranges of the changes.
    """

    strength: Strength
    _drawn: tuple[object, Float64[np.ndarray, "n 8"]] = field(default=((), np.empty((0, 8))), init=False)

    def change(
        self, images: Float[Tensor, "b channels height width"], rows: Int64[np.ndarray, "b"]
    ) -> Float[Tensor, "b channels height width"]:
        height, width = images.shape[-2:]
        numbers = torch.from_numpy(self._maps(height, width)[rows]).to(images)
        # the middle of each pixel, from -1 to 1
        x, y = ((2 * torch.arange(side, device=images.device) + 1).to(images) / side - 1 for side in (width, height))
        of_x, of_y, constant = numbers[:, :6].view(-1, 2, 3, 1, 1).unbind(2)
        places = ((of_x * x + constant) + of_y * y[:, None]).movedim(1, -1)
        mode = "nearest" if self.strength.keeps_pixels else "bilinear"
        warped = functional.grid_sample(images, places, mode, "border", align_corners=False)
        if self.strength.keeps_pixels:
            return warped
        contrast, brightness = numbers[:, 6:].view(-1, 2, 1, 1, 1).unbind(1)
        deviation, mean = torch.std_mean(images, (1, 2, 3), correction=0, keepdim=True)
        return warped.mul_(contrast).add_(mean * (1 - contrast) + deviation * brightness)

    def _maps(self, height: int, width: int) -> Float64[np.ndarray, "n 8"]:
        """Return six numbers of the affine map, the contrast and the brightness of all rows, drawn once a round."""
        address = self.server_round, height, width
        if self._drawn[0] != address:
            rng = stream(self.seed, Purpose.AUGMENTATION, self.partition_id, self.server_round)
            draws, own = rng.uniform(-1, 1, (7, self.num_rows)), self.strength
            angle, size = math.radians(own.angle) * draws[0], 1 + own.zoom * draws[1]
            shifts = own.shift * draws[2:4] * [[width], [height]]
            shift_x, shift_y = (shifts.round() if own.keeps_pixels else shifts) * [[2 / width], [2 / height]]
            sine, cosine = np.sin(angle) / size, np.cos(angle) / size
            side = np.where(draws[6] < 0, -1, 1) if own.flips else 1
            along_x = side * cosine, sine * height / width, shift_x
            along_y = -side * sine * width / height, cosine, shift_y
            tones = 1 + own.contrast * draws[4], own.brightness * draws[5]
            self._drawn = address, np.stack([*along_x, *along_y, *tones], axis=1)
        return self._drawn[1]


@dataclass(eq=False, kw_only=True)
class Custom(Augmentation):
    """A user's transform of a single image, which may draw from the global generators of Python, NumPy and PyTorch.

    Attributes:
        transform: The transform.
        name: The path of the transform's factory.
    """

    transform: Transform
    name: str

    draws: ClassVar[bool] = True

    def change(self, images: Float[Tensor, "b *shape"], rows: Int64[np.ndarray, "b"]) -> Float[Tensor, "b *shape"]:
        of_python, of_numpy = random.getstate(), np.random.get_state()
        devices = [images.device] if images.device.type == "cuda" else []
        changed = torch.empty_like(images)
        try:
            with torch.random.fork_rng(devices):
                for image, row, result in zip(images, rows.tolist(), changed, strict=True):
                    self._seed(row, bool(devices))
                    result.copy_(self._transform(image.clone()))
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
        if not changed.isfinite().all():
            raise _unfit(f"{self.name!r}, which returned numbers that are not finite", "finite numbers")
        return changed

    def _seed(self, row: int, cuda: bool) -> None:
        keys = self.partition_id, self.server_round, row
        words = seed_sequence(self.seed, Purpose.AUGMENTATION, *keys).generate_state(2)
        first, second = words.tolist()
        random.seed(first)
        np.random.seed(first)
        # torch.manual_seed would also record a stack trace on each call until CUDA is initialised
        torch.default_generator.manual_seed(second)
        if cuda:
            torch.cuda.manual_seed(second)
        if hasattr(self.transform, "set_random_state"):  # MONAI's transforms have their own generators
            self.transform.set_random_state(seed=first)

    def _transform(self, image: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        shape = tuple(image.shape)
        try:
            result = self.transform(image)
        except Exception as error:
            raise _unfit(f"{self.name!r}, which failed on an image of shape {shape} ({first_line(error)})") from error
        if not isinstance(result, Tensor) or tuple(result.shape) != shape:
            got = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
            raise _unfit(f"{self.name!r}, which returned {got}", f"a tensor of the image's shape {shape}")
        return result


def check_augmentation(name: str, shape: tuple[int, ...], *, private: bool = False) -> None:
    """Check that samples can be augmented.

    Args:
        name: The value of ``augment``.
        shape: The shape of a sample.
        private: Whether each sample is private.

    Raises:
        AugmentError: Samples are not images, the built-in changes do not fit them, or the factory cannot be imported.
    """
    if name == NONE:
        return
    if len(shape) < 3 or (name in STRENGTHS and len(shape) > 3):
        got = f"{name!r} with samples of shape {shape}"
        if len(shape) > 3:
            allowed, hint = "'none' or package.module:factory with volumes", f"set augment to a factory, see {PAGE}"
        else:
            allowed, hint = "'none' with samples that are not images", "remove augment"
        raise AugmentError("augment", got=got, allowed=allowed, hint=hint)
    if name in STRENGTHS:
        return
    if private:
        allowed = f"{NONE}, {', '.join(STRENGTHS)} with privacy.epsilon, since a transform may keep earlier samples"
        raise AugmentError("augment", got=repr(name), allowed=allowed, hint="remove augment, or privacy.epsilon")
    _make_transform(name)


def make_augmentation(name: str, seed: int, partition_id: int, num_rows: int) -> Augmentation:
    """Make the augmentation of a site.

    Args:
        name: The value of ``augment``, except "none".
        seed: The run's seed.
        partition_id: The site's number.
        num_rows: The number of the site's rows.

    Raises:
        AugmentError: The factory cannot be imported, or it does not return a callable object.
    """
    if name in STRENGTHS:
        return Warp(seed, partition_id, num_rows, strength=STRENGTHS[name])
    return Custom(seed, partition_id, num_rows, transform=_make_transform(name), name=name)


def _make_transform(path: str) -> Transform:
    factory = import_named(path, _unfit)
    try:
        transform: Transform = factory()
    except Exception as error:
        raise _unfit(f"{path!r}, which failed ({first_line(error)})") from error
    if not callable(transform):
        raise _unfit(f"{path!r}, which returned {type(transform).__name__}")
    return transform


def _unfit(
    got: str, allowed: str = "'package.module:factory' with factory() -> a transform of one image"
) -> AugmentError:
    return AugmentError("augment", got=got, allowed=allowed, hint=f"correct the factory, see {PAGE}")
