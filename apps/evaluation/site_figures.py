"""What result.json says of a run's model: figures with intervals, each site's and all together, and a threshold."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from apps.evaluation.small_cells import SmallCells, describe_left_out, left_out
from apps.run_config.algorithm import RunConfig
from payloads.handshake import SiteReport
from problems import intervals
from problems.intervals import AUC, BRIER, ECE, point_figures
from problems.least_cell import is_small
from problems.randomness import stream
from problems.tallies import Tally

# of a line of metrics.jsonl: the figures of the round
ROUND_FIGURES = "figures"


def choose_threshold(tally: Tally, config: RunConfig) -> dict[str, Any]:
    """Choose the threshold that ``threshold-at`` asks for.

    Args:
        tally: of the validation rows.

    Returns:
        ``score``, the least one that is called positive; ``at``, the value of the key; and the threshold's
        ``sensitivity`` and ``specificity`` on these rows.
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
    """Return the figures of all rows and of each site's.

    Args:
        tally: of the rows.
        reports: The sites' reports. Only these sites are listed.
        threshold: from `choose_threshold`, if there is one.

    Returns:
        ``threshold``, if there is one; ``figures_on``: which rows these are; ``all``; and ``sites``, empty where the
        server does not know which rows are whose, or with secure sums. ``left_out``: the number of sites without
        figures since they have too few rows, if there are any.
    """
    tested = config.evaluation.tests or not config.data.validation_fraction

    cells = SmallCells.of(config, reports)

    def entry(rows: Tally) -> dict[str, Any]:
        negatives, positives = rows.count()
        found: dict[str, Any] = {"rows": negatives + positives, "positives": positives}
        if config.evaluation.site_metrics:
            rng = stream(config.training.seed, "bootstrap", rows.places[0] + 1)
            found |= intervals.describe(rows, rng, least=cells.of_counts(rows.places[0]))
        if threshold is not None:
            found["confusion"] = cells.hide(rows.places[0], rows.confusion(threshold["score"]))
        return found

    sites, few = _sites(tally, config, cells)
    everyone, listed = entry(tally.total()), [{"partition": site.places[0], **entry(site)} for site in sites]
    if threshold is not None and [site["confusion"] for site in listed].count(None) == 1:
        everyone["confusion"] = None  # the difference would be the counts that the site hides
    return (
        ({} if threshold is None else {"threshold": threshold})
        | {"figures_on": "test rows" if tested else "validation rows", "all": everyone, "sites": listed}
        | left_out(few + cells.withheld)
    )


def describe_round(tally: Tally, config: RunConfig, reports: Sequence[SiteReport]) -> dict[str, Any]:
    """Return the figures of all rows and of each site's after a round, without intervals.

    Args:
        tally: of the rows that the round was evaluated on.
        reports: as in `describe`.

    Returns:
        ``all`` and ``sites``, as in `describe`.
    """

    def entry(rows: Tally) -> dict[str, Any]:
        negatives, positives = rows.count()
        return {"rows": negatives + positives, "positives": positives, **point_figures(rows)}

    sites = [
        {"partition": site.places[0], **entry(site)}
        for site in _sites(tally, config, SmallCells.of(config, reports))[0]
    ]
    return {"all": entry(tally.total()), "sites": sites}


def _sites(tally: Tally, config: RunConfig, cells: SmallCells) -> tuple[list[Tally], int]:
    """The rows of each site that is known and has enough; and the number of sites with fewer rows.

    With secure sums the server knows the sums alone.
    """
    known = [] if _sums_alone(config) else [site for site in tally.sites() if site.places[0] < cells.sites]
    listed = [site for site in known if sum(site.count())]
    enough = [site for site in listed if not is_small([sum(site.count())], cells.of_site(site.places[0]))]
    return enough, len(listed) - len(enough)


def describe_in_words(result: Mapping[str, Any], config: RunConfig) -> Iterator[str]:
    """Say what a result's figures are, in a line each.

    Args:
        result: what result.json holds.
    """
    if (everyone := result.get("all")) is None:
        return
    rows = result["figures_on"]
    if left_out := result.get("left_out"):
        yield f"{describe_left_out(left_out)}: figures on {rows} would be of single rows"
    chosen = result.get("threshold")
    if chosen and (counts := everyone["confusion"]) is None:
        sensitivity, specificity = (
            f"sensitivity {chosen['sensitivity']:.4f}",
            f"specificity {chosen['specificity']:.4f}",
        )
        rates = f"{sensitivity}, {specificity} on validation rows"
        yield f"threshold {chosen['score']:.6g} by {chosen['at']}: {rates}; on {rows} some counts are too small to tell"
    elif chosen:
        positives, negatives = everyone["positives"], everyone["rows"] - everyone["positives"]
        found = counts["true_positives"] / positives, counts["true_negatives"] / negatives
        yield (
            f"threshold {chosen['score']:.6g} by {chosen['at']}: sensitivity {chosen['sensitivity']:.4f}, specificity "
            f"{chosen['specificity']:.4f} on validation rows; {found[0]:.4f}, {found[1]:.4f} on {rows}"
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
        text += f"; the lowest {AUC} of a site is that of partition {worst['partition']}, {_interval(worst[AUC])}"
    elif not result["sites"]:
        why = _sums_alone(config) or "since the server does not know whose these rows are"
        text += f"; no figures of single sites {why}"
    yield text


def _sums_alone(config: RunConfig) -> str:
    """Return the reason why the server knows no single site's rows, or ""."""
    return "with privacy.secure-sum" if config.privacy.secure_sum else ""


def _interval(figure: list[float]) -> str:
    value, low, high = figure
    return f"{value:.4f} ({low:.4f} to {high:.4f})"
