"""Training for the AUC where one class is rare: LocalSCGDAM, LocalSGDAM and cross-entropy.

Eight sites have digits, 0 to 4 against the others, and of the positives so few are left that they are a twentieth of
the rows. LocalSCGDAM minimises the AUC loss one cross-entropy step away from its model; it has two networks to show,
the model and the inner one.

Run it: python examples/scgdam_imbalanced.py (about 30 seconds).
"""

# %% Common settings of all runs
import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from simulations.engines.launch import run_federation

logging.getLogger("flwr").setLevel(logging.ERROR)

SITES = 8
SHARED = {
    "dataset": "digits",
    "positive-label": "first-half",
    "imbalance": 0.05,
    "num-server-rounds": 10,
    "local-steps": 16,
    "learning-rate": 0.1,
    "evaluate-every": 10,
    "checkpoint-every": 0,
}
STRATEGIES = ("local-scgdam", "local-sgdam", "local-sgdm-rl", "local-sgdm")


# %% One federation in this process; return the metrics of result.json
def train(**config):
    with TemporaryDirectory() as folder:
        run_federation(SITES, {**SHARED, **config, "output-dir": folder, "run-name": "run"})
        return json.loads((Path(folder) / "run" / "result.json").read_text("utf-8"))["metrics"]


# %% AUC and average precision on the test rows, which are balanced
if __name__ == "__main__":
    print(f"{'strategy':<22} {'AUC':>6} {'AP':>6} {'accuracy':>9}")
    for strategy in STRATEGIES:
        metrics = train(strategy=strategy)
        views = {"": strategy, "_inner": f"{strategy} (inner)"}
        for suffix, name in views.items():
            if f"auc{suffix}" in metrics:
                shown = (metrics[f"{key}{suffix}"] for key in ("auc", "average_precision", "accuracy"))
                print("{:<22} {:6.3f} {:6.3f} {:9.3f}".format(name, *shown))
