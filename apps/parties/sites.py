"""The sites of vertical runs: parties that have different columns of the same rows, each with its owner's policy."""

import contextlib
from collections.abc import Iterator, Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.common import log

from apps.parties.audit import audit, describe_columns
from apps.parties.blocks import BlockFile, party_folder, write_block
from apps.parties.data import data_loader, settings_of
from apps.parties.flip_memory import FlipMemory, id_keys
from apps.parties.looks import open_looks
from apps.parties.score_table import ScoreTable, scores_path, write_scores
from apps.parties.table import PartyTable
from apps.run_config.algorithm import HANDSHAKE, Held, RunConfig, Sites
from apps.run_config.settings import ConfigError
from apps.sites.settings import SiteConfig, VerticalTable
from apps.sites.state_store import state_dir
from apps.sites.withheld import is_verbose
from clients.base import PayloadClient, Trained
from clients.vfb2 import NoModel, VFB2Client
from payloads.handshake import Scaling, SiteReport
from payloads.wire import PHASE, RUN_TOKEN
from vertical.parties import Party
from vertical.policy import PEER_CA, SHARES, Policy, PolicyError, RefusalError
from vertical.problem.blocks import NO_PENALTY
from vertical.problem.blocks.network import check_name
from vertical.problem.errors import NetworkError
from vertical.records import DATA_SUMMARY, UNREACHABLE, Segment
from vertical.segment.plan import SHARED
from vertical.settings import VFB2Settings
from vertical.shares.dealer import DealerAccess
from vertical.transport.addresses import Address
from vertical.transport.identity import Identity, read_certificates

PEER_FILES = ("peer-cert", "peer-key", PEER_CA)
_PAGE = "see docs/vertical.md"


class PartySites(Sites):
    """The data and hooks of clients with columns of the same rows. Each client's owner may keep an audit log."""

    hold_columns = True
    refusals = (RefusalError,)

    def hold(self, config: RunConfig, context: Context, partition: tuple[int, int], scaling: Scaling | None) -> Party:
        return make_party(config, context, *partition)

    def report(self, config: RunConfig, context: Context, partition: tuple[int, int]) -> SiteReport:
        """Return the party's identity, without reading its data.

        Raises:
            ConfigError, PolicyError: As for `make_party`.
        """
        make_party(config, context, *partition)
        return SiteReport(identity=np.array(partition))

    def model(self, config: RunConfig, site: Held) -> Trained:
        """Return an empty model, since a party's block (its part of the model) belongs to the client's memory."""
        return NoModel()

    @contextlib.contextmanager
    def audit(self, config: RunConfig, event: str, context: Context, message: Message) -> Iterator[dict[str, Any]]:
        """Add a line to the owner's log. The handshake's line also contains the settings of the run."""
        with audit(event, context, message) as facts:
            yield facts
            if event == HANDSHAKE:
                vfb2 = settings_of(config)
                facts.update(strategy=config.run.strategy, alignment=vfb2.alignment, masking=vfb2.masking)
                facts["label-epsilon"] = vfb2.label_epsilon
                facts |= {"problem": vfb2.problem, "label-column": config.data.labels_in, "id-column": vfb2.id_column}
                if vfb2.score_run:
                    facts |= {"score-run": vfb2.score_run, "score-for": vfb2.score_for}

    def begin(self, client: PayloadClient[Any], facts: dict[str, Any]) -> None:
        """Give the client the entries of the line in the owner's log, to which it adds."""
        assert isinstance(client, VFB2Client)
        client.facts = facts

    def end(
        self, client: PayloadClient[Any], context: Context, config: Mapping[str, Any], local: Mapping[str, Any]
    ) -> None:
        """Write a party's block after the last segment (a round's exchange), or the scores that the party has computed.

        The folder is in the party's ``state-dir`` or, without a ``state-dir``, in the run directory of a server on the
        same machine.

        Args:
            client: The client.
            context: The node's context.
            config: The message's scalars. Their run token names the folder; without a token the segment's salt does.
            local: The paths in the message.
        """
        assert isinstance(client, VFB2Client)
        if not isinstance(client.inbox, Segment):  # only a handshake
            return
        party, node = client.party, context.node_config
        if isinstance(party.data, PartyTable | ScoreTable):
            client.facts |= describe_columns(client.settings, party.data.read)
        run = str(config.get(RUN_TOKEN, "")) or client.inbox.salt.tobytes().hex()
        folder = party_folder(node, local, run, party.partition_id)
        if client.scores is not None:
            block = party.data.block
            assert isinstance(block, BlockFile)
            path, (ids, z) = scores_path(node, folder, block, run), client.scores
            write_scores(path, ids, z, client.settings, block.classes)
            log(INFO, "party %d: the scores of %d rows are in %s", party.partition_id, len(ids), path)
        elif folder is None and config.get(PHASE) == DATA_SUMMARY and not client.settings.score_run:
            text = "party %d: %s, so its block of the model is lost when the run ends, and cannot score rows"
            log(WARNING, text, party.partition_id, "the node config has no state-dir")
        elif folder is not None and client.block is not None:
            encoding = party.data.preprocessing(client.state.aligned)
            header = {
                "run": run,
                "problem": client.settings.problem,
                "party": party.partition_id,
                "parties": party.parties,
                "active": client.block.active,
                "epochs": client.block.epochs,
                "history": client.block.history,
                "embedding": client.settings.embedding,
                "model": party.model,
                "columns": party.data.names,
                "data": dict(party.data.keys),
                "classes": list(party.data.classes),
                "preprocessing": None if encoding is None else encoding.to_json(),
            }
            path = write_block(folder, client.block.arrays(), header)
            if client.settings.penalty != NO_PENALTY:
                used = [party.data.names[column] for column in np.flatnonzero(client.block.weights)]
                text = "party %d keeps %d of its %d columns: %s"
                log(INFO, text, party.partition_id, len(used), party.data.columns, ", ".join(used) or "none")
            kept = "block" if client.block.share is None else "share of the weights"
            log(INFO, "party %d: its %s of run %s is in %s", party.partition_id, kept, run, path)


