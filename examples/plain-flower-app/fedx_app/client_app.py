"""A ClientApp with the client of FedX1 or FedX2, driven by hand: `inbox` and `state`, then `fit`, then `outbox`."""

from __future__ import annotations

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.base import Site
from fedx_app.task import STRATEGIES, load_site, new_net, settings
from methods.pairwise import InnerEstimates
from methods.predictions import FedXPool
from payloads.handshake import SiteReport
from payloads.wire import ARRAYS, CONFIG, NUM_EXAMPLES, PAYLOAD, ROUND, content, model_arrays, model_record
from problems.models import FlatModel

U = "inner-estimates"  # the state of FedX2's client between rounds

app = ClientApp()


def place_of(context: Context) -> tuple[int, int]:
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


@app.query()
def query(message: Message, context: Context) -> Message:
    """Report this site's number of samples of each class; the strategy asks before round 1."""
    place, sites = place_of(context)
    _, labels = load_site(place, sites)
    positives = int(labels.sum())
    report = SiteReport(identity=np.array([place, sites]), class_counts=np.array([len(labels) - positives, positives]))
    return Message(content(payload=report.to_record()), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round: the strategy's client on our data and our network."""
    place, sites = place_of(context)
    site = Site.from_arrays(place, *load_site(place, sites))
    _, client_class = STRATEGIES[context.run_config["strategy"]]
    client = client_class(site, FlatModel(new_net()), *settings(context.run_config))

    records = message.content
    if PAYLOAD in records:  # not in the scoring round
        client.inbox = FedXPool.from_record(records[PAYLOAD])
    if U in context.state:
        client.state = InnerEstimates.from_record(context.state[U])

    arrays, num_examples, _ = client.fit(model_arrays(records[ARRAYS]), dict(records[CONFIG]))

    if client.state is not None:
        context.state[U] = client.state.to_record()
    told = {NUM_EXAMPLES: num_examples, ROUND: records[CONFIG][ROUND]}
    model = model_record(arrays) if arrays else None  # the scoring round sends scores only
    reply = content(arrays=model, payload=client.outbox.to_record(), metrics=told)
    return Message(reply, reply_to=message)
