"""The handshake before the first round, which makes the roster: the list of the sites by partition id.

Flower's node ids change from run to run. Everything that must be reproducible (sampling, order of aggregation)
therefore uses partition ids. The server asks each node for its partition id once.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from logging import WARNING

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from methods.server import count_share, draw_clients
from payloads.broadcast import Broadcast, Introductions
from payloads.handshake import SiteReport
from payloads.plain import kind_of
from payloads.record import PayloadError
from payloads.settings import TrainingSettings
from payloads.site_names import label_site
from payloads.wire import CONFIG, PAYLOAD, ROUND, content, count_bytes, find
from problems.randomness import Purpose
from strategies.rounds.errors import SetupError, StrategyError, raise_setup, reason_of, refusal_of, shorten

# the maximum bytes of a report, enough for the names and statistics of a few hundred thousand columns
LARGEST_REPORT = 2**24


class NoHandshakeError(StrategyError):
    """An error: a node's ClientApp cannot answer the handshake.

    Attributes:
        kind: The kind of the node's client, see `payloads.plain.CLIENTS`.
    """

    def __init__(self, node: int, kind: str) -> None:
        super().__init__(f"node {node}, whose ClientApp cannot answer the handshake")
        self.kind = kind


@dataclass(frozen=True)
class Roster:
    """The sites of a run, ordered by partition id, 0 to N - 1. A site's index is its partition id.

    Attributes:
        node_ids: The Flower node id of each site.
        reports: The report of each site.
        bytes_up: The bytes of all reports.
    """

    node_ids: tuple[int, ...]
    reports: tuple[SiteReport, ...]
    bytes_up: int = 0

    def __len__(self) -> int:
        return len(self.node_ids)

    @cached_property
    def site_names(self) -> dict[str, str]:
        """The names of the sites that have one, by partition id as text."""
        return {str(place): name for place, report in enumerate(self.reports) if (name := report.site_name)}

    def label(self, place: int) -> str:
        """Return the text that stands for a site in results and logs."""
        return label_site(place, self.site_names)

    @cached_property
    def class_counts(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """(N, 2) Each site's numbers of negatives and positives; 0 if not reported."""
        counted = [report.class_counts for report in self.reports]
        array = np.array([(0, 0) if counts is None else counts for counts in counted], dtype=np.int64).reshape(-1, 2)
        array.setflags(write=False)  # cached, and read in every round
        return array

    @cached_property
    def finding_counts(self) -> NDArray[np.int64] | None:
        """(N, l, 2) The numbers of known zeros and ones of each finding at each site. None: each row has one label.

        Raises:
            SetupError: The sites report different numbers of findings.
        """
        counted = [report.finding_counts for report in self.reports]
        known = [counts for counts in counted if counts is not None]
        if not known:
            return None
        if len(known) < len(counted) or len({counts.shape for counts in known}) > 1:
            got = f"{', '.join(str(0 if counts is None else len(counts)) for counts in counted[:8])} findings"
            hint = "let all sites run the same release and run config"
            raise SetupError("handshake", got=got, allowed="equal numbers at all sites", hint=hint)
        return np.stack(known)

    @cached_property
    def sample_weights(self) -> NDArray[np.float64]:
        """(N,) N n_i / n for each site, with n_i of all n samples. Exactly 1 if all sites have equally many samples."""
        sizes = self.class_counts.sum(axis=1)
        weights: NDArray[np.float64] = len(self) * sizes / sizes.sum()
        weights.setflags(write=False)
        return weights

    def share(self, training: TrainingSettings) -> int:
        """Return the number of clients in a round."""
        return count_share(training, len(self))

    def sample(self, training: TrainingSettings, server_round: int) -> list[int]:
        """Sample the clients of a round without replacement, and return their partition ids in ascending order.

        Raises:
            SetupError: The run has fewer clients than a round needs.
        """
        with raise_setup():
            return draw_clients(training, len(self), server_round, Purpose.SAMPLE_CLIENTS)


