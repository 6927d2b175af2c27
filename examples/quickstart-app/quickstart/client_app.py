"""The ClientApp, as in Flower's quickstart: nothing of florilegium."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import accuracy, load_site, new_net
from quickstart.task import train as train_net

app = ClientApp()


def start(message: Message, context: Context) -> tuple:
    """The received model, and this site's images and labels."""
    net = new_net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net, *load_site(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


@app.train()
def train(message: Message, context: Context) -> Message:
    net, images, labels = start(message, context)
    config = context.run_config
    loss = train_net(net, images, labels, config["local-epochs"], config["learning-rate"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(images)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net, images, labels = start(message, context)
    metrics = MetricRecord({"accuracy": accuracy(net, images, labels), "num-examples": len(images)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
