"""A credit score from the columns of three companies: VFB2 against one table, and against the bank alone.

The bank has the labels; the retailer and the phone company have columns of the same people. docs/vertical-leaks.md
explains what the three learn of each other, and why they are three and not two. Here one table's columns are dealt to
the parties, so all runs have the same rows; docs/tutorials/credit-vertical.md has a file for each party.

Run it: python examples/vertical_credit.py (about 15 seconds).
"""

# %% People, and who defaulted
import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from simulations.engines.launch import run_federation, run_nonfederated

logging.getLogger("flwr").setLevel(logging.ERROR)

N = 2000


def people():
    rng = np.random.default_rng(0)
    bank = {"debts": rng.beta(2, 5, N), "late_payments": rng.poisson(0.6, N)}
    retailer = {"returns": rng.beta(2, 8, N), "basket": rng.lognormal(3.5, 0.6, N)}
    phone = {"late_bills": rng.poisson(0.5, N), "years": rng.integers(0, 15, N)}
    table = pd.DataFrame({**bank, **retailer, **phone})
    risk = table @ [4, 0.6, 5, 0, 0.8, -0.1] - 4
    return table.assign(default=(rng.random(N) < 1 / (1 + np.exp(-risk))).astype(int))


# %% The same rows three times: columns at three parties, the bank's columns only, all in one place
SHARED = {
    "strategy": "vfb2-svrg",
    "dataset": "csv",
    "label-column": "default",
    "positive-label": "1",
    "partition": "consecutive",  # columns in their order, two to each
    "vfb2.active-parties": 1,
    "vfb2.intercept": True,  # a further column of the bank's
    "learning-rate": 0.1,
    "num-server-rounds": 15,
    "evaluate-every": 15,
    "checkpoint-every": 0,
}


def compare(folder):
    people().to_csv(folder / "people.csv", index=False)
    keys = {**SHARED, "data-dir": str(folder / "people.csv"), "output-dir": str(folder)}
    run_nonfederated({**keys, "run-name": "one table"})
    run_federation(3, {**keys, "run-name": "three parties"})
    run_federation(3, {**keys, "run-name": "the bank alone", "vfb2.update-passive": False})
    for name in ("one table", "three parties", "the bank alone"):
        yield name, json.loads((folder / name / "result.json").read_text("utf-8"))["metrics"]


if __name__ == "__main__":
    print(f"{'':<15} {'objective':>9} {'AUC':>6} {'accuracy':>9}")
    with TemporaryDirectory() as path:
        for name, metrics in compare(Path(path)):
            print(f"{name:<15} {metrics['objective']:9.4f} {metrics['auc']:6.3f} {metrics['accuracy']:9.3f}")