def collect_reports(
    grid: Grid, timeout: float, *, counted: bool = True, local: Mapping[str, str] | None = None
) -> Roster:
    """Ask every node for its report, until all partitions have answered, and return the roster.

    Each site reports the run's number of partitions; the largest counts. Warns if sites differ in device or libraries.

    Args:
        grid: Flower's grid.
        timeout: The maximum seconds to wait for all sites.
        counted: Whether each site must report its number of rows of each class.
        local: Paths on a disk that server and sites share, by name.

    Raises:
        NoHandshakeError: A node's ClientApp is not Florilegium's.
        StrategyError: No site joins in time, a site cannot answer, partitions are missing or claimed twice, or two
            sites have the same name.
    """
    deadline = time.monotonic() + timeout
    reports: dict[int, SiteReport] = {}
    facts: list[dict[str, object]] = []
    bytes_up = 0  # the question carries no values
    while True:
        failed: dict[int, str] = {}
        if new := sorted(set(grid.get_node_ids()) - set(reports)):
            paths = ConfigRecord(dict(local)) if local else None
            question = content(config=ConfigRecord({ROUND: 0}), local=paths)
            messages = Broadcast(question, new, MessageType.QUERY)
            replies = grid.send_and_receive(messages, timeout=max(deadline - time.monotonic(), 1.0))
            if isinstance(replies, Introductions):
                reports |= {node: _check(report, counted) for node, report in zip(new, replies.reports, strict=True)}
                facts.append(dict(replies.facts))
                bytes_up += sum(value.nbytes for report in replies.reports for value in report.arrays().values())
                replies = []
            replies = list(replies)
            receivers = {message.metadata.message_id: message.metadata.dst_node_id for message in messages if replies}
            for reply in replies:
                node = reply.metadata.src_node_id
                if reply.has_error():  # the SuperLink may have answered for the site
                    failed[receivers.get(reply.metadata.reply_to_message_id, node)] = shorten(reason_of(reply.error))
                    continue
                reports[node] = _read_report(reply, counted)
                facts.append(dict(find(reply.content, CONFIG, ConfigRecord) or {}))
                bytes_up += count_bytes(reply.content)
        for node, reason in failed.items():
            if kind := kind_of(reason):
                raise NoHandshakeError(node, kind)
        expected = max((report.num_partitions for report in reports.values()), default=1)
        missing = _missing(reports, expected)
        if failed:
            reasons = "; ".join(f"node {node}: {reason}" for node, reason in failed.items())
            sites = "a site" if len(failed) == 1 else f"{len(failed)} sites"
            # the partition ids of failed nodes are known if exactly as many partitions are missing
            partitions = ""
            if reports and len(missing) == len(failed):
                partitions = f", partition{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
            raise StrategyError(f"handshake: {sites} failed{partitions}: {reasons}")
        if len(reports) >= expected:
            _warn_of_mixtures(facts)
            return _by_partition(reports, bytes_up)
        if time.monotonic() > deadline:
            got = f"{len(reports)} of {expected} sites within {timeout:g} s"
            allowed = f"all sites; missing partitions: {', '.join(missing)}"
            raise SetupError("handshake", got=got, allowed=allowed, hint="start the sites, or raise handshake-timeout")
        time.sleep(0.02)


def _missing(reports: Mapping[int, SiteReport], partitions: int) -> list[str]:
    known = {report.partition_id for report in reports.values()}
    return [str(partition) for partition in range(partitions) if partition not in known]


def _read_report(reply: Message, counted: bool) -> SiteReport:
    if (refusal := refusal_of(reply)) is not None:
        raise StrategyError(refusal)
    size = count_bytes(reply.content)
    if size > LARGEST_REPORT:
        raise StrategyError(f"handshake: a site's report has {size:,} bytes, allowed: {LARGEST_REPORT:,}")
    report = find(reply.content, PAYLOAD, ConfigRecord)
    if report is None:
        raise StrategyError("handshake: a site answered without a report; is its ClientApp Florilegium's?")
    try:
        return _check(SiteReport.from_record(report), counted)
    except PayloadError as error:
        raise _refuse_report(error) from None


def _check(report: SiteReport, counted: bool) -> SiteReport:
    """Return a site's report, if its numbers are possible."""
    try:
        report.check_numbers()
        if counted and report.class_counts is None:
            raise PayloadError("SiteReport.class_counts: missing")
        return report
    except PayloadError as error:
        raise _refuse_report(error) from None


def _refuse_report(error: PayloadError) -> StrategyError:
    return StrategyError(f"handshake: a site's report is malformed: {error}")


def _warn_of_mixtures(facts: list[dict[str, object]]) -> None:
    for name in sorted({name for site in facts for name in site}):
        values = sorted({str(site.get(name)) for site in facts})
        if len(values) > 1:
            log(
                WARNING,
                "sites differ in %s: %s; so the same computation may differ between them",
                name,
                ", ".join(values),
            )


def _by_partition(reports: Mapping[int, SiteReport], bytes_up: int) -> Roster:
    order = sorted(reports, key=lambda node: reports[node].partition_id)
    partitions = [reports[node].partition_id for node in order]
    doubled = next((left for left, right in pairwise(partitions) if left == right), None)
    if doubled is not None:
        raise SetupError(
            f"handshake: partition {doubled}",
            got="two sites that claim it",
            allowed="one site",
            hint="set a different partition-id in each SuperNode's --node-config",
        )
    count = len(partitions)
    if missing := _missing(reports, count):
        got = f"partitions {', '.join(map(str, partitions))}"
        allowed = f"0 to {count - 1}, for {count} sites; missing: {', '.join(missing)}"
        raise SetupError(
            "handshake", got=got, allowed=allowed, hint="correct partition-id in each SuperNode's --node-config"
        )
    roster = Roster(tuple(order), tuple(reports[node] for node in order), bytes_up)
    _check_labels(roster)
    return roster


def _check_labels(roster: Roster) -> None:
    """Raise SetupError if two sites have the same name, since results and logs identify sites by it."""
    places: dict[str, int] = {}
    for place in range(len(roster)):
        label = roster.label(place)
        if (other := places.setdefault(label.casefold(), place)) != place:
            raise SetupError(
                "handshake: site-name",
                got=f"{label!r} at partitions {other} and {place}",
                allowed="a different name at each site",
                hint="change site-name in the settings of one of these sites",
            )
