"""The server's checks before the parties of a vertical run connect: number, addresses, labels, rows, step size."""

import math
from collections import Counter
from collections.abc import Sequence
from logging import INFO, WARNING
from typing import Any, Literal

from flwr.common import log

from payloads.id_forms import compare_forms
from strategies.rounds.errors import SetupError
from vertical.problem.analysis import largest_step
from vertical.records import PAGE, UNREACHABLE, Credentials, DataSummary, Report, cut, join_bytes
from vertical.settings import VFB2Settings


def check_number(parties: int, min_parties: int, vfb2: VFB2Settings) -> None:
    """Check the number of parties against the settings.

    Args:
        parties: The number of parties.
        min_parties: The minimum number of parties without ``vfb2.allow-two-parties``.
        vfb2: The run's settings.

    Raises:
        SetupError: Too few parties, or too many active parties.
    """
    if parties < (2 if vfb2.allow_two_parties else min_parties):
        allowed, hint = "2 or more", "add parties"
        if parties == 2:
            allowed = "3 or more, since two parties learn each other's partial sums, which no mask can hide"
            hint = "add a party, or set vfb2.allow-two-parties=true"
        raise SetupError("number of parties", got=parties, allowed=allowed, hint=f"{hint}; see docs/vertical.md")
    wanted = vfb2.active_parties
    if isinstance(wanted, int) and wanted > parties and not vfb2.score_run:
        allowed = f"at most the number of parties, {parties}"
        raise SetupError("vfb2.active-parties", got=wanted, allowed=allowed, hint="lower vfb2.active-parties")


def peers_of(
    credentials: Sequence[Credentials], transport: Literal["auto", "unix", "tcp"], serial: int
) -> dict[str, Any]:
    """Return the fields of a `Segment` with all parties' certificates and addresses.

    Args:
        credentials: The credentials of each party.
        transport: The setting ``vfb2.transport``.
        serial: The number of the attempt, counted over the run.

    Raises:
        StrategyError: See `addresses_of`.
    """
    received = [cut("certificate", shown.certificate, shown.certificate_length)[0] for shown in credentials]
    certificates, certificate_lengths = join_bytes(received, PAGE)
    joined = join_bytes([address.encode() for address in addresses_of(credentials, transport, serial)])
    fields = {"certificates": certificates, "certificate_lengths": certificate_lengths}
    return fields | dict(zip(("addresses", "address_lengths"), joined, strict=True))


def addresses_of(
    credentials: Sequence[Credentials], transport: Literal["auto", "unix", "tcp"], serial: int
) -> list[str]:
    """Return each party's address in an attempt: "unix:/path", "tcp:host:port" or, if unreachable, "none:party".

    Args:
        credentials: The credentials of each party.
        transport: The setting ``vfb2.transport``.
        serial: The number of the attempt, counted over the run.

    Raises:
        StrategyError: Unix sockets are selected for several hosts, a party has no address, two parties have the same
            address, or no party can be reached.
    """
    hosts = {shown.host.tobytes() for shown in credentials}
    if transport == "unix" and len(hosts) > 1:
        got = f"'unix' for {len(credentials)} parties on {len(hosts)} hosts"
        raise SetupError("vfb2.transport", got=got, allowed="auto, tcp", hint="remove vfb2.transport")
    if transport == "unix" or (transport == "auto" and len(hosts) == 1):
        # each party derives the folder from the salt
        return [f"unix:/{serial}-{party}" for party in range(len(credentials))]
    advertised = [shown.advertised.tobytes().decode() for shown in credentials]
    if len(hosts) == 1:
        loopback = [f"127.0.0.1:{int(shown.port[0])}" for shown in credentials]
        advertised = [address or local for address, local in zip(advertised, loopback, strict=True)]
    without = [str(party) for party, address in enumerate(advertised) if not address]
    if without:
        raise SetupError(
            f"party {', '.join(without)}",
            got="no address",
            allowed=f"an address, since the parties are on {len(hosts)} hosts",
            hint='start the SuperNode with --node-config \'advertise="host:port"\', or "none" if it is unreachable',
        )
    if all(address == UNREACHABLE for address in advertised):
        raise SetupError(
            "advertise",
            got=f"'{UNREACHABLE}' at every party, {', '.join(map(str, range(len(advertised))))}",
            allowed="host:port at one party at least, through which the other parties connect",
            hint="forward a port to one party, and start its SuperNode with --node-config 'advertise=\"host:port\"'",
        )
    counts = Counter(address for address in advertised if address != UNREACHABLE)
    sharing = [party for party, address in enumerate(advertised) if counts[address] > 1]
    if sharing:
        raise SetupError(
            f"party {', '.join(map(str, sharing))}",
            got="the same address as another party",
            allowed="a different address for each party",
            hint="set advertise separately in each node config",
        )
    return [f"none:{party}" if address == UNREACHABLE else f"tcp:{address}" for party, address in enumerate(advertised)]


