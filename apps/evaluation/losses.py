"""The run's objective on evaluated rows, from their scores."""

import torch
from jaxtyping import Bool, Float

from apps.evaluation.bounded import score_in
from apps.run_config.algorithm import RunConfig
from methods.sgdm import SGDMSettings
from problems.minimax import SADDLES
from problems.minimax.auc import best_saddle, saddle_value
from problems.objectives.classification import RATIO_LOSS, SAMPLE_LOSSES, ratio_loss, ratio_weights
from problems.objectives.pairwise import make_objective


def measure_loss(config: RunConfig, logits: Float[torch.Tensor, "n"], positive: Bool[torch.Tensor, "n"]) -> float:
    """Return the run's objective on some rows:

    - for pairwise losses `PairwiseObjective.risk` over the rows' pairs;
    - cross-entropy, for `RATIO_LOSS` weighted by these rows' class ratio;
    - for `SADDLES` the saddle function at its best a, b and lambda, rescaled to the pairwise square risk.

    Args:
        config: The run config.
        logits: The raw outputs of the network.
        positive: Whether each row is positive.
    """
    name, labels = config.training.loss, positive.double()
    if name in SAMPLE_LOSSES:
        return float(SAMPLE_LOSSES[name].each(logits.double(), labels).mean())
    if name == RATIO_LOSS:
        assert isinstance(config.family, SGDMSettings)
        counts = int((~positive).sum()), int(positive.sum())
        weights = ratio_weights(counts, config.family.ratio_alpha, config.family.ratio_beta)
        return float(ratio_loss(logits.double(), labels, weights))
    scores = score_in(config.training).value(logits)
    if name in SADDLES:
        prior = float(labels.mean())
        best = saddle_value(scores.double(), labels, best_saddle(scores.double(), labels), prior)
        return float(best) / (prior * (1 - prior)) + 1
    objective = make_objective(name, **config.family.objective_options)  # type: ignore[attr-defined]
    if objective.partners == "all":
        return float(objective.risk(scores[positive], scores, labels))
    return float(objective.risk(scores[positive], scores[~positive]))
