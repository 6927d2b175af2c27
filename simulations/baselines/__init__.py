"""The comparison of a run with a model of all pooled rows and with each site alone, on the same rows."""

from simulations.baselines.comparison import Baselines, Result
from simulations.baselines.train import check_baselines, train_baselines

__all__ = ["Baselines", "Result", "check_baselines", "train_baselines"]
