"""The model card of a run, in Markdown with Hugging Face's headings, from the run directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from apps.evaluation.metric_names import add_suffix
from apps.evaluation.small_cells import describe_left_out
from apps.run_directory.curves import rows_in_words
from payloads.site_names import label_entry, label_site
from problems.data.spec import DATASETS, GENERIC, PARTITIONS
from problems.models import MODELS
from problems.objectives.classification import CROSS_ENTROPY
from problems.objectives.number_losses import POISSON
from simulations.results.board import Board, tabulate_findings
from simulations.results.output import format_cell, format_megabytes, format_metric
from simulations.results.records import METRICS
from simulations.results.survival_board import describe_calibration, read_survival, tabulate_metrics, tabulate_sites
from simulations.results.tripod import OPEN, checklist
from simulations.scoring.markdown import escape, join_lines, make_table, show_part
from simulations.scoring.model import TrainedModel
from simulations.scoring.run_files import BEST

# Run-config keys that disturb the training data on purpose.
_DISTURBANCES = ("imbalance", "label-noise", "client-shift")
# keys without meaning for readers of the card: a path on the machine of the training
_UNTOLD = ("data-dir",)
# figures of a site that are too long for a table, and the name of the site, which has its own cell
_LONG = ("partition", "name", "reliability", "by_score")


def write_card(model: TrainedModel) -> str:
    """Return the card of a trained model. Sections without content in the run directory are omitted."""
    board = Board.of(model.record)
    sections = {
        "Model Details": _details(model),
        "Uses": _uses(model),
        "Bias, Risks, and Limitations": _limits(model),
        "How to Get Started with the Model": _start(model),
        "Training Details": _training(model),
        "Evaluation": _evaluation(model, board),
        "Reporting": _reporting(model, board),
        "Privacy": _privacy(model),
        "Technical Specifications": _versions(model),
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items() if text)
    task = "regression" if model.numeric else "survival-analysis" if model.timed else "binary-classification"
    if model.findings:
        task = "multi-class-classification" if model.exclusive else "multi-label-classification"
    tags = ["federated-learning", task, model.config.run.strategy]
    front = "\n".join(["---", "library_name: florilegium", "tags:", *(f"- {tag}" for tag in tags), "---"])
    return f"{front}\n\n# Model Card for {model.record.name}\n\n{body}\n"


def _details(model: TrainedModel) -> str:
    labels, config = model.sample_format, model.config
    what = f"column `{model.label_column}`" if model.preprocessing is not None else "label"
    network = MODELS[config.run.model].description if config.run.model in MODELS else "a network of the user's own."
    round_ = f"{model.server_round} of {model.record.result['rounds']}"
    if chosen := model.selected:
        round_ += f", the one with the best {chosen['metric']} on validation rows"
    sides = f"{_quote(labels.positive_labels)} than for {_quote(labels.negative_labels)}"
    predicts = f"a score of each row, which is larger for {what} {sides}"
    if model.numeric:
        predicts = f"the mean of {what}, a number"
    if model.timed:
        predicts = (
            f"a risk score of each row, which is larger for an earlier event ({what} {_quote(labels.positive_labels)})"
        )
        predicts += (
            "" if model.baseline is None else ", and the probability of no event until each border of its intervals"
        )
    if model.findings:
        kind = "classes" if model.exclusive else "findings"
        predicts = f"a score of each row for each of the {kind} {_quote(model.findings)}"
    return _items(
        {
            "What it predicts": predicts,
            "Model type": f"`{config.run.model}`, {network} {model.network.dim:,} parameters",
            "Input": _input(model),
            "Strategy": _strategy(model),
            "Model": f"`{model.chosen}`, of round {round_}",
            "License": "to be chosen by the publisher of the model",
        }
    )


def _strategy(model: TrainedModel) -> str:
    """Return the strategy's name and description. A reference's name differs from the strategy of its config."""
    name, config = model.record.result["strategy"], model.config
    same = name == config.run.strategy
    return f"`{name}`, {config.algorithm.description if same else f'a reference of `{config.run.strategy}`'}"


def _input(model: TrainedModel) -> str:
    if model.preprocessing is not None:
        offset = model.preprocessing.offset_column
        columns = (*model.preprocessing.columns, *([offset] if offset else []))
        return f"a table with the {len(columns)} columns {_quote(columns)}"
    form = model.sample_format
    kind = {True: "pixels, as bytes", False: "numbers", None: "numbers, or pixels as bytes"}[form.pixels]
    if form.pixel_max is not None:
        kind = f"pixels, divided by {form.pixel_max:g}" if form.pixel_max > 1 else "pixels in [0, 1]"
    kind += f", after image-size {form.image_size}" if form.image_size else ""
    return f"an array of shape (n, {', '.join(map(str, form.shape))}) of {kind}"


def _uses(model: TrainedModel) -> str:
    loss = model.config.training.loss
    if model.numeric:
        return _describe_means(model)
    if model.timed:
        return _describe_risk(model)
    if entries := [entry["calibration"] for entry in model.chosen_entries if "calibration" in entry]:
        after, before = (np.mean([entry[time]["ece"] for entry in entries]) for time in ("after", "before"))
        each, mean = (" for each finding", "mean ") if model.findings else ("", "")
        return (
            f"Probabilities come from the scores by {entries[0]['method']}, fitted on validation rows{each}. On the "
            f"test rows the {mean}expected calibration error is {after:.4f} ({before:.4f} without it)."
        )
    if model.exclusive:
        return (
            "The sigmoid of a score is the probability of a class, and `florilegium predict` writes the most probable "
            "class: the model was trained by the cross-entropy of a softmax."
        )
    if loss == CROSS_ENTROPY:
        return (
            "The score is the logit of a probability: the model was trained by cross-entropy. On other rows than the "
            "training rows, `florilegium evaluate` measures its calibration by `brier`."
        )
    return (
        f"The scores rank rows. The model was trained by `{loss}`, under which the sigmoid of a score is not a "
        "probability and 0 is not a threshold: choose a threshold on labelled rows that did not train the model."
    )


def _describe_means(model: TrainedModel) -> str:
    """Return how scores of a model of numbers become means."""
    text = "The score is the predicted mean: the model was trained by the squared error."
    if model.config.training.loss == POISSON:
        text = "The exponential of the score is the predicted mean: the model was trained by the Poisson loss."
    if model.preprocessing is not None and (offset := model.preprocessing.offset_column):
        text += f" The number in column `{offset}`, the offset, is added to the score of its row."
    return text


def _describe_risk(model: TrainedModel) -> str:
    """Return the use of a model of times."""
    if model.baseline is None:
        return "The scores rank rows by risk. They are not probabilities, and the model predicts no survival."
    last = model.baseline.times[-1]
    text = f"`predict --times` turns scores into probabilities of no event until a time, up to {last:g}."
    return " ".join(filter(None, (text, describe_calibration(read_survival(model.record)) if model.is_left else "")))


def _limits(model: TrainedModel) -> str:
    result, data = model.record.result, model.record.config
    found = [
        f"{escape(label_site(site, model.record.site_names))} was missing in {one['rounds']} of "
        f"{result['rounds']} rounds; the last reason: {one['reason']}"
        for site, one in result.get("dropped", {}).items()
    ]
    disturbed = [f"`{key} = {data[key]}`" for key in _DISTURBANCES if data[key]]
    if disturbed:
        found.append(f"The training data were disturbed on purpose: {', '.join(disturbed)}")
    if model.preprocessing is not None and model.preprocessing.missing == "error":
        found.append("Rows with missing cells cannot be scored: the training had none")
    return "\n".join(f"- {join_lines(text)}." for text in found)


def _start(model: TrainedModel) -> str:
    run, chosen = model.record.name, model.chosen
    call = "predict" if model.numeric or model.timed else "decision_function"
    if model.preprocessing is not None:
        new, package, rows = "new.csv", "import pandas as pd", 'pd.read_csv("new.csv")'
    else:
        new, package, rows = "new.npz", "import numpy as np", 'np.load("new.npz")["X"]'
    return (
        f"`{run}` is the run directory.\n\n"
        f"```sh\nflorilegium predict {run} {new} --model {chosen} --out scores.csv\n```\n\n"
        f'```python\nimport florilegium\n{package}\n\nmodel = florilegium.load("{run}", model="{chosen}")\n'
        f"{'means' if model.numeric else 'scores'} = model.{call}({rows})\n```\n\n"
        "`florilegium export` converts it to one ONNX file, which ONNX Runtime can score."
    )


def _training(model: TrainedModel) -> str:
    result, config, name = model.record.result, model.record.config, model.config.data.dataset
    kind = str(config["partition"])
    data = {
        "Data set": f"`{name}`, {'of the user' if name in GENERIC else DATASETS.get(name, 'of the user')}",
        "Sites": f"{result['clients']}, by partition `{kind}`: {PARTITIONS.get(kind, 'a function')}",
    }
    if share := config["validation-fraction"]:
        data["Validation"] = f"{share} of the training rows"
    if counted := result.get("training_rows"):
        total = f"{sum(site['rows'] for site in counted):,}"
        if not (model.numeric or model.findings):
            kind = "with an event" if model.timed else "positive"
            total += f", {sum(site['positives'] for site in counted):,} of them {kind}"
        data["Rows trained on"] = f"{total}; as each site reported before round 1:"
    facts = {
        "Rounds": f"{result['rounds']} of {config['num-server-rounds']}",
        "Loss": f"`{config['loss']}`",
        "Seed": config["seed"],
        "Engine": result["engine"],
        "Wall time": f"{format_cell(result['wall_seconds'], 1)} s",
        "From the sites": f"{format_megabytes(result['bytes_up'])} MB",
        "To the sites": f"{format_megabytes(result['bytes_down'])} MB",
    }
    departures = {key: default for key, default in model.record.departures.items() if key not in _UNTOLD}
    keys = [[f"`{key}`", f"`{config[key]!r}`", f"`{default!r}`"] for key, default in departures.items()]
    parts = [
        "### Training Data\n\n" + _items(data),
        _rows(result.get("training_rows"), model.record.site_names, "with an event" if model.timed else "positive"),
        _preprocessing(model),
        "### Training Procedure\n\n" + _items(facts),
        "#### Training Hyperparameters\n\nKeys that differ from the defaults of the strategy:\n\n"
        + make_table(["key", "value", "default"], keys)
        if keys
        else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _rows(counted: Sequence[Mapping[str, int]] | None, names: Mapping[str, str], kind: str) -> str:
    """Return the rows of each site, if the sites reported them; ``kind`` describes its positives."""
    if not counted:
        return ""
    columns = {name: words for name, words in (("rows", "training rows"), ("positives", kind)) if name in counted[0]}
    cells = [[escape(label_site(one["partition"], names)), *(f"{one[name]:,}" for name in columns)] for one in counted]
    return make_table(["", *columns.values()], cells)


def _preprocessing(model: TrainedModel) -> str:
    found = model.preprocessing
    if found is None:
        return "#### Preprocessing\n\nPixels are divided by 255." if model.sample_format.pixels else ""
    missing = "are not allowed" if found.missing == "error" else f"are treated by `missing = {found.missing}`"
    rows = [
        [f"`{one.name}`", one.kind, one.transform, *map(format_cell, (one.mean, one.deviation, one.fill))]
        for one in found.outputs
    ]
    return (
        f"#### Preprocessing\n\n{len(found.outputs)} features of {len(found.columns)} columns, scaled by "
        f"`{found.scale}`; missing cells {missing}.\n\n"
        + make_table(["feature", "kind", "transform", "mean", "deviation", "filled with"], rows)
    )


def _evaluation(model: TrainedModel, board: Board) -> str:
    result, rows = model.record.result, rows_in_words(model.record.config)
    metrics = result["metrics"]
    if "test_metrics" in result and ("selected" not in result or model.chosen.startswith(BEST)):
        metrics, rows = result["test_metrics"], "the test rows"
    view = model.chosen.removeprefix(BEST).removeprefix("_") if model.chosen != "last" else ""
    named = {name: metrics[add_suffix(name, view)] for name in METRICS if add_suffix(name, view) in metrics}
    cells = [[f"`{name}`", format_metric(value)] for name, value in named.items()]
    parts = [f"Measured on {rows}.\n\n{make_table(['metric', 'value'], cells)}"] if named else []
    if model.is_left and (survival := read_survival(model.record)):
        parts = [show_part(tabulate_metrics(model.record, survival)), *_curves(survival)]
    if model.is_left and (table := tabulate_findings(model.record)):
        parts.append(show_part(table))
    return "\n\n".join((_answers(board) + parts + _figures(result)) if model.is_left else parts)


def _curves(survival: Mapping[str, Any]) -> list[str]:
    """Return the survival of each third by risk at the horizon, and of each site."""
    rows = []
    for curve in (*survival.get("risk_groups", []), *([survival["all"]] if "all" in survival else [])):
        place = max(index for index, time in enumerate(curve["times"]) if time <= survival["horizon"])
        value, low, high = (curve[name][place] for name in ("survival", "low", "high"))
        numbers = "-" if None in (value, low, high) else f"{value:.3f} ({low:.3f} to {high:.3f})"
        if (time := curve["times"][place]) != survival["horizon"]:  # small counts hide the horizon
            numbers = f"{numbers} until {time:g}" if time else "-"
        rows.append([curve.get("group", "all rows"), f"{curve['rows']:,}", f"{curve['events']:,}", numbers])
    title = f"survival until {survival['horizon']:g} (Kaplan-Meier) with 95 % interval"
    parts = [make_table(["", "rows", "events", title], rows)] if rows else []
    sites = tabulate_sites(survival)
    return [*parts, *([show_part(sites)] if sites.rows else [])]


def _answers(board: Board) -> list[str]:
    """Return the answers for a board: the headline, the comparison with sites alone, the threshold and its use."""
    if board.is_timed:
        return [show_part(part) for part in (board.headline(), board.comparison()) if part]
    if not board.is_binary:
        return []
    found = [board.headline(), board.comparison(), board.no_probabilities or board.calibration(), board.decisions()]
    return [show_part(part) for part in (*found, board.threshold(), board.counts()) if part]


def _reporting(model: TrainedModel, board: Board) -> str:
    """Return the items of TRIPOD+AI for which the run has facts, and the numbers of the other items."""
    if not ((board.is_binary or board.is_timed) and model.is_left):
        return ""
    table = checklist(board)
    answered = [row for row in table.rows if row[2] != OPEN]
    others = ", ".join(row[0] for row in table.rows if row[2] == OPEN)
    return f"{show_part(replace(table, rows=answered))}\n\nTo be written by the authors: items {others}."


def _figures(result: Mapping[str, Any]) -> list[str]:
    """Return the figures of each site's rows and of all rows, if the result has any."""
    parts = []
    sites = [(escape(label_entry(one)), one) for one in result.get("sites", [])]
    rows = [*sites, *([("all", result["all"])] if "all" in result else [])]
    if rows:
        names = list(dict.fromkeys(name for _, one in rows for name in one if name not in _LONG))
        cells = [[site, *(_figure(one.get(name)) for name in names)] for site, one in rows]
        where = result.get("figures_on", "their rows")
        parts.append(f"Each site on {where}, with 95 % intervals if there are three numbers:")
        parts.append(make_table(["", *(f"`{name}`" for name in names)], cells))
    if left_out := result.get("left_out"):
        parts.append(f"{describe_left_out(left_out).capitalize()}.")
    if chosen := result.get("threshold"):
        by = f", chosen by `{chosen['at']}` on validation rows" if "at" in chosen else ""
        parts.append(f"Scores from {chosen['score']:.6g} on count as positive{by}.")
    return parts