def _masking(config: RunConfig, own: SiteConfig) -> str:
    """Return the protection that the party's owner must allow; a simulated party has nothing to protect."""
    has_file = own.data.data_path is not None or own.vertical.score_path is not None
    client = config.algorithm.client
    shared = issubclass(client, VFB2Client) and client.algorithm == SHARED and has_file
    return SHARES if shared else settings_of(config).masking


def make_party(config: RunConfig, context: Context, party: int, parties: int) -> Party:
    """Return the party of a node. The first access to `Party.data` reads the data, and may raise `DataError`.

    Args:
        config: The run config.
        context: The node's context.
        party: The party's index.
        parties: The number of parties.

    Raises:
        ConfigError: The node config is wrong, or the run config does not fit it.
        PolicyError: The party's policy forbids the run.
    """
    node, vfb2 = context.node_config, settings_of(config)
    own = SiteConfig.of(node).vertical
    try:
        policy = policy_of(node)
        policy.check_run(
            parties,
            label_epsilon=vfb2.label_epsilon,
            masking=_masking(config, SiteConfig.of(node)),
            intersection=vfb2.alignment == "intersection",
            scores_for=vfb2.score_for if vfb2.score_run else "",
        )
        load, looks = data_loader(config, node, party, parties), open_looks(config, context, party)
    except PolicyError as error:
        raise error.at(f"party {party}") from None
    folder = state_dir(node)
    identity, authority = _identity(own)
    advertised, listen = _addresses(own)
    return Party(
        party,
        parties,
        load,
        identity=identity,
        authority=authority,
        advertised=advertised,
        listen=listen,
        share=own.share_block,
        model=_model_of(own, vfb2),
        policy=policy,
        flips=None if folder is None else FlipMemory(folder, party, id_keys(config, node)),
        verbose=is_verbose(config, node),
        looks=looks,
        run_config=dict(context.run_config),
        dealer=_dealer(own),
    )


