"""What a node does for secure sums beside its client's training: it answers stages, and masks what the client sends.

Two keys of the node config say what its owner demands: ``secure-sum=true``, runs whose server sees sums only, and
``fewest-summed``, at least so many clients in a sum.
"""

from collections.abc import Mapping, Sequence

from flwr.app import ConfigRecord, Context, RecordDict

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError, Scalar
from clients.secure_sum import QUESTIONS, add_mask, answer_stage
from payloads.record import FloatArray, Payload
from payloads.secure_sum import Present, make_ring, pack, purpose_of
from payloads.wire import CONFIG, LARGEST_SITE, NUM_EXAMPLES, PAYLOAD, PHASE, ROUND, STAGE, Values, content, need
from privacy.secure_sum import FEWEST_MEMBERS, SecureSumError


def check_demands(node: Mapping[str, Scalar], config: RunConfig) -> None:
    """Refuse a run that does not meet the owner's demands, before any data is read.

    Raises:
        ConfigError: names the key of the node config, and what the run has.
    """
    demanded = node.get("secure-sum", False)
    if not isinstance(demanded, bool):
        raise ConfigError("secure-sum", got=repr(demanded), allowed="true or false", hint="change the node config")
    if (demanded or fewest_summed(node) > FEWEST_MEMBERS) and not config.privacy.secure_sum:
        got, allowed = "a run with privacy.secure-sum=false", "true, since this site's node config demands secure sums"
        raise ConfigError("secure-sum", got=got, allowed=allowed, hint="set privacy.secure-sum")


def fewest_summed(node: Mapping[str, Scalar]) -> int:
    """Return the fewest clients whose sum may be unmasked.

    Raises:
        ConfigError: the key in the node config is no integer of at least `FEWEST_MEMBERS`.
    """
    fewest = node.get("fewest-summed", FEWEST_MEMBERS)
    if type(fewest) is not int or fewest < FEWEST_MEMBERS:
        allowed = f"an integer >= {FEWEST_MEMBERS}"
        raise ConfigError("fewest-summed", got=repr(fewest), allowed=allowed, hint="change the node config")
    return fewest


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
    fewest = fewest_summed(context.node_config)
    told = answer_stage(stage, purpose, question, context.state, place, config.privacy, fewest)
    return content(payload=told.to_record(), metrics={NUM_EXAMPLES: 0, ROUND: server_round})


def mask_reply(
    steps: Sequence[FloatArray],
    payload: Payload | None,
    samples: int,
    asked: Values,
    present: Present | None,
    context: Context,
    config: RunConfig,
    place: int,
) -> ConfigRecord:
    """Return the record that a client sends instead of its model and its payload.

    Args:
        steps: the differences of the client's model from the server's; [] if the reply has none.
        samples: how many the client has.
        asked: the scalars of the message.
        present: who takes part in the sum; None: the server asks for the values as they are.
        place: the node's partition id.

    Raises:
        RingOverflowError: a value is larger than ``privacy.secure-range``.
        SecureSumError: as for `answer_question`.
    """
    if present is None:
        raise SecureSumError("the server asked for values outside of a secure sum")
    privacy, purpose = config.privacy, purpose_of(int(asked[ROUND]), str(asked.get(PHASE, "")))
    ring = make_ring(config.training.dtype, privacy.secure_range, len(present.places))
    weight = samples / int(asked[LARGEST_SITE]) if LARGEST_SITE in asked else 1.0
    values = pack(steps, payload, ring, privacy.secure_range, weight)
    return add_mask(values, ring, purpose, present, context.state, place, privacy).to_record()
