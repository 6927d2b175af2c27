"""The preprocessing of a table as a graph of ONNX operators, one input a raw column.

The numbers of all features are computed side by side, in float64 as `problems.data.preprocessing` does, and become
float32 at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from problems.data.cells import is_number
from problems.data.preprocessing import MOST_DEVIATIONS, Feature, Preprocessing

FEATURES, FAULTY = "preprocessing/features", "preprocessing/faulty"
ML_OPSET = 3
# Mean over deviation from which on float32 rounds the numbers of a column by more than 1e-5 deviations.
_FAR = 1e-5 * 2**24
_ONNX_TYPES = {"string": TensorProto.STRING, "float": TensorProto.FLOAT, "double": TensorProto.DOUBLE}


def input_types(preprocessing: Preprocessing) -> dict[str, str]:
    """Return the type of each raw column's input: "string" for text, "float" or "double" for numbers.

    A date is its days since 1970-01-01 and a boolean 0 or 1. Dates, numbers whose mean is far from 0 compared with
    their deviation, and numbers that bins tell apart, however near they are to a border, are "double".
    """
    return {name: input_type(preprocessing.made_of(name)[0]) for name in preprocessing.columns}


def input_type(feature: Feature) -> str:
    """Return the type of the input of a feature's column."""
    if feature.kind in ("category", "other"):
        return "string"
    far = feature.transform == "bin"
    if feature.transform == "none":
        far = abs(feature.mean) > _FAR * feature.deviation > 0
    elif feature.transform == "quantile":
        far = bool(np.abs(feature.quantiles).max() > _FAR * np.ptp(feature.quantiles) > 0)
    return "double" if far or feature.kind == "date" else "float"


