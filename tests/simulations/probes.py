"""Probes of an engine's behaviour: one ClientApp, and questions that a ServerApp asks it through the grid.

Each probe takes a grid and returns its observations as plain data, so the same questions can be asked in this process
and in a separate process that runs Flower's simulation:

    python -m tests.simulations.probes observations.pickle
"""

import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

NODES = 3
UNKNOWN_NODE = 987654321
PATIENCE = 120.0  # for Ray's start
SILENCE = 2.0  # seconds after which no more replies are expected
REASON = "broken on purpose"
Observation = dict[str, Any]

client_app = ClientApp()
probes: dict[str, Callable[[Grid], Observation]] = {}


def probe(function: Callable[[Grid], Observation]) -> Callable[[Grid], Observation]:
    """Register a probe under its name."""
    probes[function.__name__] = function
    return function


# The clients.


def place_of(context: Context) -> int:
    return int(context.node_config["partition-id"])


def told(message: Message, **facts: Any) -> Message:
    """Return a reply with some facts."""
    return Message(RecordDict({"facts": ConfigRecord(facts)}), reply_to=message)


def counted(context: Context) -> int:
    """Count this node's messages in its state."""
    seen = int(context.state.config_records.get("seen", ConfigRecord({"n": 0}))["n"]) + 1  # type: ignore[arg-type]
    context.state["seen"] = ConfigRecord({"n": seen})
    return seen


def contents(records: RecordDict) -> dict[str, Any]:
    """Return all of a message's content as plain data."""
    plain: dict[str, Any] = {}
    for name, record in records.items():
        if isinstance(record, ArrayRecord):
            plain[name] = {key: (array.shape, array.numpy().tolist()) for key, array in record.items()}
        else:
            plain[name] = {key: list(value) if isinstance(value, list) else value for key, value in record.items()}
    return plain


@client_app.query()
def who(message: Message, context: Context) -> Message:
    count = int(context.node_config["num-partitions"])
    return told(message, kind="query", node=str(context.node_id), count=count, place=place_of(context))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    metadata = message.metadata
    return told(message, kind="train", group=metadata.group_id, ttl=metadata.ttl, id=metadata.message_id)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return told(message, kind="evaluate")


@client_app.train("count")
def count(message: Message, context: Context) -> Message:
    return told(message, place=place_of(context), seen=counted(context), tag=message.content["tag"]["tag"])


@client_app.train("fail")
def fail(message: Message, context: Context) -> Message:
    if place_of(context) == 1:
        counted(context)
        raise ValueError(REASON)
    return told(message, place=place_of(context))


@client_app.train("vandal")
def vandal(message: Message, context: Context) -> Message:
    """Report the received content, then change all of it."""
    before = repr(contents(message.content))
    reply = told(message, before=before)
    records = message.content
    array, other = records.array_records["arrays"]["w"], Array(np.full(2, -1.0))
    values = array.numpy()
    if values.flags.writeable:
        values[:] = -1
    array.data, array.shape = other.data, other.shape
    records.config_records["config"]["text"] = "spoilt"
    records.metric_records["metrics"]["list"].append(9)  # type: ignore[union-attr]
    del records.metric_records["metrics"]["number"]
    del records.array_records["arrays"]["w"]
    records["new"] = ConfigRecord({"spoilt": True})
    records.pop("arrays")
    message.metadata.group_id, message.metadata.message_type = "spoilt", "evaluate"
    message.content = RecordDict()
    return reply


@client_app.train("remember")
def remember(message: Message, context: Context) -> Message:
    """Keep the received record objects, and send the kept record objects."""
    context.state["kept"] = message.content.array_records["arrays"]
    context.state["sent"] = ConfigRecord({"list": [1, 2]})
    return Message(RecordDict({"sent": context.state["sent"], "arrays": context.state["kept"]}), reply_to=message)


@client_app.train("recall")
def recall(message: Message, context: Context) -> Message:
    return told(message, state=repr(contents(context.state)))


@client_app.train("configure")
def configure(message: Message, context: Context) -> Message:
    before = "mark" in context.run_config
    if place_of(context) == 0:
        context.run_config["mark"] = 1
    return told(message, before=before)


@client_app.train("nothing")
def nothing(message: Message, context: Context) -> Message:
    return None  # type: ignore[return-value]


@client_app.train("stranger")
def stranger(message: Message, context: Context) -> Message:
    """Reply to its own reply, which no node has asked for."""
    return told(told(message, first=True), second=True)


# The server's questions.


def nodes_of(grid: Grid) -> list[int]:
    """Return the node ids, once all nodes are connected."""
    deadline = time.monotonic() + PATIENCE
    while len(ids := list(grid.get_node_ids())) < NODES and time.monotonic() < deadline:
        time.sleep(0.05)
    return ids


