"""Sites of vertical learning: parties, which hold columns of the same rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from flwr.app import Context, Message

from apps.run_config.algorithm import HANDSHAKE, Held, RunConfig, Sites
from apps.sites.party_audit import audited
from apps.sites.vertical import keep, make_party, settings_of
from clients.base import PayloadClient, Trained
from clients.parties import NoModel, Party
from clients.vertical.policy import RefusalError
from clients.vfb2 import VFB2Client
from payloads.handshake import Scaling, SiteReport


class PartySites(Sites):
    """Clients that hold columns. Each has an owner, who may keep a log of what leaves the party."""

    bring_files = True
    refusals = (RefusalError,)

    def hold(self, config: RunConfig, context: Context, place: tuple[int, int], scaling: Scaling | None) -> Party:
        return make_party(config, context, *place)

    def report(self, config: RunConfig, context: Context, place: tuple[int, int]) -> SiteReport:
        """Return who the party is, without reading its data."""
        make_party(config, context, *place)
        return SiteReport(identity=np.array(place))

    def model(self, config: RunConfig, site: Held) -> Trained:
        """Return an empty model for Flower: a party's block is part of its memory."""
        return NoModel()

    @contextlib.contextmanager
    def audit(self, config: RunConfig, event: str, context: Context, message: Message) -> Iterator[dict[str, Any]]:
        """Add a line to the owner's log; the handshake's line also holds the settings of the run."""
        with audited(event, context, message) as facts:
            yield facts
            if event == HANDSHAKE:
                vfb2 = settings_of(config)
                facts.update(strategy=config.run.strategy, alignment=vfb2.alignment, masking=vfb2.masking)
                facts["label-epsilon"] = vfb2.label_epsilon

    def begin(self, client: PayloadClient[Any], facts: dict[str, Any]) -> None:
        """Let the client fill in the line of the owner's log."""
        assert isinstance(client, VFB2Client)
        client.facts = facts

    def end(self, client: PayloadClient[Any], context: Context, config: dict[str, Any]) -> None:
        """Write what the party keeps for itself to its disk."""
        assert isinstance(client, VFB2Client)
        keep(client, context, config)
