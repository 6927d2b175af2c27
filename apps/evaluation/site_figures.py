"""The figures of a run's model in result.json, for each site and for all sites: AUC, Brier score and others.

Figures have confidence intervals. A threshold, which the run chooses on validation rows, adds confusion matrices.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from apps.evaluation.small_cells import SmallCells, describe_left_out, left_out
from apps.run_config.algorithm import RunConfig
from payloads.handshake import SiteReport
from payloads.site_names import label_entry
from problems import intervals
from problems.intervals import AUC, BRIER, ECE, point_figures
from problems.least_cell import is_small
from problems.objectives.classification import CROSS_ENTROPY, SOFTMAX
from problems.randomness import stream
from problems.recalibration import MIN_ROWS, SLOPE, describe_recalibration, recalibrate
from problems.score_groups import ScoreGroups
from problems.tallies import NOWHERE, Tally

# the keys of a recalibration, and of the number of sites without one
RECALIBRATION, NOT_RECALIBRATED = "recalibration", "not_recalibrated"
# the losses whose scores become probabilities by the sigmoid
_OF_PROBABILITIES = (CROSS_ENTROPY, SOFTMAX)


def choose_threshold(tally: Tally, config: RunConfig) -> dict[str, Any]:
    """Choose a threshold by the rule ``threshold-at``.

    Args:
        tally: The counted scores of the validation rows.
        config: The run config.

    Returns:
        ``score``: the smallest score that counts as positive; ``at``: the rule; and the threshold's ``sensitivity`` and
        ``specificity`` on these rows.
    """
    rule = config.evaluation.rule
    assert rule is not None
    score = tally.threshold(*rule)
    sensitivity, specificity = tally.rates(score)
    at = config.evaluation.threshold_at
    return {"score": score, "at": at, "sensitivity": sensitivity, "specificity": specificity}


def describe(
    tally: Tally, config: RunConfig, reports: Sequence[SiteReport], threshold: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the figures of all rows and of each site's rows.

    Args:
        tally: The counted scores of the rows.
        config: The run config.
        reports: The sites' reports. Only these sites are listed.
        threshold: The threshold from `choose_threshold`, if the run has one.

    Returns:
        ``threshold``: the threshold, if the run has one.
        ``figures_on``: "test rows" or "validation rows".
        ``all``: the figures of all rows.
        ``sites``: the figures of each site. Empty with secure sums, or if the server cannot assign the rows to sites.
        ``left_out``: the number of sites without figures because of too few rows, unless it is 0.
        ``not_recalibrated``: the number of listed sites without a recalibration, unless it is 0.
    """
    tested = config.evaluation.tests or not config.data.validation_fraction

    cells = SmallCells.of(config, reports)

    def entry(rows: Tally) -> dict[str, Any]:
        negatives, positives = rows.count()
        figures: dict[str, Any] = {"rows": negatives + positives, "positives": positives}
        if config.evaluation.site_metrics:
            rng = stream(config.training.seed, "bootstrap", rows.places[0] + 1)
            least = cells.of_counts(rows.places[0])
            figures |= intervals.describe(rows, rng, least=least)
            figures[RECALIBRATION] = recalibrate(rows, least, probable=has_probabilities(config))
        if threshold is not None:
            figures["confusion"] = cells.hide(rows.places[0], rows.confusion(threshold["score"]))
        return figures

    sites, few = list_sites(tally, config, cells)
    everyone, listed = (
        entry(tally.total()),
        [{"partition": site.places[0], "name": reports[site.places[0]].label, **entry(site)} for site in sites],
    )
    if threshold is not None and [site["confusion"] for site in listed].count(None) == 1:
        everyone["confusion"] = None  # with it, the other sites' counts would reveal the counts that one site hides
    if config.evaluation.site_metrics:
        score = None if threshold is None else threshold["score"]
        hidden = threshold is not None and everyone["confusion"] is None
        groups = ScoreGroups.of(tally, cells.of_counts(NOWHERE), score, hidden=hidden)
        everyone["by_score"] = groups.to_json()
    return (
        ({} if threshold is None else {"threshold": threshold})
        | {"figures_on": "test rows" if tested else "validation rows", "all": everyone, "sites": listed}
        | left_out(few + cells.withheld)
        | _count_missing(listed)
    )


def has_probabilities(config: RunConfig) -> bool:
    """Return whether a run's scores become probabilities: by a calibration, or since the loss is a cross-entropy."""
    return config.evaluation.calibrates or config.training.loss in _OF_PROBABILITIES


def is_probable(result: Mapping[str, Any]) -> bool:
    """Return the same as `has_probabilities` for the content of result.json."""
    return "calibration" in result or result["config"].get("loss") in _OF_PROBABILITIES


