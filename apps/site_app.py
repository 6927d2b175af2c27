"""The ClientApp that Flower starts in a new process for each message.

That process answers the message itself or, if the node config sets ``stay``, forwards it to a process that stays at the
site between messages (`apps.resident`).
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
    # imported here, since a process that only forwards messages does not need PyTorch, which takes seconds to import
    from apps.client_app import app as client_app

    return client_app(message, context)
