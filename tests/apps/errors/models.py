"""Errors of models and of minimax problems of a user's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from problems.models import build_model
from tests.apps.errors.row import Row, called, run

OWN = "tests.apps.errors.own"
MODELS = "`python -m simulations list models`"
FACTORY = "factory(input_shape) -> torch.nn.Module"
PAGE = "docs/configuration.md"
MINIMAX = "docs/minimax.md"


def model(
    name: str, factory: str, *, got: str, allowed: str = FACTORY, help: str = PAGE, key: str = "model", **more: Any
) -> Row:
    config = f'strategy="local-sgd" dataset="breast-cancer" num-server-rounds=1 local-steps=1 model="{factory}"'
    return run(name, config, says=(key, got, allowed, help), clients=2, **more)


def problem(name: str, factory: str, *, got: str, allowed: str, help: str = MINIMAX, key: str = "loss") -> Row:
    config = f'strategy="coda" dataset="breast-cancer" num-server-rounds=1 local-steps=1 loss="{OWN}:{factory}"'
    return run(name, config, says=(key, got, allowed, help), clients=2)


def without_monai(tmp: Path) -> None:
    with patch.dict(sys.modules, {"monai.networks.nets": None}):
        build_model("densenet121", (3, 32, 32), 0)


ROWS = [
    model("model of no module", "no.such:factory", got="cannot import 'no.such'"),
    model("model that a module lacks", f"{OWN}:absent", got="no attribute 'absent'"),
    model(
        "model without a name",
        "tests.apps.errors.own:",
        got="unknown model",
        allowed="expected one of linear",
        help=MODELS,
    ),
    model("model that is no factory", f"{OWN}:NUMBER", got="got int"),
    model("model whose factory fails", f"{OWN}:failing", got="a factory's own fault"),
    model("model that is none", f"{OWN}:nothing", got="returned NoneType"),
    model(
        "model without parameters",
        f"{OWN}:Fixed",
        got="Fixed has no parameters to train",
        allowed="expected one at least",
    ),
    model("model that fails", f"{OWN}:Failing", got="shapes do not fit"),
    model("model with two results", f"{OWN}:Pairs", got="got tuple", allowed="one floating-point tensor"),
    model("model of two classes", f"{OWN}:Classes", got="got (2, 2)", allowed="expected shape (2,)"),
    model("model with integers", f"{OWN}:Whole", got="got torch.int64", allowed="must be floating point"),
    model(
        "model with a count",
        f"{OWN}:Cumulative",
        got="has momentum=None",
        allowed="give it a number",
        help="momentum=0.1",
    ),
    model("images for a table", "resnet20", got="got (30,)", allowed="sides of at least 8", help=MODELS),
    problem("problem that is none", "no_problem", got="returned int", allowed="expected a MinimaxProblem"),
    problem("problem without a size", "WithoutSize", got="primal_dim is 0", allowed="expected an integer >= 1"),
    problem(
        "problem with a vector's value",
        "VectorValued",
        got="got shape (30,)",
        allowed="expected a scalar tensor",
        key="value",
    ),
    problem(
        "problem with one gradient",
        "OneGradient",
        got="got Tensor",
        allowed="expected a pair of tensors",
        key="gradients",
    ),
    problem(
        "problem with long gradients",
        "LongGradient",
        got="got shapes (60,) and (1,)",
        allowed="expected (30,) in x",
        key="gradients",
    ),
    problem(
        "problem that diverges",
        "Unbounded",
        got="the metrics are not finite",
        allowed="diverged",
        help="lower the step sizes",
        key="metrics",
    ),
    run(
        "run that diverges",
        'strategy="local-sgd" dataset="breast-cancer" model="linear"',
        "num-server-rounds=2 local-steps=8 learning-rate=1e38",
        says=("learning-rate", "not finite", "the run has diverged", "lower learning-rate"),
        clients=2,
    ),
    # penalties, of which only the model knows whether they fit
    run(
        "penalty of no matrix",
        'strategy="composite" dataset="breast-cancer" model="linear" composite.penalty="nuclear-norm" '
        'composite.parameters="all"',
        says=("composite", "'output.bias' of shape (1,)", "is not a matrix", "docs/composite.md"),
        clients=2,
    ),
    run(
        "penalty of no parameter",
        'strategy="composite" dataset="breast-cancer" model="linear" composite.parameters="head"',
        says=("parameters", "got 'head'", "allowed are 'auto', 'all' and names", "docs/composite.md"),
        clients=2,
    ),
    called(
        "model of a package that is missing",
        without_monai,
        says=("model 'densenet121'", "needs MONAI", "'medical'", "pip install -e '.[medical]'"),
    ),
]