def _figure(value: Any) -> str:
    """Return a number, [value, low, high], or named counts."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in value.items())
    if isinstance(value, list):
        return f"{value[0]:.4f} ({value[1]:.4f} to {value[2]:.4f})"
    return format_metric(value) if isinstance(value, float) else format_cell(value)


def _privacy(model: TrainedModel) -> str:
    privacy, lines = model.config.privacy, model.record.lines
    sends = model.config.algorithm.traits.sends
    found = {
        "Sent in addition to the model": sends,
        "Secure sums": f"yes, with threshold {privacy.secure_threshold:.3g}" if privacy.secure_sum else "no",
    }
    spent = {name: lines[-1][name] for name in ("epsilon", "pool_epsilon") if lines and name in lines[-1]}
    rows = "Differential privacy of single rows"
    if privacy.epsilon:
        epsilon = f"epsilon {spent.get('epsilon', privacy.epsilon):.4g} spent of {privacy.epsilon:g}"
        found[rows] = f"{epsilon}, delta {privacy.delta:g}, gradients clipped to {privacy.clip:g}"
    else:
        found[rows] = "no"
    if "pool_epsilon" in spent:
        found["Differential privacy of histograms of scores"] = f"epsilon {spent['pool_epsilon']:.4g} spent"
    return _items(found)


def _versions(model: TrainedModel) -> str:
    versions = model.record.result["versions"]
    return "Trained with " + ", ".join(f"{package} {one}" for package, one in versions.items()) + "."


def _items(facts: Mapping[str, Any]) -> str:
    return "\n".join(f"- **{name}:** {join_lines(value)}" for name, value in facts.items() if value is not None)


def _quote(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
