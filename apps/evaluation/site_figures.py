"""What result.json says of a run's model: figures with intervals, each site's and all together, and a threshold."""

from collections.abc import Iterator, Mapping, Sequence
from logging import WARNING
from typing import Any

from flwr.common import log

from apps.run_config.algorithm import RunConfig
from payloads.handshake import SiteReport
from payloads.held_out import SCORE_COUNTS, TEST_SCORE_COUNTS, held_counts
from problems import intervals
from problems.data import OWN
from problems.intervals import AUC, BRIER, point_figures
from problems.least_cell import LEAST_CELL, is_small
from problems.randomness import stream
from problems.tallies import Tally
from strategies.rounds.errors import SetupError

# of a line of metrics.jsonl: the figures of the round
ROUND_FIGURES = "figures"
_SECURE = "privacy.secure-sum"


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
    tally: Tally, config: RunConfig, clients: int, threshold: dict[str, Any] | None, withheld: int = 0
) -> dict[str, Any]:
    """Return the figures of all rows and of each site's.

    Args:
        tally: of the rows.
        clients: only sites below this number are listed.
        threshold: from `choose_threshold`, if there is one.
        withheld: The number of sites that do not count their rows, see `count_withheld`.

    Returns:
        ``threshold``, if there is one; ``figures_on``: which rows these are; ``all``; and ``sites``, empty where the
        server does not know which rows are whose, or with secure sums. ``left_out``: the number of sites without
        figures since they have too few rows, if there are any.
    """
    tested = config.evaluation.tests or not config.data.validation_fraction

    # the server has the rows of other runs
    least = LEAST_CELL if config.data.partition == OWN and not config.data.data_dir else 1

    def entry(rows: Tally) -> dict[str, Any]:
        negatives, positives = rows.count()
        found: dict[str, Any] = {"rows": negatives + positives, "positives": positives}
        if config.evaluation.site_metrics:
            rng = stream(config.training.seed, "bootstrap", rows.places[0] + 1)
            found |= intervals.describe(rows, rng, least=least)
        if threshold is not None:
            found["confusion"] = hide_small(rows.confusion(threshold["score"]), least)
        return found

    sites, few = _sites(tally, config, clients)
    return (
        ({} if threshold is None else {"threshold": threshold})
        | {
            "figures_on": "test rows" if tested else "validation rows",
            "all": entry(tally.total()),
            "sites": [{"partition": site.places[0], **entry(site)} for site in sites],
        }
        | left_out(few + withheld)
    )


def left_out(sites: int) -> dict[str, Any]:
    """Return what result.json has about sites without figures; {} without such sites.

    Args:
        sites: The number of these sites.
    """
    return {"left_out": {"sites": sites, "fewer_than": LEAST_CELL}} if sites else {}


def warn_of_withheld(config: RunConfig, reports: Sequence[SiteReport]) -> None:
    """Warn before round 1 of sites whose held-out rows are too few to be counted.

    Args:
        config: The run config.
        reports: The sites' reports.

    Raises:
        SetupError: No site has enough rows.
    """
    phases = {SCORE_COUNTS: "validation" if config.data.validation_fraction else "held-out"}
    if config.evaluation.tests:
        phases[TEST_SCORE_COUNTS] = "test"
    for phase, rows in {} if config.data.data_dir else phases.items():
        if sites := count_withheld(reports, phase):
            if sites == len(reports):
                raise SetupError(
                    f"{rows} rows",
                    got="fewer rows of a class than its least-cell at each site",
                    allowed=f"more at one site, such as {LEAST_CELL} of each class",
                    hint="raise test-fraction or validation-fraction, or set data-dir to a test file of the server",
                )
            text = (
                "left out of the metrics on %s rows: %d of %d sites, since each has none or fewer than its least-cell"
            )
            log(WARNING, text, rows, sites, len(reports))


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Return words for the sites without figures.

    Args:
        left_out: The entry of result.json.
    """
    sites = "1 site" if left_out["sites"] == 1 else f"{left_out['sites']} sites"
    return f"left out: {sites} with fewer than {left_out['fewer_than']} rows, or with as few in a class"


def hide_small(confusion: dict[str, int], least: int) -> dict[str, int] | None:
    """Return the numbers of right and wrong answers; None if one is above 0 and below the least cell.

    Args:
        confusion: The numbers, by name.
        least: The least cell.
    """
    return None if is_small(list(confusion.values()), least) else confusion


def count_withheld(reports: Sequence[SiteReport], phase: str) -> int:
    """Return the number of sites whose least cell keeps them from counting their held-out rows.

    Args:
        reports: The sites' reports.
        phase: One of the `EVALUATIONS`.
    """
    counts = [held_counts(report, phase) for report in reports if report.least_cell is not None]
    return sum(count is not None and not count.any() for count in counts)


def describe_round(tally: Tally, config: RunConfig, clients: int) -> dict[str, Any]:
    """Return the figures of all rows and of each site's after a round, without intervals.

    Args:
        tally: of the rows that the round was evaluated on.
        clients: as in `describe`.

    Returns:
        ``all`` and ``sites``, as in `describe`.
    """

    def entry(rows: Tally) -> dict[str, Any]:
        negatives, positives = rows.count()
        return {"rows": negatives + positives, "positives": positives, **point_figures(rows)}

    sites = [{"partition": site.places[0], **entry(site)} for site in _sites(tally, config, clients)[0]]
    return {"all": entry(tally.total()), "sites": sites}


def _sites(tally: Tally, config: RunConfig, clients: int) -> tuple[list[Tally], int]:
    """The rows of each site that is known and has enough; and the number of sites with fewer rows.

    With secure sums the server knows the sums alone.
    """
    known = [] if config.privacy.secure_sum else [site for site in tally.sites() if site.places[0] < clients]
    listed = [site for site in known if sum(site.count())]
    enough = [site for site in listed if not is_small([sum(site.count())], LEAST_CELL)]
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
    if not config.evaluation.site_metrics:
        return
    text = f"on {rows}, with 95 % intervals: {AUC} {_interval(everyone[AUC])}, {BRIER} {_interval(everyone[BRIER])}"
    sites = [site for site in result["sites"] if site[AUC] is not None]
    if sites:
        worst = min(sites, key=lambda site: site[AUC][0])
        text += f"; the lowest {AUC} of a site is that of partition {worst['partition']}, {_interval(worst[AUC])}"
    elif not result["sites"]:
        why = f"with {_SECURE}" if config.privacy.secure_sum else "since the server does not know whose these rows are"
        text += f"; no figures of single sites {why}"
    yield text


def _interval(figure: list[float]) -> str:
    value, low, high = figure
    return f"{value:.4f} ({low:.4f} to {high:.4f})"
