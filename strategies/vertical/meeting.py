"""What parties need to run together: capacity, addresses, equal rows, a stable step; and waiting for replies."""

import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from logging import INFO, WARNING
from typing import Literal

from flwr.app import Message
from flwr.common import log
from flwr.serverapp import Grid

from payloads.flower_internals import CLIENT_ACTOR, PULL_INTERVAL, SIMULATION_GRID
from payloads.id_forms import compare_forms
from strategies.rounds.errors import SetupError, StrategyError, reason_of, refusal_of
from strategies.rounds.exchange import Exchange
from vertical.problem.analysis import largest_step
from vertical.records import UNREACHABLE, Credentials, DataSummary, Report, VFB2Settings

# Flower's simulation has min(MOST_THREADS, cores + MORE_THREADS) server threads
MOST_THREADS, MORE_THREADS = 32, 4
# seconds between two polls for replies, if the grid sets none
SLOW_PULL = 0.5


def check_capacity(grid: Grid, parties: int) -> None:
    """Have the in-process engine run all parties at once, since they wait for each other.

    Raises:
        SetupError: Flower's simulation cannot, see `check_simulation`. A deployment is not checked.
    """
    run_together = getattr(grid, "run_together", None)
    if run_together is not None:
        run_together(parties)
    elif type(grid).__name__ == SIMULATION_GRID:
        check_simulation(parties, os.cpu_count() or 1, ray_actors())


def check_simulation(parties: int, cores: int, actors: int | None) -> None:
    """Check that Flower's simulation, on so many cores, runs all parties at once.

    Args:
        actors: how many clients Ray runs at once; None: unknown, and not checked.

    Raises:
        SetupError: there are more parties than Ray, or the simulation's threads, can run.
    """
    threads = min(MOST_THREADS, cores + MORE_THREADS)
    if parties > threads:
        most = f"min({MOST_THREADS}, {cores} cores + {MORE_THREADS}) = {threads}"
        allowed = f"{most}, what Flower's simulation runs at once on this machine"
        hint = "take fewer parties, or the in-process engine"
    elif actors is not None and parties > actors:
        allowed = f"{actors}, what Ray runs at once, its CPUs divided by client-resources-num-cpus"
        cpus = f"client-resources-num-cpus=1 init-args-num-cpus={parties}"
        hint = f"give flwr run --federation-config 'num-supernodes={parties} {cpus}'"
    else:
        return
    raise SetupError("number of parties", got=f"{parties}, who must run at once", allowed=allowed, hint=hint)


def ray_actors() -> int | None:
    """How many clients Ray runs at once for this process: Flower's actors, else Ray's CPUs; None without Ray."""
    import ray

    if not ray.is_initialized():
        return None
    try:
        from ray._private.state import actors  # the public list needs Ray's dashboard

        job = ray.get_runtime_context().get_job_id()
        found = [one for one in actors().values() if one["JobID"] == job and one["State"] == "ALIVE"]
        count = sum(one["ActorClassName"] == CLIENT_ACTOR for one in found)
    except (ImportError, KeyError, TypeError):
        count = 0
    return count or int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]


def meet_on(grid: Grid, messages: list[Message], timeout: float, patience: float) -> list[Message]:
    """Send messages to clients that wait for each other, and get their replies.

    Args:
        timeout: seconds to wait for all replies.
        patience: seconds to wait for the other replies after the first error.
    """
    waiting, replies = list(grid.push_messages(messages)), list[Message]()
    deadline, failed = time.monotonic() + timeout, False
    while True:
        pulled = list(grid.pull_messages(waiting))
        answered = {reply.metadata.reply_to_message_id for reply in pulled}
        waiting = [message_id for message_id in waiting if message_id not in answered]
        replies += pulled
        broken = next((reply for reply in pulled if reply.has_error()), None)
        if broken is not None and waiting and not failed:
            failed = True
            deadline = min(deadline, time.monotonic() + patience)
            words = "a party failed: %s; waiting %g s at most for %d more"
            log(WARNING, words, reason_of(broken.error), patience, len(waiting))
        if not waiting or time.monotonic() > deadline:
            return replies
        time.sleep(getattr(grid, PULL_INTERVAL, SLOW_PULL))


