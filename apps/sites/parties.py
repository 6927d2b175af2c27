"""Sites of vertical learning: parties, which hold columns of the same rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from flwr.app import Context, Message

from apps.run_config.algorithm import HANDSHAKE, Held, RunConfig
from apps.sites.party_audit import audited
from apps.sites.vertical import keep, make_party, settings_of
from clients.base import PayloadClient, Trained
from clients.parties import NoModel, Party
from clients.vertical.policy import RefusalError
from clients.vfb2 import VFB2Client
from payloads.handshake import Scaling, SiteReport


class PartySites:
    """Clients that hold columns. Each has an owner, who may keep a log of what leaves the party."""

    # where parties have files of their own, the server needs none
    bring_files = True
    refusals: tuple[type[Exception], ...] = (RefusalError,)

    def hold(self, config: RunConfig, context: Context, place: tuple[int, int], scaling: Scaling | None) -> Party:
        """The party of a node.

        Raises:
            ConfigError: the node config is wrong, or the run config does not fit it.
            PolicyError: the party does not take part in such a run.
        """
        return make_party(config, context, *place)

    def report(self, config: RunConfig, context: Context, place: tuple[int, int]) -> SiteReport:
        """Who the party is; it does not read its data for that.

        Raises:
            ConfigError: the node config is wrong, or the run config does not fit it.
            PolicyError: the party does not take part in such a run.
        """
        make_party(config, context, *place)
        return SiteReport(identity=np.array(place))

    def model(self, config: RunConfig, site: Held) -> Trained:
        """Nothing that Flower could move: a party's block is part of its state."""
        return NoModel()

    @contextlib.contextmanager
    def audit(self, config: RunConfig, event: str, context: Context, message: Message) -> Iterator[dict[str, Any]]:
        """A line of the owner's log; that of the handshake says what the party is asked to take part in."""
        with audited(event, context, message) as facts:
            yield facts
            if event == HANDSHAKE:
                facts.update(describe_run(config))

    def begin(self, client: PayloadClient[Any], facts: dict[str, Any]) -> None:
        """Let the party tell its owner what it does."""
        assert isinstance(client, VFB2Client)
        client.facts = facts

    def end(self, client: PayloadClient[Any], context: Context, config: dict[str, Any]) -> None:
        """Keep what the party keeps for itself."""
        assert isinstance(client, VFB2Client)
        keep(client, context, config)


def describe_run(config: RunConfig) -> dict[str, Any]:
    """What a party is asked to take part in, for the log of its owner."""
    vfb2 = settings_of(config)
    shown = {"strategy": config.run.strategy, "alignment": vfb2.alignment, "masking": vfb2.masking}
    return {**shown, "label-epsilon": vfb2.label_epsilon}
