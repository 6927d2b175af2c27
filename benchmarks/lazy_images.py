"""Speed and peak memory of local SGD on images in memory, and on images that are read when a batch needs them.

The script generates 16-bit PNG files or NIfTI volumes. Each run is in a separate process, and runs in memory and from
files alternate. Reading may cost a tenth of the speed. The ratio depends on the seconds of a step and of reading an
image, so the first line shows both. The CPU clock adds the threads' seconds to the steps' seconds; on idle cores the
wall clock shows only the time for which steps wait.

    python benchmarks/lazy_images.py [--smoke] [--no-check] [--clock wall] [--kind nifti] [--gigabytes 20]
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from harness import CLOCKS, alone, arguments, check, config, quiet, table
from PIL import Image

from apps.client_app import app as client_app
from apps.config import Scalar
from apps.server_app import app as server_app
from problems.data import DataSpec
from problems.data.formats.pixels import read_set
from simulations.engines.in_process import run_in_process

SHARE = 0.9
MEMORY = 1000  # MB
CLIENTS, BATCH, TEST = 2, 8, 16


def write_file(folder: Path, kind: str, side: int, number: int) -> int:
    """Write an image of 12 bits, smooth with noise in the lowest six bits, and return the size of the file."""
    rng = np.random.default_rng(number)
    axes = np.ogrid[tuple(slice(0, 1, side * 1j) for _ in range(2 if kind == "png" else 3))]
    smooth = (
        np.sum(np.broadcast_arrays(*(np.sin(axis * rng.uniform(2, 12)) for axis in axes)), 0) / (2 * len(axes)) + 0.5
    )
    values = (4031 * smooth + rng.integers(0, 64, smooth.shape)).astype(np.uint16)
    values.flat[0] = 4095  # all files use 12 bits
    split = "test" if number < TEST else "train"
    path = folder / split / str(number % 2) / f"{number}.{'png' if kind == 'png' else 'nii.gz'}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "png":
        Image.fromarray(values).save(path, compress_level=1)
    else:
        import nibabel

        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)
    return path.stat().st_size


def write_files(folder: Path, kind: str, side: int, gigabytes: float) -> int:
    """Write files of this size together, and return their number."""
    size = write_file(folder, kind, side, 0)
    count = max(int(gigabytes * 1e9 / size), TEST + 2 * CLIENTS * BATCH)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda number: write_file(folder, kind, side, number), range(1, count)))
    return count


def time_reading(folder: Path) -> float:
    """Return the CPU seconds of reading an image."""
    paths = sorted(folder.glob("train/0/*"))[:50]
    begun = time.process_time()
    read_set(paths, DataSpec("image-folder", read_workers=0))
    return (time.process_time() - begun) / len(paths)


def train(clock: str, rounds: int, flat: dict[str, Scalar]) -> tuple[float, float, float]:
    """Return the seconds of a round, the seconds of the first reading and one round, and the peak memory in MB."""

    def run(number: int) -> float:
        begun = CLOCKS[clock]()
        with quiet(), tempfile.TemporaryDirectory() as out:
            more: dict[str, Scalar] = {"output-dir": out, "num-server-rounds": number, "pictures": False}
            run_in_process(server_app, client_app, CLIENTS, {**flat, **more})
        return CLOCKS[clock]() - begun

    first = run(1)
    return run(rounds) / rounds, first, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--kind", choices=["png", "nifti"], default="png", help="the files")
    parser.add_argument("--gigabytes", type=float, default=0.0, help="size of the files; default: as few as possible")
    parser.add_argument("--side", type=int, default=128, help="pixels or voxels of a side")
    parser.add_argument("--model", default="resnet20", help="the network")
    parser.add_argument("--steps", type=int, default=4, help="local steps of a round")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of a run")
    parser.add_argument("--cache", type=int, default=100, help="MB of the cache of the runs from files")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each kind, of which the fastest counts")
    parser.add_argument("--image-size", type=int, default=0, help="pixels of a side after reading; 0: no change")
    parser.add_argument("--files-only", action="store_true", help="only runs from files with threads, for large sets")
    options = parser.parse_args()
    side, rounds, repeats, small = options.side, options.rounds, options.repeats, options.cache
    if options.smoke:
        side, rounds, repeats, small = 64, 2, 1, 1
    threaded = "files, 2 threads"
    kinds = {"memory": (10**6, 2), "files, 0 threads": (small, 0), threaded: (small, 2)}
    if options.files_only:
        kinds = {threaded: kinds[threaded]}
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        count = write_files(Path(folder), options.kind, side, options.gigabytes)
        size = sum(file.stat().st_size for file in Path(folder).glob("*/*/*")) / 1e9
        flat = config(folder, strategy="local-sgd", model=options.model, local_steps=options.steps, batch_size=BATCH)
        flat |= {"image-size": str(options.image_size)} if options.image_size else {}
        for _ in range(repeats):
            for name, (cache, workers) in kinds.items():
                files = {"dataset": "image-folder", "image-cache": cache, "read-workers": workers}
                results[name].append(alone(train, options.clock, rounds, flat | files))
        read = time_reading(Path(folder))
    images = CLIENTS * options.steps * BATCH
    best = {name: min(seconds for seconds, _, _ in runs) for name, runs in results.items()}
    first = next(iter(best.values()))
    step, what = 1000 * first / images, f"{options.kind} files, {size:.2f} GB, side {side}; {options.model}"
    print(f"data: synthetic, {count:,} {what}; {step:.1f} ms for an image's step, {1000 * read:.2f} ms to read it")
    rows = [
        [
            name,
            f"{images / best[name]:.1f}",
            f"{first / best[name]:.3f}",
            f"{min(begun for _, begun, _ in runs):.1f}",
            f"{max(peak for _, _, peak in runs):.0f}",
        ]
        for name, runs in results.items()
    ]
    table(["", f"images a {options.clock} second", "ratio", "seconds to read all and of a round", "peak MB"], rows)
    memory = max(peak for _, _, peak in results[threaded])
    failures = [] if options.files_only or first / best[threaded] >= SHARE else [f"below {SHARE} of memory's speed"]
    failures += [] if memory <= MEMORY else [f"{memory:.0f} MB, at most {MEMORY} MB is wanted"]
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
