"""The guard of secure sums: it answers the stages of a sum, and masks the site's terms."""

from dataclasses import replace
from logging import WARNING

from flwr.app import ConfigRecord, MessageType
from flwr.common import log

from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.work import Answer, Work
from apps.run_config.algorithm import RunConfig
from apps.sites.ledger import open_record
from apps.sites.secure_sums import demands_of
from clients.secure_sum import QUESTIONS, SumClient
from payloads.held_out import EVALUATIONS
from payloads.secure_sum import KEYS, OWN_EXCHANGE, hash_settings, make_ring, purpose_of
from payloads.settings import NORM_BOUND
from payloads.summed_values import pack
from payloads.wire import LARGEST_SITE, NUM_EXAMPLES, PAYLOAD, PHASE, ROUND, STAGE, SUM_NUMBER, need
from privacy.secure_sum import SecureSumError, fewest_in_sum
from problems.models.vectors import bound_length

# the exchanges of the newest round for which the node has sent keys
ASKED = "secure-sums-asked"
# parsed run configs by their identity, with the hashes of the original configs
_hashes: dict[int, tuple[RunConfig, bytes]] = {}
_MOST_HASHES = 16


class SumGuard(SiteGuard):
    """A guard that answers the messages of a secure sum's stages, and masks the replies that enter the sum."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        request, privacy, measures = work.request, work.run.privacy, work.request.kind == MessageType.EVALUATE
        if request.kind == MessageType.TRAIN and STAGE in request.config:
            return _answer_stage(work)
        if request.kind == MessageType.QUERY:
            return (yield from proceed(work))
        if not privacy.secure_sum:
            if request.present is not None:  # a site adds less noise to a term of a sum
                raise SecureSumError("the server asked for a term of a sum, in a run with privacy.secure-sum=false")
            return (yield from proceed(work))
        if request.present is None or (measures and PHASE not in request.config):
            raise SecureSumError("the server asked for values outside of a secure sum")
        if measures and request.extras is not None:
            raise SecureSumError("the server chose the bins of the scores, allowed: the fixed bins in a secure sum")
        work.summed = fewest_in_sum(len(set(request.present.clients.tolist())), privacy.secure_threshold)
        answer = yield from proceed(work)
        return mask(answer, work)


def _answer_stage(work: Work) -> Answer:
    """Answer a message that asks for a stage of a secure sum."""
    asked = work.request.config
    stage = str(asked[STAGE])
    kind = QUESTIONS[stage]
    question = None if kind is None else kind.from_record(need(work.request.records, PAYLOAD, ConfigRecord))
    payload = _client(work).answer(stage, question)
    if stage == KEYS:
        _join_once(work, int(asked[ROUND]), str(asked.get(PHASE, "")))
    return Answer(payload=payload, metrics={NUM_EXAMPLES: 0, ROUND: int(asked[ROUND])})


def _join_once(work: Work, server_round: int, phase: str) -> None:
    """Refuse a second sum for the same exchange of a round, even after a restart of the SuperNode.

    If a client were missing in the second sum, the difference of the two sums would be that client's values. A round
    may count scores of several models, which ``most-evaluations`` limits.
    """
    with open_record(work.context, work.place, ASKED) as before:
        newest, exchange = int(before.get("round", -1)), phase or OWN_EXCHANGE
        exchanges = str(before["exchanges"]).split(",") if newest == server_round else []
        if server_round < newest or (exchange in exchanges and phase not in EVALUATIONS):
            asked = f"round {server_round}, {exchange}"
            raise SecureSumError(f"{asked}: a second sum was asked for, after one in round {newest}")
        before.update(round=server_round, exchanges=",".join([*exchanges, exchange]))


def mask(answer: Answer, work: Work) -> Answer:
    """Return an answer as a term of a secure sum, masked by the site's mask.

    Args:
        answer: The answer.
        work: The work, whose request names the members of the sum.

    Raises:
        SecureSumError: The answer would endanger the site's values.
    """
    request, training, limit = work.request, work.run.training, work.run.privacy.secure_range
    assert request.present is not None
    steps = [new - old for new, old in zip(answer.arrays, request.parameters, strict=False)]
    if steps and training.aggregation == NORM_BOUND:  # the server cannot bound it, since it sees no single step
        steps[0] = bound_length(steps[0], training.norm_bound)
    ring, asked = make_ring(training.dtype, limit, len(request.present.clients)), request.config
    weight = len(work.client.site) / int(asked[LARGEST_SITE]) if LARGEST_SITE in asked else 1.0
    if not 0 <= weight <= 1:
        raise SecureSumError(
            f"the server claims that no site has more than {asked[LARGEST_SITE]} samples, but this site has"
        )
    values, changed = pack(steps, answer.payload, ring, limit, weight, altered=answer.altered)
    if changed:
        text = "%d values of this site's reply were clipped to +-%g, or are not finite: %s"
        log(WARNING, text, changed, limit, "the server learns only the number of such sites")
    return replace(answer, arrays=[], payload=_client(work).mask(values, ring, request.present, request.question))


def _client(work: Work) -> SumClient:
    """Return the node's client in the sum that the request's scalars name."""
    asked, settings, context = work.request.config, _hash_settings(work), work.context
    number = int(asked[SUM_NUMBER])
    purpose = purpose_of(int(asked[ROUND]), str(asked.get(PHASE, "")), number, settings)
    owner = work.run.privacy.secure_threshold, demands_of(work.node)
    return SumClient(work.place, number, purpose, settings, context.run_id, context.state, *owner)


def _hash_settings(work: Work) -> bytes:
    """Return the hash of the run config, computed once per parsed config: a client needs it in each of five stages."""
    config = work.run
    known = _hashes.get(id(config))
    if known is None or known[0] is not config:
        if len(_hashes) >= _MOST_HASHES:
            _hashes.clear()
        known = _hashes[id(config)] = config, hash_settings(work.context.run_config)
    return known[1]
