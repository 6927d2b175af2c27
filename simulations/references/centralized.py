"""The reference ``centralized``: training on the pooled rows of all sites, with the loss of the federated run.

The training uses a client class on a single site with all rows. For cross-entropy this is `LocalSGDClient`. For
pairwise losses it is `LocalPairClient`: mini-batch SGD if the loss's outer function f is linear, otherwise SOX (Wang
and Yang 2022, "Finite-Sum Coupled Compositional Stochastic Optimization"), which has a moving average u for each
positive, and momentum on the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from apps.config import ConfigError, RunConfig
from apps.evaluation.models import evaluate_rows
from apps.evaluation.starting import starting_point
from apps.sites import resources
from clients.base import Site
from clients.scoring import LocalPairClient, LocalSGDClient
from methods.pairwise import Momentum
from problems.data import FederatedData
from problems.data.findings import Findings
from problems.data.image_rows import concatenate
from problems.data.times import Periods
from problems.objectives.classification import CROSS_ENTROPY
from problems.objectives.pairwise import ALL_PAIRWISE

RoundHook = Callable[[int, dict[str, float]], None]


def check_centralized(config: RunConfig) -> None:
    """Check that this reference supports the config's loss.

    Raises:
        ConfigError: The strategy trains no model, the reference does not support the loss, or the run has offsets.
    """
    if not config.algorithm.strategy.trains:
        got = f"{config.run.strategy!r}, which trains no model"
        raise ConfigError("strategy", got=got, allowed="a strategy that trains", hint="set another strategy")
    loss = config.training.loss
    if offset := config.data.offset_column:
        allowed = "'', since this reference adds no offset to scores"
        raise ConfigError("offset-column", got=repr(offset), allowed=allowed, hint="remove offset-column")
    able = *ALL_PAIRWISE, CROSS_ENTROPY
    if loss not in able:
        got, allowed = f"{loss!r}, which has no centralised reference", ", ".join(able)
        raise ConfigError("loss", got=got, allowed=allowed, hint="set loss, or a strategy with such a loss")


def train_centralized(
    config: RunConfig, data: FederatedData, on_round: RoundHook | None = None
) -> tuple[list[dict[str, float]], dict[str, object]]:
    """Train on the union of the sites' data.

    A "round" is ``local-steps`` iterations, so curves are comparable with the federated run of the same config.

    Args:
        config: The federated run's config, with the loss and the hyper-parameters.
        data: The federation's data.
        on_round: A function that is called after each evaluated round with its number and metrics.

    Returns:
        The metrics of each evaluated round, starting with the initial model, and the final model's arrays by name.

    Raises:
        ConfigError: The reference does not support the loss.
        ModelError: The run asks for float16 on a CPU.
    """
    check_centralized(config)
    resources.check_precision(config)
    training = config.training
    model = resources.new_model(config, data.input_shape)
    sites = [data.client(partition) for partition in range(data.num_clients)]
    features = concatenate([samples.features for samples in sites])
    labels = np.concatenate([samples.labels for samples in sites])
    site = Site.from_arrays(0, features, labels, dtype=model.dtype, device=model.device)
    site = resources.augment_site(config, site)
    periods, findings = ([getattr(samples, name) for samples in sites] for name in ("periods", "findings"))
    site = replace(site, periods=Periods.join(periods), findings=Findings.join(findings))
    kind = LocalSGDClient if training.loss == CROSS_ENTROPY else LocalPairClient
    client = kind(site, model, training, config.family)
    tested = resources.new_model(config, data.input_shape)
    evaluator = evaluate_rows(config, tested, data, data.evaluated)
    arrays = starting_point(config, evaluator)
    history = [evaluator(arrays)]
    for server_round in range(1, training.num_server_rounds + 1):
        arrays, _, _ = client.fit(arrays, {"server-round": server_round})
        if isinstance(client.outbox, Momentum):
            client.inbox = client.outbox
        if server_round % training.evaluate_every == 0 or server_round == training.num_server_rounds:
            history.append(evaluator(arrays))
            if on_round is not None:
                on_round(server_round, history[-1])
    return history, dict(model.name_arrays(arrays))