class _Graph:
    """Nodes and constants under construction; a method returns the name of what it adds."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str | NDArray[Any], domain: str = "", **attributes: Any) -> str:
        """Add a node; arrays among its inputs become constants."""
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        output = f"preprocessing/{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], output, domain=domain, **attributes))
        return output

    def constant(self, value: NDArray[Any]) -> str:
        name = f"preprocessing/constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def join(self, columns: Sequence[str]) -> str:
        """Put blocks of columns side by side."""
        return self.add("Concat", *columns, axis=1)

    def pick(self, columns: str, places: Sequence[int]) -> str:
        return self.add("Gather", columns, np.array(places, dtype=np.int64), axis=1)


def preprocessing_graph(
    preprocessing: Preprocessing, names: dict[str, str], opset: int, ir_version: int
) -> onnx.ModelProto:
    """Return a model that makes the features (n, f) of the raw columns, each (n, 1).

    A missing cell is NaN, or "" where a column is text. Where the preprocessing allows none, the output `FAULTY` (n,)
    says which rows have some.

    Args:
        preprocessing: of the run.
        names: raw column -> name of its input.
        opset: the version of the operators.
        ir_version: of the file's form.
    """
    graph, types = _Graph(), input_types(preprocessing)
    raw, missing, order = [], [], list[Feature]()
    for column, kind in types.items():
        features = preprocessing.made_of(column)
        read = _text if kind == "string" else _number
        values, gap = read(graph, names[column], features, preprocessing.markers_of(column))
        raw.append(values)
        missing += [gap] * len(features)
        order += features
    gaps = graph.join(missing)  # (n, c) bool
    fills = np.array([[_as_input(feature, np.array(feature.fill)) for feature in order]])
    filled = graph.add("Where", gaps, fills, graph.join(raw))
    scaled = _scale(graph, filled, order)
    # Features of missing cells come last among the outputs, as columns of their own here.
    marks = [feature for feature in preprocessing.outputs if feature.kind == "missing"]
    if marks:
        first = [next(i for i, one in enumerate(order) if one.column == mark.column) for mark in marks]
        marked = graph.add("Cast", graph.pick(gaps, first), to=TensorProto.DOUBLE)
        scaled = graph.join([scaled, _scale(graph, marked, marks)])
    place = {feature: at for at, feature in enumerate([*order, *marks])}
    picked = graph.pick(scaled, [place[feature] for feature in preprocessing.outputs])
    final = {FEATURES: graph.add("Cast", picked, to=TensorProto.FLOAT)}
    outputs = [helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["n", len(preprocessing.outputs)])]
    if preprocessing.missing == "error":
        counted = graph.add("Cast", gaps, to=TensorProto.FLOAT)
        number = graph.add("ReduceSum", counted, np.array([1]), keepdims=0)
        final[FAULTY] = graph.add("Greater", number, np.array(0, dtype=np.float32))
        outputs.append(helper.make_tensor_value_info(FAULTY, TensorProto.BOOL, ["n"]))
    graph.nodes += [helper.make_node("Identity", [value], [name], name) for name, value in final.items()]
    inputs = [helper.make_tensor_value_info(names[one], _ONNX_TYPES[kind], ["n", 1]) for one, kind in types.items()]
    made = helper.make_graph(graph.nodes, "preprocessing", inputs, outputs, graph.constants)
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    return helper.make_model(made, opset_imports=versions, ir_version=ir_version)


def _number(graph: _Graph, name: str, features: Sequence[Feature], markers: Sequence[str]) -> tuple[str, str]:
    """The numbers of a column (n, 1), or 0 or 1 for each of its bins (n, k), and whether they are missing (n, 1)."""
    gap = graph.add("IsNaN", name)
    single = input_type(features[0]) == "float"
    for marker in [] if features[0].kind == "date" else filter(is_number, markers):
        number = np.array(float(marker), dtype=np.float32 if single else np.float64)
        gap = graph.add("Or", gap, graph.add("Equal", name, number))
    if features[0].transform == "bin":
        lows, highs = np.array([feature.bounds for feature in features]).T[:, None]
        name = graph.add("And", graph.add("Greater", name, lows), graph.add("LessOrEqual", name, highs))
    return graph.add("Cast", name, to=TensorProto.DOUBLE), gap


def _text(graph: _Graph, name: str, features: Sequence[Feature], markers: Sequence[str]) -> tuple[str, str]:
    """0 or 1 for each feature of a column of text (n, k), and whether its cells are missing (n, 1)."""
    none = _count(graph, name, ["", *markers])
    listed = [feature.value for feature in features if feature.kind == "category"]
    blocks = []
    if listed:
        blocks.append(_one_hot(graph, name, listed))
    if len(listed) < len(features):
        known = _count(graph, name, listed) if listed else graph.add("Mul", none, np.zeros(1, dtype=np.float32))
        blocks.append(graph.add("Sub", np.ones(1, dtype=np.float32), known))
    order = sorted(range(len(features)), key=lambda at: features[at].kind != "category")
    joined = graph.pick(graph.join(blocks), np.argsort(order).tolist())
    gap = graph.add("Greater", none, np.zeros(1, dtype=np.float32))
    return graph.add("Cast", joined, to=TensorProto.DOUBLE), gap


def _one_hot(graph: _Graph, name: str, values: Sequence[str]) -> str:
    hot = graph.add("OneHotEncoder", name, domain="ai.onnx.ml", cats_strings=list(values), zeros=1)  # (n, 1, k)
    return graph.add("Squeeze", hot, np.array([1]))


def _count(graph: _Graph, name: str, values: Sequence[str]) -> str:
    """1 where a cell is one of some different values, else 0: (n, 1)."""
    return graph.add("ReduceSum", _one_hot(graph, name, list(dict.fromkeys(values))), np.array([1]), keepdims=1)


def _row(features: Sequence[Feature], attribute: str) -> NDArray[np.float64]:
    return np.array([[getattr(feature, attribute) for feature in features]], dtype=np.float64)


def _scale(graph: _Graph, values: str, features: Sequence[Feature]) -> str:
    """What `Feature.scale` makes of filled numbers (n, c)."""
    shaped = _transform(graph, values, features)
    deviation, mean = _row(features, "deviation"), _row(features, "mean")
    as_it_is = (mean == 0.0) & (deviation == 1.0)
    bound = np.where(as_it_is, np.finfo(np.float64).max, MOST_DEVIATIONS)
    centred = graph.add("Sub", shaped, mean)
    divided = graph.add("Div", centred, np.where(deviation == 0.0, 1.0, deviation))
    clipped = graph.add("Max", graph.add("Min", divided, bound), -bound)
    if (deviation != 0.0).all():
        return clipped
    return graph.add("Where", deviation == 0.0, np.zeros((1, 1)), clipped)


def _transform(graph: _Graph, values: str, features: Sequence[Feature]) -> str:
    """What `problems.data.preprocessing.shape` makes of them."""
    if all(feature.transform in ("none", "bin") for feature in features):
        return values
    blocks, order = [], list[int]()
    for kind in ("none", "bin", "log"):  # bins are 0 or 1 by now
        places = [at for at, feature in enumerate(features) if feature.transform == kind]
        if places:
            order += places
            block = graph.pick(values, places)
            if kind == "log":
                size = graph.add("Log", graph.add("Add", graph.add("Abs", block), np.ones((1, 1))))
                block = graph.add("Mul", graph.add("Sign", block), size)
            blocks.append(block)
    for at, feature in enumerate(features):
        if feature.transform == "quantile":
            order.append(at)
            blocks.append(_level(graph, graph.pick(values, [at]), feature))
    return graph.pick(graph.join(blocks), np.argsort(order).tolist())


def _as_input(feature: Feature, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers on a scale of quantiles, rounded as the input is, or no cell and no fill would equal a quantile."""
    rounded = feature.transform == "quantile" and input_type(feature) == "float"
    return numbers.astype(np.float32).astype(np.float64) if rounded else numbers


def _level(graph: _Graph, value: str, feature: Feature) -> str:
    """The level of numbers (n, 1) among a feature's quantiles: a sum of ramps between them, and of steps at ties."""
    knots = _as_input(feature, np.array(feature.quantiles))
    levels = np.arange(1, len(knots) + 1) / (len(knots) + 1)
    distinct, first, counts = np.unique(knots, return_index=True, return_counts=True)
    enter, leave = levels[first], levels[first + counts - 1]  # levels just below and just above each distinct quantile
    offset = graph.add("Sub", value, distinct[None])  # (n, m)
    steps = graph.add("MatMul", graph.add("Sign", offset), (leave - enter)[:, None] / 2)
    # Sign gives -1/2 to 1/2 of each step: their sum is added to the middle.
    level = graph.add("Add", steps, np.array([[enter[0] + (leave - enter).sum() / 2]]))
    if len(distinct) > 1:
        width = np.diff(distinct)[None]
        inside = graph.add("Min", graph.pick(offset, range(len(distinct) - 1)), width)
        ramps = graph.add("Max", inside, np.zeros((1, 1)))
        level = graph.add("Add", level, graph.add("MatMul", ramps, ((enter[1:] - leave[:-1]) / width[0])[:, None]))
    return level
