"""Records and settings of VFB2, asynchronous vertical federated learning with backward updating.

Zhang, Gu, Deng, Huang, "Secure Bilevel Asynchronous Vertical Federated Learning with Backward Updating" (AAAI 2021),
Algorithms 1-7. The clients are the q parties, which have different columns of the same rows. A round is a segment: some
epochs in which the parties talk to each other directly.

| paper | here |
|---|---|
| q parties, m of them active | the clients, ``active-parties`` |
| w_{G_l}, the block of party l | ``weights`` of `VFB2State`; it stays at the party |
| gamma, lambda | ``learning-rate``, ``weight`` |
| problems (13), (14), (17), (18) | ``problem`` |
| tau, the bound of the delay | `vertical.settings.VFB2Settings.delay_bound` |

Beyond the paper, ``embedding`` and ``model`` give each party a network in place of its linear block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from payloads.id_forms import MARKS
from payloads.record import BoolArray, FloatArray, IntArray, Payload, PayloadError, array

ByteArray = NDArray[np.uint8]
Array = NDArray[np.float64]

# The exchanges before round 1: the parties' credentials, their data summaries, the search for their common rows
# (depending on ``alignment``), and a check that all have the same rows. No party reads its data before it has checked
# all certificates.
CREDENTIALS, DATA_SUMMARY, INTERSECTION, ALIGNMENT = "credentials", "data-summary", "intersection", "alignment"
# scalar in the messages that ask for credentials: the run's random bytes in hexadecimal, see `Segment.salt`
SALT = "salt"
# the advertised address of a party to which no other party can connect
UNREACHABLE = "none"
# the meaning of ``loss = "auto"``: ``vfb2.problem`` determines the loss
VERTICAL = "vertical"

# The reporter's metrics and every party's counters. A `Report` refers to them by position.
METRICS = ("objective", "loss", "accuracy", "auc", "rmse", "largest_eigenvalue", "nonzeros")
COUNTERS = ("updates", "seconds_training", "seconds_total", "bytes_sent", "bytes_received", "max_delay")

# Certificates are padded to a multiple of this number of bytes. Their lengths vary, but the bytes of a run must not.
PAGE = 1024


@dataclass(frozen=True, eq=False)
class Credentials(Payload):
    """A party's address and certificate, without its data.

    The party sends it to the server before round 1, and when a run is resumed or a segment is repeated.
    """

    # the certificate (DER), padded with zeros, and its length without padding
    certificate: ByteArray = array("c", kind="bytes")
    certificate_length: IntArray = array(1, kind="int")
    # "host:port" for parties on other hosts, "none" if no party can connect to this party, or empty
    advertised: ByteArray = array("a", kind="bytes")
    # a free port for parties on the same host, or 0
    port: IntArray = array(1, kind="int")
    # a digest that is equal for all parties on one host
    host: ByteArray = array(32, kind="bytes")
    # whether the party's owner lets the server have the block
    share: BoolArray = array(1, kind="bool")
    # the number of the newest attempt at a segment in the party's memory
    serial: IntArray = array(1, kind="int")


@dataclass(frozen=True, eq=False)
class DataSummary(Payload):
    """A party's summary of its data. The party sends it to the server after it has checked all certificates.

    It contains no digest of the ids, which only the parties compare.
    """

    # the numbers of training and test rows
    rows: IntArray = array(2, kind="int")
    # the number of columns
    columns: IntArray = array(1, kind="int")
    # whether the party has labels; in a run that scores rows, whether its labels were used in training
    labels: BoolArray = array(1, kind="bool")
    # the form of the ids: the lengths of the shortest and the longest id, and whether any id has each of `MARKS`
    id_lengths: IntArray = array(2, kind="int")
    id_marks: BoolArray = array(len(MARKS), kind="bool")
    # with secret shares: whether the rows are a simulation's, which hides nothing
    simulated: BoolArray | None = array(1, kind="bool", optional=True)
    # with secret shares: whether the party gets its random numbers from a third party
    own_dealer: BoolArray | None = array(1, kind="bool", optional=True)


@dataclass(frozen=True, eq=False)
class Segment(Payload):
    """The definition of a round's segment, in addition to the settings. All parties get the same, except ``package``.

    Segment 0 precedes round 1. It has no epochs: the parties check that they have the same rows, and measure the
    metrics at weights 0.
    """

    # the number of the attempt, which grows over the run
    serial: IntArray = array(1, kind="int")
    # the number of the segment
    segment: IntArray = array(1, kind="int")
    # the number of the segment after which the initial weights were stored; -1: weights 0
    base: IntArray = array(1, kind="int")
    # the learning rate gamma
    step: FloatArray = array(1)
    # random bytes that name the run in the parties' comparison of ids, and in the folder of their sockets
    salt: ByteArray = array(16, kind="bytes")
    # the numbers of training and test rows; absent until the parties have found their common rows
    rows: IntArray | None = array(2, kind="int", optional=True)
    # the parties whose labels are used, the reporter first; empty until the server knows the parties with labels
    active: IntArray = array("m", kind="int")
    # whether to bound the curvature of the objective
    curvature: BoolArray = array(1, kind="bool")
    # whether to measure the metrics
    evaluate: BoolArray = array(1, kind="bool")
    # whether to send the block, for a checkpoint or at the end
    share: BoolArray = array(1, kind="bool")
    # whether the segment is the last of the run
    last: BoolArray = array(1, kind="bool")
    # all parties' certificates and addresses, each joined into one field, and the lengths of the joined parts
    certificates: ByteArray = array("c", kind="bytes")
    certificate_lengths: IntArray = array("q", kind="int")
    addresses: ByteArray = array("a", kind="bytes")
    address_lengths: IntArray = array("q", kind="int")
    # with secret shares: the number of columns of each party, and this party's random numbers (`vertical.shares`),
    # the only field that differs between parties
    columns: IntArray | None = array("q", kind="int", optional=True)
    package: ByteArray | None = array("x", kind="bytes", optional=True, secret=True)

    def peers(self) -> tuple[list[bytes], list[str]]:
        """Return the certificate and the address of each party; raise PayloadError if the lengths do not fit."""
        certificates = cut("certificates", self.certificates, self.certificate_lengths)
        return certificates, [part.decode() for part in cut("addresses", self.addresses, self.address_lengths)]


@dataclass(frozen=True, eq=False)
class Report(Payload):
    """A party's results of a segment. The party sends it to the server."""

    # the number of the attempt
    serial: IntArray = array(1, kind="int")
    # from the reporter only: the metrics, as positions in METRICS, and their values
    metric_names: IntArray | None = array("k", kind="int", optional=True)
    metric_values: FloatArray | None = array("k", optional=True)
    # the counters, in the order of COUNTERS
    counters: FloatArray = array(len(COUNTERS))
    # before round 1 only: the numbers of training and test rows
    rows: IntArray | None = array(2, kind="int", optional=True)
    # the party's block, if the server asked for it
    weights: FloatArray | None = array("w", optional=True)

    @classmethod
    def of_metrics(cls, metrics: dict[str, float]) -> dict[str, NDArray[np.float64] | NDArray[np.int64]]:
        """Return the fields ``metric_names`` and ``metric_values`` of a report; no field if there are no metrics.

        Args:
            metrics: The metrics by name. Metrics that are not in `METRICS` are not sent.
        """
        known = [(METRICS.index(name), value) for name, value in metrics.items() if name in METRICS]
        if not known:
            return {}
        positions, values = zip(*known, strict=True)
        return {"metric_names": np.array(positions), "metric_values": np.array(values, dtype=np.float64)}

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name; raise PayloadError if names and values do not match."""
        if (self.metric_names is None) != (self.metric_values is None):
            raise PayloadError(
                "Report: got only one of metric_names and metric_values, allowed: both fields or neither"
            )
        if self.metric_names is None or self.metric_values is None:
            return {}
        if not all(0 <= position < len(METRICS) for position in self.metric_names):
            raise PayloadError(f"Report.metric_names: got {self.metric_names}, allowed: 0 to {len(METRICS) - 1}")
        return {METRICS[n]: float(v) for n, v in zip(self.metric_names, self.metric_values, strict=True)}


# the type of a party's reply in each exchange before round 1
PHASES: dict[str, type[Payload]] = {
    CREDENTIALS: Credentials,
    DATA_SUMMARY: DataSummary,
    INTERSECTION: Report,
    ALIGNMENT: Report,
}


@dataclass(frozen=True, eq=False)
class VFB2State(Payload):
    """A party's memory, which stays at the party.

    It stores the blocks after the party's two newest segments, since the newest segment may have to be repeated.
    """

    # the number of the party's newest attempt
    serial: IntArray = array(1, kind="int")
    # the numbers of the two segments, the newer last; -1: no segment
    segments: IntArray = array(2, kind="int")
    # the block's weights after the two segments
    older: Array | None = array("w", optional=True)
    newer: Array | None = array("w", optional=True)
    # the weights of the head (the last layer), at the active party of a run with a head
    older_head: Array | None = array("h", optional=True)
    newer_head: Array | None = array("h", optional=True)
    # the name of the network, if the weights belong to a network
    network: ByteArray | None = array("m", kind="bytes", optional=True)
    # SAGA's table: one slope per training row
    older_table: Array | None = array("n", optional=True)
    newer_table: Array | None = array("n", optional=True)
    # with secret shares: the party's shares of all weights after the two segments
    older_share: IntArray | None = array("s", kind="int", optional=True)
    newer_share: IntArray | None = array("s", kind="int", optional=True)
    # the digests of the plans of the two segments
    older_history: ByteArray | None = array(32, kind="bytes", optional=True)
    newer_history: ByteArray | None = array(32, kind="bytes", optional=True)
    # whether each training label is inverted for label privacy; drawn once
    flips: BoolArray | None = array("n", kind="bool", optional=True)
    # the party's certificate and key of this run
    identity: ByteArray | None = array("i", kind="bytes", optional=True, secret=True)
    # the party's positions of the common rows, in the common order
    aligned: IntArray | None = array("r", kind="int", optional=True)
    # a digest of the data at the start of the run
    data: ByteArray | None = array(16, kind="bytes", optional=True)
    # the port that the party has reported for parties on the same host, or 0
    port: IntArray | None = array(1, kind="int", optional=True)

    @classmethod
    def empty(cls) -> Self:
        """Return the memory of a new party."""
        return cls(serial=np.array([0]), segments=np.array([-1, -1]))


@dataclass(frozen=True, eq=False)
class VFB2Progress(Payload):
    """The server's state of a run, for a resumed run."""

    # the numbers of the newest attempt and of the newest segment that all parties finished
    serial: IntArray = array(1, kind="int")
    segment: IntArray = array(1, kind="int")
    # the numbers of training and test rows
    rows: IntArray = array(2, kind="int")
    # all parties' blocks, joined, and their lengths; absent if the server has no blocks
    blocks: FloatArray | None = array("d_all", optional=True)
    block_lengths: IntArray | None = array("q", kind="int", optional=True)

    @classmethod
    def of(cls, serial: int, segment: int, rows: tuple[int, int], blocks: Sequence[FloatArray]) -> Self:
        """Return the state of a run.

        Args:
            serial: The number of the newest attempt.
            segment: The number of the newest finished segment.
            rows: The numbers of training and test rows.
            blocks: The parties' blocks. Empty: the server has none.
        """
        return cls(
            serial=np.array([serial]),
            segment=np.array([segment]),
            rows=np.array(rows),
            blocks=np.concatenate(blocks) if blocks else None,
            block_lengths=np.array([len(block) for block in blocks]) if blocks else None,
        )

    def split_blocks(self) -> list[FloatArray]:
        """Return the parties' blocks; [] if the server has none."""
        if self.blocks is None or self.block_lengths is None:
            return []
        return np.split(self.blocks, np.cumsum(self.block_lengths)[:-1])


