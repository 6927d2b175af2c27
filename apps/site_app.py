"""The ClientApp that Flower starts, in a new process for each message.

It answers in that process or, if the node config sets ``stay``, in a process that stays at the site between messages.
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
    # takes seconds, mostly for PyTorch, which a process that only forwards messages does not need
    from apps.client_app import app as client_app

    return client_app(message, context)