def _count_missing(sites: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry about the sites that have figures and no recalibration. {} without such sites."""
    missing = sum(site.get(RECALIBRATION, {}) is None for site in sites)
    return {NOT_RECALIBRATED: {"sites": missing, "fewer_than": MIN_ROWS}} if missing else {}


def describe_round(tally: Tally, config: RunConfig, reports: Sequence[SiteReport]) -> dict[str, Any]:
    """Return the figures of all rows, and of each site's rows, after a round, without intervals.

    Args:
        tally: The counted scores of the round's evaluated rows.
        config: The run config.
        reports: The sites' reports. Only these sites are listed.

    Returns:
        ``all`` and ``sites``, as in `describe`.
    """

    def entry(rows: Tally) -> dict[str, Any]:
        negatives, positives = rows.count()
        return {"rows": negatives + positives, "positives": positives, **point_figures(rows)}

    sites = [
        {"partition": site.places[0], **entry(site)}
        for site in list_sites(tally, config, SmallCells.of(config, reports))[0]
    ]
    return {"all": entry(tally.total()), "sites": sites}


def list_sites(tally: Tally, config: RunConfig, cells: SmallCells) -> tuple[list[Tally], int]:
    """Return the rows of each known site with enough rows, and the number of sites with fewer rows.

    With secure sums the server knows only the sums.
    """
    known = [] if _sums_alone(config) else [site for site in tally.sites() if site.places[0] < cells.sites]
    listed = [site for site in known if sum(site.count())]
    enough = [site for site in listed if not is_small([sum(site.count())], cells.of_site(site.places[0]))]
    return enough, len(listed) - len(enough)


def describe_in_words(result: Mapping[str, Any], config: RunConfig) -> Iterator[str]:
    """Yield sentences about a result's figures, for the log.

    Args:
        result: The content of result.json.
        config: The run config.
    """
    for name, entry in result.get("findings", {}).items():
        yield from (f"{name}: {text}" for text in describe_in_words(entry, config))
    if (everyone := result.get("all")) is None:
        return
    rows = result["figures_on"]
    if left_out := result.get("left_out"):
        yield f"{describe_left_out(left_out)}: figures on {rows} would reveal single rows"
    chosen = result.get("threshold")
    if chosen and (counts := everyone["confusion"]) is None:
        sensitivity, specificity = (
            f"sensitivity {chosen['sensitivity']:.4f}",
            f"specificity {chosen['specificity']:.4f}",
        )
        rates = f"{sensitivity}, {specificity} on validation rows"
        yield f"threshold {chosen['score']:.6g} by {chosen['at']}: {rates}; on {rows} some counts are too small"
    elif chosen:
        positives, negatives = everyone["positives"], everyone["rows"] - everyone["positives"]
        true_rates = counts["true_positives"] / positives, counts["true_negatives"] / negatives
        yield (
            f"threshold {chosen['score']:.6g} by {chosen['at']}: sensitivity {chosen['sensitivity']:.4f}, specificity "
            f"{chosen['specificity']:.4f} on validation rows; {true_rates[0]:.4f}, {true_rates[1]:.4f} on {rows}"
        )
    if entry := result.get("calibration"):
        before, after = (
            f"{BRIER} {entry[time][BRIER]:.4f}, {ECE} {entry[time][ECE]:.4f}" for time in ("before", "after")
        )
        yield f"calibration by {entry['method']}, fitted on validation rows: {after} on {rows}; without it {before}"
    if not config.evaluation.site_metrics:
        return
    text = f"on {rows}, with 95 % intervals: {AUC} {_interval(everyone[AUC])}, {BRIER} {_interval(everyone[BRIER])}"
    sites = [site for site in result["sites"] if site[AUC] is not None]
    if sites:
        worst = min(sites, key=lambda site: site[AUC][0])
        text += f"; {label_entry(worst)} has the lowest {AUC} of a site, {_interval(worst[AUC])}"
    elif not result["sites"]:
        why = _sums_alone(config) or "since the server cannot assign these rows to sites"
        text += f"; no figures of single sites {why}"
    yield text
    if everyone.get(RECALIBRATION):
        text = f"recalibration on {rows}: {describe_recalibration(everyone[RECALIBRATION])}"
        slopes = sorted(site[RECALIBRATION][SLOPE][0] for site in result["sites"] if site[RECALIBRATION])
        yield text + (f"; slopes of sites {slopes[0]:.3f} to {slopes[-1]:.3f}" if len(slopes) > 1 else "")


def _sums_alone(config: RunConfig) -> str:
    """Return, in words, that secure sums hide single sites' rows from the server. "" without secure sums."""
    return "with privacy.secure-sum" if config.privacy.secure_sum else ""


def _interval(figure: list[float]) -> str:
    value, low, high = figure
    return f"{value:.4f} ({low:.4f} to {high:.4f})"
