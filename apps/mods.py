"""Flower's mods around our ClientApp: functions that see, and may change, each message and its reply.

Mods that clip or noise the model leave all other values that a client sends (its payload) unchanged.

    from flwr.clientapp.mod import LocalDpMod, message_size_mod

    from apps.mods import make_client_app

    app = make_client_app(message_size_mod, LocalDpMod(clipping_norm=0.1, sensitivity=0.2, epsilon=0.9, delta=1e-5))

docs/flower-mods.md lists the mods that make sense for each algorithm.
"""

from collections.abc import Callable
from logging import WARNING

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.common import log

from apps import client_app
from apps.guards.work import run_config
from payloads.handshake import REFUSAL
from payloads.record import specs_of
from payloads.settings import Settings
from payloads.wire import CONFIG, LOCAL, PAYLOAD, PHASE, content, find
from strategies.base import PayloadStrategy

ClientAppCallable = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, ClientAppCallable], Message]


def make_client_app(*mods: Mod) -> ClientApp:
    """Return our ClientApp with mods around its training, the first outermost.

    `on_model` wraps LocalDpMod, fixedclipping_mod and adaptiveclipping_mod. If one of these three is present, the site
    refuses, in the handshake, all algorithms that these mods break. Other mods see whole messages.
    """
    app = ClientApp()
    changed = [mod for mod in mods if changes_model(mod)]
    app.query(mods=[_refuse] if changed else None)(client_app.query)
    app.train(mods=[on_model(mod) if mod in changed else mod for mod in mods])(client_app.train)
    app.evaluate()(client_app.evaluate)
    return app


def changes_model(mod: Mod) -> bool:
    """Return whether a mod is one of Flower's mods that change the model in a reply."""
    return isinstance(mod, LocalDpMod) or mod in (fixedclipping_mod, adaptiveclipping_mod)


def on_model(mod: Mod) -> Mod:
    """Wrap a mod to hide the payload and the local paths from it, since Flower's mods expect only a model.

    Exchanges whose replies contain no model, such as FedX's first exchange, skip the mod: it would answer with an error
    that never reaches the server.
    """

    def around(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        records = message.content
        if PHASE in (find(records, CONFIG, ConfigRecord) or {}):
            return call_next(message, context)
        hidden = {name: records.pop(name) for name in (PAYLOAD, LOCAL) if name in records}

        def call_with_all(message: Message, context: Context) -> Message:
            message.content.update(hidden)
            return call_next(message, context)

        return mod(message, context, call_with_all)

    return around


def uncovered_fields(strategy: type[PayloadStrategy], settings: Settings, loss: str = "") -> list[str]:
    """Return the names of the payload's fields, which clients may send with the model and mods leave unchanged.

    Args:
        strategy: The algorithm's strategy.
        settings: The run's settings of the family.
        loss: The run's loss.
    """
    kinds = [kind for kind in strategy.ups_of(settings, loss).values() if kind is not None]
    return sorted({name for kind in kinds for name in specs_of(kind)})


def _refuse(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Refuse, as a mod of the handshake, algorithms that the other mods break: the server then shows the reason."""
    config = run_config(context)
    secure = "with privacy.secure-sum a reply contains a masked term, not a model" if config.privacy.secure_sum else ""
    if objection := config.algorithm.traits.objection or secure:
        refused = f"the ClientApp has a mod that changes the model: {objection}"
        return Message(content(config=ConfigRecord({REFUSAL: refused})), reply_to=message)
    if fields := uncovered_fields(config.algorithm.strategy, config.family, config.training.loss):
        text = "the ClientApp's mods change only the model: clients of %s may also send, unchanged: %s"
        log(WARNING, text, config.run.strategy, ", ".join(fields))
    return call_next(message, context)
