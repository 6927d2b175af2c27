"""FedX2 against local pairs and averaging, where pairs within a site mislead.

Sixteen sites measure one column from different zeros: inside a site it is the best feature, across sites nearly
useless. Pairs inside a site cannot show this. The measure is the partial AUC up to a false-positive rate of 0.3.

Run it: python examples/fedx_partial_auc.py (about 15 seconds).
"""

# %% Common settings of all runs
import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from simulations.engines.launch import run_federation

logging.getLogger("flwr").setLevel(logging.ERROR)

SITES = 16
SHARED = {
    "dataset": "synthetic-offset-sites",  # see docs/data-sets.md
    "model": "linear",
    "num-server-rounds": 30,
    "local-steps": 8,
    "evaluate-every": 30,
    "checkpoint-every": 0,
}
# raw scores, which tell the methods apart more than their sigmoids, are large here and want a small step
PAIRS = {"score": "logit", "learning-rate": 0.005, "fedx.lambda": 5.0}
METHODS = {"fedx2": PAIRS, "local-pair": PAIRS, "local-sgd": {"learning-rate": 0.1}}


# %% One federation in this process; return the metrics of result.json
def train(**config):
    with TemporaryDirectory() as folder:
        run_federation(SITES, {**SHARED, **config, "output-dir": folder, "run-name": "run"})
        return json.loads((Path(folder) / "run" / "result.json").read_text("utf-8"))


# %% The three methods
if __name__ == "__main__":
    print(f"{'strategy':<12} {'pAUC':>6} {'AUC':>6} {'kB up':>6}")
    for strategy, keys in METHODS.items():
        result = train(strategy=strategy, **keys)
        metrics = result["metrics"]
        print(f"{strategy:<12} {metrics['pauc_fpr30']:6.3f} {metrics['auc']:6.3f} {result['bytes_up'] / 1e3:6.0f}")
