"""The figures of each site's fine-tuned model, next to the figures of the run's common model on the same rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from apps.evaluation.site_figures import list_sites
from apps.evaluation.small_cells import SmallCells
from apps.run_config.algorithm import RunConfig
from payloads.handshake import SiteReport
from payloads.site_names import label_entry
from problems.intervals import AUC, BRIER, point_figures
from problems.tallies import Tally

SITE_MODELS = "site_models"
COMMON, TUNED, ALONE = "common", "fine_tuned", "alone"


def figures_of(tally: Tally) -> dict[str, float | None]:
    """Return the figures of a model on one site's rows: AUC and Brier score, None if a class is missing."""
    figures = point_figures(tally)
    return {name: figures[name] for name in (AUC, BRIER)}


def describe_models(
    common: Tally, tuned: Tally, config: RunConfig, reports: Sequence[SiteReport]
) -> list[dict[str, Any]]:
    """Return the figures of the models of each site with enough rows.

    Args:
        common: The counted scores under the run's model.
        tuned: The counted scores under the fine-tuned models, each on its own site's rows.
        config: The run config.
        reports: The sites' reports.

    Returns:
        For each site ``partition``, ``name``, ``rows``, ``positives``, and the figures ``common`` and ``fine_tuned``.
    """
    cells = SmallCells.of(config, reports)
    before, after = (
        {site.places[0]: site for site in list_sites(tally, config, cells)[0]} for tally in (common, tuned)
    )
    models = []
    for place in sorted(before.keys() & after.keys()):
        negatives, positives = before[place].count()
        entry = {"partition": place, "name": reports[place].label, "rows": negatives + positives}
        entry |= {"positives": positives, COMMON: figures_of(before[place]), TUNED: figures_of(after[place])}
        models.append(entry)
    return models


def models_in_words(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence about the fine-tuned models, for the log.

    Args:
        result: The content of result.json.
    """
    models = [site for site in result.get(SITE_MODELS, ()) if site[COMMON][AUC] is not None]
    if models:
        changes = [site[TUNED][AUC] - site[COMMON][AUC] for site in models]
        pairs = ", ".join(f"{label_entry(site)} {site[COMMON][AUC]:.4f} to {site[TUNED][AUC]:.4f}" for site in models)
        steps, better = result["config"]["fine-tune-steps"], sum(change > 0 for change in changes)
        yield f"after {steps} further steps the sites' own {AUC} is higher at {better} of {len(models)}: {pairs}"
