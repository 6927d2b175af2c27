"""A run that was cut and continued equals the uninterrupted run."""

import os
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from apps.config import Scalar
from apps.evaluation.measurement import Measurement
from apps.registry import ALGORITHMS
from apps.run_directory.artifacts import RunDirectory
from apps.sites import files
from strategies.rounds.errors import StrategyError
from tests.battery.federation import FEW_STEPS, SAMPLING, Exchange, Run, federate

MOVING = ("wall_seconds", "config")


def tensors(run: Run) -> dict[str, bytes]:
    """Return the models that a run has saved."""
    return {file.name: file.read_bytes() for file in run.path.glob("*.safetensors")}


def assert_same_run(cut: Run, whole: Run) -> None:
    assert cut.untimed == whole.untimed
    assert tensors(cut) == tensors(whole)
    left, right = cut.result, whole.result
    assert {k: v for k, v in left.items() if k not in MOVING} == {k: v for k, v in right.items() if k not in MOVING}


STAGES: dict[str, Scalar] = {"coda.stage-growth": 1.5, "coda.proximal": 0.5}
DROPPING: dict[str, Scalar] = {"model": "tests.algorithms.minimax_problems:normed_and_dropped"}
# blocks are opened after the last round only, which is another round in the cut run
OWN: dict[str, dict[str, Scalar]] = {**FEW_STEPS, "shared-sgd": {**FEW_STEPS["shared-sgd"], "vfb2.assemble": False}}
CASES: list[tuple[str, float, dict[str, Scalar]]] = [
    *((name, 1.0, OWN.get(name, {})) for name in ALGORITHMS),
    *((name, 0.5, {}) for name in SAMPLING),
    # a pool of several rounds, with labels or without, and in float64
    ("fedx1", 0.5, {"fedx.tau": 3, "dtype": "float64"}),
    ("fedx2", 0.5, {"fedx.tau": 3, "loss": "auprc"}),
    ("local-pair", 0.5, {"loss": "kl-opauc", "dtype": "float64"}),
    # cut inside a stage, and at its end
    ("coda", 1.0, {**STAGES, "coda.stage-rounds": 2}),
    ("coda", 1.0, {**STAGES, "coda.stage-rounds": 3}),
    ("codasca", 0.5, {**STAGES, "coda.stage-rounds": 2}),
    ("codasca", 0.5, {**STAGES, "coda.stage-rounds": 3}),
    # statistics at two points, and dropout
    ("local-scgdam", 0.5, {**DROPPING, "scgdam.headline": "inner"}),
]


@pytest.mark.parametrize(("strategy", "fraction", "more"), CASES)
def test_a_run_that_was_cut_and_continued_is_the_whole_one(
    strategy: str, fraction: float, more: dict[str, Scalar], tmp_path: Path
) -> None:
    def crash(exchange: Exchange) -> Message:
        if exchange.server_round == 6:
            raise KeyboardInterrupt
        return exchange.reply

    common: dict[str, Scalar] = {"checkpoint-every": 3, "num-server-rounds": 6}
    config = {"strategy": strategy, "fraction-train": fraction, **common, **more}
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


@pytest.mark.parametrize("own", [False, True])
def test_memories_are_on_the_disk_before_a_checkpoint_is(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated client leaves the flush of its file to the server; a site with its own folder does not."""
    steps: list[str] = []
    write, save = files.write_atomic, RunDirectory.save_checkpoint

    def note_write(path: Path, data: bytes, **how: bool) -> None:
        if path.parent.name == "client-0":
            steps.append(f"memory, flushed {how['flushed']}")
        write(path, data, **how)

    def note_save(directory: RunDirectory, checkpoint: Any) -> None:
        steps.append("checkpoint")
        save(directory, checkpoint)

    monkeypatch.setattr(files, "write_atomic", note_write)
    monkeypatch.setattr(RunDirectory, "save_checkpoint", note_save)
    monkeypatch.setattr(os, "sync", lambda: steps.append("sync"))
    nodes = [{"state-dir": str(tmp_path / "site")}] if own else [{}]
    config: dict[str, Scalar] = {"strategy": "scaffold", "checkpoint-every": 1, "num-server-rounds": 2}
    federate(tmp_path / "run", config, nodes=nodes)
    assert steps == [f"memory, flushed {own}", "sync", "checkpoint"] * 2


@pytest.mark.parametrize("strategy", ["local-sgdm", "scaffold", "fedx2"])
def test_a_round_that_fails_after_its_training_leaves_nothing(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Measurement.measure

    def fail(measurement: Measurement, evaluator: Any, server_round: int, arrays: Any) -> dict[str, float]:
        if server_round == 3:
            raise StrategyError("no site answers")
        return measure(measurement, evaluator, server_round, arrays)

    config: dict[str, Scalar] = {"strategy": strategy, "checkpoint-every": 4, "num-server-rounds": 4}
    whole, _ = federate(tmp_path / "whole", config, clients=4)
    with monkeypatch.context() as patch:
        patch.setattr(Measurement, "measure", fail)
        with pytest.raises(RuntimeError, match="no site answers"):
            federate(tmp_path / "failed", config, clients=4)
    continued, _ = federate(tmp_path / "failed", {**config, "resume": True}, clients=4)
    assert_same_run(continued, whole)
