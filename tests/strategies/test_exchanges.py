"""Tests of a method's exchanges, as its strategy sends them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from methods.local_sgd import LOCAL_SGD
from methods.method import Ask, ServerHalf, Train
from methods.scaffold import ControlChange
from payloads.wire import model_arrays, model_record
from strategies.method import strategy_of
from strategies.rounds.errors import SetupError
from strategies.rounds.replies import Reply
from tests.algorithms.helpers import EQUAL, make_sites, roster_of
from tests.refusals import refuses

START = np.zeros(3, np.float32)


def strategy(run_round: Callable[..., Any]) -> Any:
    """A strategy with four sites whose replies contain their index as every value."""
    one: Any = strategy_of(replace(LOCAL_SGD, server=ServerHalf(round=run_round)), "Own")()
    one.roster, one.model = roster_of(make_sites(EQUAL)), [START]
    one.ask = lambda server_round, places, arrays, down, phase: [
        Reply(place, [], ControlChange(change=np.full(3, place, np.float32)), 1) for place in places
    ]
    return one


def test_a_round_sends_the_model_that_the_answers_made() -> None:
    def run_round(x: Any, state: Any, plan: Any) -> Any:
        answers = yield Ask("changes", plan.everyone)
        replies = yield Train(ControlChange(change=x + plan.server_round), answers.mean("change").astype(x.dtype))
        return replies.mean_point() + 1, "kept"

    one = strategy(run_round)
    sent = one.inquire(5, model_record([START]))
    np.testing.assert_array_equal(model_arrays(sent)[0], np.full(3, 1.5))
    np.testing.assert_array_equal(one.down(5).change, np.full(3, 5))
    (made,), _ = one.combine(5, [Reply(place, [np.full(3, place, np.float32)], None, 1) for place in (1, 3)])
    np.testing.assert_array_equal(made, np.full(3, 3))
    assert one.state == "kept"


def test_a_round_that_trains_twice_is_refused() -> None:
    def run_round(x: Any, state: Any, plan: Any) -> Any:
        yield Train()
        yield Train()

    one = strategy(run_round)
    one.inquire(1, model_record([START]))
    with pytest.raises(RuntimeError, match="train once in a round"):
        one.combine(1, [Reply(0, [START], None, 1)])


def test_bad_input_of_a_method_is_an_error_of_the_setup() -> None:
    def run_round(x: Any, state: Any, plan: Any) -> Any:
        yield Ask("changes", plan.sample(count=5))

    with refuses(SetupError, "min-train-nodes: got 5 for round 1, allowed: at most 4"):
        strategy(run_round).inquire(1, model_record([START]))
