"""What a node does for secure sums beside its client's training: it answers stages, and masks what the client sends."""

from collections.abc import Sequence

from flwr.app import ConfigRecord, Context, RecordDict

from apps.run_config.algorithm import RunConfig
from clients.secure_sum import QUESTIONS, add_mask, answer_stage
from payloads.record import FloatArray, Payload
from payloads.secure_sum import Present, make_ring, pack, purpose_of
from payloads.wire import CONFIG, LARGEST_SITE, NUM_EXAMPLES, PAYLOAD, PHASE, ROUND, STAGE, Values, content, need


def answer_question(records: RecordDict, context: Context, config: RunConfig, place: int) -> RecordDict:
    """Answer a message that asks for a stage of a secure sum.

    Args:
        records: the message's content.
        place: the node's partition id.

    Raises:
        SecureSumError: the answer would endanger the client's values.
        PayloadError: the message is not what a server asks.
    """
    asked: Values = dict(need(records, CONFIG, ConfigRecord))
    stage, server_round = str(asked[STAGE]), int(asked[ROUND])
    kind = QUESTIONS[stage]
    question = None if kind is None else kind.from_record(need(records, PAYLOAD, ConfigRecord))
    purpose = purpose_of(server_round, str(asked[PHASE]))
    told = answer_stage(stage, purpose, question, context.state, place, config.privacy)
    return content(payload=told.to_record(), metrics={NUM_EXAMPLES: 0, ROUND: server_round})


def mask_reply(
    steps: Sequence[FloatArray],
    payload: Payload | None,
    samples: int,
    asked: Values,
    present: Present,
    context: Context,
    config: RunConfig,
    place: int,
) -> ConfigRecord:
    """Return the record that a client sends instead of its model and its payload.

    Args:
        steps: the differences of the client's model from the server's; [] if the reply has none.
        samples: how many the client has.
        asked: the scalars of the message.
        present: who takes part in the sum.
        place: the node's partition id.

    Raises:
        RingOverflowError: a value is larger than ``privacy.secure-range``.
        SecureSumError: as for `answer_question`.
    """
    privacy, purpose = config.privacy, purpose_of(int(asked[ROUND]), str(asked.get(PHASE, "")))
    ring = make_ring(config.training.dtype, privacy.secure_range, len(present.places))
    weight = samples / int(asked[LARGEST_SITE]) if LARGEST_SITE in asked else 1.0
    values = pack(steps, payload, ring, privacy.secure_range, weight)
    return add_mask(values, ring, purpose, present, context.state, place, privacy).to_record()
