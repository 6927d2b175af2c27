"""The commands ``predict``, ``scorecard``, ``evaluate``, ``export`` and ``card``, which use a finished run's model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from problems.errors import install, require
from simulations.arguments import Json
from simulations.results.output import format_cell, format_metric, print_json, table

if TYPE_CHECKING:
    from simulations.scoring.model import TrainedModel

RunOption = Annotated[Path, typer.Argument(metavar="RUN", help="the run directory")]
NewRowsOption = Annotated[
    Path, typer.Argument(metavar="NEW", help="csv, csv.gz, parquet, npz or svmlight file, image, or folder of images")
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        help="last (of the last round), best (of the selected round), or NAME for the file model_NAME.safetensors; "
        "default: best if the run has it, else last",
    ),
]

AllowUnseen = Annotated[
    bool, typer.Option("--allow-unseen", help="score even if the model has seen no value of some column in training")
]

ToDouble = Annotated[float, typer.Option("--points-to-double", help="points that double the odds")]
BasePoints = Annotated[float, typer.Option("--base-points", help="score at the base odds")]
BaseOdds = Annotated[float, typer.Option("--base-odds", help="odds of the negative label at the base points")]


def predict(
    run: RunOption,
    new: NewRowsOption,
    out: Annotated[Path | None, typer.Option("--out", help="csv file to write; default: stdout")] = None,
    keep: Annotated[str, typer.Option("--keep", help="columns of NEW to copy to the scores, separated by commas")] = "",
    threshold: Annotated[
        str,
        typer.Option(
            "--threshold",
            help="also write the column predicted, 0 or 1: a probability, score=x, run (by threshold-at) or youden",
        ),
    ] = "",
    times: Annotated[
        str,
        typer.Option(
            "--times",
            help="write survival_t for each of these times, separated by commas; default: the run's horizon",
        ),
    ] = "",
    reasons: Annotated[
        int | None,
        typer.Option("--reasons", help="also write the columns that raise a score most, this number for each row"),
    ] = None,
    points: Annotated[
        bool, typer.Option("--points", help="also write the sum of the points of a scorecard with the next options")
    ] = False,
    to_double: ToDouble = 20.0,
    base_points: BasePoints = 600.0,
    base_odds: BaseOdds = 50.0,
    model: ModelOption = "",
    allow_unseen: AllowUnseen = False,
) -> None:
    """Score the rows of the file NEW with the model in the run directory RUN.

    NEW is a csv, csv.gz, parquet, npz or svmlight file, an image, or a folder of images. The output has one line for
    each row of NEW, in the same order.
    """
    from apps.config import ConfigError
    from apps.evaluation.labels import join_labels
    from problems.calibration import IDENTITY, Calibrations
    from problems.data.spec import parse_names
    from simulations.scoring.additive import OPTION, AdditiveModel
    from simulations.scoring.model import load  # imported here, since scikit-learn takes a second to load
    from simulations.scoring.rows import score_file, write_scores
    from simulations.scoring.scorecard import PointsScale, Scorecard
    from simulations.scoring.survival import default_times, describe_times, need_baseline, parse_times, survive
    from simulations.scoring.thresholds import Threshold

    trained = load(run, model, allow_unseen=allow_unseen)
    if threshold and (trained.numeric or trained.timed):
        kind = "rows of this run have times" if trained.timed else "the labels of this run are numbers"
        allowed, hint = f"'', since {kind}", "remove --threshold"
        raise ConfigError("--threshold", got=repr(threshold), allowed=allowed, hint=hint)
    chosen = Threshold.parse(threshold, trained) if threshold else None
    at = parse_times(times) if times else default_times(trained)
    baseline = need_baseline(trained) if times else trained.baseline
    further, notes, scale = [], [], PointsScale(to_double, base_points, base_odds)
    if points:
        further.append(Scorecard.of(trained, scale, "--points").totals)
    elif scale != PointsScale():
        got, allowed = "a scale of points without --points", "a scale only with --points"
        raise ConfigError("--points", got=got, allowed=allowed, hint="add --points, or remove the scale")
    if reasons is not None:
        additive = AdditiveModel.of(trained, OPTION)
        further.append(partial(additive.reasons, number=reasons))
        notes.append(f"score = {additive.constant:.6f} + the contributions of all {len(additive.columns)} columns")
    scores = score_file(trained, new, parse_names("--keep", keep), chosen, further, at)
    content = f"probability of the positive label {join_labels(trained.sample_format.positive_labels)}"
    if trained.numeric:
        content = f"mean of column {trained.label_column!r}"
    calibrations = trained.calibration  # the first columns of a table of scores are of the first finding
    first = calibrations.of_findings[0] if isinstance(calibrations, Calibrations) else calibrations
    maps: list[Any] = [trained.means] if trained.numeric else [IDENTITY, first]
    if trained.timed:
        content = "risk scores, larger for an earlier event"
        maps = [partial(survive, baseline, times=at) if baseline is not None else lambda risk: risk[:0]]
        if baseline is None:
            notes.append("no survival, since the model estimates no baseline hazard")
        elif between := describe_times(baseline, at):
            notes.append(between)
    if trained.findings:
        content = "score and probability of each finding"
    if chosen is not None:
        notes.insert(0, f"predicted is 1 at or above {chosen.words}")
    content = "; ".join([content, *notes])
    if out is None:
        typer.echo(f"{new}: {content}", err=True)
        typer.echo(scores.to_csv(index=False), nl=False)
    else:
        write_scores(scores, out, new, maps, len(at) if trained.timed else 1)
        model_name = f"model {trained.chosen!r} of run {trained.record.name}"
        typer.echo(f"{out}: {len(scores):,} scores by {model_name}, {content}")


def scorecard(
    run: RunOption,
    to_double: ToDouble = 20.0,
    base_points: BasePoints = 600.0,
    base_odds: BaseOdds = 50.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="folder for scorecard.csv and scorecard.html; default: the run directory"),
    ] = None,
    model: ModelOption = "",
) -> None:
    """Write the points of the linear model in the run directory RUN: scorecard.csv, and scorecard.html for a person.

    The sum of an applicant's points is a scaled log odds of the run's probability, calibrated if the run is calibrated.
    """
    from simulations.results.target import check_target, is_page, make_out, write_output
    from simulations.scoring.model import load
    from simulations.scoring.scorecard import HEADER, PointsScale, Scorecard
    from simulations.scoring.scorecard_page import NAME, write_page

    require("scorecard", "reports", "jinja2")
    trained, folder = load(run, model), run if out is None else out.expanduser()
    card = Scorecard.of(trained, PointsScale(to_double, base_points, base_odds), "scorecard")
    files = {
        "scorecard.csv": (card.write_csv(), lambda content: content.startswith(",".join(HEADER).encode())),
        NAME: (write_page(card, trained), is_page),
    }
    if out is not None:
        make_out(folder)
    for name, (_, recognize) in files.items():
        check_target(folder / name, recognize)
    for name, (text, recognize) in files.items():
        write_output(folder / name, text.encode(), recognize)
        typer.echo(folder / name)
    typer.echo(f"start {card.start}; rounding changes a score by at most {card.max_error:.2f} points")


def evaluate(
    run: RunOption,
    new: NewRowsOption,
    model: ModelOption = "",
    resamples: Annotated[int, typer.Option(min=1, help="number of bootstrap resamples of the rows")] = 1000,
    confidence: Annotated[float, typer.Option(min=0.01, max=0.999, help="confidence level of the intervals")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="seed of the resamples")] = 0,
    allow_unseen: AllowUnseen = False,
    as_json: Json = False,
) -> None:
    """Measure the model in the run directory RUN on the labelled rows of the file NEW, with confidence intervals.

    NEW is a csv, csv.gz, parquet, npz or svmlight file, or a folder of images. The intervals are bootstrap intervals.
    """
    from apps.evaluation.labels import join_labels
    from problems.delong import few_rows
    from simulations.scoring.model import load
    from simulations.scoring.rows import evaluate_file

    trained = load(run, model, allow_unseen=allow_unseen)
    measured = evaluate_file(trained, new, resamples=resamples, confidence=confidence, seed=seed)
    if as_json:
        print_json(measured)
        return
    about = f"model {measured.model!r} of run {measured.run} on {measured.rows:,} rows"
    if trained.timed:
        about += f", {measured.positives:,} of them with an event ({join_labels(measured.positive_labels)})"
        about += f"; horizon {trained.horizon:g}"
    elif measured.positives is not None:
        about += f", {measured.positives:,} of them positive ({join_labels(measured.positive_labels)}); "
        about += f"accuracy from score {format_cell(measured.threshold)}"
    typer.echo(about)
    rows = [
        [name, *map(format_metric, (interval.value, interval.low, interval.high))]
        for name, interval in measured.metrics.items()
    ]
    percent = f"{100 * measured.confidence:g} %"
    typer.echo(table(["metric", "value", f"{percent} from", "to"], rows))
    line = f"intervals: percentiles over {measured.resamples:,} bootstrap resamples of the rows, seed {measured.seed}"
    few = (
        measured.positives is not None
        and not trained.timed
        and few_rows(measured.rows - measured.positives, measured.positives)
    )
    typer.echo(f"{line}; of auc DeLong's on the logit scale, since a class has few rows" if few else line)


def export(
    run: RunOption,
    form: Annotated[Literal["onnx"], typer.Option("--format", help="format of the file")] = "onnx",
    out: Annotated[
        Path | None, typer.Option("--out", help="file to write; default: model.onnx in the run directory")
    ] = None,
    model: ModelOption = "",
    pixels: Annotated[
        bool | None,
        typer.Option(
            "--pixels/--no-pixels",
            help="whether the sites' npz files contained bytes; only if the run directory does not record it",
        ),
    ] = None,
    with_card: Annotated[bool, typer.Option("--card", help="also write the model card, next to the file")] = False,
) -> None:
    """Write the model and the preprocessing of the run directory RUN as one ONNX file, to use without this project."""
    from simulations.results.target import check_target, is_card, is_onnx, write_output
    from simulations.scoring.export import export_onnx
    from simulations.scoring.model import load

    trained = load(run, model)
    if out is not None:
        check_target(out, is_onnx)
        if with_card:
            check_target(out.with_suffix(".md"), is_card)
    exported = export_onnx(trained, pixels=pixels)
    target = out or run / f"model.{form}"
    write_output(target, exported.content, None if out is None else is_onnx)
    typer.echo(f"{target}: model {trained.chosen!r} of run {trained.record.name}, {len(exported.content):,} bytes")
    typer.echo(table(["input", "type"], [list(row) for row in exported.inputs.items()]))
    if exported.difference is None:
        typer.echo(f"not checked, since onnxruntime is not installed: {install('export')}")
    else:
        largest = f"{exported.difference:.1e} at most"
        typer.echo(f"checked: its scores of {exported.rows} made-up rows differ from PyTorch's by {largest}")
    if with_card:
        _write_card(trained, target.with_suffix(".md"), is_default=out is None)


def card(
    run: RunOption,
    out: Annotated[
        Path | None, typer.Option("--out", help="file to write; default: card.md in the run directory")
    ] = None,
    model: ModelOption = "",
) -> None:
    """Write a Markdown page about the model in the run directory RUN: its data, training and metrics."""
    from simulations.scoring.model import load

    _write_card(load(run, model), out or run / "card.md", is_default=out is None)


def _write_card(model: TrainedModel, target: Path, *, is_default: bool) -> None:
    from simulations.results.target import is_card, write_output
    from simulations.scoring.card import write_card

    # a file that the user names is only replaced if it is a card; the default file always
    write_output(target, write_card(model).encode(), None if is_default else is_card)
    typer.echo(target)
