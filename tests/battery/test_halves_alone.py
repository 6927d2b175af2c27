"""Each half alone: the strategy in another ServerApp, and the client driven by hand."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.client import NumPyClient
from flwr.serverapp import Grid, ServerApp

from apps.client_app import app as client_app
from apps.config import parse_run_config
from apps.registry import ALGORITHMS
from apps.sites import resources
from payloads.record import Payload
from payloads.settings import Settings, TrainingSettings
from payloads.wire import CONFIG, PAYLOAD, model_arrays, model_record
from simulations.engines.in_process import InProcessGrid
from strategies.base import PayloadStrategy
from tests.battery.federation import ALONE, SMALL, federate, flat_config, model_of, serve

UNKNOWN = -1.0


def test_the_strategy_works_in_a_server_app_that_is_not_ours(strategy: str, tmp_path: Path) -> None:
    ours, _ = federate(tmp_path / "run", {"strategy": strategy})
    flat = {**SMALL, "strategy": strategy}
    results = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = parse_run_config(context.run_config)
        evaluator = config.algorithm.evaluation(config, 3)
        initial = evaluator.start()

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            found = evaluator.relate(half.measured) | evaluator(half.output(server_round, model_arrays(arrays)))
            return MetricRecord({"auc": found.get("auc", UNKNOWN)})

        half = ALGORITHMS[strategy].strategy(config.training, config.family)
        half.layout = evaluator.layout
        result = half.start(grid, initial_arrays=model_record(initial), num_rounds=3, evaluate_fn=evaluate)
        results.append((result, evaluator.name_arrays(half.output(3, model_arrays(result.arrays)))))

    serve(InProcessGrid(client_app, 3, flat), app, flat)
    ((result, named),) = results
    aucs = [metrics["auc"] for metrics in result.evaluate_metrics_serverapp.values()]
    expected = [line["auc"] for line in ours.lines]
    if not ALGORITHMS[strategy].strategy.shares_model:
        expected[0] = UNKNOWN  # Flower evaluates the initial model before the clients have measured anything
    assert aucs == expected
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
    assert named.keys() == ours.model.keys()
    assert all(np.array_equal(named[name], value) for name, value in ours.model.items())


class Others(Settings):
    """Settings of no algorithm."""


@dataclass(frozen=True, eq=False)
class Other(Payload):
    """A record of no algorithm."""


def test_settings_of_another_algorithm_are_refused_by_both_halves(strategy: str) -> None:
    row = ALGORITHMS[strategy]
    assert row.settings is row.client.settings_type
    nothing: Any = None
    halves = (partial(row.strategy, None), partial(row.client, nothing, nothing, TrainingSettings()))
    for half in halves:
        name = half.func.__name__
        with pytest.raises(TypeError, match=f"{name} takes {row.settings.__name__}, got Others"):
            half(Others())


def test_records_of_another_algorithm_are_refused_by_both_halves(strategy: str) -> None:
    row = ALGORITHMS[strategy]
    client = row.client.__new__(row.client)
    for name, kind in (("inbox", row.client.down), ("state", row.client.memory)):
        client.inbox = client.state = None
        setattr(client, name, Other())
        with pytest.raises(TypeError, match=f"takes {kind.__name__ if kind else 'nothing'}, got Other"):
            client.fit([], {"server-round": 1})
    if row.strategy.restore is PayloadStrategy.restore:
        with pytest.raises(TypeError, match="got Other"):
            row.strategy().restore(Other())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("strategy", ALONE)
def test_the_client_can_be_driven_by_hand(strategy: str, seed: int, tmp_path: Path) -> None:
    """With the run's seed, the client's reply equals the ClientApp's bit for bit; with another seed it draws other
    batches."""
    _, tap = federate(tmp_path / "run", {"strategy": strategy})
    config = parse_run_config(flat_config(tmp_path / "run", {"strategy": strategy}))
    algorithm = config.algorithm
    site = resources.site(config, 3, 0)
    training = config.training.model_copy(update={"seed": seed})

    client = algorithm.client(site, resources.get_trainee(config, site), training, config.family)
    assert isinstance(client, NumPyClient)
    same = []
    for exchange in (exchange for exchange in tap.exchanges if exchange.partition == 0):
        records = exchange.message.content
        client.inbox = None
        if PAYLOAD in records.config_records:
            assert client.down is not None
            client.inbox = client.down.from_record(records.config_records[PAYLOAD])
        sent, told = model_of(exchange.message), dict(records.config_records[CONFIG])
        before = [array.copy() for array in sent]
        arrays, num_examples, metrics = client.fit(sent, told)
        assert all(map(np.array_equal, sent, before))
        assert [type(arrays), type(num_examples), type(metrics), num_examples] == [list, int, dict, len(site)]
        same.append(all(np.array_equal(a, b) for a, b in zip(arrays, model_of(exchange.reply), strict=True)))
        if client.outbox is not None:
            same.append(dict(client.outbox.to_record()) == dict(exchange.reply.content.config_records[PAYLOAD]))
    drawn = "local_steps" not in algorithm.traits.unread  # else the method draws nothing
    assert all(same) if seed == 0 or not drawn else not same[-1]
