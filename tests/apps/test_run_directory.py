"""A run's files, its directory, and the runs that can be continued."""

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from apps.config import ConfigError, RunConfig, Scalar, parse_run_config
from apps.run_directory.artifacts import RunDirectory
from apps.sites.resources import federated_data
from problems.metrics import binary_metrics
from problems.models import build_model
from tests.battery.federation import SMALL, Run, federate, flat_config
from tests.refusals import refuses

METRICS = {"auc", "pauc_fpr30", "pauc_fpr30_raw", "pauc_fpr50", "pauc_fpr50_raw", "average_precision"}
METRICS |= {"accuracy", "loss"}
WHOLE: dict[str, Scalar] = {"model": "mlp", "num-server-rounds": 5, "checkpoint-every": 1, "learning-rate": 0.1}
WHOLE |= {"pictures": True}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with all options on. Copy it before you change it."""
    return federate(tmp_path_factory.mktemp("whole") / "run", WHOLE, clients=3)[0]


def config_of(run: Path, **more: Scalar) -> RunConfig:
    return parse_run_config(flat_config(run, WHOLE | {key.replace("_", "-"): v for key, v in more.items()}))


# A run's files.


def test_rounds_without_evaluation_have_no_metrics(tmp_path: Path) -> None:
    run, _ = federate(tmp_path / "run", {"evaluate-every": 3, "num-server-rounds": 5})
    assert [line["round"] for line in run.lines if "auc" in line] == [0, 3, 5]
    assert not any(METRICS & set(line) for line in run.lines if "auc" not in line)


def test_config_lines_and_result(whole: Run) -> None:
    """The whole config, a line for each round, and a summary."""
    result, lines = whole.result, whole.lines
    written = tomllib.loads((whole.path / "config.toml").read_text("utf-8"))
    assert written == config_of(whole.path).resolve() == result["config"]
    assert [line["round"] for line in lines] == list(range(6))
    assert all(0 <= line["server_seconds"] <= line["seconds"] for line in lines)
    assert result["metrics"] == {name: lines[-1][name] for name in METRICS}
    assert result["best"] == {name: (min if name == "loss" else max)(line[name] for line in lines) for name in METRICS}
    assert result["bytes_up"] == sum(line["bytes_up"] for line in lines)
    assert result["bytes_down"] == sum(line["bytes_down"] for line in lines)
    assert (result["strategy"], result["dataset"], result["seed"]) == ("fedx2", "digits", 0)
    assert (result["engine"], result["rounds"], result["clients"]) == ("in-process", 5, 3)


def test_the_model_loads_into_the_plain_module_and_scores_as_reported(whole: Run) -> None:
    test = federated_data(config_of(whole.path).data, 3).test
    module = build_model("mlp", test.shape, seed=99)
    module.load_state_dict(load_file(whole.path / "model.safetensors"), strict=True)
    with torch.no_grad():
        scores = module.eval()(torch.tensor(test.features)).numpy()
    metrics = binary_metrics(test.labels, scores)
    assert metrics["auc"] == pytest.approx(whole.result["metrics"]["auc"], abs=1e-3)
    assert metrics["auc"] != pytest.approx(whole.lines[0]["auc"], abs=1e-3)


def test_the_last_checkpoints_are_kept(whole: Run) -> None:
    kept = sorted(path.name for path in (whole.path / "checkpoints").iterdir())
    assert kept == [f"round-{r:06d}.safetensors" for r in (3, 4, 5)]
    newest = RunDirectory(whole.path).newest_checkpoint()
    assert newest.server_round == 5
    assert newest.best == whole.result["best"]


def test_the_events_hold_the_metrics(whole: Run) -> None:
    events = EventAccumulator(str(whole.path / "events")).Reload()
    scalars = [(event.step, pytest.approx(event.value, rel=1e-6)) for event in events.Scalars("auc")]
    assert scalars == [(line["round"], line["auc"]) for line in whole.lines]


def test_without_pictures_nothing_is_drawn_nor_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apps.run_directory.drawings", None)
    run, _ = federate(tmp_path / "run", {"pictures": False})
    assert (run.path / "result.json").exists()
    assert not (run.path / "curves.png").exists()
    with pytest.raises(ImportError, match=r"apps\.run_directory\.drawings"):
        federate(tmp_path / "drawn", {"pictures": True})


# A run's directory.


def opened(base: Path, **more: Scalar) -> Path:
    """Open a directory as a run does, and write the file that marks it as taken."""
    keys = {key.replace("_", "-"): value for key, value in more.items()}
    directory = RunDirectory.open(parse_run_config({"output-dir": str(base), **keys}))
    (directory.path / "metrics.jsonl").touch()
    return directory.path.relative_to(base)


def test_runs_of_one_config_are_numbered(tmp_path: Path) -> None:
    name = "fedx2-digits-seed0"
    (tmp_path / f"{name}-old").mkdir()
    (tmp_path / f"{name}-old" / "metrics.jsonl").touch()
    names = [str(opened(tmp_path)) for _ in range(12)]
    assert names == [name, *(f"{name}-{number}" for number in range(2, 13))]
    with refuses(ConfigError, r"fedx2-digits-seed0-12/checkpoints: got no checkpoint, allowed: at least one"):
        opened(tmp_path, resume=True)
    assert str(opened(tmp_path, seed=1)) == "fedx2-digits-seed1"
    assert str(opened(tmp_path, dataset="hf:/srv/my data")) == "fedx2-hf-srv-my-data-seed0"


def test_a_name_of_ones_own_is_never_numbered(tmp_path: Path) -> None:
    assert str(opened(tmp_path, run_name="mine")) == "mine"
    with refuses(ConfigError, r"mine, which already contains a run, .*; choose another run-name"):
        opened(tmp_path, run_name="mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refuses(ConfigError, r"output-dir: got .*file/x, which cannot be created"):
        opened(tmp_path / "file", run_name="x")


# Runs that can be continued.


@pytest.fixture
def copy(whole: Run, tmp_path: Path) -> Path:
    shutil.copytree(whole.path, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(("key", "value"), [("seed", 1), ("learning-rate", 0.2), ("fedx.gamma", 0.5)])
def test_resume_with_a_changed_key_names_it(copy: Path, key: str, value: Scalar) -> None:
    before = tomllib.loads((copy / "config.toml").read_text("utf-8"))
    table, _, name = key.rpartition(".")
    with pytest.raises(ConfigError) as refused:
        RunDirectory.open(config_of(copy, resume=True, **{key: value}))
    was = (before[table] if table else before)[name]
    assert (refused.value.key, refused.value.got) == (f"resume: {key}", repr(value))
    assert re.fullmatch(f"{was!r}, as at the start of the run in .*", refused.value.allowed)
    assert refused.value.hint == f"set {key} to {was!r}, or begin a new run"
    assert tomllib.loads((copy / "config.toml").read_text("utf-8")) == before


@pytest.mark.parametrize(("key", "value"), [("num-server-rounds", 9), ("round-timeout", 5.0), ("pictures", False)])
def test_resume_lets_these_change(copy: Path, key: str, value: Scalar) -> None:
    assert RunDirectory.open(config_of(copy, resume=True, **{key: value})).path == copy


@pytest.mark.parametrize(
    "more",
    [
        {"lr-decay-at": "0.5", "lr-decay": 0.1},
        {"strategy": "local-sgd", "privacy.epsilon": 1.0},
        {"fedx.pool": "histogram", "fedx.pool-epsilon": 1.0, "score": "sigmoid"},
    ],
)
def test_what_depends_on_the_number_of_rounds_keeps_it(more: dict[str, Scalar], tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"checkpoint-every": 1, "num-server-rounds": 1, **more}
    federate(tmp_path / "run", keys)
    with refuses(RuntimeError, "resume: num-server-rounds: got 9, allowed: 1, as at the start"):
        federate(tmp_path / "run", {**keys, "resume": True, "num-server-rounds": 9})


def test_fewer_rounds_than_were_made_are_refused_and_more_are_made(copy: Path) -> None:
    with refuses(RuntimeError, r"num-server-rounds: got 4, allowed: 5 or more, since the run in "):
        federate(copy, {**WHOLE, "resume": True, "num-server-rounds": 4}, clients=3)
    federate(copy, {**WHOLE, "resume": True, "num-server-rounds": 6}, clients=3)
    assert [line["round"] for line in Run(copy).lines] == list(range(7))


def test_failure_json_says_why_and_a_new_start_removes_it(tmp_path: Path) -> None:
    directory = RunDirectory.open(parse_run_config({**SMALL, "output-dir": str(tmp_path), "run-name": "r"}))
    directory.fail("because")
    assert json.loads((directory.path / "failure.json").read_text("utf-8")) == {"reason": "because"}
    RunDirectory.open(parse_run_config({**SMALL, "output-dir": str(tmp_path), "run-name": "r"}))
    assert not (directory.path / "failure.json").exists()
