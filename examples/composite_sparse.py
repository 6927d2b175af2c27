"""Which columns matter: sparse logistic regression over unequal sites, exact and not.

Every site has its own samples and its own rule for labels, and the loss has an l1 penalty. composite goes to the
minimum of the whole problem; fedmid and fedda, which only average, end at another point with another support.

Run it: python examples/composite_sparse.py (about 20 seconds).
"""

# %% Common settings of all runs
import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors.numpy import load_file

from simulations.engines.launch import run_federation

logging.getLogger("flwr").setLevel(logging.ERROR)

SITES = 20
SHARED = {
    "dataset": "synthetic-sparse-logistic",  # 60 columns; see docs/data-sets.md
    "synthetic.samples": 100,
    "composite.weight": 0.003,
    "batch-size": 0,  # all samples of a site: what error is left is the method's
    "local-steps": 5,
    "learning-rate": 1.0,
    "num-server-rounds": 100,
    "evaluate-every": 100,
    "checkpoint-every": 0,
}


# %% One federation in this process: the metrics of result.json, and the weights (60,) of the model file
def train(strategy):
    with TemporaryDirectory() as folder:
        run_federation(SITES, {**SHARED, "strategy": strategy, "output-dir": folder, "run-name": "run"})
        metrics = json.loads((Path(folder) / "run" / "result.json").read_text("utf-8"))["metrics"]
        return metrics, load_file(Path(folder) / "run" / "model.safetensors")["output.weight"].ravel()


# %% Distance to the minimum, the support, and how good it is (1: as good as the minimum)
if __name__ == "__main__":
    print(f"{'strategy':<10} {'distance':>9} {'columns':>8} {'support F1':>11}")
    for strategy in ("composite", "fedmid", "fedda"):
        metrics, weights = train(strategy)
        row = (metrics["optimality"], np.count_nonzero(weights), metrics["support_f1"])
        print("{:<10} {:9.1e} {:8d} {:11.3f}".format(strategy, *row))
