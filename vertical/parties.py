"""A party of vertical learning: its data, its identity, its owner's policy and its label flips.

Under label privacy (``vfb2.label-epsilon``) a party inverts, or *flips*, randomly drawn labels before it uses them.

The package `vertical` explains the terms, such as reporter, segment and active.
"""

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
from vertical.shares.dealer import DealerAccess
from vertical.transport.addresses import UNREACHABLE, Address
from vertical.transport.folders import run_folder
from vertical.transport.identity import Identity

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class KeptBlock:
    """A party's block from an earlier run, for scoring new rows.

    Attributes:
        weights: The (d,) weights of its columns.
        active: The parties whose labels the earlier run used, in order.
        epochs: The number of the earlier run's epochs.
        embedding: The number k of the network's outputs. 0: the block is linear.
        model: The name of the network, see `vertical.problem.blocks.network.Architecture`.
        head: The (k + 1,) weights of the last layer, at the active party of a run with a head.
        classes: The names of the labels' classes, at a party with labels in a multiclass run.
        share: The party's (D,) share of all parties' weights, if the weights stay shared. ``weights`` is then empty.
        history: The digest of the plan of the segment that produced the share. Shares of other segments do not fit.
    """

    weights: NDArray[np.float64]
    active: tuple[int, ...]
    epochs: int
    embedding: int = 0
    model: str = ""
    head: NDArray[np.float64] | None = None
    classes: tuple[str, ...] = ()
    share: NDArray[np.uint64] | None = None
    history: str = ""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the ``weights`` and, if the block has them, the ``head`` and the ``share``."""
        optional = {"head": self.head, "share": self.share}
        return {"weights": self.weights} | {name: array for name, array in optional.items() if array is not None}


class PartyData(Protocol):
    """A party's rows.

    An argument `rows` contains the party's positions of the rows that all parties have, in the common order. None: all
    rows of the party. A run that scores rows has no test rows.
    """

    labelled: bool  # whether the party has labels; in a run that scores rows, whether its labels were used in training
    # run-config keys of the data set whose columns an experiment distributes; {} if the party reads its own file
    keys: Mapping[str, Any]
    columns: int  # the number of the block's columns
    names: list[str]  # the names of the columns
    classes: tuple[str, ...]  # the names of the labels' classes, in a multiclass run
    block: KeptBlock | None  # the block that scores the rows; None in a run that trains

    def ids(self, rows: Rows | None) -> Sequence[str]:
        """Return the id of each row."""

    def holding(self, rows: Rows | None) -> Holding:
        """Return the training and test rows with their labels."""

    def preprocessing(self, rows: Rows | None) -> Preprocessing | None:
        """Return the preprocessing of the party's file, fitted to its training rows.

        Returns:
            None if the party has no file, or if the run does not train.
        """

    def training_marks(self, rows: Rows | None) -> Sequence[str] | None:
        """Return a mark for each training row: a text that identifies the row and its label in every run.

        Returns:
            One text for each row. None if the party has no labels, or in a simulation, whose rows have no ids.
        """


class FlipStore(Protocol):
    """A party's label flips of all runs. Flips are reused, so many runs reveal no more about a label than one run."""

    def check(self) -> None:
        """Check that this run reads the rows' ids in the same way as earlier runs.

        Raises:
            PolicyError: The ids are read differently.
        """

    def recall(self, marks: Sequence[str], epsilon: float) -> tuple[Flips, int, float]:
        """Return the flips of the labels with these marks. Flips that are not stored yet are drawn and stored.

        Args:
            marks: The mark of each label, see `PartyData.training_marks`.
            epsilon: The epsilon of the run's label privacy.

        Returns:
            (n,) flips, the number of new flips, and the largest epsilon spent on any of these labels.
        """

    def keep(self, marks: Sequence[str], epsilon: float, flips: Flips) -> None:
        """Store the flips that another party has drawn, for all labels without stored flips.

        Args:
            marks: The mark of each label, see `PartyData.training_marks`.
            epsilon: The epsilon with which the flips were drawn.
            flips: The (n,) flips.
        """


class Looks(Protocol):
    """A party's count of *looks* in all runs: the numbers per row that the other parties could have computed."""

    def spend(self, plan: SegmentPlan, columns: int, weights: NDArray[np.float64] | None) -> int:
        """Add a segment's looks to the count before any data of the segment is sent, and return the count.

        Args:
            plan: The segment's plan.
            columns: The number of the party's columns.
            weights: The weights of the block that scores rows. None in training.

        Raises:
            PolicyError: The owner allows fewer looks.
        """


