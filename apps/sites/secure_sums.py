"""What a node does for secure sums beside its client's training: it answers stages, and masks what the client sends.

Keys of the node config say what its owner demands: ``secure-sum=true``, runs whose server sees sums only;
``fewest-summed``, at least so many clients in a sum; ``sum-peers``, a file with the public keys of the sites that may
take part; and ``sum-key``, a file with the site's own private key, which others may have in their ``sum-peers``.
"""

from collections.abc import Callable, Mapping, Sequence
from logging import WARNING
from pathlib import Path
from typing import TypeVar

from flwr.app import ConfigRecord, Context, RecordDict
from flwr.common import log

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError, Scalar
from apps.sites.ledger import open_record
from clients.secure_sum import QUESTIONS, Demands, SumClient
from payloads.held_out import EVALUATIONS
from payloads.record import FloatArray, Payload
from payloads.secure_sum import KEYS, OWN_EXCHANGE, MaskedValues, Present, hash_settings, make_ring, purpose_of
from payloads.summed_values import pack
from payloads.wire import (
    CONFIG,
    LARGEST_SITE,
    NUM_EXAMPLES,
    PAYLOAD,
    PHASE,
    ROUND,
    STAGE,
    SUM_NUMBER,
    Values,
    need,
)
from privacy.keys import read_private, read_public
from privacy.secure_sum import FEWEST_MEMBERS, SecureSumError

T = TypeVar("T")
# the exchanges of the newest round that the node has told keys for
ASKED = "secure-sums-asked"
# parsed run configs, by their identity, with the hashes of the configs that they were parsed from
_hashes: dict[int, tuple[RunConfig, bytes]] = {}
_MOST_HASHES = 16


def check_sums(node: Mapping[str, Scalar], config: RunConfig) -> None:
    """Refuse a run whose server sees more than sums, if the owner demands sums.

    Raises:
        ConfigError: names the key of the node config, and what the run has.
    """
    demanded = node.get("secure-sum", False)
    if not isinstance(demanded, bool):
        raise ConfigError("secure-sum", got=repr(demanded), allowed="true or false", hint="change the site's settings")
    demands = demands_of(node)
    if (demanded or demands.fewest > FEWEST_MEMBERS or demands.peers) and not config.privacy.secure_sum:
        got, allowed = "a run with privacy.secure-sum=false", "true, since this site's settings demand secure sums"
        raise ConfigError("secure-sum", got=got, allowed=allowed, hint="set privacy.secure-sum")


def demands_of(node: Mapping[str, Scalar]) -> Demands:
    """Return what the node config says of sums.

    Raises:
        ConfigError: ``fewest-summed`` is no integer of at least `FEWEST_MEMBERS`, or a file holds no keys.
    """
    fewest = node.get("fewest-summed", FEWEST_MEMBERS)
    if type(fewest) is not int or fewest < FEWEST_MEMBERS:
        allowed = f"an integer >= {FEWEST_MEMBERS}"
        raise ConfigError("fewest-summed", got=repr(fewest), allowed=allowed, hint="change the site's settings")
    own, peers = str(node.get("sum-key", "")), str(node.get("sum-peers", ""))
    box_key = _read(own, "sum-key", read_private) if own else b""
    return Demands(fewest, box_key, _read(peers, "sum-peers", read_public) if peers else frozenset())


def _read(path: str, key: str, read: Callable[[bytes], T]) -> T:
    try:
        return read(Path(path).expanduser().read_bytes())
    except (OSError, ValueError, TypeError) as error:
        allowed = "a file of X25519 keys in PEM, such as `openssl genpkey -algorithm x25519` writes"
        raise ConfigError(key, got=f"{path!r}: {error}", allowed=allowed, hint="give its whole path") from None


