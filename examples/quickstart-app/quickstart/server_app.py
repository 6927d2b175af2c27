"""The ServerApp: LocalSGD in place of Flower's FedAvg."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from quickstart.task import new_net
from strategies.local_sgd import LocalSGD

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    initial = ArrayRecord(new_net().state_dict())
    strategy = LocalSGD(clients="message")  # "numpy" for a NumPyClient
    result = strategy.start(grid, initial_arrays=initial, num_rounds=config["num-server-rounds"])
    torch.save(result.arrays.to_torch_state_dict(), config["save-to"])