@dataclass(frozen=True, eq=False)
class Party:
    """A site of vertical learning.

    Attributes:
        partition_id: The party's index.
        parties: The number of parties.
        load: A function that reads the rows. It is called on first use, so never in a run that the policy forbids.
        identity: The party's certificate and key. None: a certificate and a key are created for the run.
        authority: The file of the authority that signed the parties' certificates. None: each certificate is pinned.
        advertised: "host:port" for parties on other hosts, "none" if other parties cannot connect to this party, or "".
        listen: The address where the party listens for other hosts. None: the advertised address.
        share: Whether the server may get the party's block.
        model: The party's network, in a run with an embedding.
        policy: The owner's policy.
        flips: The store of the label flips of all runs. None: flips are not stored.
        verbose: Whether errors are sent in full. If not, they must not quote the party's file or its network.
        looks: The count of looks at the party's rows. None: not counted.
        run_config: The flat run config, which must be the same at all parties.
        dealer: The third party that deals the random numbers of secret shares. None: the server deals.
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
    dealer: DealerAccess | None = None

    @cached_property
    def data(self) -> PartyData:
        """The party's rows."""
        return self.load()

    def __len__(self) -> int:
        return int(self.data.holding(None).features.shape[0])

    def resolve(self, shown: Sequence[Address], salt: bytes, serial: int, port: int) -> list[Address]:
        """Return the address of each party.

        The paths of Unix sockets are derived from the run, and this party's own address is checked, so the server
        cannot choose them.

        Args:
            shown: The addresses that the server has sent.
            salt: The run's random bytes.
            serial: The number of the attempt to run the segment.
            port: The port that this party has reported for parties on the same host. 0: none.

        Raises:
            PolicyError: The server names a different address for this party, or a host that the owner does not allow.
        """
        me, folder = self.partition_id, run_folder(salt)
        addresses = [
            Address("unix", f"{folder}/{serial}-{party}") if address.kind == "unix" else address
            for party, address in enumerate(shown)
        ]
        own = f"tcp:{self.advertised or f'127.0.0.1:{port}'}" if self.advertised != UNREACHABLE else f"none:{me}"
        if addresses[me].kind != "unix" and str(addresses[me]) != own:
            allowed, hint = f"{own}, which this party has reported", "run the server's code unchanged"
            raise PolicyError("address", got=str(addresses[me]), allowed=allowed, hint=hint)
        peers = [(party, address) for party, address in enumerate(addresses) if party != me and address.kind == "tcp"]
        self.policy.check_hosts({party: address.host for party, address in peers})
        return addresses

    def label_flips(self, state: VFB2State, epsilon: float, facts: dict[str, Any]) -> Flips | None:
        """Return (n,) label flips: this run's flips, else the stored flips, else new flips. None without labels.

        Args:
            state: The party's memory of this run.
            epsilon: The epsilon of the run's label privacy.
            facts: A dictionary that receives the number of new flips and, if flips are stored, the largest epsilon
                spent on a label.
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
                warning = (
                    "party %d: the flips of its labels are drawn again, since its node config has no state-dir, which "
                    "stores flips. Each further run with these labels adds its epsilon to this run's %g: set state-dir"
                )
                log(WARNING, warning, self.partition_id, epsilon)
        facts["flips"] = {"drawn": drawn, "reused": len(labels) - drawn}
        if spent is not None:
            facts["flips"]["epsilon-spent"] = spent
        return flips

    def keep_flips(self, rows: Rows | None, epsilon: float, flips: Flips | None) -> None:
        """Store a run's flips, which this party uses again in a later run in which it draws the flips as the reporter.

        Args:
            rows: The positions of the common rows. None: all rows.
            flips: The (n,) flips of the training labels. None: the run has no flips, or this party does not know them.
        """
        if flips is None or self.flips is None:
            return
        marks = self.data.training_marks(rows)
        if marks is not None:
            self.flips.keep(marks, epsilon, flips)


def find_network(party: Party, seed: int) -> Architecture:
    """Return a party's network: the network of its kept block, else of its node config, else of the run config.

    The seed of the initial weights is secret. A party that knew another party's initial weights could compute that
    party's columns from the first sums. Only simulated parties derive it from the seed of the run.

    Args:
        seed: The seed of the run.
    """
    if party.data.block is not None:
        return Architecture(party.data.block.model, 0)
    if not party.data.keys:
        return Architecture(party.model, secrets.randbits(128))
    drawn = seed_sequence(seed, "vertical network", party.partition_id).generate_state(1, np.uint64)
    return Architecture(party.model, int(drawn[0]))
