"""If a site's local training diverges in a round, the site loses that round only."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import apps.guards.work
from apps.registry import ALGORITHMS
from payloads.wire import ROUND
from tests.battery.federation import SAMPLING, federate

REMEMBERING = [name for name in SAMPLING if ALGORITHMS[name].client.memory is not None]


@pytest.mark.parametrize("strategy", REMEMBERING)
def test_a_site_whose_round_diverged_takes_part_in_the_next(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = apps.guards.work.make_client

    def make(*args: Any) -> Any:
        client = made(*args)
        fit = client.fit

        def diverge(parameters: Any, config: Any) -> Any:
            arrays, examples, metrics = fit(parameters, config)
            if client.site.partition_id == 1 and config[ROUND] == 2:
                kept = {
                    name: value * np.nan for name, value in client.state.arrays().items() if value.dtype.kind == "f"
                }
                client.state = dataclasses.replace(client.state, **kept)
                arrays = [array * np.nan for array in arrays]
            return arrays, examples, metrics

        client.fit = diverge
        return client

    monkeypatch.setattr(apps.guards.work, "make_client", make)
    run, _ = federate(tmp_path / "run", {"strategy": strategy, "num-server-rounds": 4, "checkpoint-every": 1})
    assert [line["clients_answered"] for line in run.lines[1:]] == [3, 2, 3, 3]
    assert "not finite" in json.dumps(run.lines[2]["dropped"])
