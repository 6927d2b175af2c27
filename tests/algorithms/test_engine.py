"""The whole path, ServerApp and ClientApps on the in-process engine, against the reference."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apps.client_app import STATE
from clients.base import Site
from methods.pairwise import InnerEstimates
from simulations.engines.in_process import FIRST_NODE_ID
from tests.reference import fedx

from .helpers import RELU, TOLERANCE, Case, reference
from .watched import SITES, Watched, rows_of

# 40 rows a site; one site has no positives
LABELS = np.concatenate([np.random.default_rng(4).permutation(np.arange(40) < n) for n in (20, 0, 4, 16)]).astype(int)
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
def test_a_run_in_process_is_the_reference_s(case: Case, tmp_path: Path) -> None:
    flat: dict[str, Any] = {**case.common.model_dump(by_alias=True), "strategy": case.strategy, "model": "mlp"}
    flat |= {f"fedx.{key}": value for key, value in case.settings.model_dump(by_alias=True).items()}
    one = Watched(tmp_path, {**flat, **rows_of(LABELS.tolist(), tmp_path / "data.npz")})
    parts = [one.data.client(place) for place in range(SITES)]
    sites = [Site.from_arrays(i, part.features, part.labels, dtype=torch.float64) for i, part in enumerate(parts)]
    records = [record for record in reference(case, sites, one.models[0], RELU) if record.round]
    np.testing.assert_allclose(one.models[1:], [record.w for record in records], **TOLERANCE)
    assert np.linalg.norm(one.models[-1] - one.models[0]) > 1e-2
    if case.strategy == "fedx2":
        last: dict[int, fedx.Step] = {}
        for record in records:
            last |= {place: record.steps[place][-1] for place in record.participants}
        for place, step in last.items():
            state = InnerEstimates.from_record(one.grid._contexts[FIRST_NODE_ID + place].state.config_records[STATE])
            u = np.where(state.observed[:, None], state.u, np.nan)  # NaN where nothing was observed
            np.testing.assert_allclose(u, step.u, **TOLERANCE)
