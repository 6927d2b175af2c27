"""`run`, which takes Python objects, and `TrainedRun`, its result."""

from __future__ import annotations

import html
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.config import Scalar, flatten
from apps.evaluation.metric_names import format_metric
from apps.run_directory.history import ROUND_LISTENER
from simulations.arguments import Cluster, Stack, add_directory
from simulations.engines.launch import run_federation
from simulations.python.objects import place_objects
from simulations.results.output import log_off
from simulations.results.records import RunRecord, evaluation, read_run
from simulations.scoring.model import TrainedModel, load

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from torch import nn


class TrainedRun(RunRecord):
    """A run's content, its model, and pictures."""

    @cached_property
    def history(self) -> pd.DataFrame:
        """The metrics of each evaluated round, by round."""
        import pandas as pd

        evaluated = {line["round"]: metrics for line in self.lines if (metrics := evaluation(line))}
        return pd.DataFrame.from_dict(evaluated, orient="index").rename_axis("round")

    @cached_property
    def classifier(self) -> TrainedModel:
        """The trained model as a scikit-learn estimator."""
        return load(self.path)

    @property
    def model(self) -> nn.Module:
        """The trained network."""
        network: nn.Module = self.classifier.network.module
        return network

    def predict_proba(self, rows: Any) -> Any:
        """Return the (n, 2) probabilities of rows, see `simulations.scoring.model.TrainedModel.predict_proba`.

        Args:
            rows: A DataFrame with the columns of the training table, or an array if the run was not trained on a table.
        """
        return self.classifier.predict_proba(rows)

    def plot(self, *metrics: str, axes: Axes | None = None) -> Axes:
        """Draw metrics by round.

        Args:
            metrics: The metrics. Empty: the loss, and the AUC if the run has one.
            axes: The axes to draw on. None: a new figure's.

        Returns:
            The axes.
        """
        import matplotlib.pyplot as plt  # so a notebook shows the figure

        target = plt.subplots(layout="constrained")[1] if axes is None else axes
        shown = list(metrics) or [name for name in ("loss", "auc") if name in self.history]
        for name in shown:
            target.plot(self.history.index, self.history[name], marker=".", label=name)
        target.set_xlabel("round")
        target.legend()
        return target

    def _repr_html_(self) -> str:
        """Return the summary that a notebook shows."""
        rows = {"strategy": self.facts["strategy"], "status": self.status, "rounds": self.facts["rounds"]}
        rows |= {name: format_metric(name, value) for name, value in self.metrics.items()}
        cells = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(rows[name]))}</td></tr>" for name in rows)
        return f"<table>{''.join(cells)}</table>"


def run(
    config: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    clients: int | None = None,
    *,
    dataset: Any = None,
    model: Any = None,
    partition: Any = None,
    metrics: Sequence[Any] = (),
    on_round: Callable[[dict[str, Any]], None] | None = None,
    threads: int = 1,
    stack: Stack = 1,
    node_configs: Sequence[Mapping[str, Scalar]] = (),
    cluster: Cluster | None = None,
    quiet: bool = False,
) -> TrainedRun:
    """Run a federation in this process, or with its clients in Ray workers, and return its results.

    Args:
        config: The run config with tables or flat keys: ``{"fedx": {"gamma": 0.5}}`` or ``{"fedx.gamma": 0.5}``.
        out: The run directory to write. None: a temporary folder, which is removed with the result.
        clients: The number of clients. None: one for each site of ``dataset`` or each node config, otherwise 8.
        dataset: The data: a DataFrame (its label column is "label" or the config's), a pair (X, y) of arrays or data
            frames, a torch Dataset, a dict of DataFrames or pairs by site, or a function that returns arrays or a
            Dataset. It replaces the key ``dataset``. None or a name: see the key.
        model: The network: a torch module, or a function from the shape of a sample to a module. None or a name: see
            the key ``model``.
        partition: A function from (classes, number of clients, random generator) to the client of each training row.
            None or a name: see the key ``partition``.
        metrics: Functions of the labels and the scores of the test rows that return a number. Their names are the
            metrics' names, and larger values are better.
        on_round: A function that is called with each evaluated round's metrics. An error in it ends the run.
        threads: The number of clients that train at the same time. Results do not depend on it.
        stack: The maximum number of clients that train as one batched computation, or "auto" for the fastest number.
            Results differ by rounding errors. With 1 a run is bit-identical to a run on Flower's own engine.
        node_configs: The node config of each client's SuperNode. Empty: no node configs.
        cluster: The Ray workers. None: everything runs in this process.
        quiet: Whether to turn off the log.

    Raises:
        ConfigError: An object cannot be used.
        RunFailedError: The run has no result. The message contains the reason.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 3))
        >>> result = run({"num-server-rounds": 3}, dataset=(X, X[:, 0] > 0), model="linear", clients=3, quiet=True)
        >>> bool(result.metrics["auc"] > 0.9), list(result.history.index)
        (True, [0, 1, 2, 3])
    """
    folder = None
    if out is None:
        folder = Path(tempfile.mkdtemp(prefix="florilegium-run-"))
        out = folder / "run"
    if isinstance(dataset, Mapping):
        clients = clients or len(dataset)
    token = ROUND_LISTENER.set(on_round)
    try:
        with place_objects(dataset, model, partition, metrics) as keys:
            flat = add_directory(flatten(config or {}) | keys, Path(out))
            with log_off(quiet):
                run_federation(clients or len(node_configs) or 8, flat, threads, node_configs, stack, cluster)
        record = read_run(Path(out).expanduser())
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder)
        raise
    finally:
        ROUND_LISTENER.reset(token)
    result = TrainedRun(**{name: vars(record)[name] for name in RunRecord.__dataclass_fields__})
    if folder is not None:
        weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
    return result
