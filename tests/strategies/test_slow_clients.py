"""Simulated slow clients: seeded seconds, dropped replies, the duration of a round."""

from pathlib import Path

import numpy as np
import pytest

from apps.config import ConfigError, parse_run_config
from apps.server_app import RunFailedError
from payloads.settings import TrainingSettings
from simulations.results.records import evaluation
from strategies.rounds.slow_clients import reply_seconds
from tests.battery.federation import federate
from tests.refusals import refuses

KEYS = {"strategy": "scaffold", "num-server-rounds": 4}


def third_is_slow_in_round_two(client: int, server_round: int, rng: np.random.Generator) -> float:
    return 100.0 if (client, server_round) == (2, 2) else 1.0 + client


def negative(client: int, server_round: int, rng: np.random.Generator) -> float:
    return -1.0


def test_seconds_are_log_normal_over_clients_and_equal_in_all_rounds() -> None:
    training = TrainingSettings(reply_seconds="20:0.5", seed=3)
    seconds = np.array([[reply_seconds(training, client, r) for client in range(2000)] for r in (1, 2)])
    assert (seconds[0] == seconds[1]).all()
    # the standard error of the mean of 2,000 logarithms is 0.011, of their deviation 0.008
    logs = np.log(seconds[0])
    assert logs.mean() == pytest.approx(np.log(20.0), abs=0.05)
    assert logs.std() == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("stack", [False, True])
def test_late_replies_are_dropped_and_rounds_last_as_long_as_their_slowest_reply(tmp_path: Path, stack: bool) -> None:
    slow = {"reply-seconds": f"{__name__}:third_is_slow_in_round_two", "round-timeout": 50.0}
    run, _ = federate(tmp_path / "slow", {**KEYS, **slow}, clients=4, stack=4 if stack else 1)
    plain, _ = federate(tmp_path / "plain", KEYS, clients=4, stack=4 if stack else 1)
    assert [line.get("simulated_seconds") for line in run.lines] == [None, 4.0, 50.0, 4.0, 4.0]
    assert [line["dropped"] for line in run.lines] == [{}, {}, {"2": "no answer"}, {}, {}]
    assert all("simulated_seconds" not in evaluation(line) for line in run.lines)
    same = [own["loss"] == other["loss"] for own, other in zip(run.lines, plain.lines, strict=True)]
    assert same == [True, True, False, False, False]


@pytest.mark.parametrize("text", ["soon", "-1", "20:x", "0", "nan", "inf:1"])
def test_other_words_are_refused(text: str) -> None:
    with refuses(ConfigError, "reply-seconds: .*allowed: median, median:spread, or package.module:function"):
        parse_run_config({"strategy": "local-sgd", "reply-seconds": text})


def test_a_run_without_simulated_time_is_refused(tmp_path: Path) -> None:
    with refuses(ConfigError, "reply-seconds: .*since the parties of this strategy meet"):
        parse_run_config({"strategy": "vfb2-sgd", "dataset": "breast-cancer", "reply-seconds": "20"})
    with pytest.raises(RunFailedError, match=r"which returns -1.0 for client 0 in round 1; allowed: a function that"):
        federate(tmp_path / "run", {**KEYS, "reply-seconds": f"{__name__}:negative"}, clients=2)
