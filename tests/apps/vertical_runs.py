"""Small vertical runs whose nodes have node configs of their own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from apps.client_app import app as client_app
from apps.config import Scalar
from apps.server_app import app as server_app
from tests.battery.federation import Run, Wiretap, flat_config, serve

PARTIES = 4
# with the blocks at the server in the end, to be looked at
KEYS: dict[str, Scalar] = {
    "strategy": "vfb2-sgd",
    "dataset": "breast-cancer",
    "learning-rate": 0.02,
    "vfb2.assemble": True,
}
EVERYBODY = [f"row-{number:03}" for number in range(60)]
# for parties with files of their own
CSV: dict[str, Scalar] = {"dataset": "csv", "vfb2.active-parties": 1}


def play(path: Path, config: Mapping[str, Scalar], nodes: Sequence[Mapping[str, Scalar]] = ()) -> tuple[Run, Wiretap]:
    """A run whose nodes have their own node configs."""
    flat = flat_config(path, {**KEYS, **config})
    grid = Wiretap(client_app, len(nodes) or PARTIES, flat, nodes)
    try:
        serve(grid, server_app, flat)
    finally:
        grid.close()
    return Run(path), grid


def own_files(folder: Path, ids: Sequence[Sequence[str]], labelled: int = 2) -> tuple[list[dict[str, Scalar]], Any]:
    """One file a party with 3 columns of its ids, in an order of its own; returns node configs and the whole table."""
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
        nodes.append({"data-path": str(folder / f"party-{party}.csv")})
    return nodes, whole