def addresses_of(
    credentials: Sequence[Credentials], transport: Literal["auto", "unix", "tcp"], serial: int
) -> list[str]:
    """Where each party listens in an attempt: "unix:/path", "tcp:host:port" or, if nobody can reach it, "none:party".

    Raises:
        StrategyError: there are several hosts and Unix sockets are asked for, a party has no address, two have the same
            one, or none can be reached.
    """
    hosts = {shown.host.tobytes() for shown in credentials}
    if transport == "unix" and len(hosts) > 1:
        got = f"'unix' for {len(credentials)} parties on {len(hosts)} hosts"
        raise SetupError("vfb2.transport", got=got, allowed="auto, tcp", hint="leave it out")
    if transport == "unix" or (transport == "auto" and len(hosts) == 1):
        # each party takes the folder from the salt
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
            allowed=f"one, since the parties are on {len(hosts)} hosts",
            hint='start the SuperNode with --node-config \'advertise="host:port"\', or "none" if nobody can reach it',
        )
    if all(address == UNREACHABLE for address in advertised):
        raise SetupError(
            "advertise",
            got=f"'{UNREACHABLE}' at every party, {', '.join(map(str, range(len(advertised))))}",
            allowed="host:port at one of them, where the others meet",
            hint="forward a port to one party, and start its SuperNode with --node-config 'advertise=\"host:port\"'",
        )
    counts = Counter(address for address in advertised if address != UNREACHABLE)
    sharing = [place for place, address in enumerate(advertised) if counts[address] > 1]
    if sharing:
        raise SetupError(
            f"party {', '.join(map(str, sharing))}",
            got="the same address as another party",
            allowed="one for each, where it alone listens",
            hint="give each of these SuperNodes its own advertise",
        )
    return [f"none:{place}" if address == UNREACHABLE else f"tcp:{address}" for place, address in enumerate(advertised)]


def check_refusals(exchange: Exchange, replies: Sequence[Message]) -> None:
    """Check that no party has refused; a retry would bring the same refusal.

    Raises:
        StrategyError: with the words of the first party that has.
    """
    places = {message.metadata.message_id: place for place, message in exchange.sent.items()}
    answers = [(places.get(reply.metadata.reply_to_message_id, len(places)), refusal_of(reply)) for reply in replies]
    refusals = [(place, words) for place, words in answers if words is not None]
    if refusals:
        raise StrategyError(min(refusals)[1])


def active_parties(summaries: Sequence[DataSummary], vfb2: VFB2Settings) -> tuple[int, ...]:
    """Return the active parties by index: the first ``vfb2.active-parties`` parties with labels.

    Raises:
        SetupError: No party has labels, or fewer than the run config asks for.
    """
    holders = [place for place, summary in enumerate(summaries) if summary.labels[0]]
    if not holders:
        hint = "set label-column to a column of one party's file that its owner lists in labels"
        raise SetupError("label-column", got="labels at no party", allowed="labels at one party or more", hint=hint)
    if vfb2.active_parties == "auto":
        active = holders[: vfb2.max_active]
        log(INFO, "vfb2.active-parties=auto: %d of %d parties with labels", len(active), len(holders))
    elif len(holders) < vfb2.active_parties:
        got = f"{vfb2.active_parties}, but labels are held by party {', '.join(map(str, holders))} only"
        hint = "lower it, or set label-column"
        raise SetupError("vfb2.active-parties", got=got, allowed=f"at most {len(holders)}", hint=hint)
    else:
        active = holders[: vfb2.active_parties]
    return tuple(active)


def check_rows(held: Sequence[DataSummary | Report], *, forms: bool = False) -> tuple[int, int]:
    """Return the numbers of training and test rows, which all parties must have. The parties compare the ids.

    Args:
        held: The numbers of each party's rows.
        forms: Whether ids of different forms are different rows too; needs the parties' summaries.

    Raises:
        StrategyError: rows differ; names the parties whose rows are not the most common ones.
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
        agreed = f"{agreeing} of {len(marks)} parties, who agree on {common[0] + common[1]:,}"
        different = compare_forms(written) if forms else ""
        raise SetupError(
            f"party {', '.join(map(str, differing))}",
            got=f"other rows ({shown}) than {agreed}{different and f'; {different}'}",
            allowed="the same ids everywhere",
            hint='bring these, or set vfb2.alignment="intersection"',
        )
    return common[0], common[1]


def warn_of_looks(epochs: int, columns: Sequence[int], embedding: int) -> None:
    """Warn if a party sees, over all epochs, at least as many numbers of each row as the others have columns."""
    others, looks = [sum(columns) - own for own in columns], epochs
    if embedding:
        # The first weights of a network are random, so that even the evaluation before the first epoch shows sums.
        looks = (epochs + 1) * embedding
    if looks >= min(others):
        words = (
            "%d epochs%s show party %d as many numbers of every row as the others have columns (%d): what these hold "
            "can be worked out, see docs/security.md"
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
        SetupError: it is, and ``check-step`` is "refuse".
    """
    if not 0 < eigenvalue < math.inf:
        return
    bound = vfb2.delay_bound(active)
    largest = largest_step(eigenvalue, bound)
    if step < largest:
        return
    how = "synchronous" if vfb2.synchronous else f"window {vfb2.window}"
    late = f"with {active} active parties ({how}) an update may be {bound} others late"
    stable = f"the stable steps with a largest eigenvalue of {eigenvalue:.4g}"
    error = SetupError(
        "learning-rate",
        got=f"{step:g}",
        allowed=f"below {largest:.4g}, {stable}, since {late}",
        hint="lower it, or set vfb2.check-step",
    )
    if vfb2.check_step == "refuse":
        raise error
    log(WARNING, "%s: the run may diverge", error)
