"""The guard of a client's memory, which it restores before the work and stores after it.

The memory is in the node's context and, if there is a store, on the site's disk.
"""

from flwr.app import ConfigRecord, MessageType

from apps.config import ConfigError
from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.work import Answer, Work
from apps.sites.state_store import StateStore
from payloads.flower_internals import fill, values_of
from payloads.record import Payload, PayloadError, not_finite
from payloads.wire import ROUND, STATE_ROUND, STATE_SINCE, find

STATE = "client-state"
# a second record: the round in which the state was made
MADE = "client-state-made"


class MemoryGuard(SiteGuard):
    """A guard that restores a client's memory of its last round, and stores the new memory."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        if work.request.kind != MessageType.TRAIN or work.client.memory is None:
            return (yield from proceed(work))
        store = StateStore.of(work.context, work.request.config, work.request.local, work.client.site.partition_id)
        recalled, made = recall(work, store)
        work.client.state = recalled
        answer = yield from proceed(work)
        if work.client.state is not None:
            answer.metrics = {**(answer.metrics or {}), STATE_ROUND: made}
            if work.client.state is not recalled:
                _keep(work, answer, recalled, store)
        return answer


def recall(work: Work, store: StateStore | None) -> tuple[Payload | None, int]:
    """Return the client's memory and the round in which it was made, or (None, 0).

    The memory comes from the context, else from the site's files (in a resumed run or a restarted SuperNode). Memory of
    later rounds than the request's is ignored, and so is a file of the same round.

    Args:
        work: The request at the site.
        store: The site's files. None: the context only.

    Raises:
        ConfigError: The newest of these files is damaged, or belongs to another client.
    """
    memory, state, config = work.client.memory, work.context.state, work.request.config
    server_round, since = int(config[ROUND]), int(config.get(STATE_SINCE, 0))
    assert memory is not None
    kept, made = find(state, STATE, ConfigRecord), find(state, MADE, ConfigRecord)
    if made is not None and since <= (number := int(made[ROUND])) <= server_round:  # type: ignore[arg-type]
        return None if kept is None else memory.from_record(kept), number
    if store is not None:
        try:
            return store.load(memory, since, server_round)
        except PayloadError as error:
            got, allowed = f"an unusable client state: {error}", "an undamaged client state of this run"
            hint = "remove the file of this client state to start without it"
            raise ConfigError("state-dir", got=got, allowed=allowed, hint=hint) from None
    return None, 0


def _keep(work: Work, answer: Answer, recalled: Payload | None, store: StateStore | None) -> None:
    """Keep a client's new memory, unless the memory or the reply is not finite.

    The server refuses such a reply, and the next round must not start from such a memory. If the server sees only a
    sum, the client stores its former memory under this round: the round of its memory must not reveal that it diverged.
    """
    state, kept, server_round = work.client.state, values_of(work.context.state), int(work.request.config[ROUND])
    values = [*answer.arrays, *(value for value in state.arrays().values() if value.dtype.kind == "f")]
    finite = not any(map(not_finite, values))
    if finite and store is not None:
        store.save(server_round, state)
    if finite or work.summed > 1:
        if (memory := state if finite else recalled) is None:
            kept.pop(STATE, None)
        else:
            kept[STATE] = memory.to_record()
        kept[MADE] = fill(ConfigRecord, {ROUND: server_round})
