"""A run that was cut and continued is the run that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def settings(strategy: str, fraction: float, **more: Any) -> dict[str, Any]:
    common = {"strategy": strategy, "fraction-train": fraction, "checkpoint-every": 3, "num-server-rounds": 6}
    return common | {key.replace("_", "-"): value for key, value in more.items()}


@pytest.mark.parametrize(("strategy", "fraction"), CASES)
def test_resume_in_the_middle(strategy: str, fraction: float, tmp_path: Path) -> None:
    whole, _ = federate(tmp_path / "whole", settings(strategy, fraction), clients=4)
    federate(tmp_path / "in-two-parts", settings(strategy, fraction, num_server_rounds=3), clients=4)
    parts, _ = federate(tmp_path / "in-two-parts", settings(strategy, fraction, resume=True), clients=4)
    assert [line["round"] for line in parts.lines] == [0, 1, 2, 3, 4, 5, 6]
    assert_same_run(parts, whole)


@pytest.mark.parametrize(("strategy", "fraction"), CASES)
def test_resume_after_a_crash_between_checkpoints(strategy: str, fraction: float, tmp_path: Path) -> None:
    def crash(exchange: Exchange) -> Message:
        if exchange.server_round == 6:
            raise KeyboardInterrupt
        return exchange.reply

    whole, _ = federate(tmp_path / "whole", settings(strategy, fraction), clients=4)
    with pytest.raises(KeyboardInterrupt):
        federate(tmp_path / "in-two-parts", settings(strategy, fraction), clients=4, tamper=crash)
    assert (tmp_path / "in-two-parts" / "failure.json").exists()
    assert not (tmp_path / "in-two-parts" / "result.json").exists()
    parts, _ = federate(tmp_path / "in-two-parts", settings(strategy, fraction, resume=True), clients=4)
    assert not (tmp_path / "in-two-parts" / "failure.json").exists()
    assert_same_run(parts, whole)
