"""The cost of a message at a site with a process that stays, beyond training (limit 50 ms of CPU time).

Flower starts a process for each message, which asks the process that stays (`apps.resident`). This benchmark starts
both as a deployment does, without the runtime of Flower: a new Python process imports Flower's command
``flwr-clientapp`` and then our ClientApp, and asks with a message of a recorded run (`local-sgd`, 1 local step, linear,
a csv file of the site). CPU time of both processes counts, without ``fit``. Wall time depends on other jobs.

    python benchmarks/resident.py [--smoke] [--no-check]
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from harness import arguments, check, config, quiet, table

from apps.client_app import app as client_app
from apps.guards import chain
from apps.server_app import app as server_app
from payloads.wire import ARRAYS, model_arrays
from simulations.engines.in_process import run_in_process

LIMIT = 50.0
ROWS, FEATURES = 200, 8
WARM_UP = 2
# Flower's process for one message. It measures the seconds of CPU and wall time before our imports, before it asks, and
# at the answer.
ASK = """
import importlib.metadata, json, pathlib, pickle, sys, time
(command,) = importlib.metadata.entry_points(group="console_scripts", name="flwr-clientapp")
command.load()
message, context = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
times = [(time.process_time(), time.time())]
from apps.site_app import app
times.append((time.process_time(), time.time()))
from payloads.flower_internals import identity
with identity(1, context.run_id, context.node_id):
    reply = app(message, context)
times.append((time.process_time(), time.time()))
from payloads.wire import ARRAYS, model_arrays
answer = json.dumps([times, [array.tolist() for array in model_arrays(reply.content.array_records[ARRAYS])]])
pathlib.Path(sys.argv[2]).write_text(answer)  # a pipe would stay open, since the resident inherits it
"""


@dataclass(frozen=True)
class Asked:
    """A train message with its context, pickled, and the model of the reply in this process."""

    pair: bytes
    model: list[Any]


def write_site(folder: Path) -> Path:
    """Write a site's csv file and settings, and return the path of the settings."""
    rng = np.random.default_rng(0)
    labels = np.arange(ROWS) % 2
    features = rng.normal(size=(ROWS, FEATURES)) + labels[:, None]
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{column}" for column in range(FEATURES)), "ill"])
        writer.writerows([*map(float, row), int(label)] for row, label in zip(features, labels, strict=True))
    settings = folder / "site.toml"
    settings.write_text(f'[data]\ndata-path = "{folder / "rows.csv"}"\n[process]\nstay = 60\n')
    return settings


def record(folder: Path, settings: Path, rounds: int) -> tuple[list[Asked], list[tuple[float, float]]]:
    """Run a federation of one site in this process.

    Returns:
        The train messages, and the seconds of CPU and wall time of each ``fit``.
    """
    asked: list[Asked] = []
    fits: list[tuple[float, float]] = []
    fit = chain.fit

    def timed(work: Any) -> Any:
        begun = time.process_time(), time.time()
        fitted = fit(work)
        fits.append((time.process_time() - begun[0], time.time() - begun[1]))
        return fitted

    recorder = ClientApp()
    recorder.query()(client_app)
    recorder.evaluate()(client_app)

    @recorder.train()
    def train(message: Message, context: Context) -> Message:
        pair = pickle.dumps((message, context))
        reply = client_app(message, context)
        asked.append(Asked(pair, [array.tolist() for array in model_arrays(reply.content.array_records[ARRAYS])]))
        return reply

    names = ",".join(f"x{column}" for column in range(FEATURES))
    flat = config("", strategy="local-sgd", model="linear", local_steps=1, num_server_rounds=rounds) | {
        "dataset": "csv",
        "partition": "own",
        "label-column": "ill",
        "positive-label": "1",
        "feature-columns": names,
        "output-dir": str(folder),
        "run-name": "run",
    }
    chain.fit = timed
    try:
        with quiet():
            run_in_process(server_app, recorder, 1, flat, node_configs=[{"site-config": str(settings)}])
    finally:
        chain.fit = fit
    return asked, fits


def find_resident() -> tuple[int, Path]:
    """Return the id and the socket of the resident of this process, which it takes for the SuperNode."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):  # the process has ended, or has fewer words
            _, _, module, socket, _, supernode, _ = (entry / "cmdline").read_text().split("\0")
            if module == "apps.resident" and int(supernode) == os.getpid():
                return int(entry.name), Path(socket)
    raise SystemExit("no process stays")


def cpu_of(process: int) -> float:
    """Return the seconds of CPU time that a process has used, from Linux's clock of that process."""
    return time.clock_gettime((~process << 3) | 2)


def ask(folder: Path, asked: Asked) -> list[list[float]]:
    """Let a new process ask the resident, and return its times, see `ASK`. The reply must be the recorded one."""
    (folder / "message").write_bytes(asked.pair)
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, "-c", ASK, str(folder / "message"), str(folder / "answer")]
    subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, check=True)
    times, model = json.loads((folder / "answer").read_text())
    if model != asked.model:
        raise SystemExit("the process that stays trained another model than this process")
    found: list[list[float]] = times
    return found


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"data: synthetic, {ROWS} rows of {FEATURES} features in a csv file of the site")
        messages, fits = record(folder, write_site(folder), 5 if options.smoke else 32)
        for asked in messages[:WARM_UP]:  # the first one starts the resident, which reads the data
            ask(folder, asked)
        (process, socket), found = find_resident(), []
        for asked in messages[WARM_UP:]:
            before = cpu_of(process)
            times = ask(folder, asked)
            found.append((times, cpu_of(process) - before))
        socket.unlink()  # the resident ends
    fit_cpu, fit_wall = (1000 * median(column) for column in zip(*fits[WARM_UP:], strict=True))

    def between(begin: int, end: int, clock: int) -> float:
        return 1000 * median(times[end][clock] - times[begin][clock] for times, _ in found)

    resident = 1000 * median(used for _, used in found) - fit_cpu
    start = 1000 * median(times[0][0] for times, _ in found)
    ours = between(0, 2, 0) + resident
    print(f"ms a message, medians of {len(found)}; load {os.getloadavg()[0]:.1f}")
    print(f"process start and imports of Flower: {start:.0f} of CPU time; fit: {fit_cpu:.2f}")
    rows = [
        ["imports", f"{between(0, 1, 0):.1f}", f"{0:.1f}", f"{between(0, 1, 1):.1f}", ""],
        ["answer", f"{between(1, 2, 0):.1f}", f"{resident:.1f}", f"{between(1, 2, 1) - fit_wall:.1f}", ""],
        ["ours", f"{between(0, 2, 0):.1f}", f"{resident:.1f}", f"{between(0, 2, 1) - fit_wall:.1f}", f"{LIMIT:.0f}"],
    ]
    table(["part", "asking, CPU", "staying, CPU", "wall", "limit of CPU"], rows)
    failures = [f"{ours:.1f} ms of CPU time a message, the limit is {LIMIT:.0f} ms"] if ours > LIMIT else []
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