def to_each(grid: Grid, kind: str, records: RecordDict | None = None, **options: Any) -> list[Message]:
    """Return one message for each node, all with the same content object."""
    shared = RecordDict() if records is None else records
    return [Message(shared, dst_node_id=node, message_type=kind, **options) for node in nodes_of(grid)]


def facts_of(reply: Message) -> dict[str, Any]:
    return dict(reply.content.config_records["facts"])


def answers(grid: Grid, kind: str, records: RecordDict | None = None, **options: Any) -> list[dict[str, Any]]:
    """Return every node's facts."""
    return [facts_of(reply) for reply in ask(grid, to_each(grid, kind, records, **options))]


def ask(grid: Grid, messages: Sequence[Message], timeout: float = PATIENCE) -> list[Message]:
    """Return the replies in the order of the messages."""
    replies = list(grid.send_and_receive(messages, timeout=timeout))
    order = [message.metadata.message_id for message in messages]
    return sorted(replies, key=lambda reply: order.index(reply.metadata.reply_to_message_id))


def collect(grid: Grid, ids: Iterable[str], count: int) -> list[Message]:
    """Pull until that many replies have arrived."""
    left, replies = set(ids), list[Message]()
    deadline = time.monotonic() + PATIENCE
    while len(replies) < count and time.monotonic() < deadline:
        new = list(grid.pull_messages(left))
        left -= {reply.metadata.reply_to_message_id for reply in new}
        replies += new
        time.sleep(0.01)
    return replies


def tag(number: int) -> RecordDict:
    return RecordDict({"tag": ConfigRecord({"tag": number})})


def failure(reply: Message) -> dict[str, Any]:
    """Return a reply's error as plain data; empty if the reply has none."""
    return {"code": reply.error.code, "reason": reply.error.reason or ""} if reply.has_error() else {}


def sample_records() -> RecordDict:
    return RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(np.arange(4.0))}),
            "config": ConfigRecord({"text": "whole"}),
            "metrics": MetricRecord({"list": [1, 2], "number": 3}),
        }
    )


@probe
def nodes(grid: Grid) -> Observation:
    ids = nodes_of(grid)
    facts = answers(grid, "query")
    infos = list(grid.get_nodes())
    return {
        "ids": ids,
        "again": list(grid.get_node_ids()),
        "facts": facts,
        "infos": [info.node_id for info in infos],
        "run": grid.run.run_id,
    }


@probe
def metadata(grid: Grid) -> Observation:
    messages = to_each(grid, "train", group_id="seven", ttl=1234.0)
    before = [message.metadata.message_id for message in messages]
    replies = ask(grid, messages)
    return {
        "before": before,
        "ids": [message.metadata.message_id for message in messages],
        "messages": [(m.metadata.src_node_id, m.metadata.dst_node_id, m.metadata.run_id) for m in messages],
        "replies": [(r.metadata.src_node_id, r.metadata.dst_node_id, r.metadata.run_id) for r in replies],
        "reply_to": [reply.metadata.reply_to_message_id for reply in replies],
        "reply_ids": [reply.metadata.message_id for reply in replies],
        "types": [reply.metadata.message_type for reply in replies],
        "groups": [reply.metadata.group_id for reply in replies],
        "ttls": [reply.metadata.ttl for reply in replies],
        "facts": [facts_of(reply) for reply in replies],
        "run": grid.run.run_id,
    }


@probe
def push_then_pull(grid: Grid) -> Observation:
    messages = to_each(grid, "query")
    ids = list(grid.push_messages(messages))
    pulled = [reply.metadata.reply_to_message_id for reply in collect(grid, ids, len(ids))]
    return {
        "ids": ids,
        "set": [message.metadata.message_id for message in messages],
        "pulled": pulled,
        "again": what_is_pulled(grid, ids[:1]),
        "unknown": what_is_pulled(grid, ["no-such-message"]),
        "nothing": what_is_pulled(grid, []),
    }


def what_is_pulled(grid: Grid, ids: list[str]) -> list[str]:
    """Return for each reply whether it is content or an error."""
    return ["content" if reply.has_content() else "error" for reply in grid.pull_messages(ids)]


@probe
def kinds(grid: Grid) -> Observation:
    seen = {kind: [a["kind"] for a in answers(grid, kind)] for kind in ("query", "train", "evaluate")}
    replies = ask(grid, to_each(grid, "evaluate.unheard_of"))
    return {**seen, "unregistered": [failure(reply) for reply in replies]}


@probe
def failing_client(grid: Grid) -> Observation:
    replies = ask(grid, to_each(grid, "train.fail"))
    after = ask(grid, to_each(grid, "train.count", tag(0)))
    return {"failures": [failure(reply) for reply in replies], "after": [facts_of(reply) for reply in after]}