def _addresses(own: VerticalTable) -> tuple[str, Address | None]:
    """Return a node's address for the other parties, and the address at which it listens if that differs."""
    if own.listen and own.advertise in ("", UNREACHABLE):
        got = f"listen with advertise={own.advertise!r}" if own.advertise else "listen without advertise"
        hint = "set advertise to the address at which the other parties reach this node"
        allowed = "advertise without listen, or listen together with host:port in advertise"
        raise ConfigError("node config", got=got, allowed=allowed, hint=hint)
    return own.advertise, Address("tcp", own.listen) if own.listen else None


def _dealer(own: VerticalTable) -> DealerAccess | None:
    """Return a node's access to a dealer that is a third party; None if the server deals."""
    if not own.dealer and own.dealer_cert is None:
        return None
    if not own.dealer or own.dealer_cert is None or own.peer_cert is None:
        keys = {"dealer": own.dealer, "dealer-cert": own.dealer_cert, "peer-cert": own.peer_cert}
        got, lacks = (
            " and ".join(key for key, value in keys.items() if bool(value) == given) for given in (True, False)
        )
        allowed = "dealer, dealer-cert and peer-cert together"
        raise ConfigError("node config", got=f"{got} without {lacks}", allowed=allowed, hint=f"set {lacks} too")
    return DealerAccess(Address("tcp", own.dealer), _read_certificates("dealer-cert", own.dealer_cert)[0])


def _model_of(own: VerticalTable, vfb2: VFB2Settings) -> str:
    """Return the name of a party's network: the party's ``model`` or the run's ``vfb2.model``. It is not imported."""
    name = own.model or vfb2.model
    if not vfb2.embedding:
        return name
    try:
        check_name("node config: model", name)
    except NetworkError as error:
        raise ConfigError.of(error) from None
    return name


def policy_of(node: Mapping[str, Any]) -> Policy:
    """Return the policy in a node config.

    Raises:
        ConfigError: A setting of the site has a wrong value.
        PolicyError: `peer-ca` cannot be read.
    """
    own = SiteConfig.of(node)
    table, reads_file = own.vertical, bool(own.data.data_path or own.vertical.score_path)
    return Policy(
        fewest_parties=table.fewest_parties,
        pins=table.pinned_peers,
        authorities=_read_certificates(PEER_CA, table.peer_ca) if table.pinned_peers and table.peer_ca else (),
        largest_label_epsilon=table.largest_label_epsilon,
        allow_intersection=table.allow_intersection,
        allowed_maskings=table.allowed_maskings,
        scores_for=table.allow_scores_for,
        fewest_rows=table.fewest_rows if reads_file or "fewest_rows" in table.model_fields_set else 0,
        peer_hosts=table.peer_hosts,
    )


def _read_certificates(key: str, path: Path) -> tuple[bytes, ...]:
    """Return the certificates (DER) in the file of a setting."""
    try:
        return read_certificates(path)
    except ValueError as error:
        raise PolicyError(key, got=str(error), allowed="a PEM file of certificates", hint=_PAGE) from None


def _identity(own: VerticalTable) -> tuple[Identity | None, str | None]:
    """Return a node's own certificate and key, and the file of the authority that signs its peers' certificates."""
    certificate, key, authority = files = (own.peer_cert, own.peer_key, own.peer_ca)
    if bool(certificate) != bool(key):
        got, lacks = ("peer-cert", "peer-key") if certificate else ("peer-key", "peer-cert")
        got = f"{got} without {lacks}"
        raise ConfigError("node config", got=got, allowed="both keys or neither", hint=f"set {lacks} too")
    if authority and not certificate:
        got, allowed = f"only peer-ca {str(authority)!r}", "peer-ca together with peer-cert and peer-key"
        raise ConfigError("node config", got=got, allowed=allowed, hint="set peer-cert and peer-key too")
    for name, path in zip(PEER_FILES, files, strict=True):
        if path and not path.is_file():
            got, hint = f"{str(path)!r}, which does not exist", f"set {name} to the path of a PEM file"
            raise ConfigError(f"node config: {name}", got=got, allowed="an existing file", hint=hint)
    if certificate is None or key is None:
        return None, None
    return Identity.from_files(certificate, key), str(authority) if authority else None
