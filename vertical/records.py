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

# The exchanges before round 1: the parties' credentials, their data summaries, their common rows (depending on
# ``alignment``), and whether these agree. No party reads its data before it has seen all certificates.
CREDENTIALS, DATA_SUMMARY, INTERSECTION, ALIGNMENT = "credentials", "data-summary", "intersection", "alignment"
# scalar in the credentials' messages: the run's random bytes, see `Segment.salt`, in hexadecimal
SALT = "salt"
# the advertised address of an unreachable party
UNREACHABLE = "none"
# the meaning of ``loss = "auto"``: ``vfb2.problem`` determines the loss
VERTICAL = "vertical"

# The reporter's metrics and every party's counters. A `Report` refers to them by position.
METRICS = ("objective", "loss", "accuracy", "auc", "rmse", "largest_eigenvalue", "nonzeros")
COUNTERS = ("updates", "seconds_training", "seconds_total", "bytes_sent", "bytes_received", "max_delay")

# Certificates are padded to a multiple of it, since their lengths vary and a run's byte counts must not.
PAGE = 1024


@dataclass(frozen=True, eq=False)
class Credentials(Payload):
    """A party's address and certificate, and nothing about its data.

    Sent up before round 1, and when a run is resumed or a segment is repeated.
    """

    # the certificate (DER, padded) and its length; host:port for other hosts, "none" if unreachable, or empty; a free
    # port for parties on the same host, or 0; a mark that all parties on a host share
    certificate: ByteArray = array("c", kind="bytes")
    certificate_length: IntArray = array(1, kind="int")
    advertised: ByteArray = array("a", kind="bytes")
    port: IntArray = array(1, kind="int")
    host: ByteArray = array(32, kind="bytes")
    # whether the server may get its block
    share: BoolArray = array(1, kind="bool")
    # the newest attempt at a segment that it knows of
    serial: IntArray = array(1, kind="int")


@dataclass(frozen=True, eq=False)
class DataSummary(Payload):
    """A party's summary of its data, sent up after the party has seen all certificates."""

    # training and test rows, columns, whether the party has labels (in a run that scores rows: whether its labels were
    # used in training). The parties compare the ids themselves: the server gets no digest of them.
    rows: IntArray = array(2, kind="int")
    columns: IntArray = array(1, kind="int")
    labels: BoolArray = array(1, kind="bool")
    # the form of its ids: the lengths of the shortest and the longest id, and whether any id has each of `MARKS`
    id_lengths: IntArray = array(2, kind="int")
    id_marks: BoolArray = array(len(MARKS), kind="bool")


@dataclass(frozen=True, eq=False)
class Segment(Payload):
    """The definition of a round's segment, in addition to the settings. Sent down, the same to all parties.

    Segment 0 is the alignment: it has no epochs and starts from weights 0.
    """

    # numbers of the attempt, of the segment, and of the segment whose weights are the start (-1: weights 0)
    serial: IntArray = array(1, kind="int")
    segment: IntArray = array(1, kind="int")
    base: IntArray = array(1, kind="int")
    step: FloatArray = array(1)
    # the run's name in the parties' comparison of ids, and in the folder of their sockets
    salt: ByteArray = array(16, kind="bytes")
    # training and test rows; absent until the parties have found their common rows
    rows: IntArray | None = array(2, kind="int", optional=True)
    # the parties whose labels are used, the reporter first; empty until the label holders are known
    active: IntArray = array("m", kind="int")
    # whether to bound the curvature, to measure, to send the block (also for a checkpoint); whether the segment is last
    curvature: BoolArray = array(1, kind="bool")
    evaluate: BoolArray = array(1, kind="bool")
    share: BoolArray = array(1, kind="bool")
    last: BoolArray = array(1, kind="bool")
    # all parties' certificates (padded) and addresses, each joined into one field, and the lengths of the parts
    certificates: ByteArray = array("c", kind="bytes")
    certificate_lengths: IntArray = array("q", kind="int")
    addresses: ByteArray = array("a", kind="bytes")
    address_lengths: IntArray = array("q", kind="int")

    def peers(self) -> tuple[list[bytes], list[str]]:
        """Return each party's certificate and address; raise PayloadError if the lengths do not fit."""
        certificates = cut("certificates", self.certificates, self.certificate_lengths)
        return certificates, [part.decode() for part in cut("addresses", self.addresses, self.address_lengths)]