@probe
def unknown_node(grid: Grid) -> Observation:
    known = nodes_of(grid)[0]
    messages = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in (UNKNOWN_NODE, known)]
    pushed = list(grid.push_messages(messages))
    replies = collect(grid, pushed, len(pushed))
    known_id = messages[1].metadata.message_id
    return {
        "known_is_pushed": known_id in pushed,
        "pushed": len(pushed),
        "known": [failure(reply) for reply in replies if reply.metadata.reply_to_message_id == known_id],
        "unknown": [failure(reply) for reply in replies if reply.metadata.reply_to_message_id != known_id],
    }


@probe
def state(grid: Grid) -> Observation:
    messages = [Message(tag(0), nodes_of(grid)[0], "train.count") for _ in range(2)]
    alone = [facts_of(ask(grid, [message])[0]) for message in messages]
    everyone = answers(grid, "train.count", tag(1))
    return {"alone": alone, "everyone": everyone}


@probe
def two_messages_to_one_node(grid: Grid) -> Observation:
    node = nodes_of(grid)[-1]
    start = facts_of(ask(grid, [Message(tag(0), node, "train.count")])[0])["seen"]
    tagged = [Message(tag(number), node, "train.count") for number in (1, 2, 3)]
    return {"start": start, "facts": [facts_of(reply) for reply in ask(grid, tagged)]}


@probe
def run_config(grid: Grid) -> Observation:
    first = ask(grid, to_each(grid, "train.configure"))
    second = ask(grid, to_each(grid, "train.configure"))
    return {
        "first": [failure(reply) or facts_of(reply) for reply in first],
        "second": [failure(reply) or facts_of(reply) for reply in second],
        "query": [facts_of(reply)["kind"] for reply in ask(grid, to_each(grid, "query"))],
    }


@probe
def vandals(grid: Grid) -> Observation:
    records = sample_records()
    whole, seen = contents(records), []
    for _ in range(2):
        messages = to_each(grid, "train.vandal", records, group_id="whole")
        replies = ask(grid, messages)
        seen += [facts_of(reply)["before"] for reply in replies]
    return {
        "whole": whole,
        "after": contents(records),
        "seen": seen,
        "messages": [(m.metadata.group_id, m.metadata.message_type, list(m.content)) for m in messages],
        "replies": [(r.metadata.group_id, r.metadata.message_type) for r in replies],
    }


@probe
def kept_records(grid: Grid) -> Observation:
    """The server changes the records that it pushed and received; the clients' states must not change."""
    records = sample_records()
    replies = ask(grid, to_each(grid, "train.remember", records))
    before = [a["state"] for a in answers(grid, "train.recall")]
    del records.array_records["arrays"]["w"]
    for reply in replies:
        array, other = reply.content.array_records["arrays"]["w"], Array(np.full(2, -1.0))
        array.data, array.shape = other.data, other.shape
        sent = reply.content.config_records["sent"]
        sent["list"].append(3)  # type: ignore[union-attr]
        sent["new"] = 1
        del reply.content.array_records["arrays"]["w"]
    return {"before": before, "after": [a["state"] for a in answers(grid, "train.recall")]}


@probe
def pushed_twice(grid: Grid) -> Observation:
    message = Message(RecordDict(), nodes_of(grid)[0], "query")
    ask(grid, [message])
    try:
        return {"again": [failure(reply) or "content" for reply in ask(grid, [message], SILENCE)]}
    except Exception as error:
        return {"again": [type(error).__name__]}


@probe
def no_answer(grid: Grid) -> Observation:
    """A ClientApp that returns None, and a ClientApp whose message replies to no request."""
    seen: Observation = {}
    for kind in ("nothing", "stranger"):
        messages = to_each(grid, f"train.{kind}")
        replies = list(grid.send_and_receive(messages, timeout=SILENCE))
        asked = [message.metadata.message_id for message in messages]
        seen[kind] = [(reply.metadata.reply_to_message_id in asked, failure(reply)) for reply in replies]
    return seen


def observe(grid: Grid) -> dict[str, Observation]:
    """Ask every question; an exception is an observation too."""
    seen: dict[str, Observation] = {}
    for name, question in probes.items():
        try:
            seen[name] = question(grid)
        except Exception as error:
            seen[name] = {"exception": f"{type(error).__name__}: {error}"}
    return seen


def main(path: Path) -> None:
    """Ask Flower's own simulation every question."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from flwr.simulation import run_simulation

        from tests.simulations.probes import client_app as importable  # not from __main__, which Ray's workers lack

        server_app = ServerApp()

        @server_app.main()
        def ask_everything(grid: Grid, context: Context) -> None:
            path.write_bytes(pickle.dumps(observe(grid)))

        resources = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1}}
        run_simulation(server_app, importable, NODES, backend_config=resources)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
