"""Errors of options and arguments: those that typer finds end with 2, the others with 1."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from tests.apps.errors.row import Row, Says, command, run

USAGE = {"code": 2}
TINY = 'strategy="local-sgd" model="linear" num-server-rounds=1'


def sweep(name: str, *options: str, says: Says, **more: Any) -> Row:
    return command(name, "sweep", "--out", "{out}", "--quiet", *options, says=says, **more)


def copied(tmp: Path, finished: Path, name: str = "done") -> None:
    shutil.copytree(finished, tmp / name)


def broken(tmp: Path, finished: Path, *, file: str, text: str) -> None:
    copied(tmp, finished)
    (tmp / "done" / file).write_text(text)


ROWS = [
    # what typer finds
    command("unknown command", "trian", says=("trian", "No such command 'trian'", "Usage", "--help"), **USAGE),
    command(
        "unknown option",
        "run",
        "--rounds",
        "3",
        "--out",
        "{out}",
        says=("--rounds", "No such option '--rounds'", "Usage", "--help"),
        **USAGE,
    ),
    command("no directory", "run", says=("--out", "Missing option '--out'", "Usage", "--help"), **USAGE),
    command(
        "no value",
        "run",
        "--out",
        says=("--out", "Option '--out' requires an argument", "an argument", "requires"),
        **USAGE,
    ),
    command(
        "option out of range",
        "run",
        "--out",
        "{out}",
        "--clients",
        "0",
        says=("--clients", "0 is not in the range", "x>=1", "--help"),
        **USAGE,
    ),
    command(
        "text for a number of an option",
        "run",
        "--out",
        "{out}",
        "--threads",
        "two",
        says=("--threads", "'two'", "valid integer", "--help"),
        **USAGE,
    ),
    command(
        "share of a GPU",
        "run",
        "--out",
        "{out}",
        "--client-gpus",
        "2",
        says=("--client-gpus", "2.0 is not in the range", "0<=x<=1", "--help"),
        **USAGE,
    ),
    command(
        "unknown engine",
        "run",
        "--out",
        "{out}",
        "--engine",
        "ray",
        says=("--engine", "'ray'", "'inprocess', 'flower'", "--help"),
        **USAGE,
    ),
    command(
        "unknown section", "list", "losses", says=("SECTION", "'losses'", "'strategies', 'datasets'", "--help"), **USAGE
    ),
    command(
        "unknown mode",
        "sweep",
        "--out",
        "{out}",
        "--mode",
        "best",
        says=("--mode", "'best'", "'max', 'min'", "--help"),
        **USAGE,
    ),
    command(
        "unknown profile",
        "reproduce",
        "fedx-fig2",
        "--out",
        "{out}",
        "--profile",
        "fast",
        says=("--profile", "'fast'", "'smoke', 'quick', 'full'", "--help"),
        **USAGE,
    ),
    command("no run to compare", "compare", says=("DIR...", "Missing argument", "Usage", "--help"), **USAGE),
    Row(
        "unknown demonstration",
        ("simulations.leaks", "colours"),
        ("NAME", "got colours", "labels, label-cost", "--help"),
        **USAGE,
    ),
    # run
    run(
        "node configs and clients",
        TINY,
        "seed=1",
        says=("--node-config", "got 1, but --clients 2", "one for each of them", "leave --clients"),
        clients=2,
        nodes=('state-dir="a"',),
    ),
    command(
        "node configs with Flower's engine",
        *("run", "--out", "{out}", "--engine", "flower", "-n", 'state-dir="a"', "--quiet"),
        says=("--node-config", "got 1", "in this process only", "leave --engine out"),
    ),
    run(
        "place by node config",
        TINY,
        says=("--node-config", "got partition-id", "the order and the number", "leave it out"),
        nodes=("partition-id=0",),
    ),
    run(
        "node config that is none",
        TINY,
        says=("--node-config", "'data-path'", "key=value", "docs/configuration.md"),
        nodes=("data-path",),
    ),
    run(
        "directory in a file",
        TINY,
        says=("output-dir", "{tmp}/run", "a folder that can be written to", "choose a folder"),
        files={"run": "no folder"},
    ),
    run(
        "directory with a run",
        TINY,
        says=("--out", "{tmp}/run already holds a run", "resume=true", "choose another run-name (or --out)"),
        before=partial(copied, name="run"),
    ),
    # sweep
    sweep("nothing to try", says=("--grid", "got no trials", "expected two at least", "give --grid")),
    sweep(
        "grid without values",
        "--grid",
        "local-steps=",
        says=("--grid 'local-steps='", "there is no value", "expected one at least", "docs/simulations.md"),
    ),
    sweep(
        "grid without key",
        "--grid",
        "0.1,0.2",
        says=("--grid", "'0.1,0.2'", "want key=value,value", "docs/simulations.md"),
    ),
    sweep(
        "grid of bare words",
        "--grid",
        "loss=psm,auprc",
        says=("--grid", "'loss=psm,auprc'", "strings in double quotes", "docs/simulations.md"),
    ),
    sweep(
        "value twice",
        "--grid",
        "seeds=1,1",
        says=("--grid 'seeds=1,1'", "1 is there twice", "allowed: once", "leave one out"),
    ),
    sweep(
        "key twice",
        "--grid",
        "local-steps=1",
        "--grid",
        "local-steps=2",
        says=(
            "--grid 'local-steps=2'",
            "local-steps is already varied",
            "allowed: once",
            "give all its values in one option",
        ),
    ),
    sweep(
        "no distribution",
        "--random",
        "local-steps=3",
        says=("--random", "'local-steps=3'", "uniform(low,high)", "docs/simulations.md"),
    ),
    sweep(
        "unknown distribution",
        "--random",
        "learning-rate=normal(0,1)",
        says=("--random", "'normal'", "loguniform(low,high)", "docs/simulations.md"),
    ),
    sweep(
        "arguments of a distribution",
        "--random",
        "local-steps=randint(1)",
        says=("--random", "got 1 values", "two finite integers", "docs/simulations.md"),
    ),
    sweep(
        "empty range",
        "--random",
        "learning-rate=uniform(1,0)",
        says=("--random", "from 1 to 0", "low must be less than high", "docs/simulations.md"),
    ),
    sweep(
        "range without logarithm",
        "--random",
        "learning-rate=loguniform(0,1)",
        says=("--random", "from 0 to 1", "low must be positive", "docs/simulations.md"),
    ),
    sweep(
        "sweep that resumes runs",
        "-c",
        "resume=true",
        "--seeds",
        "2",
        says=("resume", "got True", "a sweep sets it itself", "leave it out"),
    ),
    sweep(
        "varied place",
        "--grid",
        'run-name="a","b"',
        says=("run-name", "got by --grid", "the sweep sets it", "leave it out"),
    ),
    sweep("varied seed", "--grid", "seed=1,2", says=("seed", "got by --grid", "a number of seeds", "give --seeds")),
    sweep(
        "fixed and varied",
        "-c",
        "local-steps=1",
        "--grid",
        "local-steps=2,3",
        says=("local-steps", "got 1 by --config", "varied too", "leave one of both out"),
    ),
    sweep(
        "varied in two ways",
        "--grid",
        "local-steps=2,3",
        "--random",
        "local-steps=randint(1,5)",
        says=("local-steps", "got by --grid and by --random", "allowed: by one", "leave one out"),
    ),
    sweep(
        "samples of nothing",
        "--samples",
        "3",
        "--seeds",
        "2",
        says=("--samples", "got 3", "nothing to draw", "give --random too"),
    ),
    sweep(
        "seed that is none",
        "-c",
        'seed="a"',
        "--seeds",
        "2",
        says=("seed", "got 'a'", "an integer >= 0", "`python -m simulations list keys`"),
    ),
    sweep(
        "trial that is wrong",
        "--grid",
        "local-steps=1,0",
        says=("local-steps", "got 0", "an integer >= 1", "(trial local-steps=0)"),
    ),
    sweep(
        "grace without stopping",
        "--grace",
        "2",
        "--seeds",
        "2",
        says=("--grace", "got 2", "nothing to stop", "give --asha too"),
    ),
    sweep(
        "long grace",
        "--grace",
        "5",
        "--asha",
        "--seeds",
        "2",
        "-c",
        "num-server-rounds=2",
        says=("--grace", "got 5", "only 2 rounds", "raise num-server-rounds"),
    ),
    sweep(
        "unknown metric",
        "--metric",
        "aux",
        "--seeds",
        "2",
        says=("--metric", "got 'aux'", "did you mean 'auc'?", "docs/run-directory.md"),
    ),
    sweep(
        "sweep in a full folder",
        "--seeds",
        "2",
        says=("--out", "{tmp}/run", "not empty", "--resume"),
        files={"run/a": ""},
    ),
    sweep(
        "sweep in a file",
        "--seeds",
        "2",
        says=("--out", "{tmp}/run", "choose another", "--resume"),
        files={"run": "no folder"},
    ),
    sweep(
        "sweep below a file",
        "--seeds",
        "2",
        "--out",
        "{tmp}/file/run",
        says=("--out", "{tmp}/file/run", "a folder that can be written to", "choose a folder"),
        files={"file": "no folder"},
    ),
    sweep(
        "no sweep to resume",
        "--seeds",
        "2",
        "--resume",
        says=("--resume", "{tmp}/run", "there is no sweep", "leave --resume out"),
    ),
    sweep(
        "unreadable sweep",
        "--seeds",
        "2",
        "--resume",
        says=("--resume", "{tmp}/run/sweep.toml", "expected TOML", "choose another --out"),
        files={"run/sweep.toml": "seeds = = 2"},
    ),
    sweep(
        "another sweep",
        "--seeds",
        "2",
        "--resume",
        says=("--resume: clients", "is 8", "has 3", "set it so"),
        files={"run/sweep.toml": "clients = 3\n"},
    ),
    # compare
    command(
        "no run there", "compare", "{tmp}", says=("{tmp}", "holds no run", "config.toml", "give a run's directory")
    ),
    command(
        "damaged run",
        "compare",
        "{tmp}/done",
        says=("{tmp}/done", "cannot be read", "cannot be read as a run", "docs/run-directory.md"),
        before=partial(broken, file="config.toml", text="a = = b"),
    ),
    command(
        "result that is none",
        "compare",
        "{tmp}/done",
        says=("{tmp}/done", "result.json is not an object", "cannot be read as a run", "docs/run-directory.md"),
        before=partial(broken, file="result.json", text="[]"),
    ),
    command(
        "rounds that are none",
        "compare",
        "{tmp}/done",
        says=(
            "{tmp}/done",
            "metrics.jsonl has a line without a round",
            "cannot be read as a run",
            "docs/run-directory.md",
        ),
        before=partial(broken, file="metrics.jsonl", text="{}\n"),
    ),
    command(
        "metric of no run",
        "compare",
        "{tmp}/done",
        "--metric",
        "f1",
        says=("--metric", "got 'f1'", "allowed by these runs: auc", "leave it out"),
        before=copied,
    ),
    command(
        "comparison below a file",
        "compare",
        "{tmp}/done",
        "--out",
        "{tmp}/file/a",
        says=("--out", "{tmp}/file/a", "a folder that can be written to", "choose a folder"),
        before=copied,
        files={"file": ""},
    ),
]