def answer_question(
    records: RecordDict, context: Context, config: RunConfig, place: int
) -> tuple[Payload, dict[str, int]]:
    """Answer a message that asks for a stage of a secure sum.

    Args:
        records: the message's content.
        place: the node's partition id.

    Returns:
        The answer's payload and metrics.

    Raises:
        SecureSumError: the answer would endanger the client's values.
        PayloadError: the message is not what a server asks.
    """
    asked: Values = dict(need(records, CONFIG, ConfigRecord))
    stage = str(asked[STAGE])
    kind = QUESTIONS[stage]
    question = None if kind is None else kind.from_record(need(records, PAYLOAD, ConfigRecord))
    told = _client(asked, context, config, place, demands_of(context.node_config)).answer(stage, question)
    if stage == KEYS:
        _join_once(context, place, int(asked[ROUND]), str(asked.get(PHASE, "")))
    return told, {NUM_EXAMPLES: 0, ROUND: int(asked[ROUND])}


def _join_once(context: Context, place: int, server_round: int, phase: str) -> None:
    """Refuse a second sum for what a site has been asked in a round, also after its SuperNode was started anew.

    The difference of two sums for one question, one without some client, would be that client's values. A round may
    count scores of several models, which ``most-evaluations`` limits.
    """
    with open_record(context, place, ASKED) as before:
        newest, exchange = int(before.get("round", -1)), phase or OWN_EXCHANGE
        exchanges = str(before["exchanges"]).split(",") if newest == server_round else []
        if server_round < newest or (exchange in exchanges and phase not in EVALUATIONS):
            asked = f"round {server_round}, {exchange}"
            raise SecureSumError(f"{asked}: a second sum was asked for, after one in round {newest}")
        before.update(round=server_round, exchanges=",".join([*exchanges, exchange]))


def mask_reply(
    steps: Sequence[FloatArray],
    payload: Payload | None,
    samples: int,
    asked: Values,
    present: Present,
    question: bytes,
    context: Context,
    config: RunConfig,
    place: int,
    *,
    altered: bool = False,
) -> MaskedValues:
    """Return the payload that a client sends instead of its model and its payload.

    Args:
        steps: the differences of the client's model from the server's; [] if the reply has none.
        samples: how many the client has.
        asked: the scalars of the message.
        present: who takes part in the sum.
        question: a hash of the message.
        place: the node's partition id.
        altered: Whether the client has altered values of its reply before.

    Raises:
        SecureSumError: as for `answer_question`.
    """
    limit = config.privacy.secure_range
    ring = make_ring(config.training.dtype, limit, len(present.places))
    weight = samples / int(asked[LARGEST_SITE]) if LARGEST_SITE in asked else 1.0
    if not 0 <= weight <= 1:
        raise SecureSumError(
            f"the server says that no site has more than {asked[LARGEST_SITE]} samples, but this one has"
        )
    values, changed = pack(steps, payload, ring, limit, weight, altered=altered)
    if changed:
        text = "%d values of this site's reply were clipped to +-%g, or are not finite: %s"
        log(WARNING, text, changed, limit, "the server learns the number of such sites, and not which they are")
    client = _client(asked, context, config, place, demands_of(context.node_config))
    return client.mask(values, ring, present, question)


def _client(asked: Values, context: Context, config: RunConfig, place: int, demands: Demands) -> SumClient:
    """The node's client in the sum that a message's scalars name."""
    number = int(asked[SUM_NUMBER])
    settings = _hash_settings(context, config)
    purpose = purpose_of(int(asked[ROUND]), str(asked.get(PHASE, "")), number, settings)
    share = config.privacy.secure_threshold
    return SumClient(place, number, purpose, settings, context.run_id, context.state, share, demands)


def _hash_settings(context: Context, config: RunConfig) -> bytes:
    """The hash of the run config, computed once for each parsed config: a client needs it in each of five stages."""
    known = _hashes.get(id(config))
    if known is None or known[0] is not config:
        if len(_hashes) >= _MOST_HASHES:
            _hashes.clear()
        known = _hashes[id(config)] = config, hash_settings(context.run_config)
    return known[1]
