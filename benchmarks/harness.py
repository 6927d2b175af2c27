"""Common parts of the benchmarks: data, a federation whose rounds alternate with a plain loop's rounds, and tables."""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from apps.server_app import app as server_app
from payloads.broadcast import Broadcast
from payloads.wire import CONFIG, PHASE
from problems.data import DataSpec, load
from problems.data.formats.images import FASHION_FILES, fashion_mnist
from simulations.engines.in_process import Together, run_in_process

T = TypeVar("T")
TEST_ROWS = 256
PIXELS = 784
TRAIN_MESSAGE = "train"
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}


def arguments(description: str, *, gpu: bool = False) -> argparse.ArgumentParser:
    """Return the parser with the options of all benchmarks, and ``--device`` for benchmarks that also measure a GPU."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a short run with few clients and rounds")
    parser.add_argument("--data-dir", default="", help="folder of Fashion-MNIST's IDX files; default: synthetic data")
    parser.add_argument("--no-check", action="store_true", help="print results, and ignore the limits")
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="cpu", help="clock of the measured seconds; cpu ignores other jobs"
    )
    if gpu:
        parser.add_argument(
            "--device", choices=["cpu", "cuda"], default="cpu", help="device; with cuda also set --clock wall"
        )
    return parser


@contextmanager
def data_file(data_dir: str, rows: int, *shape: int) -> Iterator[str]:
    """Yield an npz file with ``rows`` training rows, float32 with labels 0 and 1. The file is deleted at the end.

    Args:
        shape: The shape of a row. None: `PIXELS` numbers.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        x, y = _fashion(Path(data_dir).expanduser(), rows) if data_dir else _synthetic(rows, shape or (PIXELS,))
        np.savez(path, X=x[:rows], y=y[:rows], X_test=x[rows:], y_test=y[rows:])
        yield str(path)


def _fashion(root: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    source = fashion_mnist(root)
    if source is None:
        raise SystemExit(f"--data-dir: no {', '.join(FASHION_FILES)} in or below {root}")
    chosen = np.r_[np.arange(rows), len(source) - TEST_ROWS + np.arange(TEST_ROWS)]
    print(f"data: Fashion-MNIST, its first {rows:,} images; positive: the first five classes")
    pixels = np.asarray(source.encode(chosen)[chosen], np.float32).reshape(len(chosen), -1) / 255
    return pixels, (source.codes[chosen] < 5).astype(int)


def _synthetic(rows: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(rows + TEST_ROWS) % 2
    features = math.prod(shape)
    print(f"data: synthetic, {rows:,} rows of {features} features")
    noise = rng.standard_normal((len(labels), features), dtype=np.float32)
    noise += labels[:, None].astype(np.float32) / np.float32(np.sqrt(features))
    return noise.reshape(-1, *shape), labels


def config(path: str, **options: Scalar) -> dict[str, Scalar]:
    """Return a flat run config for a data file, without evaluations and checkpoints.

    In names ``_`` is ``-``, ``__`` is ``.``.
    """
    common: dict[str, Scalar] = {
        "dataset": "npz",
        "data-dir": path,
        "evaluate-every": 10**6,
        "checkpoint-every": 0,
        "learning-rate": 0.01,
        "device": "cpu",
    }
    return common | {name.replace("_", "-").replace("--", "."): value for name, value in options.items()}


def tensors(flat: Mapping[str, Scalar], clients: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the features (rows, features) and labels (rows,) of each client, split as in a run of this config."""
    spec: DataSpec = parse_run_config(flat).data
    data = load(spec, clients)
    samples = [data.client(partition) for partition in range(clients)]
    return [(torch.tensor(one.features), torch.tensor(one.labels, dtype=torch.float32)) for one in samples]


@dataclass
class Rounds:
    """The seconds of each round: the engine's whole round, its part inside the grid, and the plain loop's round."""

    whole: list[float] = field(default_factory=list)
    grid: list[float] = field(default_factory=list)
    rival: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Return the engine's speed relative to the plain loop: the median over pairs of neighbouring rounds."""
        return statistics.median(b / a for a, b in zip(self.whole, self.rival, strict=True))

    def extra(self, messages: int, part: str = "whole") -> float:
        """Return a message's median seconds in addition to the plain loop's arithmetic, over pairs of rounds."""
        pairs = zip(getattr(self, part), self.rival, strict=True)
        return float(statistics.median(a - b for a, b in pairs)) / messages


def alternate(
    flat: Mapping[str, Scalar],
    clients: int,
    rival: Callable[[], object],
    *,
    clock: str = "cpu",
    warm_up: int = 2,
    together: Together | None = None,
) -> Rounds:
    """Run a federation in this process, and a round of the plain loop before each of its rounds.

    A round of the engine is everything from one train exchange to the next: messages, clients, aggregation, records,
    and exchanges of other phases. One thread computes all of it, so its CPU time is its wall time on an idle machine.
    The first exchange with all sites, the first ``warm_up`` rounds and the last round (with its evaluation) are not
    measured.
    """
    torch.set_num_threads(1)
    rounds, now = Rounds(), CLOCKS[clock]
    resumed: list[float] = []
    timed = ServerApp()

    @timed.main()
    def main(grid: Grid, context: Context) -> None:
        send = grid.send_and_receive

        def alternating(messages: Any, *, timeout: float | None = None) -> Iterable[Message]:
            if not isinstance(messages, Broadcast):
                return list(send(messages, timeout=timeout))
            if messages.kind != TRAIN_MESSAGE or PHASE in messages.content.config_records[CONFIG]:
                return send(messages, timeout=timeout)
            stopped = now()
            if resumed:
                rounds.whole.append(stopped - resumed[-1])
            before = now()
            rival()
            resumed.append(now())
            rounds.rival.append(resumed[-1] - before)
            replies = send(messages, timeout=timeout)
            rounds.grid.append(now() - resumed[-1])
            return replies

        grid.send_and_receive = alternating  # type: ignore[method-assign]
        server_app(grid, context)

    with quiet(), tempfile.TemporaryDirectory() as folder:
        run_in_process(timed, client_app, clients, {**flat, "output-dir": folder, "run-name": "run"}, together=together)
    kept = slice(warm_up, len(rounds.whole))
    return Rounds(rounds.whole[kept], rounds.grid[kept], rounds.rival[kept])


def alone(job: Callable[..., T], *arguments: object) -> T:
    """Return the result of a function that runs in a new Python process, since a process's peak memory never falls."""
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(job, arguments)


@contextmanager
def quiet() -> Iterator[None]:
    """Limit Flower's logger to warnings and errors."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def seconds_a_round(run: Path, warm_up: int = 1) -> float:
    """Return the median of ``seconds`` in metrics.jsonl, without round 0, the first rounds and the last round."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return float(statistics.median(line["seconds"] for line in lines[1 + warm_up : -1] or lines[1:]))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header, with aligned columns: the first column to the left, the other columns to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in itertools.chain([header], rows):
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells]))


def check(failures: Sequence[str], *, wanted: bool) -> None:
    """Print the exceeded limits. If ``wanted`` and a limit is exceeded, exit with code 1."""
    for failure in failures:
        print(f"over the limit: {failure}")
    if failures and wanted:
        raise SystemExit(1)
