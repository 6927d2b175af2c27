"""A party of vertical learning: its data, its identity and its owner's policy."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from logging import WARNING
from typing import Any, Protocol

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from problems.data import Preprocessing
from problems.randomness import seed_sequence
from vertical.policy import Policy, PolicyError
from vertical.problem.blocks.network import Architecture
from vertical.records import VFB2State
from vertical.segment.dominator import Flips, draw_flips
from vertical.segment.plan import Holding, SegmentPlan
from vertical.transport.addresses import UNREACHABLE, Address
from vertical.transport.folders import run_folder
from vertical.transport.identity import Identity

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class KeptBlock:
    """A party's block of an earlier run, which scores new rows.

    Attributes:
        weights: (d,) of its columns.
        active: The parties whose labels that run used, in order.
        epochs: How many that run had made.
        embedding: k, of a network; 0: the block is linear.
        model: Which network it is, see `vertical.problem.blocks.network.Architecture`.
        head: (k + 1,) the head, of the active party of a run that had one.
        classes: Names of the labels' classes, at a label holder of a run that told several apart.
    """

    weights: NDArray[np.float64]
    active: tuple[int, ...]
    epochs: int
    embedding: int = 0
    model: str = ""
    head: NDArray[np.float64] | None = None
    classes: tuple[str, ...] = ()

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return the ``weights`` and, if there is one, the ``head``."""
        return {"weights": self.weights} | ({} if self.head is None else {"head": self.head})


class PartyData(Protocol):
    """A party's rows; an argument `rows` holds the positions of those that all parties share, in their common order.

    None stands for all rows of the party. In a run that scores rows none of them are test rows, and `labelled` is
    whether the party's labels were used in training.
    """

    labelled: bool
    # run-config keys of the data set whose columns are shared out, as in an experiment; {} of a file of its own
    keys: Mapping[str, Any]
    columns: int  # of its block
    names: list[str]  # of the columns
    classes: tuple[str, ...]  # names of the labels' classes, in a run that tells several apart
    block: KeptBlock | None  # of the run whose model scores the rows; None in a run that trains

    def ids(self, rows: Rows | None) -> Sequence[str]:
        """Return the id of each row."""

    def holding(self, rows: Rows | None) -> Holding:
        """Training and test rows with their labels."""

    def preprocessing(self, rows: Rows | None) -> Preprocessing | None:
        """How the columns are made of its own file's, fitted to its training rows; None without a file or training."""

    def training_marks(self, rows: Rows | None) -> Sequence[str] | None:
        """Return a text for each training row and its label, the same in every run.

        Returns:
            None without labels, and for data sets of experiments, whose rows have no names; else one text a row.
        """


class FlipStore(Protocol):
    """The label flips of all runs, kept so that many runs reveal no more about a label than one."""

    def check(self) -> None:
        """Check that the rows' ids are read as in earlier runs.

        Raises:
            PolicyError: They are not.
        """

    def recall(self, marks: Sequence[str], epsilon: float) -> tuple[Flips, int, float]:
        """Return the flips of the labels with these marks; unknown ones are drawn and kept.

        Returns:
            (n,) flips, how many of them are new, and the largest epsilon spent on one of these labels.
        """

    def keep(self, marks: Sequence[str], epsilon: float, flips: Flips) -> None:
        """Keep (n,) flips that another party has drawn, for the labels that have none yet.

        Args:
            marks: One for each label, see `PartyData.training_marks`.
            epsilon: With which the flips were drawn.
        """


class Looks(Protocol):
    """The count of the numbers of every row that the party's peers could have computed in all runs."""

    def spend(self, plan: SegmentPlan, columns: int, weights: NDArray[np.float64] | None) -> int:
        """Count a segment, before anything of it is sent, and return the count.

        Args:
            plan: The segment's plan.
            columns: The number of the party's columns.
            weights: The block that scores rows; None in training.

        Raises:
            PolicyError: The owner allows fewer.
        """


