"""Tests of runs with clients in Ray workers: the same results as in one process, and the death of a worker."""

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from apps.config import Scalar
from apps.registry import ALGORITHMS
from payloads.flower_internals import fill
from payloads.wire import content, count_bytes, digest, model_arrays, model_record
from simulations.engines.on_ray import APART, _fields_of, _own_array, _view_array
from tests.battery.federation import OF_ROWS, SAMPLING, Run, federate, save_npz
from tests.problems.test_image_rows import write_images
from tests.programs import Line, ran
from tests.refusals import states

CLIENTS = 5
slow = pytest.mark.slow


def spread(*jobs: tuple[Path, Mapping[str, Scalar], int]) -> list[Run]:
    """Run jobs of `tests.simulations.ray_runs`."""
    ran("-m", "tests.simulations.ray_runs", json.dumps([[str(path), *job] for path, *job in jobs]), seconds=1200)
    return [Run(path) for path, *_ in jobs]


def check_equal(run: Run, expected: Run) -> None:
    assert run.untimed == expected.untimed
    assert run.model_bytes == expected.model_bytes


@slow
def test_two_workers_give_the_bytes_of_one_process(tmp_path: Path) -> None:
    """Each engine can also resume the other engine's run."""
    configs: dict[str, dict[str, Scalar]] = {
        strategy: {
            "strategy": strategy,
            "model": (ALGORITHMS[strategy].traits.models or ("mlp",))[0],
            "checkpoint-every": 2,
            "fraction-train": 0.67 if strategy in SAMPLING else 1.0,
        }
        for strategy in OF_ROWS
    }
    configs["masked"] = {"strategy": "local-sgd", "model": "linear", "privacy.secure-sum": True, "checkpoint-every": 2}
    images = save_npz(tmp_path / "images.npz", np.random.default_rng(0).random((80, 1, 9, 8)), np.arange(80) % 2)
    configs["augmented"] = {**images, "strategy": "local-sgd", "augment": "xray", "checkpoint-every": 2}
    here = {name: federate(tmp_path / "here" / name, config, CLIENTS)[0] for name, config in configs.items()}
    runs = spread(*((tmp_path / "ray" / name, config, 0) for name, config in configs.items()))
    for name, run in zip(configs, runs, strict=True):
        check_equal(run, here[name])
        assert run.result["engine"] == "ray"
    path, table = tmp_path / "ray" / "table", {"strategy": "describe", "dataset": "breast-cancer"}
    federate(tmp_path / "here" / "table", table, CLIENTS)
    spread((path, table, 0))
    assert (path / "describe.json").read_bytes() == (tmp_path / "here" / "table" / "describe.json").read_bytes()
    more = {name: {**configs[name], "num-server-rounds": 5, "resume": True} for name in ("fedx2", "scaffold")}
    runs = spread(*((tmp_path / "here" / name, config, 0) for name, config in more.items()))
    for run, (name, config) in zip(runs, more.items(), strict=True):
        check_equal(run, federate(tmp_path / "ray" / name, config, CLIENTS)[0])


@slow
def test_workers_read_images_from_files(tmp_path: Path) -> None:
    files: dict[str, Scalar] = {"dataset": "image-folder", "data-dir": str(write_images(tmp_path)), "image-size": "96"}
    config: dict[str, Scalar] = {"strategy": "local-sgd", "model": "mlp", **files}
    (run,) = spread((tmp_path / "ray", {**config, "image-cache": 1}, 0))
    check_equal(run, federate(tmp_path / "here", config, CLIENTS)[0])


@slow
def test_a_worker_that_dies_takes_no_client_with_it(tmp_path: Path) -> None:
    """Its messages are sent again, and its clients use the memory on disk, or report that it is lost."""
    common: dict[str, Scalar] = {"model": "mlp", "local-steps": 300, "num-server-rounds": 4}
    saved: dict[str, dict[str, Scalar]] = {
        name: {**common, "strategy": name, "checkpoint-every": 1} for name in ("fedx2", "scaffold", "composite")
    }
    jobs = [(tmp_path / "killed" / name, config, 2) for name, config in saved.items()]
    jobs += [(tmp_path / "lost" / name, {**config, "checkpoint-every": 0}, 2) for name, config in saved.items()]
    killed = spread(*jobs)
    for run, (name, config) in zip(killed[:3], saved.items(), strict=True):
        check_equal(run, federate(tmp_path / "whole" / name, config, CLIENTS)[0])
    for run in killed[3:]:
        assert [line["state_lost"] for line in run.lines[1:]] == [[], [1, 3], [], []]
    for run in killed:
        assert run.result["dropped"] == {}


@slow
@pytest.mark.gate
def test_the_command(tmp_path: Path) -> None:
    """Stacked clients in two workers; an address without a Ray cluster."""
    run = (
        "-m",
        "simulations",
        "run",
        "--clients",
        "5",
        "--quiet",
        "-c",
        'num-server-rounds=3 pictures=false model="mlp"',
    )
    ray = *run, "--engine", "ray", "--stack", "4", "--out"
    ran(*ray, tmp_path / "ray", "--workers", "2")
    ran(*run, "--out", tmp_path / "here")
    ours, theirs = Run(tmp_path / "ray"), Run(tmp_path / "here")
    assert ours.lines[-1]["auc"] == pytest.approx(theirs.lines[-1]["auc"], abs=1e-3)
    assert ours.result["engine"] == "ray"
    ran(*ray, tmp_path / "none", "--address", "127.0.0.1:1", code=1)


@pytest.mark.parametrize("received", [_own_array, _view_array])
def test_a_large_array_travels_beside_the_pickle_around_it(received: Callable[[dict[str, Any]], Array]) -> None:
    values = np.arange(APART / 8)
    sent, apart = model_record([values]), list[pickle.PickleBuffer]()
    (name, array), *_ = sent.items()
    pickled = pickle.dumps(_fields_of(array), protocol=5, buffer_callback=apart.append)
    assert len(pickled) < 200
    got = fill(ArrayRecord, {name: received(pickle.loads(pickled, buffers=[memoryview(bytes(one)) for one in apart]))})
    np.testing.assert_array_equal(model_arrays(got)[0], values)
    assert count_bytes(content(arrays=got)) == APART
    assert digest(content(arrays=got), "train") == digest(content(arrays=sent), "train")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "ray", "-c", 'strategy="vfb2-sgd"'], "--engine: got ray with strategy 'vfb2-sgd'"),
        (["--engine", "ray", "--threads", 2], "--threads: got 2 with --engine ray"),
        (["--workers", 2], "--workers: got 2 with --engine inprocess"),
    ],
)
def test_what_does_not_go_together(command: Line, tmp_path: Path, options: list[Any], said: str) -> None:
    code, _, error = command("run", "--out", tmp_path / "run", *options)
    assert (code, states(error, said)) == (1, True), error
