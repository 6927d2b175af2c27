"""A run that was cut and continued is the run that was not."""

from pathlib import Path

import pytest
from flwr.app import Message

from apps.registry import ALGORITHMS
from tests.battery.federation import SAMPLING, Exchange, Run, federate

MOVING = ("wall_seconds", "config")


def assert_same_run(cut: Run, whole: Run) -> None:
    assert cut.untimed == whole.untimed
    assert cut.model_bytes == whole.model_bytes
    left, right = cut.result, whole.result
    assert {k: v for k, v in left.items() if k not in MOVING} == {k: v for k, v in right.items() if k not in MOVING}


CASES = [*((name, 1.0) for name in ALGORITHMS), *((name, 0.5) for name in SAMPLING)]


@pytest.mark.parametrize(("strategy", "fraction"), CASES)
def test_a_run_that_was_cut_and_continued_is_the_whole_one(strategy: str, fraction: float, tmp_path: Path) -> None:
    def crash(exchange: Exchange) -> Message:
        if exchange.server_round == 6:
            raise KeyboardInterrupt
        return exchange.reply

    config = {"strategy": strategy, "fraction-train": fraction, "checkpoint-every": 3, "num-server-rounds": 6}
    whole, _ = federate(tmp_path / "whole", config, clients=4)
    federate(tmp_path / "shorter", {**config, "num-server-rounds": 3}, clients=4)
    with pytest.raises(KeyboardInterrupt):  # between checkpoints
        federate(tmp_path / "crashed", config, clients=4, tamper=crash)
    assert (tmp_path / "crashed" / "failure.json").exists()
    assert not (tmp_path / "crashed" / "result.json").exists()
    for name in ("shorter", "crashed"):
        continued, _ = federate(tmp_path / name, {**config, "resume": True}, clients=4)
        assert [line["round"] for line in continued.lines] == [0, 1, 2, 3, 4, 5, 6]
        assert not (tmp_path / name / "failure.json").exists()
        assert_same_run(continued, whole)