@dataclass(frozen=True, eq=False)
class Party:
    """A site of vertical learning.

    Attributes:
        partition_id: Its index among the parties.
        parties: Q.
        load: Reads its rows, on first use: never in a run that the policy forbids.
        identity: Its own certificate and key; None: they are made for the run.
        authority: File of the authority that signed the parties' certificates; None: each certificate is pinned.
        advertised: "host:port" at which parties of other hosts reach it, "none" if nobody can, or empty.
        listen: Where it listens for them; None: at the advertised address.
        share: Whether the server may have its block.
        model: Which network it has, in a run with an embedding.
        policy: What its owner demands of a run.
        flips: Where its label flips are kept from run to run; None: nowhere.
        verbose: Whether its errors leave it in full; else they must not quote its file or its network.
        looks: The count of its looks. None: they are not counted.
        run_config: The flat run config, on which all parties must agree.
    """

    partition_id: int
    parties: int
    load: Callable[[], PartyData]
    identity: Identity | None = None
    authority: str | None = None
    advertised: str = ""
    listen: Address | None = None
    share: bool = True
    model: str = ""
    policy: Policy = field(default_factory=Policy)
    flips: FlipStore | None = None
    verbose: bool = True
    looks: Looks | None = None
    run_config: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    @cached_property
    def data(self) -> PartyData:
        """Its rows."""
        return self.load()

    def __len__(self) -> int:
        return int(self.data.holding(None).features.shape[0])

    def resolve(self, shown: Sequence[Address], salt: bytes, serial: int, port: int) -> list[Address]:
        """Return the address of each party. Paths of sockets and this party's own address do not come from the server.

        Args:
            shown: The addresses that the server has sent.
            salt: The run's random bytes.
            serial: The number of the attempt.
            port: The port that this party has named for parties of the same host; 0: none.

        Raises:
            PolicyError: This party would listen at an address that it has not named, or connect to a host that its
                owner does not allow.
        """
        me, folder = self.partition_id, run_folder(salt)
        addresses = [
            Address("unix", f"{folder}/{serial}-{party}") if address.kind == "unix" else address
            for party, address in enumerate(shown)
        ]
        own = f"tcp:{self.advertised or f'127.0.0.1:{port}'}" if self.advertised != UNREACHABLE else f"none:{me}"
        if addresses[me].kind != "unix" and str(addresses[me]) != own:
            allowed, hint = f"{own}, which this party has named", "run the server's code unchanged"
            raise PolicyError("address", got=str(addresses[me]), allowed=allowed, hint=hint)
        peers = [(party, address) for party, address in enumerate(addresses) if party != me and address.kind == "tcp"]
        self.policy.check_hosts({party: address.host for party, address in peers})
        return addresses

    def label_flips(self, state: VFB2State, epsilon: float, facts: dict[str, Any]) -> Flips | None:
        """(n,) flips of its labels: those of this run, else those of earlier runs, else new ones; None without labels.

        Args:
            state: The party's, of this run.
            facts: Receives how many flips are new and, where flips are kept, the largest epsilon spent on a label.
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
                drawn_anew = (
                    "party %d: the flips of its labels are drawn anew, since its node config has no state-dir to keep "
                    "them in: each further run with these labels adds its own epsilon to the %g of this one"
                )
                log(WARNING, drawn_anew, self.partition_id, epsilon)
        facts["flips"] = {"drawn": drawn, "reused": len(labels) - drawn}
        if spent is not None:
            facts["flips"]["epsilon-spent"] = spent
        return flips

    def keep_flips(self, rows: Rows | None, epsilon: float, flips: Flips | None) -> None:
        """Keep a run's flips, so that this party flips the same labels as the reporter of another run.

        Args:
            rows: Positions of those that all parties share; None: all.
            flips: (n,) of the training labels; None: the run has none, or this party does not know them.
        """
        if flips is None or self.flips is None:
            return
        marks = self.data.training_marks(rows)
        if marks is not None:
            self.flips.keep(marks, epsilon, flips)


def find_network(party: Party, seed: int) -> Architecture:
    """Return the network of a party's kept block, else of its node's config or the run's.

    First weights that others could draw too would let them read its columns off the first sums, so a party with
    rows of its own draws them from the system's randomness.

    Args:
        seed: The run's seed, from which simulated parties draw.
    """
    if party.data.block is not None:
        return Architecture(party.data.block.model, 0)
    if not party.data.keys:
        return Architecture(party.model, secrets.randbits(128))
    drawn = seed_sequence(seed, "vertical network", party.partition_id).generate_state(1, np.uint64)
    return Architecture(party.model, int(drawn[0]))
