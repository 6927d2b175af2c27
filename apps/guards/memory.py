"""The guard of a client's memory: the values that a client stores between rounds, such as momentum.

The guard restores the memory before the work, and stores the new memory after the work: in the node's context and, if
the run has checkpoints and the site a folder for them, on the site's disk.
"""

from flwr.app import ConfigRecord, Context, MessageType

from apps.config import ConfigError
from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.work import Answer, Work
from apps.run_config.settings import LOCAL_NORMS
from apps.sites.state_store import StateStore
from payloads.flower_internals import fill, values_of
from payloads.record import Payload, PayloadError, not_finite
from payloads.wire import ROUND, STATE_ROUND, STATE_SINCE, find

STATE = "client-state"
# a second record: the round in which the memory was stored
STORED_ROUND = "client-state-made"


class MemoryGuard(SiteGuard):
    """A guard that restores a client's memory of its last round, and stores the new memory.

    If sites keep their batch norms, they also evaluate with this memory.
    """

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        evaluates = work.request.kind == MessageType.EVALUATE and work.run.run.batch_norm == LOCAL_NORMS
        if not evaluates and (work.request.kind != MessageType.TRAIN or work.client.memory is None):
            return (yield from proceed(work))
        store = StateStore.of(work.context, work.request.config, work.request.local, work.client.site.partition_id)
        recalled, stored_round = recall(work, store)
        work.client.state = recalled
        if evaluates:
            return (yield from proceed(work))
        answer = yield from proceed(work)
        if work.client.state is not None:
            answer.metrics = {**(answer.metrics or {}), STATE_ROUND: stored_round}
            if work.client.state is not recalled:
                _keep(work, answer, recalled, store)
        return answer


def recall(work: Work, store: StateStore | None) -> tuple[Payload | None, int]:
    """Return the client's memory and the round in which it was stored, or (None, 0) if there is no memory.

    The memory comes from the context or, in a resumed run or after a restart of the SuperNode, from the site's files.
    Memory of later rounds than the request's round is ignored, and so is a file of the same round.

    Args:
        work: The request at the site.
        store: The site's files. None: only the context.

    Raises:
        ConfigError: The newest file is damaged, or belongs to another client.
    """
    memory, state, config = work.client.memory, work.context.state, work.request.config
    server_round, since = int(config[ROUND]), int(config.get(STATE_SINCE, 0))
    assert memory is not None
    record, stored = find(state, STATE, ConfigRecord), find(state, STORED_ROUND, ConfigRecord)
    if stored is not None and since <= (number := int(stored[ROUND])) <= server_round:  # type: ignore[arg-type]
        return None if record is None else memory.from_record(record), number
    if store is not None:
        try:
            return store.load(memory, since, server_round + (work.request.kind == MessageType.EVALUATE))
        except PayloadError as error:
            got, allowed = f"an unusable client state: {error}", "an undamaged client state of this run"
            hint = "remove the file of this client state to start without it"
            raise ConfigError("state-dir", got=got, allowed=allowed, hint=hint) from None
    return None, 0


def _keep(work: Work, answer: Answer, recalled: Payload | None, store: StateStore | None) -> None:
    """Store a client's new memory, unless the memory or the reply is not finite.

    The server refuses a reply that is not finite, and the next round must not start from such a memory. If the server
    sees only a sum of replies, the client stores its former memory with this round's number, since the round's number
    is sent in replies and must not reveal that this client diverged.
    """
    state, server_round = work.client.state, int(work.request.config[ROUND])
    values = [*answer.arrays, *(value for value in state.arrays().values() if value.dtype.kind == "f")]
    finite = not any(map(not_finite, values))
    if finite and store is not None:
        store.save(server_round, state)
    if finite or work.summed > 1:
        put(work.context, state if finite else recalled, server_round)


def put(context: Context, memory: Payload | None, stored_round: int) -> None:
    """Store a client's memory of a round in its node's context. None: the client has no memory in this round."""
    records = values_of(context.state)
    if memory is None:
        records.pop(STATE, None)
    else:
        records[STATE] = memory.to_record()
    records[STORED_ROUND] = fill(ConfigRecord, {ROUND: stored_round})
