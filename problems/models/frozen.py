"""Frozen parts of a network: parameters that are not trained, and batch norms that stay in eval mode."""

from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from problems.errors import join_first
from problems.models.zoo import ModelError

ALL_BUT_HEAD = "all-but-head"
_HINT = "see docs/networks.md"


def freeze(module: nn.Module, patterns: str, *, norms: bool = False) -> None:
    """Freeze parts of a module in place.

    A batch norm whose parameters are all frozen keeps its running statistics, too: it stays in eval mode.

    Args:
        module: A module in train mode.
        patterns: The run-config key ``frozen``: names of parameters or of modules, or patterns with ``*``, separated by
            commas. ``all-but-head`` freezes all except the last layer. "": no parameter.
        norms: Whether to freeze all batch norms.

    Raises:
        ModelError: A pattern matches no parameter, or no parameter or no batch norm is left to train or to freeze.
    """
    names = [name for name, _ in module.named_parameters()]
    chosen = _choose(names, patterns)
    every_norm = {name: norm for name, norm in module.named_modules() if isinstance(norm, _BatchNorm)}
    if norms and not every_norm:
        raise ModelError("batch-norm", got="'frozen' for a model without batch norm", allowed="'averaged'", hint=_HINT)
    for name, norm in every_norm.items():
        own = {f"{name}.{parameter}" if name else parameter for parameter, _ in norm.named_parameters()}
        if norms or (own and own <= chosen):
            chosen |= own
            norm.eval()
    if names and chosen.issuperset(names):
        raise _refuse(patterns, "patterns that leave a parameter to train")
    for name in chosen:
        module.get_parameter(name).requires_grad_(False)


def _choose(names: list[str], patterns: str) -> set[str]:
    """Return the names of the parameters that patterns select."""
    if patterns == ALL_BUT_HEAD:
        head = names[-1].rpartition(".")[0] if names else ""
        if below := {name for name in names if name.rpartition(".")[0] != head}:
            return below
        raise _refuse(patterns, "'', since the model has a single layer")
    chosen: set[str] = set()
    for pattern in filter(None, map(str.strip, patterns.split(","))):
        matches = {name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}
        if not matches:
            beginnings = join_first(list(dict.fromkeys(name.partition(".")[0] for name in names)), 20)
            raise _refuse(pattern, f"names of parameters, or patterns of names, which begin with {beginnings}")
        chosen |= matches
    return chosen


def _refuse(got: str, allowed: str) -> ModelError:
    return ModelError("frozen", got=repr(got), allowed=allowed, hint=_HINT)
