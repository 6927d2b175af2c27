"""A user's own PyTorch module as a party's network, in float64 on the CPU."""

import threading
from inspect import isclass
from types import BuiltinFunctionType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from problems.importing import first_line, import_named
from problems.models.vectors import flatten
from vertical.problem.blocks.base import Features
from vertical.problem.errors import NetworkError

# maximum number of rows whose activations are in memory at once, if no gradient is needed
_ROWS = 4096
# a lock, since several parties in one process share torch's generator
_generator = threading.Lock()
_FACTORY = "a factory(columns, embedding) that returns a torch.nn.Module from (b, columns) to (b, embedding)"


class Module:
    """A module with the interface of `vertical.problem.blocks.network.Network`.

    Args:
        module: A module from (b, d) to (b, k). Its parameters become views of the attribute `weights`.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._members = module, list(module.parameters())
        self.weights = flatten(self._members, torch.float64, "cpu").numpy()

    def embed(self, rows: Features) -> Float64[np.ndarray, "b k"]:
        with torch.no_grad():
            parts = [self._module(part) for part in torch.split(_tensor(rows), _ROWS)]
        return torch.cat(parts).numpy()

    def pull(self, rows: Features, slopes: Float64[np.ndarray, "b k"]) -> Float64[np.ndarray, "p"]:
        embedded = self._module(_tensor(rows))
        parts = torch.autograd.grad(
            embedded, self._members, torch.from_numpy(slopes), allow_unused=True, materialize_grads=True
        )
        return torch.cat([part.reshape(-1) for part in parts]).numpy()


def make_module(name: str, columns: int, width: int, seed: int) -> Module:
    """Import a user's factory, and build and check its module.

    The module must be deterministic and independent of the batch (no dropout, no batch norm), because partials and
    updates must use the same function. Its entire state must be trained parameters, because only these are stored. Its
    function must depend on the seed, because the first sums would otherwise reveal columns to every party.

    Args:
        name: The factory, ``package.module:factory``.
        columns: The number d of the party's columns.
        width: The number k of outputs.
        seed: The seed of torch's generator while the factory runs.

    Raises:
        NetworkError: The factory cannot be imported or fails, or its module does not map (b, d) to (b, k) or violates a
            condition above.
    """
    factory = import_named(name, _unfit)
    if isinstance(factory, BuiltinFunctionType) or (isclass(factory) and not issubclass(factory, nn.Module)):
        raise _unfit(f"'{name}', which does not return a module")

    def build(seed: int) -> Any:
        # Not torch.manual_seed: it would also seed the accelerators' generators, which are not forked here.
        torch.default_generator.manual_seed(seed % 2**64)
        return factory(columns, width)

    with _generator, torch.random.fork_rng(devices=[]):
        try:
            module, twin = build(seed), build(seed + 1)
            double = module.double() if isinstance(module, nn.Module) else None
            rows = torch.randn(32, columns, dtype=torch.float64)
            outputs: list[Any] = (
                [] if double is None else [double.eval()(rows), *(double.train()(rows[:n]) for n in (32, 32, 1))]
            )
        except Exception as error:
            raise _unfit(f"'{name}', which failed on {columns} columns ({first_line(error)})") from error
    if not outputs:
        raise _unfit(f"'{name}', which returned {type(module).__name__}")
    shapes = [tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__ for value in outputs]
    if shapes[0] != (32, width):
        raise _unfit(f"'{name}', whose module returned {shapes[0]} for 32 rows, but the embedding is {width}")
    expected = outputs[0]
    if not all(torch.allclose(value, expected[: len(value)], rtol=1e-9, atol=1e-9) for value in outputs[1:]):
        got = f"'{name}', whose module is random in training, or depends on the batch (dropout, batch norm)"
        raise _unfit(got, hint="use a deterministic module, for example with layer norm")
    trained = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
    untrained = [key for key, value in module.state_dict(keep_vars=True).items() if id(value) not in trained]
    if untrained or not trained:
        got = f"'{name}', whose module has {', '.join(untrained) or 'no parameters'}"
        raise _unfit(got, hint="use a module whose entire state is trained parameters")
    with torch.no_grad():
        known = _find_known(expected, twin.double().eval()(rows), columns)
    if known:
        got = f"'{name}', whose module gives output {known[0]} of the columns without random weights"
        raise _unfit(got, hint="draw the initial weights of every output at random")
    # each segment builds the module again and restores its weights; any other random state would be lost
    twin.train().load_state_dict(module.state_dict())
    if not torch.allclose(twin(rows), expected, rtol=1e-9, atol=1e-9):
        got = f"'{name}', whose module computes another function with the same weights when it is built again"
        raise _unfit(got, hint="use a module whose only random state is its weights")
    return Module(module)


def _find_known(first: Float64[Tensor, "n k"], second: Float64[Tensor, "n k"], columns: int) -> list[int]:
    """Return the outputs that are the same function of the rows for two seeds, up to an offset and a factor.

    Other parties could compute columns from the sums of such outputs.

    Args:
        first: The outputs of the module.
        second: The outputs of the module with the initial weights of another seed.
        columns: The number of columns. Functions of a single column may differ by a factor only.
    """
    known = []
    for output, (u, v) in enumerate(zip((first - first.mean(0)).T, (second - second.mean(0)).T, strict=True)):
        lengths = u.norm() * v.norm()
        same = torch.allclose(u, v, rtol=1e-9, atol=1e-9)
        if same or (columns > 1 and lengths > 0 and abs(u @ v) > (1 - 1e-9) * lengths):
            known.append(output)
    return known


def _tensor(rows: Features) -> Float64[Tensor, "b d"]:
    return torch.from_numpy(rows if isinstance(rows, np.ndarray) else rows.toarray())


def _unfit(got: str, hint: str = "correct the factory, see docs/vertical-models.md") -> NetworkError:
    return NetworkError("vfb2.model", got=got, allowed=_FACTORY, hint=hint)
