"""AUC as a minimax problem, over sites that have a few digits each.

With every site missing most classes, local steps pull apart. CODASCA's control variates keep them together; CoDA and
LocalSGDAM average; FedSGDA-STORM asks half of the sites a round and lets all of them follow one global gradient.

Run it: python examples/minimax_auc.py (about 20 seconds).
"""

# %% Common settings of all runs
import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from simulations.engines.launch import run_federation

logging.getLogger("flwr").setLevel(logging.ERROR)

SITES = 10
SHARED = {
    "dataset": "digits",
    "positive-label": "first-half",
    "partition": "pathological",
    "partition-classes": 2,
    "num-server-rounds": 10,
    "local-steps": 16,
    "evaluate-every": 10,
    "checkpoint-every": 0,
}
METHODS = {
    "codasca": {},
    "coda": {},
    "local-sgdam": {},
    "fedsgda-storm": {"fraction-train": 0.5},
    "local-sgd": {},
}


# %% One federation in this process; return the metrics of result.json
def train(**config):
    with TemporaryDirectory() as folder:
        run_federation(SITES, {**SHARED, **config, "output-dir": folder, "run-name": "run"})
        return json.loads((Path(folder) / "run" / "result.json").read_text("utf-8"))


# %% AUC on the test rows, and what travelled
if __name__ == "__main__":
    print(f"{'strategy':<14} {'AUC':>6} {'MB up':>6}")
    for strategy, keys in METHODS.items():
        result = train(strategy=strategy, **keys)
        print(f"{strategy:<14} {result['metrics']['auc']:6.3f} {result['bytes_up'] / 1e6:6.2f}")
