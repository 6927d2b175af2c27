"""Did the federation help? The run, one model of all rows in one place, and each site alone, on the same rows."""

from simulations.baselines.comparison import Baselines, Result
from simulations.baselines.train import check_baselines, train_baselines

__all__ = ["Baselines", "Result", "check_baselines", "train_baselines"]
