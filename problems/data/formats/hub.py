"""Named image sets through flwr-datasets, from the Hugging Face hub or the copy it left on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from problems.data.source import Source, make_source
from problems.data.spec import DataError
from problems.extras import install

# Data set on the hub, its image column, its label column.
HUB: dict[str, tuple[str, str, str]] = {
    "fashion-mnist": ("zalando-datasets/fashion_mnist", "image", "label"),
    "cifar10": ("uoft-cs/cifar10", "img", "label"),
    "cifar100": ("uoft-cs/cifar100", "img", "fine_label"),
    "stl10": ("tanganke/stl10", "image", "label"),
}
PROBE_SECONDS = 5.0


def fetch(name: str) -> Source:
    """Return a named image set from the hub, or from its local cache when the hub is out of reach.

    Raises:
        DataError: one line on why neither worked.
    """
    try:
        from huggingface_hub import constants
    except ImportError as error:
        raise DataError(
            "flwr-datasets",
            got=f"a package that is not usable ({error})",
            allowed="one that is",
            hint=install("simulation"),
        ) from None
    online = not constants.HF_HUB_OFFLINE and _reachable(constants.ENDPOINT)
    try:
        with _offline(not online):
            splits = _splits(HUB[name][0])
    except Exception as error:  # the libraries below raise many unrelated types
        reason = (str(error).strip().splitlines() or [""])[0]
        state = "a failure" if online else "no network and no local copy"
        raise DataError(
            "flwr-datasets",
            got=f"{state} ({type(error).__name__}: {reason})",
            allowed="the hub, or a local copy",
            hint="set data-dir",
        ) from None
    return from_splits(splits, *HUB[name][1:])


def from_splits(splits: tuple[Any, Any], image: str, label: str) -> Source:
    """Return the training and test split, given as `datasets.Dataset`s with an image and a label column."""
    pixels = [np.stack([_channels_first(picture) for picture in split[image]]) for split in splits]
    labels = [np.asarray(split[label][:]) for split in splits]
    return make_source(np.concatenate(labels), np.concatenate(pixels), train_count=len(labels[0]))


def _channels_first(picture: Any) -> NDArray[np.uint8]:
    array = np.asarray(picture, dtype=np.uint8)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _splits(path: str) -> tuple[Any, Any]:
    from flwr_datasets import FederatedDataset

    federated = FederatedDataset(dataset=path, partitioners={}, shuffle=False)
    return federated.load_split("train"), federated.load_split("test")


def _reachable(address: str) -> bool:
    """Ask once with a short limit: the hub's own client retries for minutes."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PROBE_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """Put the hub's libraries into offline mode, in which a cached set opens at once and nothing waits."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    if wanted:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
