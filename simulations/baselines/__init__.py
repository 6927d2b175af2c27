"""The option ``--baselines``: a run compared with references, which train without a federation.

The references are a model of all sites' pooled rows, and a model of each site's rows alone. All models are evaluated on
the same rows.
"""

from simulations.baselines.comparison import Baselines, Result
from simulations.baselines.train import check_baselines, train_baselines

__all__ = ["Baselines", "Result", "check_baselines", "train_baselines"]
