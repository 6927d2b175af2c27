"""Settings that a strategy does not read change nothing in its runs, and a run that sets one reports it."""

from pathlib import Path

import pytest

from apps.config import Scalar, known_keys, parse_run_config
from apps.registry import ALGORITHMS
from payloads.settings import kebab
from tests.battery.federation import federate

OTHERS: dict[str, Scalar] = {
    "aggregation": "median",
    "batch-size": 5,
    "client-weights": "equal",
    "learning-rate": 0.7,
    "local-steps": 3,
    "lr-decay": 0.5,
    "lr-decay-at": "0.5",
    "lr-cosine": True,
    "lr-decay-every": 1,
    "lr-warmup": 9,
    "score": "sigmoid",
    "norm-bound": 0.5,
    "server-learning-rate": 0.6,
    "trim-fraction": 0.1,
}


@pytest.mark.parametrize("strategy", ALGORITHMS)
def test_what_is_not_read_changes_nothing_and_what_is_does(strategy: str, tmp_path: Path) -> None:
    unread = {kebab(name) for name in ALGORITHMS[strategy].traits.unread}
    others = {key: value for key, value in OTHERS.items() if key in unread}
    assert others.keys() == unread
    read = {"batch-size": 5} | ({"server-learning-rate": 0.6} if "server-learning-rate" not in unread else {})
    runs = []
    for number, keys in enumerate(({}, others, {key: read[key] for key in read if key not in unread})):
        run, _ = federate(tmp_path / str(number), {"strategy": strategy, "num-server-rounds": 2, **keys})
        runs.append((run.path / "model.safetensors").read_bytes())
    assert runs[0] == runs[1]
    assert (runs[0] == runs[2]) is ("batch-size" in unread)
    flat = {"strategy": strategy, **others, "fedx.gamma": 0.5, "vfb2.window": 9}
    told = dict(text.split("=", 1) for text in parse_run_config(flat).without_effect)
    foreign = {"fedx.gamma", "vfb2.window"} - {f"{ALGORITHMS[strategy].table}.{key}" for key in ("gamma", "window")}
    assert told.keys() == unread | foreign
    steps = ALGORITHMS[strategy].strategy.steps().split(" or ")
    assert {*steps} <= {*known_keys()} - unread
