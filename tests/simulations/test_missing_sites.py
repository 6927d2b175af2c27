"""Tests that runs name the missing sites, the reason and the remedy, and that non-finite numbers never become state."""

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message

import apps.guards.work
import apps.server_app
import apps.training
from apps.config import ConfigError, Scalar, parse_run_config
from apps.run_directory.history import ROUND_LISTENER
from apps.run_directory.missing import Watch, in_words
from apps.server_app import RunFailedError
from payloads.settings import TrainingSettings
from payloads.wire import ARRAYS, model_record
from simulations.experiments.tuned_values import read_tuned
from simulations.results.compare import Comparison
from simulations.results.records import read_run
from simulations.sweeps.plan import Sweep
from simulations.sweeps.standings import Outcome
from simulations.sweeps.sweep import open_sweep
from tests.battery.federation import Exchange, Run, federate, model_of
from tests.programs import Line
from tests.refusals import refuses
from tests.simulations.fabricated import Runs, adding, fake, write

LOCAL = {"strategy": "local-sgd", "dataset": "breast-cancer"}


def losing(*rounds: int) -> Callable[[Exchange], Message]:
    """Replace partition 1's replies of some rounds with errors."""

    def tamper(exchange: Exchange) -> Message:
        lost = exchange.partition == 1 and exchange.server_round in rounds
        return Message(Error(2, "broke"), reply_to=exchange.message) if lost else exchange.reply

    return tamper


def test_a_run_tells_of_the_sites_that_were_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, _ = federate(tmp_path / "run", {**LOCAL, "num-server-rounds": 5}, tamper=losing(1, 2, 3, 5))
    assert run.result["dropped"] == {"1": {"rounds": 4, "reason": "broke"}}
    said = [record.getMessage() for record in caplog.records]
    assert [text.startswith("finished, with sites missing: auc") for text in said][-1]
    assert "s; partition 1 in 4 of 5 rounds (broke); see " in said[-1]
    assert [", without 1  " in text for text in said if "sites 2/3" in text] == [True] * 4
    running = [text for text in said if "in a row" in text]
    assert running == ["round 3: partition 1 was dropped in 3 rounds in a row (broke): see the site's log"]
    assert read_run(run.path).dropped == run.result["dropped"]


@pytest.mark.parametrize(
    ("reason", "way_out"), [("2 of 3 values are not finite", "lower learning-rate"), ("no answer", "round-timeout")]
)
def test_a_site_that_is_dropped_in_the_rounds_that_ask_it_is_named_once(reason: str, way_out: str) -> None:
    watch, dropped = Watch("", "learning-rate"), {"4": reason}
    rounds = [(dropped, [0]), (dropped, [0]), ({}, [4]), (dropped, [0]), ({}, [0]), (dropped, [0]), (dropped, [0])]
    said = [watch.take({"round": r, "dropped": d}, a) for r, (d, a) in enumerate([*rounds, rounds[0]], start=1)]
    assert [len(texts) for texts in said] == [0, 0, 0, 0, 0, 0, 1, 0]
    assert way_out in said[6][0]


@pytest.mark.parametrize(
    ("aucs", "areas", "told"),
    [
        ([0.4, 0.4, 0.4, 0.6, 0.4, 0.4, 0.4], 0.5, (3, "below one half in 3 evaluations in a row")),
        ([0.4, 0.3, None, 0.5, 0.4, 0.4], 0.5, (4, "the same score")),
        ([0.5, 0.5], 0.4, None),
    ],
)
def test_useless_scores_are_told_of_once(aucs: list[float | None], areas: float, told: tuple[int, str] | None) -> None:
    watch, found = Watch("inner", "learning-rate"), []
    assert not watch.take({"round": 0, "dropped": {}, "auc_inner": 0.5, "pauc_fpr30_inner": 0.5}, [])
    for number, auc in enumerate(aucs, start=1):
        scores = {} if auc is None else {"auc_inner": auc, "pauc_fpr30_inner": areas, "pauc_fpr50_inner": areas}
        found += [(number, text) for text in watch.take({"round": number, "dropped": {}, **scores}, [])]
    assert [number for number, _ in found] == ([told[0]] if told else [])
    assert all(told[1] in text for _, text in found)


def test_many_sites_and_long_reasons_fit_on_a_line() -> None:
    text = in_words({str(site): {"rounds": 1, "reason": "x" * 1000} for site in range(100)}, 9)
    assert text.endswith("; and 92 more")
    assert len(text) < 2000


