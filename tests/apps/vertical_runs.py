"""Small vertical runs whose nodes have their own node configs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cryptography.hazmat.primitives.serialization import Encoding
from numpy.typing import NDArray

from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from apps.parties.blocks import read_block
from apps.server_app import app as server_app
from clients.vfb2 import NoModel
from tests.battery.federation import Run, Wiretap, flat_config, serve
from tests.clients.test_identity import Authority
from vertical.parties import Party
from vertical.records import Segment, VFB2State, join_bytes
from vertical.transport.identity import fingerprint

PARTIES = 4
KEYS: dict[str, Scalar] = {"strategy": "vfb2-sgd", "dataset": "breast-cancer", "learning-rate": 0.02}
KEYS |= {"vfb2.assemble": True}  # the server has the blocks at the end, so tests can read them
EVERYBODY = [f"row-{number:03}" for number in range(60)]
# for parties with their own files
CSV: dict[str, Scalar] = {"dataset": "csv", "vfb2.active-parties": 1, "vfb2.intercept": False}


def play(path: Path, config: Mapping[str, Scalar], nodes: Sequence[Mapping[str, Scalar]] = ()) -> tuple[Run, Wiretap]:
    """Run a federation whose nodes have their own node configs."""
    flat = flat_config(path, {**KEYS, **config})
    grid = Wiretap(client_app, len(nodes) or PARTIES, flat, nodes)
    try:
        serve(grid, server_app, flat)
    finally:
        grid.close()
    return Run(path), grid


def states_of(grid: Wiretap) -> list[VFB2State]:
    """Return the parties' states."""
    return [VFB2State.from_record(one.state.config_records["client-state"]) for one in grid._contexts.values()]


def own_files(folder: Path, ids: Sequence[Sequence[str]], labelled: int = 2) -> tuple[list[dict[str, Scalar]], Any]:
    """Write one file for each party, with 3 columns and shuffled ids; return node configs and the whole table."""
    names = sorted({name for own in ids for name in own})
    rng = np.random.default_rng(4)
    columns = {f"x{column}": rng.normal(size=len(names)) * (column + 1) for column in range(3 * len(ids))}
    whole = pd.DataFrame({"id": names, **columns})
    whole["label"] = (sum(whole[f"x{3 * party}"] for party in range(len(ids))) > 0).astype(int)
    nodes: list[dict[str, Scalar]] = []
    for party, own in enumerate(ids):
        wanted = ["id", *(f"x{3 * party + column}" for column in range(3)), *(["label"] if party < labelled else [])]
        part = whole[whole["id"].isin(own)][wanted].sample(frac=1, random_state=party)
        part.to_csv(folder / f"party-{party}.csv", index=False)
        nodes.append({"data-path": str(folder / f"party-{party}.csv"), "labels": "label", "fewest-rows": 1})
    return nodes, whole


def identified(folder: Path, nodes: Sequence[Mapping[str, Scalar]]) -> list[dict[str, Scalar]]:
    """Return the nodes with certificates of separate authorities, and the pins of all authorities."""
    own, pins, known = list[dict[str, Scalar]](), [], b""
    for place, node in enumerate(nodes):
        (folder / str(place)).mkdir()
        authority = Authority(folder / str(place), f"of member {place}")
        known += b"".join(part.public_bytes(Encoding.PEM) for part in (authority.root, authority.middle))
        pins.append(f"member-{place}={fingerprint(authority.middle.public_bytes(Encoding.DER))}")
        certificate, key = authority.party(f"party-{place}")
        own.append({**node, "peer-cert": str(certificate), "peer-key": str(key)})
    (folder / "authorities.pem").write_bytes(known)
    return [{**node, "peer-ca": str(folder / "authorities.pem"), "pinned-peers": " ".join(pins)} for node in own]


def scores_of_blocks(rows: pd.DataFrame, folders: Sequence[Path], token: str) -> NDArray[np.float64]:
    """Return the pooled linear model's z of rows with numeric columns, by the blocks in the parties' ``state-dir``."""
    z = np.zeros(len(rows))
    for party, folder in enumerate(folders):
        block = read_block({"state-dir": str(folder)}, token, "logistic", (party, len(folders)))
        assert block.preprocessing is not None
        assert np.abs(block.weights).min() > 0
        low, width = np.array([(one.mean, one.deviation) for one in block.preprocessing.outputs]).T
        columns = list(block.preprocessing.names)
        z += (rows[columns].to_numpy() - low) / width @ block.weights[: len(columns)]
        # a party with labels has an intercept
        z += block.weights[len(columns) :].sum()
    return z


def client_of(folder: Path, party: Party, keys: Mapping[str, Scalar] | None = None) -> Any:
    """Return the client of a party, with further keys of the run config."""
    config = parse_run_config(flat_config(folder, {**KEYS, **(keys or {})}))
    return config.algorithm.client(party, NoModel(), config.training, config.family)  # type: ignore[arg-type]


def segment_of(certificates: Sequence[bytes], share: bool = False) -> Segment:
    """Return the first segment of parties with these certificates."""
    whole, lengths = join_bytes(certificates)
    one, flag = np.array([1]), np.array([False])
    numbers = {"serial": one, "segment": one * 0, "base": -one, "step": np.ones(1), "curvature": one > 1}
    places = {"addresses": np.zeros(0, np.uint8), "address_lengths": lengths * 0}
    flags = {"evaluate": flag, "share": np.array([share]), "last": flag}
    shown = {"certificates": whole, "certificate_lengths": lengths}
    return Segment(salt=np.zeros(16, np.uint8), active=one * 0, **numbers, **flags, **shown, **places)