def choose_active(summaries: Sequence[DataSummary], vfb2: VFB2Settings) -> tuple[int, ...]:
    """Return the numbers of the active parties: the first ``vfb2.active-parties`` parties with labels.

    In a run that scores rows, the active parties are the recipients of the scores.

    Raises:
        SetupError: Fewer parties than the run config requires have labels. In a run that scores rows: no party had
            labels in training.
    """
    holders = [party for party, summary in enumerate(summaries) if summary.labels[0]]
    if vfb2.score_run:
        recipients = [*range(len(summaries))] if vfb2.score_for == "all" else holders
        if not recipients:
            got, hint = "'label-holders', but no party used labels in training", "set vfb2.score-for to 'all'"
            raise SetupError("vfb2.score-for", got=got, allowed="'all'", hint=hint)
        return tuple(recipients)
    if not holders:
        hint = "set label-column to a column that the owner of a party's file lists in its site setting labels"
        raise SetupError("label-column", got="labels at no party", allowed="labels at one party or more", hint=hint)
    if vfb2.active_parties == "auto":
        active = holders[: vfb2.max_active]
        log(INFO, "vfb2.active-parties=auto: %d of %d parties with labels", len(active), len(holders))
    elif len(holders) < vfb2.active_parties:
        got = f"{vfb2.active_parties}, but only party {', '.join(map(str, holders))} has labels"
        hint = "lower vfb2.active-parties, or set label-column"
        raise SetupError("vfb2.active-parties", got=got, allowed=f"at most {len(holders)}", hint=hint)
    else:
        active = holders[: vfb2.active_parties]
    return tuple(active)


def check_rows(reports: Sequence[DataSummary | Report], *, forms: bool = False) -> tuple[int, int]:
    """Return the numbers of training and test rows, which must be equal at all parties.

    Only numbers and forms of ids are compared here. The parties themselves compare the ids.

    Args:
        reports: The report of each party, with its numbers of rows.
        forms: Whether ids of different forms (lengths, kinds of characters) count as different rows. Requires the
            parties' summaries.

    Raises:
        SetupError: The rows differ. The error names the parties that differ from most parties.
    """
    facts, written = list[tuple[int, ...]](), []
    for report in reports:
        assert report.rows is not None
        fact = report.rows.tolist()
        if forms:
            assert isinstance(report, DataSummary)
            written.append((report.id_lengths, report.id_marks))
            fact += [*report.id_lengths.tolist(), *report.id_marks.tolist()]
        facts.append(tuple(fact))
    common, agreeing = Counter(facts).most_common(1)[0]
    differing = [party for party, fact in enumerate(facts) if fact != common]
    if differing:
        shown = ", ".join(f"{facts[party][0] + facts[party][1]:,}" for party in differing)
        agreed = f"{agreeing} of {len(facts)} parties, which agree on {common[0] + common[1]:,}"
        different = compare_forms(written) if forms else ""
        raise SetupError(
            f"party {', '.join(map(str, differing))}",
            got=f"other rows ({shown}) than {agreed}{different and f'; {different}'}",
            allowed="the same ids at all parties",
            hint='provide the same ids, or set vfb2.alignment="intersection"',
        )
    return common[0], common[1]


def forms_of(summaries: Sequence[DataSummary]) -> str:
    """Return a sentence about the different forms of the parties' ids; empty if the forms are equal."""
    return compare_forms([(summary.id_lengths, summary.id_marks) for summary in summaries])


def log_common_rows(common: int, summaries: Sequence[DataSummary]) -> None:
    """Log the number of common rows and the number of each party's rows.

    Args:
        common: The number of rows that all parties have.
        summaries: The summary of each party.
    """
    rows = [int(summary.rows.sum()) for summary in summaries]
    counts = ", ".join(f"{count:,} at party {party}" for party, count in enumerate(rows))
    log(INFO, "%s rows in common, of %s", f"{common:,}", counts)
    if common < min(rows) and (forms := forms_of(summaries)):
        log(WARNING, "%s of %s rows in common: %s", f"{common:,}", f"{min(rows):,}", forms)


def warn_of_exposure(epochs: int, columns: Sequence[int], embedding: int) -> None:
    """Warn if a party sees, over all epochs, at least as many numbers of each row as the other parties have columns.

    The party could then compute the values in these columns.

    Args:
        epochs: The number of epochs of the run.
        columns: The number of each party's columns.
        embedding: The setting ``vfb2.embedding``: the numbers of a row that a network sends. 0: no network.
    """
    hidden = [sum(columns) - own for own in columns]  # for each party, the number of the other parties' columns
    seen = epochs
    if embedding:
        # The initial weights of a network are random, so even the evaluation before the first epoch shows sums.
        seen = (epochs + 1) * embedding
    if seen >= min(hidden):
        text = (
            "%d epochs%s show party %d at least as many numbers of every row as the other parties have columns (%d): "
            "the party can compute the values in these columns, see docs/security.md"
        )
        of = f" of embedding {embedding}" if embedding else ""
        log(WARNING, text, epochs, of, hidden.index(min(hidden)), min(hidden))


def check_step(step: float, eigenvalue: float, active: int, vfb2: VFB2Settings) -> None:
    """Warn if the step size gamma is too large for a stable run, since updates arrive late.

    Args:
        step: The first round's gamma.
        eigenvalue: A bound of the objective's curvature: of the largest eigenvalue of its Hessian.
        active: The number of active parties.
        vfb2: The run's settings.

    Raises:
        SetupError: Gamma is too large, and ``check-step`` is "refuse".
    """
    if not 0 < eigenvalue < math.inf:
        return
    bound = vfb2.delay_bound(active)
    largest = largest_step(eigenvalue, bound)
    if step < largest:
        return
    how = "synchronous" if vfb2.synchronous else f"window {vfb2.window}"
    late = f"with {active} active parties ({how}) an update may be {bound} updates late"
    stable = f"the limit of stable steps with a largest eigenvalue of {eigenvalue:.4g}"
    error = SetupError(
        "learning-rate",
        got=f"{step:g}",
        allowed=f"below {largest:.4g}, {stable}, since {late}",
        hint="lower learning-rate, or set vfb2.check-step to 'warn'",
    )
    if vfb2.check_step == "refuse":
        raise error
    log(WARNING, "%s: the run may diverge", error)
