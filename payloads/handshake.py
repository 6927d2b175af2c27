"""The records of the handshake before round 1: a site's report, and the common scaling that the server sends back.

A report has the site's identity and facts about its rows, such as the number of rows of each class. No row is sent.
"""

import dataclasses
import json
from typing import Self

import numpy as np
from numpy.typing import NDArray

from payloads.record import BoolArray, FloatArray, IntArray, Payload, PayloadError, array
from payloads.site_names import check_name, label_site

# key in the config of a site's reply: the reason why the site cannot take part
REFUSAL = "refusal"
# The limits of a site's rows, and of the number of sites. Larger numbers would overflow sums, or be too slow to check.
MOST_ROWS, MOST_SITES = 2**40, 2**24
# the limits of a site's distinct label values, and of the characters of a label value
MOST_LABELS, LONGEST_LABEL = 128, 64
# the fields of a report that count rows
COUNTS = ("class_counts", "finding_counts", "held_out_counts", "test_counts", "held_out_findings", "test_findings")


@dataclasses.dataclass(frozen=True, eq=False)
class SiteReport(Payload):
    """A site's answer to the handshake. The same message reports its device and the versions of its libraries."""

    # identity: the partition id, and the number of partitions in the site's config
    identity: IntArray = array(2, kind="int")
    # class counts: the numbers of negatives and positives, or (rows, 0) if rows have no classes. Absent from the
    # report of a party in a vertical run.
    class_counts: IntArray | None = array(2, kind="int", optional=True)
    # numbers of known zeros and ones of each finding, if each row has several binary labels
    finding_counts: IntArray | None = array("l", 2, kind="int", optional=True)
    # class counts of the rows held out for evaluation
    held_out_counts: IntArray | None = array(2, kind="int", optional=True)
    # class counts of the test rows, if the rows held out for evaluation are validation rows
    test_counts: IntArray | None = array(2, kind="int", optional=True)
    # the same numbers as in finding_counts, of the held-out rows and of the test rows
    held_out_findings: IntArray | None = array("l", 2, kind="int", optional=True)
    test_findings: IntArray | None = array("l", 2, kind="int", optional=True)
    # shape of one sample's features
    shape: IntArray | None = array("k", kind="int", optional=True)
    # the pixel value that became 1, if the site's images have more than 8 bits
    pixel_max: FloatArray | None = array(1, optional=True)
    # the conversion of the site's table to c numbers a row: JSON of a `Preprocessing` that is not yet fitted
    columns: NDArray[np.uint8] | None = array("b", kind="bytes", optional=True)
    # label values in the site's own file: the negative values, and the positive values (positive-label). Both are
    # absent if the labels are numbers, which never leave the site, or if rows have several labels.
    negative_labels: NDArray[np.uint8] | None = array("e", kind="bytes", optional=True)
    positive_labels: NDArray[np.uint8] | None = array("f", kind="bytes", optional=True)
    # counts of non-missing cells in the training rows, if columns are scaled or filled; 0 if too few to report
    counts: IntArray | None = array("c", kind="int", optional=True)
    # means, variances and quantiles of these cells, one column after another; only the statistics that the run needs
    means: FloatArray | None = array("c", optional=True)
    variances: FloatArray | None = array("c", optional=True)
    quantiles: FloatArray | None = array("s", optional=True)
    # quantiles of the times of events in the training rows, if the sites agree on intervals of time
    event_times: FloatArray | None = array("t", optional=True)
    # two digests of 16 bytes each under the site's secret key: of nothing, and of the site's rows in their order
    fingerprint: NDArray[np.uint8] | None = array(32, kind="bytes", optional=True)
    # The site's least-cell, the smallest count of rows that may leave it. If a class has fewer held-out rows, all
    # counts of held-out rows are 0.
    least_cell: IntArray | None = array(1, kind="int", optional=True)
    # the name that the site's owner has chosen, in UTF-8
    name: NDArray[np.uint8] | None = array("n", kind="bytes", optional=True)

    def check_numbers(self) -> Self:
        """Check the site's identity, its numbers of rows and its name.

        Returns:
            The report.

        Raises:
            PayloadError: A number is negative or impossibly large, or the name is not allowed. The error names the site
                and the field.
        """
        if not (0 <= self.partition_id < self.num_partitions <= MOST_SITES):
            got = f"partition {self.partition_id} of {self.num_partitions}"
            raise PayloadError(
                f"SiteReport.identity: got {got}, expected a partition id from 0 to num-partitions - 1, and "
                f"num-partitions up to {MOST_SITES:,}"
            )
        for name in (*COUNTS, "counts"):
            numbers = getattr(self, name)
            if numbers is not None and not ((numbers >= 0) & (numbers <= MOST_ROWS)).all():
                where = f"partition {self.partition_id}: SiteReport.{name}"
                raise PayloadError(f"{where}: got {numbers.tolist()}, expected numbers from 0 to {MOST_ROWS:,}")
        _ = self.site_name
        return self

    @property
    def site_name(self) -> str:
        """The site's name; "" if the site reports none.

        Raises:
            PayloadError: The name is not allowed.
        """
        try:
            return "" if self.name is None else check_name(self.name.tobytes().decode())
        except ValueError as error:
            where = label_site(self.partition_id)
            raise PayloadError(f"{where}: SiteReport.name: {error}") from None

    @property
    def label(self) -> str:
        """The text that stands for the site in results and logs."""
        return self.site_name or label_site(self.partition_id)

    @property
    def smallest_count(self) -> int:
        """The smallest count, except 0, that the site reveals. 1 if the site reports no least cell."""
        return 1 if self.least_cell is None else int(self.least_cell[0])

    @property
    def has_numbers(self) -> bool:
        """Whether the labels in the site's own file are numbers."""
        return self.negative_labels is None and self.positive_labels is None and self.finding_counts is None

    @property
    def label_values(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The label values in the site's own file: the negative and the positive values. ((), ()) without label values.

        Raises:
            PayloadError: The values are not names, or are too many or too long.
        """
        if self.negative_labels is None and self.positive_labels is None:
            return (), ()
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


def encode_name(name: str) -> NDArray[np.uint8] | None:
    """Return a site's name as the bytes of its report; None for a site without a name."""
    return np.frombuffer(name.encode(), dtype=np.uint8) if name else None


def encode_names(names: tuple[str, ...]) -> NDArray[np.uint8]:
    """Return names as bytes: a JSON list in UTF-8."""
    return np.frombuffer(json.dumps(names).encode(), dtype=np.uint8)


def decode_names(encoded: NDArray[np.uint8]) -> tuple[str, ...]:
    """Return the names of labels that `encode_names` has encoded.

    Raises:
        PayloadError: The bytes are not a list of names.
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
    """The common scaling and fill values of all sites' columns, from statistics of all sites' training rows.

    The server sends the record in each message, since sites keep no data of a run. The c numbers and the k raw columns
    are the same as in the sites' reports. A deviation of 0 marks a constant number.
    """

    # mean and deviation of each number, after its transform
    means: FloatArray = array("c")
    deviations: FloatArray = array("c")
    # the fill values of missing cells, unless missing cells are an error
    fills: FloatArray | None = array("c", optional=True)
    # q quantiles of each number, if numbers are converted to their level among the quantiles, or to bins between them
    quantiles: FloatArray | None = array("c", "q", optional=True)
    # whether each raw column has a "missing" feature, if the run asks for these features
    indicators: BoolArray | None = array("k", kind="bool", optional=True)
    # the borders of the intervals of time, unless the run config sets them
    time_borders: FloatArray | None = array("t", optional=True)
    # if rows have several labels: the share of all training rows in which each is known, and the share of ones of these
    shares: FloatArray | None = array("l", optional=True)
    priors: FloatArray | None = array("l", optional=True)