def test_the_exit_code_where_sites_are_missing(command: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = 'dataset="breast-cancer" strategy="local-sgd" num-server-rounds=1 local-steps=1 model="linear"'
    made = apps.guards.work.make_client

    def make(context: Context, *more: Any) -> Any:
        if context.node_config["partition-id"] == 1:
            raise ValueError("broke")
        return made(context, *more)

    monkeypatch.setattr("apps.guards.work.make_client", make)
    for option in ("--quiet", "--json"):
        code, out, err = command("run", "--out", tmp_path / option, "--clients", 2, "-c", config, option)
        assert code == 3
        assert "finished, with sites missing: " in err
        assert "partition 1 in 1 of 1 rounds (broke); see " in err
        assert out == ("" if option == "--quiet" else (tmp_path / option / "result.json").read_text())
    assert err.count("\n") > 1


@pytest.mark.parametrize(
    ("given", "asked", "of_3", "of_30"), [(0.5, 1, 2, 15), (0.1, 1, 1, 3), (1.0, 1, 3, 30), (2, 2, 2, 2), (1, 1, 1, 1)]
)
def test_the_fewest_good_replies_are_a_count_or_a_share(given: float, asked: int, of_3: int, of_30: int) -> None:
    training = TrainingSettings(min_train_nodes=given)
    assert (training.fewest_asked, training.fewest_replies(3), training.fewest_replies(30)) == (asked, of_3, of_30)


@pytest.mark.parametrize("wrong", [0, -1, 0.0, 1.5, True])
def test_what_is_neither_a_count_nor_a_share_is_refused(wrong: Any) -> None:
    with refuses(ConfigError, "min-train-nodes: got .*allowed: .*integer >= 1, or a share in"):
        parse_run_config({"min-train-nodes": wrong})


# Non-finite numbers never become the server's state.


@pytest.mark.parametrize(("strategy", "of"), [("codasca", "model"), ("scaffold", "control")])
def test_good_replies_whose_sum_overflows_end_the_run(strategy: str, of: str, tmp_path: Path) -> None:
    def tamper(exchange: Exchange) -> Message:
        if exchange.server_round == 3:
            large = np.float64(1.7e308)
            if of == "model":
                model = model_of(exchange.reply)
                exchange.reply.content[ARRAYS] = model_record([np.full_like(array, large) for array in model])
            else:
                record = exchange.reply.content["payload"]
                kind = parse_run_config({"strategy": strategy}).algorithm.strategy.up_type
                payload = kind.from_record(record)
                changed = {name: np.full_like(value, large) for name, value in payload.arrays().items()}
                exchange.reply.content["payload"] = type(payload)(**changed).to_record()
        return exchange.reply

    config: dict[str, Scalar] = {"strategy": strategy, "dtype": "float64", "num-server-rounds": 4}
    config |= {"checkpoint-every": 4, "evaluate-every": 4}
    with refuses(RunFailedError, rf"round 3: got \d+ of \d+ values of the server's {of}.*learning-rate"):
        federate(tmp_path / "run", config, tamper=tamper)
    assert len(Run(tmp_path / "run").lines) == 3
    whole, _ = federate(tmp_path / "whole", config)
    continued, _ = federate(tmp_path / "run", {**config, "resume": True})  # with round 2's model and state
    assert continued.model_bytes == whole.model_bytes


# Other failures end the run with a sentence.


@contextlib.contextmanager
def heard_by(listen: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Pass every line of a run to a function."""
    token = ROUND_LISTENER.set(listen)
    try:
        yield
    finally:
        ROUND_LISTENER.reset(token)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("every", [0, 2])
def test_a_run_that_is_stopped_says_where(stop: type[BaseException], every: int, tmp_path: Path) -> None:
    def listen(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise stop

    with heard_by(listen), pytest.raises(stop):
        federate(tmp_path / "run", {**LOCAL, "num-server-rounds": 4, "checkpoint-every": every})
    reason = json.loads((tmp_path / "run" / "failure.json").read_text())["reason"]
    assert reason.startswith("interrupted in round 3 of 4; " if stop is KeyboardInterrupt else "stopped by `flwr stop`")
    assert reason.endswith("from the checkpoint of round 2" if every else "there is no checkpoint")


def test_a_stopped_simulation_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    handlers: list[Callable[[], None]] = []
    monkeypatch.setattr(apps.server_app, "add_exit_handler", handlers.append)
    monkeypatch.setattr(apps.training, "engine_of", lambda grid: apps.training.FLOWER_SIMULATION)
    run, _ = federate(tmp_path / "run", {**LOCAL, "num-server-rounds": 1})
    handlers[0]()
    assert not (run.path / "failure.json").exists()
    with (
        heard_by(lambda line: handlers[1]() if line["round"] == 1 else None),
        pytest.raises(RunFailedError, match="closed"),  # the rounds go on while Flower ends the process
    ):
        federate(tmp_path / "other", {**LOCAL, "num-server-rounds": 3})
    reason = json.loads((tmp_path / "other" / "failure.json").read_text())["reason"]
    assert reason == "stopped by `flwr stop` or a signal in round 1 of 3; there is no checkpoint"


def test_a_full_disk_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(line: dict[str, Any]) -> None:
        monkeypatch.setattr(os, "fsync", full)

    full_at = r"run/(checkpoints|columns\.json|model\.safetensors): got No space left"
    with heard_by(fill), refuses(RunFailedError, full_at):
        federate(tmp_path / "run", {**LOCAL, "num-server-rounds": 1})
    assert not (tmp_path / "run" / "result.json").exists()


# A configuration with missing sites ranks after all configurations without.


def test_a_comparison_names_missing_sites_and_gives_no_verdict(tmp_path: Path) -> None:
    def text(missing: bool) -> str:
        paths = [tmp_path / f"{missing} {rate} {seed}" for rate in (0.1, 0.2) for seed in range(5)]
        for path in paths:
            _, rate, seed = path.name.split()
            config = {"learning-rate": float(rate), "seed": int(seed)}
            fake(path, config, (0.5, 0.6 + float(rate) + 0.01 * int(seed)), missing=missing and path == paths[-1])
        return Comparison.of(paths).text("auc")

    assert text(False).count("above") == 1
    with_missing = text(True)
    assert "above" not in with_missing
    assert "no verdict: sites were missing" in with_missing
    assert "True 0.2 4 finished with sites missing: partition 1 in 1 of 1 rounds (broke)" in with_missing


@pytest.mark.parametrize("bad", [(1.0,), (0.1, 1.0)])
def test_a_sweep_ranks_missing_sites_last_and_says_so(bad: tuple[float, ...], tmp_path: Path) -> None:
    said: list[str] = []
    sweep = Sweep(2, {"num-server-rounds": 1, "model": "linear"}, {"learning-rate": [0.1, 1.0]})
    trials = open_sweep(sweep, tmp_path / "s")
    for trial in trials.waiting:
        rate = trial.config["learning-rate"]
        auc = (0.5, 0.7 if rate == 0.1 else 0.9)
        fake(trials.folder / trial.name, trials.config(trial), auc, clients=2, missing=rate in bad)
        said.append(trials.end(trial))
    outcome = Outcome(trials)
    outcome.write()
    assert outcome.best.varied == {"learning-rate": 1.0 if len(bad) == 2 else 0.1}
    assert [line.endswith("  sites were missing in 1 of 1 rounds") for line in said] == [len(bad) == 2, True]
    all_bad = len(bad) == 2
    reason = "its runs had missing sites: no" if all_bad else "configurations with missing sites are ranked after"
    assert reason in outcome.text()
    assert f"# {reason}" in (tmp_path / "s" / "best.toml").read_text()
    assert "sites missing" in outcome.text().splitlines()[0]


def test_no_value_is_chosen_with_which_sites_were_missing(runs: Runs, command: Line, tmp_path: Path) -> None:
    tune = """
[tune]
grid.learning-rate = [0.1, 1.0]
"""
    runs.aucs = lambda config: (0.5, 0.7 + 0.1 * config["learning-rate"])
    runs.missing = lambda config: config["strategy"] == "local-sgd" or config["learning-rate"] == 1.0
    code, *_ = command("reproduce", write(tmp_path, adding(tune)), "--tune", "--out", tmp_path / "out", "--quiet")
    assert code == 0
    found = read_tuned(tmp_path / "out" / "tuned.toml").chosen
    assert {(one.at["method"], one.values["learning-rate"], one.score.missing) for one in found} == {
        ("FedX", 0.1, None),
        ("Local SGD", 1.0, 1),
    }
    assert "(sites missing in 1 of 1 seed)" in (tmp_path / "out" / "table.md").read_text()
