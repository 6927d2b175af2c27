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
    """A party's block from an earlier run, for scoring new rows.

    Attributes:
        weights: The (d,) weights of its columns.
        active: The parties whose labels the earlier run used, in order.
        epochs: The number of the earlier run's epochs.
        embedding: The network's k. 0: the block is linear.
        model: The name of the network, see `vertical.problem.blocks.network.Architecture`.
        head: The (k + 1,) head, at the active party of a run with a head.
        classes: The names of the labels' classes, at a label holder of a multiclass run.
    """

    weights: NDArray[np.float64]
    active: tuple[int, ...]
    epochs: int
    embedding: int = 0
    model: str = ""
    head: NDArray[np.float64] | None = None
    classes: tuple[str, ...] = ()

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return the ``weights`` and, if the run had a head, the ``head``."""
        return {"weights": self.weights} | ({} if self.head is None else {"head": self.head})


class PartyData(Protocol):
    """A party's rows. An argument `rows` contains the positions of the common rows, in their common order.

    None stands for all rows of the party. A run that scores rows has no test rows, and `labelled` states whether the
    party's labels were used in training.
    """

    labelled: bool
    # run-config keys of the data set whose columns an experiment distributes; {} if the party reads its own file
    keys: Mapping[str, Any]
    columns: int  # of its block
    names: list[str]  # of the columns
    classes: tuple[str, ...]  # names of the labels' classes, in a multiclass run
    block: KeptBlock | None  # the block that scores the rows; None in a run that trains

    def ids(self, rows: Rows | None) -> Sequence[str]:
        """Return the id of each row."""

    def holding(self, rows: Rows | None) -> Holding:
        """Return the training and test rows with their labels."""

    def preprocessing(self, rows: Rows | None) -> Preprocessing | None:
        """Return the preprocessing of the party's file, fitted to its training rows; None without file or training."""

    def training_marks(self, rows: Rows | None) -> Sequence[str] | None:
        """Return a text for each training row and its label, the same in every run.

        Returns:
            One text for each row. None without labels, and for an experiment's data set, whose rows have no names.
        """


class FlipStore(Protocol):
    """The label flips of all runs, which are kept so many runs reveal no more about a label than one run."""

    def check(self) -> None:
        """Check that the rows' ids are read as in earlier runs.

        Raises:
            PolicyError: The ids are read differently.
        """

    def recall(self, marks: Sequence[str], epsilon: float) -> tuple[Flips, int, float]:
        """Return the flips of the labels with these marks. Unknown flips are drawn and kept.

        Returns:
            (n,) flips, the number of new flips, and the largest epsilon spent on any of these labels.
        """

    def keep(self, marks: Sequence[str], epsilon: float, flips: Flips) -> None:
        """Keep (n,) flips that another party has drawn, for the labels without kept flips.

        Args:
            marks: The mark of each label, see `PartyData.training_marks`.
            epsilon: The epsilon with which the flips were drawn.
        """


class Looks(Protocol):
    """The count of the numbers of every row that the party's peers could have computed in all runs."""

    def spend(self, plan: SegmentPlan, columns: int, weights: NDArray[np.float64] | None) -> int:
        """Count a segment before any of its data is sent, and return the count.

        Args:
            plan: The segment's plan.
            columns: The number of the party's columns.
            weights: The block that scores rows. None in training.

        Raises:
            PolicyError: The owner allows fewer looks.
        """


@dataclass(frozen=True, eq=False)
class Party:
    """A site of vertical learning.

    Attributes:
        partition_id: The party's index.
        parties: The number of parties.
        load: A function that reads the rows, on first use: never in a run that the policy forbids.
        identity: The party's certificate and key. None: they are made for the run.
        authority: The file of the authority that signed the parties' certificates. None: each certificate is pinned.
        advertised: "host:port" for parties on other hosts, "none" if the party is unreachable, or empty.
        listen: The address where it listens for other hosts. None: the advertised address.
        share: Whether the server may get the party's block.
        model: The party's network, in a run with an embedding.
        policy: The owner's policy.
        flips: The store of label flips from run to run. None: flips are not stored.
        verbose: Whether errors are sent in full. If not, they must not quote the party's file or its network.
        looks: The count of looks at the party's rows. None: not counted.
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
        """The party's rows."""
        return self.load()

    def __len__(self) -> int:
        return int(self.data.holding(None).features.shape[0])

    def resolve(self, shown: Sequence[Address], salt: bytes, serial: int, port: int) -> list[Address]:
        """Return the address of each party. The server cannot set socket paths or this party's own address.

        Args:
            shown: The addresses that the server has sent.
            salt: The run's random bytes.
            serial: The number of the attempt.
            port: The port that this party has named for parties on the same host. 0: none.

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
            allowed, hint = f"{own}, which this party has named", "run the server's code unchanged"
            raise PolicyError("address", got=str(addresses[me]), allowed=allowed, hint=hint)
        peers = [(party, address) for party, address in enumerate(addresses) if party != me and address.kind == "tcp"]
        self.policy.check_hosts({party: address.host for party, address in peers})
        return addresses

    def label_flips(self, state: VFB2State, epsilon: float, facts: dict[str, Any]) -> Flips | None:
        """Return (n,) label flips: this run's flips, else the kept flips, else new flips; None without labels.

        Args:
            state: The party's memory of this run.
            facts: A dictionary that receives the number of new flips and, if flips are kept, the largest epsilon spent
                on a label.
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
                    "party %d: the flips of its labels are drawn again, since its node config has no state-dir to keep "
                    "them in: each further run with these labels adds its epsilon to the %g of this run"
                )
                log(WARNING, drawn_anew, self.partition_id, epsilon)
        facts["flips"] = {"drawn": drawn, "reused": len(labels) - drawn}
        if spent is not None:
            facts["flips"]["epsilon-spent"] = spent
        return flips

    def keep_flips(self, rows: Rows | None, epsilon: float, flips: Flips | None) -> None:
        """Keep a run's flips, to flip the same labels as the reporter of another run.

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
    """Return the network of a party's kept block, else the network in its node config, else the run's network.

    Parties that could also draw the initial weights could compute this party's columns from the first sums. A party
    with its own rows therefore draws them from the system's randomness.

    Args:
        seed: The run's seed, from which simulated parties draw.
    """
    if party.data.block is not None:
        return Architecture(party.data.block.model, 0)
    if not party.data.keys:
        return Architecture(party.model, secrets.randbits(128))
    drawn = seed_sequence(seed, "vertical network", party.partition_id).generate_state(1, np.uint64)
    return Architecture(party.model, int(drawn[0]))
