"""The loss of hazards in the strategies of sample losses: against a reference on expanded rows, stacked, resumed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from apps.config import ConfigError, parse_run_config
from methods.private import Guard, Ledger, PrivateHazards
from methods.samples import HazardObjective
from payloads.settings import Settings, TrainingSettings
from privacy.budget import Releases
from problems.data import DataSpec, load
from problems.models import FlatModel, build_model
from problems.models.networks import HazardNetwork
from problems.objectives.hazard import START
from problems.site import Site
from simulations.python.runs import run

STRATEGIES = ("local-sgd", "local-sgdm", "fedprox", "scaffold")
MONTHS = 6


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 180 rows of three unequal sites, with entries."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(180, 2))
    start = rng.integers(0, 2, 180)
    ends = start + rng.integers(1, MONTHS, 180)
    dead = (rng.random(180) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)
    site = np.repeat([0, 1, 2], [90, 60, 30])
    path = tmp_path_factory.mktemp("hazard") / "rows.csv"
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "from": start, "months": ends, "dead": dead, "site": site})
    frame.to_csv(path, index=False)
    return path


def config_of(table: Path, **keys: Any) -> dict[str, Any]:
    return {
        "strategy": "local-sgd",
        "dataset": "csv",
        "data-dir": str(table),
        "label-column": "dead",
        "time-column": "months",
        "entry-column": "from",
        "time-borders": f"1:{MONTHS}",
        "site-column": "site",
        "partition": "natural",
        "model": "linear",
        "scale": "none",
        "dtype": "float64",
        "batch-size": 0,
        "local-steps": 3,
        "num-server-rounds": 4,
        "learning-rate": 0.2,
        "pictures": False,
        "checkpoint-every": 1,
        **{name.replace("_", "-"): value for name, value in keys.items()},
    }


def train(folder: Path, config: dict[str, Any], **how: Any) -> dict[str, np.ndarray]:
    """Run, and return the trained parameters by name."""
    run(config, folder, clients=3, quiet=True, **how)
    return {name: value.double().numpy() for name, value in load_file(folder / "model.safetensors").items()}


def expand(samples: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each pair of row and interval: the design (features, 1, one column for each interval), event, row."""
    periods, designs, events, rows = samples.periods, [], [], []
    for row in range(len(samples)):
        for interval in range(periods.entries[row], periods.exits[row] + 1):
            baseline = np.eye(MONTHS + 1)[interval]
            designs.append(np.concatenate([samples.features[row], [1.0], baseline]))
            events.append(float(samples.labels[row]) * (interval == periods.exits[row]))
            rows.append(row)
    return np.array(designs), np.array(events), np.array(rows)


def test_local_sgd_equals_logistic_regression_on_expanded_rows(table: Path, tmp_path: Path) -> None:
    config = config_of(table)
    got = train(tmp_path / "run", config)
    spec = parse_run_config(config).data
    data = load(spec, 3)
    network = HazardNetwork(build_model("linear", (2,), 0), MONTHS + 1, START)
    point = FlatModel(network, dtype=torch.float64).parameters.numpy().copy()
    sites = [data.client(site) for site in range(3)]
    for _ in range(4):
        ends = []
        for site in sites:
            w, (design, events, _) = point.copy(), expand(site)
            for _ in range(3):
                errors = 1 / (1 + np.exp(-design @ w)) - events
                w -= 0.2 * design.T @ errors / len(site)
            ends.append(w)
        point = np.average(ends, axis=0, weights=[len(site) for site in sites])
    np.testing.assert_allclose(np.concatenate([value.ravel() for value in order(got)]), point, rtol=0, atol=1e-6)


def order(named: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return weight, bias and baselines."""
    return [next(named[name] for name in named if part in name) for part in ("weight", "bias", "baseline")]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_stacked_and_resumed_runs_are_equal(strategy: str, table: Path, tmp_path: Path) -> None:
    config = config_of(table, strategy=strategy, batch_size=16, model="mlp")
    whole = train(tmp_path / "whole", config)
    stacked = train(tmp_path / "stacked", config, stack=3)
    train(tmp_path / "half", {**config, "num-server-rounds": 2})
    resumed = train(tmp_path / "half", {**config, "resume": True})
    for name, value in whole.items():
        np.testing.assert_allclose(stacked[name], value, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(resumed[name], value)


def test_a_row_moves_a_private_gradient_by_at_most_the_clip(table: Path) -> None:
    """All intervals of a row are clipped together, whatever the model is."""
    data = load(DataSpec(**vars(parse_run_config(config_of(table)).data)), 3)
    site = Site.of_samples(0, data.client(0), torch.float64)
    model = FlatModel(HazardNetwork(build_model("linear", (2,), 0), MONTHS + 1, START), dtype=torch.float64)
    plain = HazardObjective(model, site, "hazard", TrainingSettings(), Settings())
    releases = Releases(1.0, 1000)
    private = PrivateHazards(plain, Guard(0.5, 0.0, float(len(site)), Ledger(releases, of_batch=1000, left=1000)))
    w = 3 * torch.randn(model.dim, dtype=torch.float64)
    for row in range(20):
        (length,) = [float(plain.gradient(w, site.samples(np.array([row]))).norm())]
        clipped = private.gradient(w, site.samples(np.array([row]))) * len(site)
        assert float(clipped.norm()) == pytest.approx(min(length, 0.5), rel=1e-6)


def test_a_description_counts_the_times_as_numbers(table: Path, tmp_path: Path) -> None:
    run(config_of(table, strategy="describe"), tmp_path / "run", clients=3, quiet=True)
    found = json.loads((tmp_path / "run" / "describe.json").read_text())
    assert {"months", "from"} <= {column["column"] for column in found["columns"]}


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"strategy": "fedsgda-storm"}, "strategies for times: .*local-sgd"),
        ({"loss": "cross-entropy"}, "'hazard' with time-column 'months'"),
        ({"time_column": "", "entry_column": "", "time_borders": "", "loss": "hazard"}, "set time-column"),
    ],
)
def test_other_losses_are_refused(keys: dict[str, str], match: str, table: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        parse_run_config(config_of(table, **keys))
