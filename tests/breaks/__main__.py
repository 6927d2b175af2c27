"""Insert each deliberate mistake into a copy of the tree, and check that its tests fail.

    python -m tests.breaks [--jobs 2] [--only NAME...] [--tree DIR]

The program does not check whether the tests pass without a mistake. The exit code is 0 if all mistakes were caught.
"""

import argparse
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.breaks.listing import ROOT, Break, read_breaks
from tests.breaks.trial import CAUGHT, ESCAPED, Verdict, run_tests


def copy_tree(source: Path, target: Path) -> None:
    """Copy the files that Git tracks or does not ignore. If the tree has a neighbour folder ``shared``, link it."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=source, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)
    shared, link = source.parent / "shared", target.parent / "shared"
    if shared.is_dir() and not link.exists():
        link.symlink_to(shared)


def attempt(entry: Break, tree: Path) -> Verdict:
    """Run a break's tests in a copy of the tree that contains the mistake, and restore the copy."""
    try:
        broken = entry.broken(tree)
    except (ValueError, SyntaxError) as error:
        return Verdict(str(error))
    path = tree / entry.file
    source = path.read_text(encoding="utf-8")
    path.write_text(broken, encoding="utf-8")
    try:
        for tests in entry.tests.split():
            verdict = run_tests(tree, tests)
            if verdict.result != ESCAPED:
                break
    finally:
        path.write_text(source, encoding="utf-8")
    return verdict


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.breaks", description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="number of breaks to try at the same time")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="names of the breaks to try")
    parser.add_argument(
        "--tree", type=Path, default=ROOT, help="folder of the tree to copy, with its tests; default: this tree"
    )
    return parser.parse_args()


def main() -> int:
    arguments = read_arguments()
    breaks = [entry for entry in read_breaks() if not arguments.only or entry.name in arguments.only]
    if unknown := set(arguments.only) - {entry.name for entry in breaks}:
        print(f"no break named {', '.join(sorted(unknown))}")
        return 2
    begun, results = time.monotonic(), dict[str, Verdict]()
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        trees: queue.Queue[Path] = queue.Queue()
        for number in range(arguments.jobs):
            copy_tree(arguments.tree.resolve(), Path(folder) / str(number))
            trees.put(Path(folder) / str(number))

        def try_out(entry: Break) -> None:
            tree, start = trees.get(), time.monotonic()
            try:
                results[entry.name] = attempt(entry, tree)
            finally:
                trees.put(tree)
            print(f"{time.monotonic() - start:6.1f} s  {entry.name}: {'  '.join(results[entry.name])}", flush=True)

        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(try_out, breaks))
    missed = {name: verdict.result for name, verdict in results.items() if verdict.result != CAUGHT}
    print(f"{len(results) - len(missed)} of {len(breaks)} caught in {time.monotonic() - begun:.0f} s")
    for name, result in sorted(missed.items()):
        print(f"{name}: {result}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
