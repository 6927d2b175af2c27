"""The reporting checklist TRIPOD+AI, with the items that a run answers.

G. S. Collins and others, "TRIPOD+AI statement: updated guidance for reporting clinical prediction models that use
regression or machine learning methods", BMJ 385, 2024. The words for each item are ours.
"""

from __future__ import annotations

from collections.abc import Iterator

from apps.evaluation.metric_names import OF_TIMES
from payloads.site_names import label_entry, label_site
from problems.data.spec import PARTITIONS
from problems.errors import join_first
from problems.intervals import AUC, BRIER, ECE
from simulations.results.board import Board
from simulations.results.output import Table
from simulations.results.records import defaults, read_object

OPEN = "to be written by the authors"
ITEMS = {
    "1": "title: a prediction model, the people, the outcome",
    "2": "abstract",
    "3a": "the medical question, and the models that exist",
    "3b": "the people, the purpose and the users of the model",
    "3c": "known inequalities between groups of people",
    "4": "objectives",
    "5a": "sources of the data",
    "5b": "dates of the data",
    "6a": "places: number and location of the sites",
    "6b": "who was included",
    "6c": "treatments",
    "7": "preparation and checks of the data",
    "8a": "outcome: definition, time, method",
    "8b": "who assessed the outcome",
    "8c": "blinding of these assessors",
    "9a": "choice of the predictors",
    "9b": "definition and measurement of the predictors",
    "9c": "blinding of the assessors of the predictors",
    "10": "number of people, and the reason for it",
    "11": "missing data",
    "12a": "split into training and test data",
    "12b": "form of the predictors in the model",
    "12c": "type of model, its training and its settings",
    "12d": "differences between sites",
    "12e": "measures of performance",
    "12f": "updating of the model, such as recalibration",
    "12g": "how predictions are computed",
    "13": "class imbalance",
    "14": "fairness: methods",
    "15": "output of the model, and thresholds",
    "16": "differences between training and test data",
    "17": "ethical approval",
    "18a": "funding",
    "18b": "conflicts of interest",
    "18c": "protocol",
    "18d": "registration",
    "18e": "availability of the data",
    "18f": "availability of the code",
    "19": "involvement of patients and the public",
    "20a": "flow of people through the study",
    "20b": "characteristics of the people, by source",
    "20c": "comparison of training and test data",
    "21": "people and events in each analysis",
    "22": "the complete model, for predictions of new people",
    "23a": "performance with intervals, also in groups of people",
    "23b": "performance at each site",
    "24": "result of the updating",
    "25": "interpretation, with fairness",
    "26": "limitations",
    "27a": "poor or missing input in use",
    "27b": "tasks and skills of the users",
    "27c": "next steps of research",
}


def checklist(board: Board) -> Table:
    """Return the checklist: the item, its topic, and the answer of the run.

    Args:
        board: The run's answers.
    """
    answers = dict(_answers(board))
    rows = [[item, topic, answers.get(item, OPEN)] for item, topic in ITEMS.items()]
    caption = f"TRIPOD+AI: this run has facts for {len(answers)} of {len(ITEMS)} items; the authors complete them all"
    return Table(caption, ["item", "topic", "facts of the run"], rows)


def _answers(board: Board) -> Iterator[tuple[str, str]]:
    run, result = board.run, board.run.result
    config = {**defaults(run.config.get("strategy")), **run.config}  # an older release lacks new keys
    sites = [label_site(place, run.site_names) for place in range(run.facts["clients"] or 1)]
    named = ", ".join(sites[:12]) + (f" and {len(sites) - 12} more" if len(sites) > 12 else "")
    yield "5a", f"data set {config['dataset']}"
    yield "6a", f"{len(sites)} sites: {named}"
    yield "7", f"scale = {config['scale']}, missing = {config['missing']}"
    until = f", at the time in column {config['time-column'] or 'time'}" if board.is_timed else ""
    yield "8a", f"an event is a row with {board.events}{until}"
    if columns := _columns(board):
        yield "9a", f"{len(columns)} columns: {join_first(columns, 20)}"
    if board.trained is not None:
        rows, events = board.trained
        yield "10", f"{rows:,} training rows, {events:,} events"
        yield "13", f"{events / rows:.1%} of the training rows are events; loss {config['loss']}"
    complete = ": only rows without missing cells are in the run" if config["missing"] == "error" else ""
    yield "11", f"missing = {config['missing']}{complete}"
    kind = str(config["partition"])
    test = f"the data set's test rows, or else a share of {config['test-fraction']} of each class"
    test = f"all rows of {config['test-sites']}" if config["test-sites"] else test
    split = f"training rows by site: {kind} ({PARTITIONS.get(kind, '')}); tested on: {test}"
    share = f", validation-fraction {config['validation-fraction']}" if config["validation-fraction"] else ""
    yield "12a", f"{split}{share}"
    yield "12b", f"scale = {config['scale']}; columns.json has all numbers" if columns else f"scale = {config['scale']}"
    made = f"{run.facts['strategy']}, {run.facts['rounds']} rounds"
    yield "12c", f"{config['model']}, {made}; all keys in config.toml"
    values = [(site[AUC][0], label_entry(site)) for site in result.get("sites", []) if site.get(AUC)]
    if values:
        yield "12d", f"figures of each site's {board.rows_in_words}"
    if board.is_timed:
        yield "12e", ", ".join(name for name in OF_TIMES if name in run.metrics) + "; Kaplan-Meier curves, calibration"
    else:
        yield "12e", "AUC" + (", Brier score, calibration error, net benefit" if not board.no_probabilities else "")
    calibration = result.get("calibration")
    yield "12f", f"calibration = {calibration['method'] if calibration else 'none'}"
    yield "12g", "florilegium predict, or the exported ONNX file"
    chosen = result.get("threshold")
    outputs = "risk score and survival" if board.is_timed else "score and probability"
    yield "15", outputs + (f"; threshold {chosen['score']:.6g} by {chosen['at']}" if chosen else "")
    yield "18f", f"Florilegium {result.get('versions', {}).get('florilegium', '')}, with config.toml"
    if counted := result.get("training_rows"):
        each = [f"{label_site(one['partition'], run.site_names)} {one['rows']} ({one['positives']})" for one in counted]
        yield "20b", f"training rows (events): {join_first(each, 12)}"
    if "rows" in board.everyone:
        yield "21", f"{board.everyone['rows']:,} {board.rows_in_words} with {board.everyone['positives']:,} events"
    yield "22", f"model.safetensors{', columns.json' if columns else ''}; florilegium export"
    yield "23a", board.headline()
    if values:
        (low, worst), (high, best) = min(values), max(values)
        yield "23b", f"AUC {low:.3f} ({worst}) to {high:.3f} ({best})"
    if calibration:
        before, after = (f"{BRIER} {one[BRIER]:.3f}, {ECE} {one[ECE]:.3f}" for one in map(calibration.get, _TIMES))
        yield "24", f"before calibration {before}; after {after}"
    if columns:
        rule = "rows with missing cells are refused" if config["missing"] == "error" else "missing cells are filled"
        yield "27a", f"{rule}; unknown categories count as none, and are logged"


_TIMES = ("before", "after")


def _columns(board: Board) -> list[str]:
    """Return the columns of the run's table, without repetitions; [] without a table."""
    try:
        outputs = read_object(board.run.path / "columns.json")["outputs"]
    except (OSError, ValueError, KeyError):
        return []
    return list(dict.fromkeys(feature["column"] for feature in outputs))