@dataclass(frozen=True, eq=False)
class Report(Payload):
    """The results of a segment, sent up."""

    serial: IntArray = array(1, kind="int")
    # from the reporter only: positions in METRICS, and their values
    metric_names: IntArray | None = array("k", kind="int", optional=True)
    metric_values: FloatArray | None = array("k", optional=True)
    # in the order of COUNTERS
    counters: FloatArray = array(len(COUNTERS))
    # before round 1 only: training and test rows
    rows: IntArray | None = array(2, kind="int", optional=True)
    # the party's block, if the server asked for it
    weights: FloatArray | None = array("w", optional=True)

    @classmethod
    def of_metrics(cls, metrics: dict[str, float]) -> dict[str, NDArray[np.float64] | NDArray[np.int64]]:
        """Return the two fields of metrics; no field for a party without metrics.

        Args:
            metrics: The metrics by name. Metrics that `METRICS` lacks are not sent.
        """
        known = [(METRICS.index(name), value) for name, value in metrics.items() if name in METRICS]
        if not known:
            return {}
        positions, values = zip(*known, strict=True)
        return {"metric_names": np.array(positions), "metric_values": np.array(values, dtype=np.float64)}

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name; raise PayloadError if names and values do not match."""
        if (self.metric_names is None) != (self.metric_values is None):
            raise PayloadError("Report: metric_names and metric_values go together")
        if self.metric_names is None or self.metric_values is None:
            return {}
        if not all(0 <= position < len(METRICS) for position in self.metric_names):
            raise PayloadError(f"Report.metric_names: got {self.metric_names}, allowed: 0 to {len(METRICS) - 1}")
        return {METRICS[n]: float(v) for n, v in zip(self.metric_names, self.metric_values, strict=True)}


# the replies of the exchanges before round 1
PHASES: dict[str, type[Payload]] = {
    CREDENTIALS: Credentials,
    DATA_SUMMARY: DataSummary,
    INTERSECTION: Report,
    ALIGNMENT: Report,
}


@dataclass(frozen=True, eq=False)
class VFB2State(Payload):
    """A party's memory: the blocks after its two newest segments, since the newest may have to be repeated."""

    # the newest attempt of this party; the numbers of the two segments, the newer last (-1: none)
    serial: IntArray = array(1, kind="int")
    segments: IntArray = array(2, kind="int")
    older: Array | None = array("w", optional=True)
    newer: Array | None = array("w", optional=True)
    # the head's weights, at the active party of a run with a head
    older_head: Array | None = array("h", optional=True)
    newer_head: Array | None = array("h", optional=True)
    # the name of the network, if the weights belong to a network
    network: ByteArray | None = array("m", kind="bytes", optional=True)
    # SAGA's scalars, one per training row
    older_table: Array | None = array("n", optional=True)
    newer_table: Array | None = array("n", optional=True)
    # digests of the parties' agreed terms of the two segments
    older_history: ByteArray | None = array(32, kind="bytes", optional=True)
    newer_history: ByteArray | None = array(32, kind="bytes", optional=True)
    # which training labels are flipped, drawn once
    flips: BoolArray | None = array("n", kind="bool", optional=True)
    # certificate and key, for this run only; the places of the common rows, in their common order
    identity: ByteArray | None = array("i", kind="bytes", optional=True, secret=True)
    aligned: IntArray | None = array("r", kind="int", optional=True)
    # a digest of the data at the start of the run, which stays at the party
    data: ByteArray | None = array(16, kind="bytes", optional=True)
    # the port that the party has named for parties on the same host, or 0
    port: IntArray | None = array(1, kind="int", optional=True)

    @classmethod
    def empty(cls) -> Self:
        """Return the memory of a new party."""
        return cls(serial=np.array([0]), segments=np.array([-1, -1]))


@dataclass(frozen=True, eq=False)
class VFB2Progress(Payload):
    """The server's state: the newest attempt and segment, the rows, and the blocks once they have arrived."""

    serial: IntArray = array(1, kind="int")
    segment: IntArray = array(1, kind="int")
    rows: IntArray = array(2, kind="int")
    blocks: FloatArray | None = array("d_all", optional=True)
    block_lengths: IntArray | None = array("q", kind="int", optional=True)

    @classmethod
    def of(cls, serial: int, segment: int, rows: tuple[int, int], blocks: Sequence[FloatArray]) -> Self:
        """Return the record of an attempt, a segment, the numbers of rows and the parties' blocks, if there are any."""
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
    """Return text or bytes as a (bytes,) field of kind "bytes"."""
    return np.frombuffer(words.encode() if isinstance(words, str) else words, dtype=np.uint8)


def join_bytes(parts: Sequence[bytes], page: int = 1) -> tuple[ByteArray, NDArray[np.int64]]:
    """Join byte strings into one field, and return it with their lengths, which `cut` needs to separate them.

    Args:
        page: The field is padded with zeros to a multiple of this number of bytes.
    """
    whole = b"".join(parts)
    return text(whole + bytes(-len(whole) % page)), np.array([len(part) for part in parts], dtype=np.int64)


def cut(field: str, whole: ByteArray, lengths: IntArray) -> list[bytes]:
    """Undo `join_bytes`.

    Args:
        field: The name of the bytes in errors.

    Raises:
        PayloadError: The lengths do not fit.
    """
    if (lengths < 0).any() or int(lengths.sum()) > len(whole):
        raise PayloadError(f"{field}: {len(whole)} bytes, but lengths {lengths.tolist()}")
    blob = whole.tobytes()
    return [blob[stop - length : stop] for stop, length in zip(np.cumsum(lengths), lengths, strict=True)]
