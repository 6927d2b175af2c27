"""A party's first answers to the server, before the parties talk to each other: its credentials, and its data summary.

The credentials are the party's address and certificate. The summary has the numbers of its rows and columns.
"""

from dataclasses import replace
from logging import ERROR

import numpy as np
from flwr.common import log

from payloads.id_forms import measure_ids
from problems.errors import InputError
from vertical.alignment import MAX_IDS
from vertical.holdings import digest_holding
from vertical.parties import Party, find_network
from vertical.policy import PolicyError, RefusalError, StatedRefusalError
from vertical.problem.blocks import GROUP_LASSO
from vertical.problem.blocks.network import make_network
from vertical.problem.errors import NetworkError
from vertical.records import PAGE, Credentials, DataSummary, VFB2State, join_bytes, text
from vertical.segment.plan import SHARED
from vertical.settings import VFB2Settings
from vertical.transport.addresses import free_port
from vertical.transport.folders import host_mark
from vertical.transport.identity import fingerprint
from vertical.turn import Turn, find_identity


def introduce(party: Party, state: VFB2State, vfb2: VFB2Settings) -> tuple[Credentials, VFB2State]:
    """Return the party's address and certificate, and its memory, which stores both. The party's data are not read.

    Args:
        party: The party.
        state: The party's memory.
        vfb2: The run's settings.
    """
    identity = find_identity(party, state)
    certificate, length = join_bytes([identity.certificate], PAGE)
    local = vfb2.transport == "tcp" and not party.advertised
    port = np.array([free_port() if local else 0])
    credentials = Credentials(
        certificate=certificate,
        certificate_length=length,
        advertised=text(party.advertised),
        port=port,
        host=text(host_mark()),
        share=np.array([party.share]),
        serial=state.serial,
    )
    return credentials, replace(state, identity=text(identity.to_bytes()), port=port)


def admit(turn: Turn) -> None:
    """Check the parties in the server's message against the owner's policy.

    Every message needs this check, since the server chooses the parties.

    Raises:
        PolicyError: There are too few parties, their number differs from ``num-partitions``, or no pin (an accepted
            certificate) or another party's pin covers a party.
    """
    certificates = turn.segment.peers()[0]
    if len(certificates) != turn.party.parties:  # a party that is left out cannot object
        got, allowed = (
            f"{len(certificates)} parties in the server's list",
            f"{turn.party.parties}, the number of parties",
        )
        hint = "start every SuperNode with the same num-partitions"
        raise PolicyError("num-partitions", got=got, allowed=allowed, hint=hint)
    names = turn.party.policy.check_peers(certificates, turn.me, find_identity(turn.party, turn.state).certificate)
    turn.facts["peers"] = [
        {"party": party, "name": name, "certificate": fingerprint(certificates[party])}
        for party, name in enumerate(names)
        if party != turn.me
    ]


def describe(turn: Turn) -> DataSummary:
    """Return the numbers of the party's rows and columns, and the form of its ids.

    Raises:
        RefusalError: The party's data or its network cannot be used.
    """
    me = f"party {turn.me}"
    try:
        data = turn.party.data
        _check_settings(turn, me)
        turn.check_network()
        _check_same(turn, me)
        id_lengths, id_marks = measure_ids(data.ids(None))
        return DataSummary(
            rows=turn.count_rows(),
            columns=np.array([data.columns]),
            labels=np.array([data.labelled]),
            id_lengths=id_lengths,
            id_marks=id_marks,
            simulated=np.array([bool(data.keys)]) if turn.algorithm == SHARED else None,
            own_dealer=np.array([turn.party.dealer is not None]) if turn.algorithm == SHARED else None,
        )
    except NetworkError as error:
        if turn.party.data.keys or turn.party.model == turn.settings.model:
            raise StatedRefusalError(str(NetworkError.of(error, me))) from error
        log(ERROR, "%s: model in the node config: %s", me, error)
        raise StatedRefusalError(f"{me}: the network in its node config does not fit; its log has the error") from error
    except RefusalError:
        raise
    except (ValueError, OSError) as error:
        raise RefusalError(str(error)) from error


def _check_settings(turn: Turn, me: str) -> None:
    """Compare the party's data with the run's settings.

    Raises:
        RefusalError: The data do not fit the settings.
        NetworkError: The party's network does not fit its columns.
    """
    data, vfb2 = turn.party.data, turn.settings
    if vfb2.label_epsilon and turn.party.flips is not None and data.training_marks(None) is not None:
        turn.party.flips.check()
    if vfb2.alignment == "intersection" and (rows := len(data.ids(None))) > MAX_IDS:
        key, got, allowed = f"{me}: vfb2.alignment", f"'intersection' of {rows:,} ids", f"at most {MAX_IDS:,} ids"
        hint = "reduce the rows of the party's file"
        raise StatedRefusalError(str(InputError(key, got=got, allowed=allowed, hint=hint)))
    if data.block is not None:
        return
    if data.classes and len(data.classes) != vfb2.embedding:
        key, allowed = f"{me}: vfb2.embedding", f"{len(data.classes)}, the number of classes"
        raise RefusalError(
            str(InputError(key, got=vfb2.embedding, allowed=allowed, hint=f"set vfb2.embedding={len(data.classes)}"))
        )
    if data.keys and (vfb2.penalty, vfb2.groups) == (GROUP_LASSO, "columns"):
        allowed = "'party', since simulated parties do not know which features encode the same column"
        hint = "set vfb2.groups='party'"
        raise StatedRefusalError(str(InputError("vfb2.groups", got="'columns'", allowed=allowed, hint=hint)))
    if vfb2.embedding:  # refused now, before any segment
        make_network(find_network(turn.party, turn.training.seed), data.columns, vfb2.embedding)


def _check_same(turn: Turn, me: str) -> None:
    """Compare the party's rows with its rows at the start of the run.

    Raises:
        RefusalError: The rows differ.
    """
    if turn.state.data is not None and turn.state.data.tobytes() != digest_holding(turn.holding()):
        got = "other rows, values, labels or order of rows than at the start of the run"
        allowed, hint = "the data of the start of the run", "restore the file, or start a new run"
        raise StatedRefusalError(str(InputError(f"resume: {me}", got=got, allowed=allowed, hint=hint)))
