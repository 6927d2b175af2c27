"""The command ``export``: a trained model and its preprocessing as one ONNX file, checked against PyTorch."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from apps.config import ConfigError
from apps.run_directory.versions import NAME, project_version
from problems.calibration import IDENTITY, Calibration, Calibrations, Platt
from problems.data.formats.uci import base_codes
from problems.data.preprocessing import Preprocessing
from problems.errors import importable, require
from problems.models import ModelError
from problems.objectives.hazard import HAZARD
from problems.objectives.number_losses import POISSON
from problems.survival.baseline import Baseline
from simulations.scoring.check import ROWS, difference_from
from simulations.scoring.model import MEAN, PROBABILITY, SCORE, TrainedModel
from simulations.scoring.survival import RISK, SURVIVAL
from simulations.scoring.table import FEATURES, input_names, is_text, known_texts, table_features

if TYPE_CHECKING:
    import onnx

OPSET, ML_OPSET = 18, 3
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        content: The bytes of the ONNX file.
        inputs: The type and shape of each input, by name.
        difference: The maximum difference from PyTorch's scores, see `simulations.scoring.check.difference_from`. None:
            not checked, since onnxruntime is not installed.
        rows: The number of rows of the check.
    """

    content: bytes
    inputs: dict[str, str]
    difference: float | None
    rows: int = 0


def export_onnx(model: TrainedModel, *, pixels: bool | None = None) -> Exported:
    """Export a model with opset 18 of ONNX, in float32.

    Args:
        model: The model.
        pixels: Whether the model's inputs are bytes, which it divides by 255. None: as the run directory records it.

    Raises:
        MissingExtraError: ONNX is not installed.
        ConfigError: ``pixels`` is missing, although the run directory does not record the form of the inputs; or
            ``pixels`` is set, although it does.
        ModelError: The network cannot be translated, or the file's scores differ from PyTorch's.
    """
    require("export", "export", "onnx", "onnxscript")
    import onnx

    known = model.sample_format.pixels
    if model.preprocessing is None and (known is None) == (pixels is None):
        if known is None:
            got, hint = "nothing", "set --pixels if the sites' arrays are bytes to divide by 255, otherwise --no-pixels"
            allowed = "--pixels or --no-pixels, since the run did not record the content of its sites' arrays"
        else:
            got, hint = f"--{'' if pixels else 'no-'}pixels", "remove --pixels or --no-pixels"
            allowed = "no value, since the run recorded the content of its arrays"
        raise ConfigError("--pixels", got=got, allowed=allowed, hint=hint)
    is_pixels = bool(pixels if known is None else known)
    network = copy.deepcopy(model.network.module).cpu().float()
    loss = model.config.training.loss if model.numeric else ""
    calibration = None if model.timed else model.calibration
    scorer = Scorer(network, model.preprocessing, is_pixels, calibration, loss, model.baseline)
    try:
        file = translate(scorer, model.sample_format.shape)
    except Exception as error:  # any exception: the exporter wraps the exceptions of the network's own code
        why = (str(error).strip().splitlines() or [""])[0]
        got = f"{model.config.run.model!r}, which torch.onnx.export cannot translate ({type(error).__name__}: {why})"
        allowed = "a network of operators that ONNX supports"
        hint = "replace the operators that PyTorch's page on torch.export excludes"
        raise ModelError("model", got=got, allowed=allowed, hint=hint) from error
    file.producer_name, file.producer_version = NAME, project_version()
    for key, value in _metadata(model).items():
        file.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(file, full_check=True)
    content = file.SerializeToString()
    if not importable("onnxruntime"):
        return Exported(content, _inputs(file), None)
    difference = difference_from(model, content, pixels=is_pixels)
    if not difference <= TOLERANCE:
        got = f"scores in the ONNX file that differ from PyTorch's by {difference:.1e}"
        allowed = f"a difference of at most {TOLERANCE:g}, relative to the score for scores above 1"
        raise ModelError("model", got=got, allowed=allowed, hint="see docs/scoring.md")
    return Exported(content, _inputs(file), difference, ROWS)


