"""The guard of secure sums, from which the server learns only the sum of several sites' values.

The guard answers the stages of the protocol (keys, shares and so on) and adds the site's mask to its term of a sum.
"""

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

# the record of the newest round's exchanges for which the node has sent keys
JOINED = "secure-sums-asked"
# id of a parsed run config -> the config, and the hash of its unparsed form
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
            if request.present is not None:  # refused, since a site adds less noise to a term of a sum
                raise SecureSumError(
                    "the server requested a term of a secure sum in a run with privacy.secure-sum=false"
                )
            return (yield from proceed(work))
        if request.present is None or (measures and PHASE not in request.config):
            raise SecureSumError(
                "the server requested this site's values outside a secure sum in a run with privacy.secure-sum=true"
            )
        if measures and request.extras is not None:
            raise SecureSumError(
                "the server chose the bins of the scores, but in a secure sum only the fixed bins are allowed"
            )
        work.summed = fewest_in_sum(len(set(request.present.clients.tolist())), privacy.secure_threshold)
        answer = yield from proceed(work)
        return mask(answer, work)


def _answer_stage(work: Work) -> Answer:
    """Answer a message of a stage of a secure sum."""
    scalars = work.request.config
    stage = str(scalars[STAGE])
    kind = QUESTIONS[stage]
    question = None if kind is None else kind.from_record(need(work.request.records, PAYLOAD, ConfigRecord))
    payload = _client(work).answer(stage, question)
    if stage == KEYS:
        _join_once(work, int(scalars[ROUND]), str(scalars.get(PHASE, "")))
    return Answer(payload=payload, metrics={NUM_EXAMPLES: 0, ROUND: int(scalars[ROUND])})


def _join_once(work: Work, server_round: int, phase: str) -> None:
    """Refuse a second sum for the same exchange of a round, even after a restart of the SuperNode.

    If a client were missing in the second sum, the difference of the two sums would reveal that client's values. Counts
    of scores are an exception: a round may evaluate several models, which ``most-evaluations`` limits.
    """
    with open_record(work.context, work.partition, JOINED) as before:
        newest, exchange = int(before.get("round", -1)), phase or OWN_EXCHANGE
        exchanges = str(before["exchanges"]).split(",") if newest == server_round else []
        if server_round < newest or (exchange in exchanges and phase not in EVALUATIONS):
            raise SecureSumError(
                f"round {server_round}, {exchange}: the server requested a second sum after a sum in round {newest}"
            )
        before.update(round=server_round, exchanges=",".join([*exchanges, exchange]))


def mask(answer: Answer, work: Work) -> Answer:
    """Return an answer as the site's term of a secure sum, hidden by the site's mask.

    Args:
        answer: The answer.
        work: The work, whose request names the members of the sum.

    Raises:
        SecureSumError: The answer would endanger the site's values.
    """
    request, training, limit = work.request, work.run.training, work.run.privacy.secure_range
    assert request.present is not None
    steps = [new - old for new, old in zip(answer.arrays, request.parameters, strict=False)]
    if steps and training.aggregation == NORM_BOUND:  # the server sees no single site's step, so the site bounds it
        steps[0] = bound_length(steps[0], training.norm_bound)
    ring, scalars = make_ring(training.dtype, limit, len(request.present.clients)), request.config
    weight = len(work.client.site) / int(scalars[LARGEST_SITE]) if LARGEST_SITE in scalars else 1.0
    if not 0 <= weight <= 1:
        raise SecureSumError(
            f"the server claims that no site has more than {scalars[LARGEST_SITE]} samples, but this site has more"
        )
    values, changed = pack(steps, answer.payload, ring, limit, weight, altered=answer.altered)
    if changed:
        text = "%d values of this site's reply were clipped to +-%g, or are not finite: %s"
        log(WARNING, text, changed, limit, "the server learns only the number of such sites")
    return replace(answer, arrays=[], payload=_client(work).mask(values, ring, request.present, request.question))


def _client(work: Work) -> SumClient:
    """Return the protocol's client for the secure sum that the request's scalars name."""
    scalars, settings, context = work.request.config, _hash_settings(work), work.context
    number = int(scalars[SUM_NUMBER])
    purpose = purpose_of(int(scalars[ROUND]), str(scalars.get(PHASE, "")), number, settings)
    owner = work.run.privacy.secure_threshold, demands_of(work.node)
    return SumClient(work.partition, number, purpose, settings, context.run_id, context.state, *owner)


def _hash_settings(work: Work) -> bytes:
    """Return the hash of the run config. It is cached, since a client needs the hash in each of five stages."""
    config = work.run
    known = _hashes.get(id(config))
    if known is None or known[0] is not config:
        if len(_hashes) >= _MOST_HASHES:
            _hashes.clear()
        known = _hashes[id(config)] = config, hash_settings(work.context.run_config)
    return known[1]