def text(words: str | bytes) -> ByteArray:
    """Return text or bytes as an array of bytes, for a field of kind "bytes"."""
    return np.frombuffer(words.encode() if isinstance(words, str) else words, dtype=np.uint8)


def join_bytes(parts: Sequence[bytes], page: int = 1) -> tuple[ByteArray, NDArray[np.int64]]:
    """Join byte strings into one field. Return the field and the lengths of the parts, which `cut` needs.

    Args:
        parts: The byte strings.
        page: The field is padded with zeros to a multiple of this number of bytes.
    """
    whole = b"".join(parts)
    return text(whole + bytes(-len(whole) % page)), np.array([len(part) for part in parts], dtype=np.int64)


def cut(field: str, whole: ByteArray, lengths: IntArray) -> list[bytes]:
    """Cut a field of `join_bytes` into its parts.

    Args:
        field: The name of the field in errors.
        whole: The field.
        lengths: The lengths of the parts.

    Raises:
        PayloadError: The lengths do not fit the field.
    """
    if (lengths < 0).any() or int(lengths.sum()) > len(whole):
        raise PayloadError(f"{field}: got {len(whole)} bytes with parts of lengths {lengths.tolist()}")
    blob = whole.tobytes()
    return [blob[stop - length : stop] for stop, length in zip(np.cumsum(lengths), lengths, strict=True)]
