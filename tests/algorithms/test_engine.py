"""The whole path, ServerApp and ClientApps on the in-process engine, against the reference."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apps import resources
from apps.client_app import STATE
from apps.client_app import app as client_app
from apps.config import RunConfig, parse_run_config
from apps.files import read_tensors
from apps.server_app import app as server_app
from clients.base import Site
from payloads.fedx import InnerEstimates
from simulations.engine import FIRST_NODE_ID, InProcessGrid, run_in_process
from tests.reference import fedx

from .helpers import RELU, TOLERANCE, Case, flattened, reference

NUM_CLIENTS = 4
FRACTION_OF_POSITIVES = [0.5, 0.0, 0.1, 0.4]  # of the file's four quarters


def write_data(folder: Path) -> Path:
    """40 training rows a site, unequal in positives and one site with none, and 20 test rows."""
    rng = np.random.default_rng(4)
    y = np.concatenate([rng.permutation(np.arange(40) < 40 * f) for f in FRACTION_OF_POSITIVES]).astype(int)
    X = rng.normal(np.where(y == 1, 0.4, -0.4)[:, None], 1.0, (160, 3)).astype(np.float32)
    X_test = rng.normal(size=(20, 3)).astype(np.float32)
    np.savez(folder / "sites.npz", X=X, y=y, X_test=X_test, y_test=np.arange(20) % 2)
    return folder / "sites.npz"


@pytest.fixture(scope="module")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def flat_config(case: Case, data_file: Path, output_dir: Path) -> dict[str, Any]:
    training = case.common.model_dump(by_alias=True)
    family = {f"fedx.{key}": value for key, value in case.settings.model_dump(by_alias=True).items()}
    places = {"dataset": "npz", "data-dir": str(data_file), "partition": "consecutive", "positive-label": "1"}
    return training | family | places | {"strategy": case.strategy, "model": "mlp", "output-dir": str(output_dir)}


def sites_of(config: RunConfig) -> list[Site]:
    data = resources.federated_data(config.data, NUM_CLIENTS)
    parts = [data.client(partition) for partition in range(NUM_CLIENTS)]
    return [
        Site.from_arrays(partition, part.features, part.labels, dtype=torch.float64)
        for partition, part in enumerate(parts)
    ]


def table(grid: InProcessGrid, partition: int) -> np.ndarray:
    """A client's u in its context, NaN where nothing was observed."""
    context = grid._contexts[FIRST_NODE_ID + partition]
    state = InnerEstimates.from_record(context.state.config_records[STATE])
    return np.where(state.observed[:, None], state.u, np.nan)


OPTIONS = (("gamma", 0.6), ("beta", 0.3), ("tau", 2), ("surrogate", "logistic"))
TRAINING = (("learning_rate", 0.05), ("lr_decay", 0.5), ("lr_decay_every", 4), ("num_server_rounds", 5))
CASES = [
    Case("fedx1", "psm", options=OPTIONS, training=TRAINING),
    Case("fedx2", "kl-opauc", options=(*OPTIONS, ("lambda_", 2.0)), training=(*TRAINING, ("fraction_train", 0.5))),
    Case("fedx2", "auprc", options=OPTIONS, training=TRAINING),
    Case("local-pair", "logistic", options=OPTIONS, training=TRAINING),
    Case("local-sgd", "cross-entropy", options=OPTIONS, training=(*TRAINING, ("fraction_train", 0.5))),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_in_process_ends_where_the_reference_does(case: Case, data_file: Path, tmp_path: Path) -> None:
    flat = flat_config(case, data_file, tmp_path)
    config = parse_run_config(flat)
    grid = run_in_process(server_app, client_app, NUM_CLIENTS, flat)
    (model_file,) = tmp_path.glob("*/model.safetensors")
    w = resources.new_model(config, (3,)).arrays()[0]
    records = list(reference(case, sites_of(config), w, RELU))
    named, _ = read_tensors(model_file)
    names = ["hidden.weight", "hidden.bias", "output.weight", "output.bias"]
    got = flattened({name: named[name] for name in names})
    np.testing.assert_allclose(got, records[-1].w, **TOLERANCE)
    assert np.linalg.norm(got - w) > 1e-2
    if case.strategy == "fedx2":
        last: dict[int, fedx.Step] = {}
        for record in records[1:]:
            last |= {place: record.steps[place][-1] for place in record.participants}
        for place, step in last.items():
            np.testing.assert_allclose(table(grid, place), step.u, **TOLERANCE)
