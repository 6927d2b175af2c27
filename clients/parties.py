"""A party of vertical learning: what it holds, how it is recognised, and where those of one host meet."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from logging import WARNING
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from flwr.common import log
from numpy.typing import NDArray

from clients.vertical.policy import Policy
from clients.vertical.segment.dominator import Flips, draw_flips
from clients.vertical.segment.plan import Holding
from clients.vertical.transport.addresses import Address, socket_base
from clients.vertical.transport.identity import Identity
from payloads.record import FloatArray
from payloads.vfb2 import VFB2State
from problems.models.vectors import Copy

Rows = NDArray[np.int64]


class PartyData(Protocol):
    """A party's rows. `rows` are the places of those that all parties share, in their common order; None: all."""

    labelled: bool
    columns: int  # of its block
    names: list[str]  # of the columns

    def ids(self, rows: Rows | None) -> Sequence[str]:
        """What names each row."""

    def holding(self, rows: Rows | None) -> Holding:
        """Training and test rows with their labels."""

    def keepsake(self, rows: Rows | None) -> dict[str, NDArray[np.float64]]:
        """What it takes beside the block to predict, for the party itself."""

    def training_marks(self, rows: Rows | None) -> Sequence[str] | None:
        """What names each training row and its label in every run; None where there are no labels, or where nothing
        names the rows of a data set for experiments."""


class FlipMemory(Protocol):
    """The label flips of all runs, so that many of them tell no more of a label than one."""

    def recall(self, marks: Sequence[str], epsilon: float) -> tuple[Flips, int, float]:
        """(n,) flips of the labels with these marks, how many of them are new, and the epsilon that has been spent on
        one of these labels at most."""

    def keep(self, marks: Sequence[str], epsilon: float, flips: Flips) -> None:
        """Keep (n,) flips that another party has drawn, of labels that have none yet."""


@dataclass(frozen=True, eq=False)
class Party:
    """A site of vertical learning.

    Attributes:
        partition_id: its index among the parties.
        parties: q.
        load: reads its rows, which no run that the policy forbids needs.
        identity: certificate and key of its own, where it brings them; else one is made for the run.
        authority: file of the authority that signed the parties' certificates; None: each is pinned.
        advertised: "host:port" at which parties of other hosts reach it, or empty.
        share: whether the server may have its block.
        policy: what its owner asks of a run.
        flips: where its label flips are kept from run to run; None: nowhere.
    """

    partition_id: int
    parties: int
    load: Callable[[], PartyData]
    identity: Identity | None = None
    authority: str | None = None
    advertised: str = ""
    share: bool = True
    policy: Policy = field(default_factory=Policy)
    flips: FlipMemory | None = None

    @cached_property
    def data(self) -> PartyData:
        """Its rows."""
        return self.load()

    def __len__(self) -> int:
        return int(self.data.holding(None).features.shape[0])

    @property
    def class_counts(self) -> tuple[int, int]:
        """Negative and positive training labels, as far as it holds any."""
        labels = self.data.holding(None).labels
        return (0, 0) if labels is None else (int((labels < 0).sum()), int((labels > 0).sum()))

    def label_flips(self, state: VFB2State, epsilon: float, facts: dict[str, Any]) -> Flips | None:
        """(n,) flips of its labels: those of this run, else those of earlier runs, else new ones; None without labels.

        Args:
            state: the party's, of this run.
            facts: gets how many are new and, where they are kept, the epsilon that has been spent on a label.
        """
        labels, marks, spent = self.data.holding(state.aligned).labels, self.data.training_marks(state.aligned), None
        if labels is None:
            return None
        if state.flips is not None and len(state.flips) == len(labels):
            flips, drawn = state.flips, 0
        elif self.flips is not None and marks is not None:
            flips, drawn, spent = self.flips.recall(marks, epsilon)
        else:
            flips, drawn = draw_flips(len(labels), epsilon), len(labels)
            if marks is not None:
                log(
                    WARNING,
                    "party %d: the flips of its labels are drawn anew, since its node config has no state-dir to keep "
                    "them in: each further run with these labels adds its own epsilon to the %g of this one",
                    self.partition_id,
                    epsilon,
                )
        facts["flips"] = {"drawn": drawn, "reused": len(labels) - drawn}
        if spent is not None:
            facts["flips"]["epsilon-spent"] = spent
        return flips

    def keep_flips(self, rows: Rows | None, epsilon: float, flips: Flips | None) -> None:
        """Keep the flips of a run: where this party reports in another run, it flips the same labels."""
        if flips is None or self.flips is None:
            return
        marks = self.data.training_marks(rows)
        if marks is not None:
            self.flips.keep(marks, epsilon, flips)


class NoModel:
    """What a party moves as far as Flower is concerned: nothing. Its block is part of its state."""

    stochastic = False
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.parameters = torch.zeros(0, dtype=torch.float64)

    def load(self, arrays: Sequence[FloatArray]) -> None:
        """Take a model without entries."""
        if len(arrays) != 1 or arrays[0].size:
            raise ValueError(f"a vertical run's messages carry an empty model, got {[a.shape for a in arrays]}")

    def arrays(self, copy: Copy) -> list[FloatArray]:
        """The model without entries."""
        return [copy(self.parameters.numpy())]


def run_folder(salt: bytes) -> Path:
    """Where the parties of a run that share a host put their sockets: a short path, the same for all of them."""
    return socket_base() / f"vfb2-{hashlib.sha256(salt).hexdigest()[:16]}"


def host_mark() -> bytes:
    """(32,) equal for two parties that can meet in a folder: same machine, same file system, same user."""
    base = socket_base().stat()
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text("ascii").strip() if boot.exists() else os.uname().nodename
    return hashlib.sha256(f"{machine} {base.st_dev} {base.st_ino} {os.getuid()}".encode()).digest()


@contextlib.contextmanager
def sockets(address: Address) -> Iterator[None]:
    """A private folder for a Unix socket while it is needed; whoever leaves last removes it.

    Raises:
        PermissionError: somebody else's folder is in its place.
    """
    if address.kind != "unix":
        yield
        return
    marker = Path(f"{address.text}.here")
    _enter(marker)
    try:
        yield
    finally:
        marker.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the others are still there
            marker.parent.rmdir()


def _enter(marker: Path) -> None:
    """Make a file that keeps its folder, which is made where there is none."""
    while True:
        with contextlib.suppress(FileExistsError):
            marker.parent.mkdir(mode=0o700)
        try:
            found = marker.parent.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
                raise PermissionError(f"{marker.parent} is not a private folder of this user")
            marker.touch(mode=0o600)
            return
        except FileNotFoundError:  # another party has just left, the last of those in it
            continue
