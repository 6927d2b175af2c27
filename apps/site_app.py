"""The ClientApp that Flower starts, in a new process for each message.

It answers there or, where the node config has ``stay``, in a process that stays at the site from message to message.
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from apps.sites.staying import ask, staying_seconds

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer the handshake, see `apps.client_app.query`."""
    return _answer(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, see `apps.client_app.train`."""
    return _answer(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure a model, see `apps.client_app.evaluate`."""
    return _answer(message, context)


def _answer(message: Message, context: Context) -> Message:
    if seconds := staying_seconds(context.node_config):
        return ask(message, context, seconds)
    # takes seconds, most of them for PyTorch, which a process that only passes messages on does without
    from apps.client_app import app as client_app

    return client_app(message, context)
