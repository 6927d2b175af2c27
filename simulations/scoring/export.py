"""A trained model as one ONNX file, with its preprocessing inside, and the check that it scores as PyTorch does."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from apps.config import ConfigError
from apps.run_directory.versions import NAME, project_version
from problems.data.formats.uci import base_codes
from problems.data.preprocessing import Preprocessing
from problems.errors import importable, require
from problems.models import ModelError
from simulations.scoring.model import PROBABILITY, SCORE, TrainedModel

if TYPE_CHECKING:
    import onnx

FEATURES = "features"
OPSET = 18
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Exported:
    """An ONNX file.

    Attributes:
        content: its bytes.
        inputs: name -> type and shape.
        difference: as of `simulations.scoring.check.difference_from`; None: onnxruntime is not installed.
        rows: on how many rows.
    """

    content: bytes
    inputs: dict[str, str]
    difference: float | None
    rows: int = 0


def export_onnx(model: TrainedModel, *, pixels: bool | None = None) -> Exported:
    """Export a model with opset 18 of ONNX, in float32.

    Args:
        model: the model.
        pixels: whether its input are bytes that are scaled to [0, 1], for a run that does not know it.

    Raises:
        MissingExtraError: ONNX is not installed.
        ConfigError: it is not known whether the input are pixels, or the run knows better.
        ModelError: the network cannot be translated, or the file's scores are not those of PyTorch.
    """
    require("export", "export", "onnx", "onnxscript")
    import onnx

    known = model.sample_format.pixels
    if model.preprocessing is None and (known is None) == (pixels is None):
        got = "nothing" if pixels is None else "a choice"
        allowed = "a choice, since the run does not know what its sites' arrays hold" if known is None else "none"
        hint = "leave it out" if known is not None else "--pixels: bytes, to be divided by 255; --no-pixels: numbers"
        raise ConfigError("--pixels", got=got, allowed=allowed, hint=hint)
    is_pixels = bool(pixels if known is None else known)
    file = _translate(model, is_pixels)
    if model.preprocessing is not None:
        file = _with_preprocessing(file, model.preprocessing)
    file.producer_name, file.producer_version = NAME, project_version()
    for key, value in _metadata(model).items():
        file.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(file, full_check=True)
    content = file.SerializeToString()
    if not importable("onnxruntime"):
        return Exported(content, _inputs(file), None)
    from simulations.scoring.check import ROWS, difference_from

    difference = difference_from(model, content, pixels=is_pixels)
    if not difference <= TOLERANCE:
        got = f"scores in the ONNX file that differ from PyTorch's by {difference:.1e}"
        allowed = f"at most {TOLERANCE:g}, or that share of a score above 1"
        raise ModelError("model", got=got, allowed=allowed, hint="see docs/scoring.md")
    return Exported(content, _inputs(file), difference, ROWS)


class _Scorer(nn.Module):
    """A network with the outputs of the file."""

    def __init__(self, network: nn.Module, pixels: bool) -> None:
        super().__init__()
        self.network = network
        self.pixels = pixels

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        score = self.network(features.float() / 255 if self.pixels else features)
        return score, torch.sigmoid(score)


def _translate(model: TrainedModel, pixels: bool) -> onnx.ModelProto:
    """The network as ONNX, by torch.onnx.export."""
    scorer = _Scorer(copy.deepcopy(model.network.module).cpu().float(), pixels).eval()
    shape, dtype = model.sample_format.shape, torch.uint8 if pixels else torch.float32
    rows = torch.zeros((2, *shape), dtype=dtype)
    try:
        with _silence():
            program = torch.onnx.export(
                scorer,
                (rows,),
                dynamo=True,
                opset_version=OPSET,
                input_names=[FEATURES],
                output_names=[SCORE, PROBABILITY],
                dynamic_shapes=({0: torch.export.Dim("n")},),
                verbose=False,
            )
    except Exception as error:  # the exporter wraps whatever the network's own code raises
        why = (str(error).strip().splitlines() or [""])[0]
        got = f"{model.config.run.model!r}, which torch.onnx.export cannot translate ({type(error).__name__}: {why})"
        allowed = "a network of operators that ONNX has"
        raise ModelError("model", got=got, allowed=allowed, hint="see PyTorch's page on torch.export") from error
    assert program is not None
    return program.model_proto


@contextmanager
def _silence() -> Iterator[None]:
    """Keep away what the exporter says about packages that a network here does not need."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _with_preprocessing(network: onnx.ModelProto, preprocessing: Preprocessing) -> onnx.ModelProto:
    """The network behind the graph of its table's preprocessing."""
    import onnx
    from onnx import compose, helper

    from simulations.scoring import graph

    opset = next(one.version for one in network.opset_import if one.domain in ("", "ai.onnx"))
    before = graph.preprocessing_graph(preprocessing, input_names(preprocessing), opset, network.ir_version)
    after = compose.add_prefix(network, "network/")
    merged = compose.merge_models(before, after, io_map=[(graph.FEATURES, f"network/{FEATURES}")])
    # A network may hide a NaN among its features, as ReLU does.
    nan = helper.make_node("Constant", [], ["nan"], value_float=float("nan"))
    faulty = graph.FAULTY in {value.name for value in before.graph.output}
    merged.graph.node.extend([nan] * faulty)
    del merged.graph.output[:]
    for name in (SCORE, PROBABILITY):
        inputs = [graph.FAULTY, "nan", f"network/{name}"] if faulty else [f"network/{name}"]
        merged.graph.node.append(helper.make_node("Where" if faulty else "Identity", inputs, [name], name))
        merged.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]))
    return merged


def input_names(preprocessing: Preprocessing) -> dict[str, str]:
    """Raw column -> its input's name: the same, but for a column that is named as an output."""
    return {name: f"{name} (column)" if name in (SCORE, PROBABILITY) else name for name in preprocessing.columns}


def _metadata(model: TrainedModel) -> dict[str, str]:
    """What the file says of itself."""
    result, labels = model.record.result, model.sample_format
    return {
        "run": model.record.name,
        "strategy": str(result["strategy"]),
        "model": model.chosen,
        "round": str(model.server_round),
        "threshold": str(model.threshold),
        "negative_labels": json.dumps(labels.negative_labels),
        "positive_labels": json.dumps(labels.positive_labels),
        **(
            {}
            if model.preprocessing is None
            else {"categories": json.dumps(_categories(model.preprocessing, base_codes(model.config.data.dataset)))}
        ),
        **({} if labels.pixel_max is None else {"pixel_max": f"{labels.pixel_max:g}"}),
        "versions": json.dumps(result["versions"]),
    }


def _categories(preprocessing: Preprocessing, base: dict[str, str]) -> dict[str, list[str]]:
    """Raw column of text -> the values that the model knows, if the column does not list all others."""
    found = {name: preprocessing.made_of(name) for name in preprocessing.columns}
    return {
        name: [*([base[name]] if name in base else []), *(feature.value for feature in features)]
        for name, features in found.items()
        if {feature.kind for feature in features} == {"category"}
    }


def _inputs(file: onnx.ModelProto) -> dict[str, str]:
    """Input -> type and shape, in words."""
    import onnx

    found = {}
    for value in file.graph.input:
        tensor = value.type.tensor_type
        shape = ", ".join(one.dim_param or str(one.dim_value) for one in tensor.shape.dim)
        found[value.name] = f"{onnx.TensorProto.DataType.Name(tensor.elem_type).lower()} ({shape})"
    return found
