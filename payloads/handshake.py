"""What a site sends before round 1: who it is and, where it holds rows, how many of each class. No row leaves it."""

import dataclasses
import json
from typing import Self

import numpy as np
from numpy.typing import NDArray

from payloads.record import BoolArray, FloatArray, IntArray, Payload, PayloadError, array

# entry in the config of a site's reply: the reason why it cannot take part
REFUSAL = "refusal"
# the most rows of a site, and the most sites: larger numbers overflow sums, or take for ever to count
MOST_ROWS, MOST_SITES = 2**40, 2**24
# the most different label values of a site, and characters of one
MOST_LABELS, LONGEST_LABEL = 128, 64


@dataclasses.dataclass(frozen=True, eq=False)
class SiteReport(Payload):
    """A site's answer to the handshake; the same message tells its device and the versions of its libraries."""

    # identity: partition id, number of partitions as the site knows it
    identity: IntArray = array(2, kind="int")
    # class counts: negatives, positives; a party of a vertical run sends none
    class_counts: IntArray | None = array(2, kind="int", optional=True)
    # the same for the rows held out for evaluation
    held_out_counts: IntArray | None = array(2, kind="int", optional=True)
    # the same for its test rows, where the rows held out for evaluation are validation rows
    test_counts: IntArray | None = array(2, kind="int", optional=True)
    # shape of one sample's features
    shape: IntArray | None = array("k", kind="int", optional=True)
    # the number that became 1, if the site's images have more than 8 bits
    pixel_max: FloatArray | None = array(1, optional=True)
    # how the site's table is encoded: JSON of a `Preprocessing`, not yet fitted, whose inputs are the c numbers below
    columns: NDArray[np.uint8] | None = array("b", kind="bytes", optional=True)
    # label values in the site's own file: the negative ones, and those of positive-label, in the same form
    negative_labels: NDArray[np.uint8] | None = array("e", kind="bytes", optional=True)
    positive_labels: NDArray[np.uint8] | None = array("f", kind="bytes", optional=True)
    # cells of the training rows that are there, where a table is to be scaled or filled; 0 of too few to tell of
    counts: IntArray | None = array("c", kind="int", optional=True)
    # of these cells: mean and variance, and quantiles, those of one column after those of another; only what is needed
    means: FloatArray | None = array("c", optional=True)
    variances: FloatArray | None = array("c", optional=True)
    quantiles: FloatArray | None = array("s", optional=True)
    # two digests of 16 bytes each under a key that the site keeps: of nothing, and of the site's rows in their order
    fingerprint: NDArray[np.uint8] | None = array(32, kind="bytes", optional=True)
    # the site's least cell: held-out rows of a smaller class are not counted, and all counts of them are 0
    least_cell: IntArray | None = array(1, kind="int", optional=True)

    def check_numbers(self) -> Self:
        """Check the site's identity and its numbers of rows.

        Returns:
            The report.

        Raises:
            PayloadError: A number is negative or impossibly large; the error names the site and the field.
        """
        if not (0 <= self.partition_id < self.num_partitions <= MOST_SITES):
            got = f"partition {self.partition_id} of {self.num_partitions}"
            raise PayloadError(f"SiteReport.identity: got {got}, expected a smaller one of at most {MOST_SITES:,}")
        for name in ("class_counts", "held_out_counts", "test_counts", "counts"):
            numbers = getattr(self, name)
            if numbers is not None and not ((numbers >= 0) & (numbers <= MOST_ROWS)).all():
                where = f"partition {self.partition_id}: SiteReport.{name}"
                raise PayloadError(f"{where}: got {numbers.tolist()}, expected numbers from 0 to {MOST_ROWS:,}")
        return self

    @property
    def label_values(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The label values in the site's own file: the negative and the positive ones.

        Raises:
            PayloadError: they are missing, are not names, or are too many or too long.
        """
        labels = (self.negative_labels, self.positive_labels)
        negative, positive = (() if values is None else decode_names(values) for values in labels)
        both = negative + positive
        if not 1 <= len(both) <= MOST_LABELS:
            raise PayloadError(f"SiteReport.labels: {len(both)} values, allowed: 1 to {MOST_LABELS}")
        if max(map(len, both)) > LONGEST_LABEL:
            raise PayloadError(f"SiteReport.labels: a value of more than {LONGEST_LABEL} characters")
        return negative, positive

    @property
    def partition_id(self) -> int:
        return int(self.identity[0])

    @property
    def num_partitions(self) -> int:
        return int(self.identity[1])


def encode_names(names: tuple[str, ...]) -> NDArray[np.uint8]:
    """Names as bytes: a JSON list in UTF-8."""
    return np.frombuffer(json.dumps(names).encode(), dtype=np.uint8)


def decode_names(encoded: NDArray[np.uint8]) -> tuple[str, ...]:
    """The names of labels that `encode_names` has encoded.

    Raises:
        PayloadError: the bytes are not a list of names.
    """
    try:
        names = json.loads(encoded.tobytes())
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PayloadError("SiteReport.labels: not a list of names")
    return tuple(names)


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling(Payload):
    """How every site scales and fills its columns: by what all sites' training rows together are like.

    It travels in each message, since a site keeps nothing of a run. The c numbers, and the k raw columns that they come
    from, are those of the sites' reports. A deviation of 0 marks a constant number.
    """

    # of each number, after its transform
    means: FloatArray = array("c")
    deviations: FloatArray = array("c")
    # what a missing cell is taken for, unless it is an error
    fills: FloatArray | None = array("c", optional=True)
    # q quantiles of each number, where it becomes its level among them, or a bin between some of them
    quantiles: FloatArray | None = array("c", "q", optional=True)
    # which raw columns have a feature that tells of missing cells, where that is asked for
    indicators: BoolArray | None = array("k", kind="bool", optional=True)
