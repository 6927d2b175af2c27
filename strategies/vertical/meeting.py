"""Checks before parties train together: number of parties, addresses, labels, equal rows, a stable step."""

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


def check_number(parties: int, fewest: int, vfb2: VFB2Settings) -> None:
    """Check the number of parties against the settings.

    Args:
        parties: The number of parties.
        fewest: The minimum number of parties of a run that does not allow two parties.
        vfb2: The run's settings.

    Raises:
        SetupError: Too few parties, or too many active parties.
    """
    if parties < (2 if vfb2.allow_two_parties else fewest):
        allowed, hint = "2 or more", "add clients"
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
        serial: The number of the attempt.

    Raises:
        StrategyError: See `addresses_of`.
    """
    shown = [cut("certificate", held.certificate, held.certificate_length)[0] for held in credentials]
    certificates, certificate_lengths = join_bytes(shown, PAGE)
    joined = join_bytes([address.encode() for address in addresses_of(credentials, transport, serial)])
    fields = {"certificates": certificates, "certificate_lengths": certificate_lengths}
    return fields | dict(zip(("addresses", "address_lengths"), joined, strict=True))


def addresses_of(
    credentials: Sequence[Credentials], transport: Literal["auto", "unix", "tcp"], serial: int
) -> list[str]:
    """Return each party's address in an attempt: "unix:/path", "tcp:host:port" or, if unreachable, "none:party".

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
        return [f"unix:/{serial}-{place}" for place in range(len(credentials))]
    advertised = [shown.advertised.tobytes().decode() for shown in credentials]
    if len(hosts) == 1:
        near = [f"127.0.0.1:{int(shown.port[0])}" for shown in credentials]
        advertised = [given or own for given, own in zip(advertised, near, strict=True)]
    without = [str(place) for place, address in enumerate(advertised) if not address]
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
            allowed="host:port at one party at least, at which the other parties meet",
            hint="forward a port to one party, and start its SuperNode with --node-config 'advertise=\"host:port\"'",
        )
    counts = Counter(address for address in advertised if address != UNREACHABLE)
    sharing = [place for place, address in enumerate(advertised) if counts[address] > 1]
    if sharing:
        raise SetupError(
            f"party {', '.join(map(str, sharing))}",
            got="the same address as another party",
            allowed="a different address for each party",
            hint="set advertise separately in each node config",
        )
    return [f"none:{place}" if address == UNREACHABLE else f"tcp:{address}" for place, address in enumerate(advertised)]


def choose_active(summaries: Sequence[DataSummary], vfb2: VFB2Settings) -> tuple[int, ...]:
    """Return the active parties by index: the first ``vfb2.active-parties`` parties with labels.

    In a run that scores rows, the active parties are the recipients of the scores.

    Raises:
        SetupError: No party, or fewer parties than the run config requires, has labels (in a run that scores rows: had
            labels in training).
    """
    holders = [place for place, summary in enumerate(summaries) if summary.labels[0]]
    if vfb2.score_run:
        recipients = [*range(len(summaries))] if vfb2.score_for == "all" else holders
        if not recipients:
            got, hint = "'label-holders', but no party used labels in training", "set vfb2.score-for to 'all'"
            raise SetupError("vfb2.score-for", got=got, allowed="'all'", hint=hint)
        return tuple(recipients)
    if not holders:
        hint = "set label-column to a column of one party's file that its owner lists in labels"
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


def check_rows(held: Sequence[DataSummary | Report], *, forms: bool = False) -> tuple[int, int]:
    """Return the numbers of training and test rows, which must be equal at all parties. The parties compare the ids.

    Args:
        held: The numbers of each party's rows.
        forms: Whether ids of different forms count as different rows. Requires the parties' summaries.

    Raises:
        StrategyError: Rows differ; names the parties whose rows differ from the most common rows.
    """
    marks, written = list[tuple[int, ...]](), []
    for party in held:
        assert party.rows is not None
        mark = party.rows.tolist()
        if forms:
            assert isinstance(party, DataSummary)
            written.append((party.id_lengths, party.id_marks))
            mark += [*party.id_lengths.tolist(), *party.id_marks.tolist()]
        marks.append(tuple(mark))
    common, agreeing = Counter(marks).most_common(1)[0]
    differing = [place for place, mark in enumerate(marks) if mark != common]
    if differing:
        shown = ", ".join(f"{marks[place][0] + marks[place][1]:,}" for place in differing)
        agreed = f"{agreeing} of {len(marks)} parties, which agree on {common[0] + common[1]:,}"
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
    held = [int(summary.rows.sum()) for summary in summaries]
    counts = ", ".join(f"{count:,} at party {party}" for party, count in enumerate(held))
    log(INFO, "%s rows in common, of %s", f"{common:,}", counts)
    if common < min(held) and (forms := forms_of(summaries)):
        log(WARNING, "%s of %s rows in common: %s", f"{common:,}", f"{min(held):,}", forms)


def warn_of_looks(epochs: int, columns: Sequence[int], embedding: int) -> None:
    """Warn if a party sees, over all epochs, at least as many numbers of each row as the other parties have columns."""
    others, looks = [sum(columns) - own for own in columns], epochs
    if embedding:
        # The initial weights of a network are random, so even the evaluation before the first epoch shows sums.
        looks = (epochs + 1) * embedding
    if looks >= min(others):
        words = (
            "%d epochs%s show party %d at least as many numbers of every row as the other parties have columns (%d): "
            "it can compute the values in these columns, see docs/security.md"
        )
        of = f" of embedding {embedding}" if embedding else ""
        log(WARNING, words, epochs, of, others.index(min(others)), min(others))


def check_step(step: float, eigenvalue: float, active: int, vfb2: VFB2Settings) -> None:
    """Warn if gamma is too large to be stable under the delay.

    Args:
        step: The first round's gamma.
        eigenvalue: A bound of the objective's curvature.
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