class Scorer(nn.Module):
    """A PyTorch module with the inputs and outputs of the ONNX file.

    Args:
        network: The trained network.
        preprocessing: The table's preprocessing. None: the run was not trained on a table.
        pixels: Whether the inputs are bytes.
        calibration: The map from scores to probabilities. None: rows have times.
        loss: The loss of a run whose labels are numbers; the second output is then the mean. "": other labels.
        baseline: The map from scores to survival until each border, the second output. None: there is no such output.
    """

    def __init__(
        self,
        network: nn.Module,
        preprocessing: Preprocessing | None,
        pixels: bool,
        calibration: Calibration | Calibrations | None = IDENTITY,
        loss: str = "",
        baseline: Baseline | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.preprocessing = preprocessing
        self.pixels = pixels
        self.calibration = calibration
        self.loss = loss
        self.baseline = baseline

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        if self.calibration is None:
            return [RISK] if self.baseline is None else [RISK, SURVIVAL]
        return [SCORE, MEAN if self.loss else PROBABILITY]

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return scores, and probabilities, means or survival.

        Args:
            inputs: The features. With a table: the cells of the raw columns, see `table_features`, and the offset.
        """
        if self.preprocessing is None:
            score = self.network(inputs.float() / 255 if self.pixels else inputs)
        else:
            cells = len(self.preprocessing.columns)
            features, faulty = table_features(self.preprocessing, inputs[:, :cells])
            score = self.network(features)
            if self.preprocessing.offset_column:
                score = (score.double() + inputs[:, cells]).float()
            if self.preprocessing.missing == "error":  # a network may hide a NaN in its features, as ReLU does
                score = torch.where(faulty if score.ndim == 1 else faulty[:, None], torch.nan, score)
        if self.calibration is None:
            return (score,) if self.baseline is None else (score, survive_all(score, self.baseline))
        if self.loss:
            return score, torch.exp(score) if self.loss == POISSON else score.clone()
        return score, _calibrate(score, self.calibration)


def _calibrate(score: torch.Tensor, calibration: Calibration | Calibrations) -> torch.Tensor:
    """Return the probabilities of scores (n,), or of scores (n, findings).

    An isotonic calibration is a piecewise linear map, computed as a sum of a ramp for each interval between its knots.
    """
    if isinstance(calibration, Calibrations):
        columns = [_calibrate(score[:, index], one) for index, one in enumerate(calibration.of_findings)]
        return torch.stack(columns, dim=1)
    if isinstance(calibration, Platt):
        return torch.sigmoid(calibration.slope * score.double() + calibration.intercept).float()
    knots, values = (
        torch.tensor(side, dtype=torch.float64) for side in (calibration.scores, calibration.probabilities)
    )
    ramps = ((score.double()[..., None] - knots[:-1]) / knots.diff()).clamp(0, 1)
    return (values[0] + (ramps * values.diff()).sum(dim=-1)).float()


def survive_all(score: torch.Tensor, baseline: Baseline) -> torch.Tensor:
    """Return the survival (n, k) of scores (n,) until each border, with operators that ONNX has.

    Args:
        score: The scores.
        baseline: The model's baseline, see `problems.survival.baseline`.
    """
    values = torch.tensor(baseline.values, dtype=torch.float64)
    if baseline.loss == HAZARD:
        # softplus in a form that ONNX Runtime computes in double precision
        logits = score.double()[..., None] + values
        hazards = (logits.clamp(min=0) + torch.log(1 + torch.exp(-logits.abs()))).cumsum(dim=-1)
    else:
        # without an event so far the hazard is 0, whatever the score
        hazards = torch.where(values > 0, values * torch.exp(score.double())[..., None], 0.0)
    return torch.exp(-hazards).float()


def translate(scorer: Scorer, shape: tuple[int, ...]) -> onnx.ModelProto:
    """Return a module as an ONNX model, by torch.onnx.export.

    Args:
        scorer: The module, in float32.
        shape: The shape of a row's features. It only counts without a table.
    """
    table = scorer.preprocessing
    if table is None:
        rows = torch.zeros((2, *shape), dtype=torch.uint8 if scorer.pixels else torch.float32)
    else:
        rows = torch.zeros((2, len(input_names(table))), dtype=torch.float64)
    with _silence():
        program = torch.onnx.export(
            scorer.eval(),
            (rows,),
            dynamo=True,
            opset_version=OPSET,
            input_names=[FEATURES],
            output_names=scorer.outputs,
            dynamic_shapes=({0: torch.export.Dim("n")},),
            verbose=False,
        )
    assert program is not None
    return program.model_proto if table is None else _name_inputs(program.model_proto, table)


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress the exporter's messages about packages that these networks do not need."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _name_inputs(file: onnx.ModelProto, table: Preprocessing) -> onnx.ModelProto:
    """Replace an ONNX model's matrix of inputs by one named input for each raw column of a table.

    The file also gets operators that convert texts to their indices.
    """
    from onnx import TensorProto, compose, helper

    compose.add_prefix(file, "scorer/", rename_outputs=False, inplace=True)
    del file.graph.input[:]
    nodes, numbers = [], []
    for column, name in input_names(table).items():
        text = is_text(table, column)
        numbers.append(f"scorer/number {name}" if text else name)
        if text:
            known, index = known_texts(table, column), f"scorer/index {name}"
            keys: dict[str, Any] = {"keys_strings": known, "values_int64s": range(len(known)), "default_int64": -1}
            nodes.append(helper.make_node("LabelEncoder", [name], [index], domain="ai.onnx.ml", **keys))
            nodes.append(helper.make_node("Cast", [index], numbers[-1:], to=TensorProto.DOUBLE))
        kind = TensorProto.STRING if text else TensorProto.DOUBLE
        file.graph.input.append(helper.make_tensor_value_info(name, kind, ["n", 1]))
    nodes += [helper.make_node("Concat", numbers, [f"scorer/{FEATURES}"], axis=1), *file.graph.node]
    del file.graph.node[:]
    file.graph.node.extend(nodes)
    file.opset_import.append(helper.make_opsetid("ai.onnx.ml", ML_OPSET))
    return file


def _metadata(model: TrainedModel) -> dict[str, str]:
    """Return the metadata of the ONNX file: the run, the model, the labels and the versions."""
    result, labels = model.record.result, model.sample_format
    return {
        "run": model.record.name,
        "strategy": str(result["strategy"]),
        "model": model.chosen,
        "round": str(model.server_round),
        **_labels(model),
        **(
            {}
            if model.preprocessing is None
            else {"categories": json.dumps(_categories(model.preprocessing, base_codes(model.config.data.dataset)))}
        ),
        **({} if labels.pixel_max is None else {"pixel_max": f"{labels.pixel_max:g}"}),
        **({"image_size": labels.image_size} if labels.image_size else {}),
        "versions": json.dumps(result["versions"]),
    }


def _labels(model: TrainedModel) -> dict[str, str]:
    """Return the metadata about labels."""
    if model.findings:
        return {"findings": json.dumps(model.findings), **_choices(model)}
    if model.numeric:
        return {"label": model.label_column, "loss": model.config.training.loss}
    if not model.timed or model.preprocessing is None:
        return _classes(model)
    found = {"label": model.label_column, "loss": model.config.training.loss, "time": model.preprocessing.time_column}
    return found if model.baseline is None else found | {"times": json.dumps(model.baseline.times.tolist())}


def _classes(model: TrainedModel) -> dict[str, str]:
    """Return the metadata about labels that are classes."""
    return {
        **_choices(model),
        "negative_labels": json.dumps(model.sample_format.negative_labels),
        "positive_labels": json.dumps(model.sample_format.positive_labels),
    }


def _choices(model: TrainedModel) -> dict[str, str]:
    """Return the metadata about thresholds and calibrations; lists of findings' values."""
    threshold = str(model.threshold) if isinstance(model.threshold, float) else json.dumps(model.threshold.tolist())
    return {"threshold": threshold, "calibration": json.dumps(model.calibration.to_json())}


def _categories(preprocessing: Preprocessing, base: dict[str, str]) -> dict[str, list[str]]:
    """Return the known values of each raw text column without a feature for unknown values."""
    features_by_column = {name: preprocessing.made_of(name) for name in preprocessing.columns}
    return {
        name: [*([base[name]] if name in base else []), *(feature.value for feature in features)]
        for name, features in features_by_column.items()
        if {feature.kind for feature in features} == {"category"}
    }


def _inputs(file: onnx.ModelProto) -> dict[str, str]:
    """Return the type and shape of each input, as texts."""
    import onnx

    inputs = {}
    for value in file.graph.input:
        tensor = value.type.tensor_type
        shape = ", ".join(size.dim_param or str(size.dim_value) for size in tensor.shape.dim)
        inputs[value.name] = f"{onnx.TensorProto.DataType.Name(tensor.elem_type).lower()} ({shape})"
    return inputs
