"""An ordinary ServerApp: each strategy is a `flwr.serverapp.strategy.Strategy`, and Flower's `start` runs it."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from sklearn.metrics import roc_auc_score

from fedx_app.task import STRATEGIES, load, new_net, settings
from payloads.wire import model_arrays, model_record
from problems.models import FlatModel

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    training, fedx = settings(context.run_config)
    model = FlatModel(new_net())  # the network's parameters as one vector, which is what travels
    images, labels = load("test")

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load(model_arrays(arrays))
        return MetricRecord({"auc": float(roc_auc_score(labels, model.predict(torch.tensor(images))))})

    strategy, _ = STRATEGIES[context.run_config["strategy"]]
    result = strategy(training, fedx).start(
        grid,
        initial_arrays=model_record(model.arrays()),
        num_rounds=training.num_server_rounds,
        evaluate_fn=evaluate,
    )
    model.load(model_arrays(result.arrays))
    torch.save(model.module.state_dict(), context.run_config["save-to"])
