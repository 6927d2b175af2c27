"""Every override of one of Flower's methods accepts the arguments of the installed Flower, and possible new ones."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from flwr.client import NumPyClient
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from apps.registry import ALGORITHMS
from simulations.engines.in_process import InProcessGrid

STRATEGIES = [algorithm.strategy for algorithm in ALGORITHMS.values()]
CLIENTS = [algorithm.client for algorithm in ALGORITHMS.values()]
EMPTY = inspect.Parameter.empty


def overrides(base: type, classes: Iterable[type]) -> Iterator[Any]:
    """Yield each override of a method of Flower's class, and the overridden method."""
    ours = dict.fromkeys(one for kind in classes for one in kind.__mro__ if base in one.__mro__[1:])
    for one in ours:
        for name in [name for name in vars(base) if not name.startswith("_") and name in vars(one)]:
            theirs, mine = (inspect.getattr_static(kind, name) for kind in (base, one))
            if inspect.isfunction(theirs):
                yield pytest.param(mine, theirs, id=f"{one.__name__}.{name}")


OVERRIDES = [
    *overrides(Strategy, STRATEGIES),
    *overrides(Grid, [InProcessGrid]),
    *overrides(NumPyClient, CLIENTS),
]
# the methods that Flower's round loop calls
CALLED = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "send_and_receive")


@pytest.mark.parametrize(("mine", "theirs"), OVERRIDES)
def test_an_override_takes_what_flower_hands_over(mine: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    wanted, taken = inspect.signature(theirs).parameters, dict(inspect.signature(mine).parameters)
    open_ended = any(one.kind == one.VAR_KEYWORD for one in taken.values())
    for name, parameter in wanted.items():
        if name not in taken:
            assert open_ended, f"Flower hands {name} over"
            assert parameter.kind == parameter.KEYWORD_ONLY, f"Flower may hand {name} over by its place"
            continue
        own = taken.pop(name)
        assert own.kind == parameter.kind
        assert parameter.default is EMPTY or own.default is not EMPTY
    assert all(one.default is not EMPTY or one.kind == one.VAR_KEYWORD for one in taken.values())


@pytest.mark.parametrize("mine", [one.values[0] for one in OVERRIDES if one.id.endswith(CALLED)])
def test_an_override_takes_what_a_later_flower_may_add(mine: Callable[..., Any]) -> None:
    known = [p for p in inspect.signature(mine).parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD]
    inspect.signature(mine).bind(*known, should_stop=None)


@pytest.mark.parametrize("kind", dict.fromkeys(STRATEGIES), ids=lambda kind: kind.__name__)
def test_flower_s_round_loop_is_flower_s(kind: type[Strategy]) -> None:
    """Arguments of ``start``, such as a reason to stop, reach Flower's own method."""
    assert kind.start is Strategy.start
