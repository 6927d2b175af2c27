"""The guard of secure sums: what leaves the site is masked."""

from dataclasses import replace

from flwr.app import MessageType

from apps.guards.guard import Guard, Proceed, Steps
from apps.guards.work import Answer, Work
from apps.sites.secure_sums import answer_question, mask_reply
from payloads.settings import NORM_BOUND
from payloads.wire import PHASE, STAGE
from privacy.secure_sum import SecureSumError, fewest_in_sum
from problems.models.vectors import bound_length


class SecureSum(Guard):
    """Answers the stages of a secure sum, and masks the answers that are terms of one."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        request, run = work.request, work.run
        if request.kind == MessageType.TRAIN and STAGE in request.config:
            told, metrics = answer_question(request.records, work.context, run, work.place)
            return Answer(payload=told, metrics=metrics)
        if request.kind == MessageType.QUERY:
            return (yield from proceed(work))
        if not run.privacy.secure_sum:
            if request.present is not None:  # a site adds less noise to a term of a sum
                raise SecureSumError("the server asked for a term of a sum, in a run with privacy.secure-sum=false")
            return (yield from proceed(work))
        if request.present is None or (request.kind == MessageType.EVALUATE and PHASE not in request.config):
            raise SecureSumError("the server asked for values outside of a secure sum")
        if request.kind == MessageType.EVALUATE and request.extras is not None:
            raise SecureSumError("the server chose the bins of the scores, allowed: the fixed bins in a secure sum")
        work.summed = fewest_in_sum(len(set(request.present.places.tolist())), run.privacy.secure_threshold)
        answer = yield from proceed(work)
        return mask(answer, work)


def mask(answer: Answer, work: Work) -> Answer:
    """Return an answer as a term of a secure sum, under the site's mask.

    Args:
        answer: The answer.
        work: The work, whose request names the members of the sum.

    Raises:
        SecureSumError: The answer would endanger the site's values.
    """
    request, training = work.request, work.run.training
    assert request.present is not None
    steps = [new - old for new, old in zip(answer.arrays, request.parameters, strict=False)]
    if steps and training.aggregation == NORM_BOUND:  # the server sees no single step
        steps[0] = bound_length(steps[0], training.norm_bound)
    asked = request.config, request.present, request.question
    values = answer.payload, answer.samples
    masked = mask_reply(steps, *values, *asked, work.context, work.run, work.place, altered=answer.altered)
    return replace(answer, arrays=[], payload=masked)
