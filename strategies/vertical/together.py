"""Functions for exchanges whose clients must all run at the same time: capacity, waiting for replies, refusals."""

import os
import time
from collections.abc import Sequence
from logging import WARNING

from flwr.app import Message
from flwr.common import log
from flwr.serverapp import Grid

from payloads.flower_internals import CLIENT_ACTOR, PULL_INTERVAL, SIMULATION_GRID
from strategies.rounds.errors import SetupError, StrategyError, reason_of, refusal_of
from strategies.rounds.exchange import Exchange

# Flower's simulation has min(MOST_THREADS, cores + MORE_THREADS) server threads
MOST_THREADS, MORE_THREADS = 32, 4
# seconds between two polls for replies, if the grid does not set an interval
SLOW_PULL = 0.5


def check_capacity(grid: Grid, parties: int) -> None:
    """Check that the engine can run all parties at once, since the parties wait for each other.

    The in-process engine is instructed to run all of them. A deployment is not checked.

    Raises:
        SetupError: Flower's simulation cannot run all parties at once, see `check_simulation`.
    """
    run_together = getattr(grid, "run_together", None)
    if run_together is not None:
        run_together(parties)
    elif type(grid).__name__ == SIMULATION_GRID:
        check_simulation(parties, os.cpu_count() or 1, ray_actors())


def check_simulation(parties: int, cores: int, actors: int | None) -> None:
    """Check that Flower's simulation can run all parties at once.

    Args:
        parties: The number of parties.
        cores: The number of the machine's cores.
        actors: The number of clients that Ray runs at once. None: unknown, and not checked.

    Raises:
        SetupError: There are more parties than Ray or the simulation's threads can run.
    """
    threads = min(MOST_THREADS, cores + MORE_THREADS)
    if parties > threads:
        formula = f"min({MOST_THREADS}, {cores} cores + {MORE_THREADS}) = {threads}"
        allowed = f"{formula}, the maximum that Flower's simulation runs at once on this machine"
        hint = "use fewer parties, or the in-process engine"
    elif actors is not None and parties > actors:
        allowed = f"{actors}, the maximum that Ray runs at once: its CPUs divided by client-resources-num-cpus"
        cpus = f"client-resources-num-cpus=1 init-args-num-cpus={parties}"
        hint = f"run flwr run with --federation-config 'num-supernodes={parties} {cpus}'"
    else:
        return
    raise SetupError("number of parties", got=f"{parties}, which must run at once", allowed=allowed, hint=hint)


def ray_actors() -> int | None:
    """Return the number of clients that Ray runs at once: the number of Flower's actors, or else of Ray's CPUs.

    None: Ray is not running.
    """
    import ray

    if not ray.is_initialized():
        return None
    try:
        from ray._private.state import actors  # the public list needs Ray's dashboard

        job = ray.get_runtime_context().get_job_id()
        alive = [actor for actor in actors().values() if actor["JobID"] == job and actor["State"] == "ALIVE"]
        count = sum(actor["ActorClassName"] == CLIENT_ACTOR for actor in alive)
    except (ImportError, KeyError, TypeError):
        count = 0
    return count or int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]


def meet_on(grid: Grid, messages: Sequence[Message], timeout: float, patience: float) -> list[Message]:
    """Send messages to clients that wait for each other, and return their replies.

    Args:
        grid: Flower's grid.
        messages: The messages, one for each client.
        timeout: The seconds to wait for all replies.
        patience: The seconds to wait for the remaining replies after the first error.
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
            text = "a party failed: %s; waiting at most %g s for %d more replies"
            log(WARNING, text, reason_of(broken.error), patience, len(waiting))
        if not waiting or time.monotonic() > deadline:
            return replies
        time.sleep(getattr(grid, PULL_INTERVAL, SLOW_PULL))


def check_refusals(exchange: Exchange, replies: Sequence[Message]) -> None:
    """Check that no party has refused to take part. A retry would bring the same refusal.

    Raises:
        StrategyError: A party has refused. The text is the refusal of the party with the lowest number.
    """
    receivers = exchange.receivers
    unknown = len(receivers)
    answers = [(receivers.get(reply.metadata.reply_to_message_id, unknown), refusal_of(reply)) for reply in replies]
    refusals = [(party, text) for party, text in answers if text is not None]
    if refusals:
        raise StrategyError(min(refusals)[1])
