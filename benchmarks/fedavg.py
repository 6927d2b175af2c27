"""Speed of local SGD with 50 of 1,000 clients a round: local updates a second, relative to a plain PyTorch loop.

All programs compute the same: 1,000 clients with 50 images of 784 pixels, a network with one hidden layer of 64, and
five steps with batches of 10. Start-up is not measured. The engine runs the real apps, including records: first with
its clients one after another on one thread, then stacked (``--stack auto``) on ``--threads``. The plain loop
(`bare_loop.BareLoop`: one model, one thread) computes a round before each round of the engine. The limits are 0.85
times the loop's speed, and 3.3 times stacked. With two threads the limit is 4.2 times, and rounds of the loop alternate
with whole runs instead: after a long time on one core, the kernel may leave both threads on this core. Flower's own
simulation of the same app and, if it is installed, Apple's pfl can be measured for comparison.

    python benchmarks/fedavg.py [--smoke] [--data-dir DIR] [--no-check] [--threads 2] [--flower] [--pfl]
        [--device cuda --clock wall]
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from bare_loop import BareLoop, Plan, Site, mlp
from harness import CLOCKS, PIXELS, alternate, arguments, check, config, data_file, seconds_a_round, table, tensors
from torch.nn import functional

from apps.config import Scalar
from simulations.arguments import AUTO
from simulations.engines.flower import run_with_flower
from simulations.engines.stacked.messages import Stacker

LIMIT = 0.85
REPEATS = 5
STACKED = {1: 3.3, 2: 4.2}  # by threads
ROWS = 50
FLOWER_ROUNDS = 5


def by_run(flat: dict[str, Scalar], clients: int, bare: Callable[[], None]) -> float:
    """Return the stacked engine's speed relative to the plain loop.

    Whole runs alternate with rounds of the loop; medians.
    """
    ratios = []
    for _ in range(REPEATS):
        loop = []
        for _ in range(10):
            begun = time.perf_counter()
            bare()
            loop.append(time.perf_counter() - begun)
        run = alternate(flat, clients, lambda: None, clock="wall", together=Stacker(AUTO))
        ratios.append(median(loop) / median(run.whole))
    return median(ratios)


def with_flower(flat: dict[str, Scalar], clients: int) -> float:
    """Return the seconds of a round in Flower's simulation, from the run's own metrics."""
    with tempfile.TemporaryDirectory() as folder:
        places: dict[str, Scalar] = {"output-dir": folder, "run-name": "run", "num-server-rounds": FLOWER_ROUNDS}
        run_with_flower(clients, {**flat, **places}, quiet=True)
        return seconds_a_round(Path(folder) / "run")


def with_pfl(sites: Sequence[Site], plan: Plan, rounds: int, clock: str) -> float:
    """Return the seconds of a round in pfl's simulated backend, in one process, without privacy and evaluation."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = mlp(sites[0][0].shape[1])

        def loss(self, features: torch.Tensor, labels: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
            self.eval() if is_eval else self.train()
            return functional.binary_cross_entropy_with_logits(self.scores(features), labels)

        def metrics(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
            return {"loss": Weighted(float(self.loss(features, labels, True).detach()) * len(labels), len(labels))}

    class Stopwatch(TrainingProcessCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.times: list[float] = []

        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            self.times.append(CLOCKS[clock]())
            return False, Metrics()

    set_framework_module(pytorch_ops)
    network = Network()
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    users = get_user_sampler("random", list(range(len(sites))))
    data = FederatedDataset(lambda user: Dataset(raw_data=list(sites[user])), users)
    stopwatch = Stopwatch()
    with contextlib.redirect_stdout(io.StringIO()):
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=rounds,
                train_cohort_size=plan.cohort,
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(training_data=data, val_data=None),
            model=model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=plan.learning_rate, local_batch_size=plan.batch
            ),
            model_eval_params=None,
            callbacks=[stopwatch],
        )
    return float(median(np.diff(stopwatch.times)[1:]))


def pfl_version() -> str | None:
    try:
        return version("pfl")
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = arguments(__doc__ or "", gpu=True)
    parser.add_argument("--flower", action="store_true", help="also measure Flower's simulation (minutes)")
    parser.add_argument("--pfl", action="store_true", help="also measure pfl's simulated backend, if installed")
    parser.add_argument(
        "--threads", type=int, choices=STACKED, default=1, help="threads of stacked clients; 2 uses wall time"
    )
    options = parser.parse_args()
    clock = "wall" if options.threads > 1 else options.clock
    clients, cohort, rounds = (40, 4, 6) if options.smoke else (1000, 50, 60)
    plan = Plan(cohort=cohort, steps=5, batch=10)
    updates = cohort * plan.steps
    with data_file(options.data_dir, clients * ROWS) as path:
        flat = config(
            path,
            strategy="local-sgd",
            model="mlp",
            num_server_rounds=rounds,
            fraction_train=cohort / clients,
            local_steps=plan.steps,
            batch_size=plan.batch,
            device=options.device,
        )
        sites = [(x.to(options.device), y.to(options.device)) for x, y in tensors(flat, clients)]
        loop = BareLoop(sites, plan, mlp(PIXELS).to(options.device))

        def bare() -> None:
            loop.round()
            if options.device == "cuda":
                torch.cuda.synchronize()

        def one_thread() -> None:
            torch.set_num_threads(1)
            bare()

        measured = alternate(flat, clients, bare, clock=clock)
        if options.threads == 1:
            ratio = alternate(flat, clients, bare, clock=clock, together=Stacker(AUTO)).ratio
        else:
            more: dict[str, Scalar] = {"torch-threads": options.threads, "num-server-rounds": rounds // 3}
            ratio = by_run(flat | more, clients, one_thread)
        seconds = {"bare loop": median(measured.rival), "in-process engine": median(measured.whole)}
        seconds["stacked"] = seconds["bare loop"] / ratio
        if options.flower:
            seconds["Flower's simulation (wall)"] = with_flower(flat, clients)
        if options.pfl and pfl_version() is None:
            print("pfl is not installed (pip install pfl): left out")
        elif options.pfl:
            seconds[f"pfl {pfl_version()}"] = with_pfl(sites, plan, rounds, clock)
    print(f"{clients:,} clients, {cohort} a round, {plan.steps} steps of batch {plan.batch}; {clock} time")
    table(
        ["", "updates/s", "ms a round", "speed"],
        [
            [name, f"{updates / s:.0f}", f"{1000 * s:.2f}", f"{seconds['bare loop'] / s:.3f}"]
            for name, s in seconds.items()
        ],
    )
    failures = []
    limits = {"engine": (measured.ratio, LIMIT), "engine, stacked,": (ratio, STACKED[options.threads])}
    for name, (found, limit) in limits.items():
        print(f"{name} / bare loop, median over pairs: {found:.3f} (at least {limit})")
        if found < limit:
            failures.append(f"{name}: {found:.3f} of the bare loop, at least {limit} is wanted")
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
