"""Try every break in copies of the tree: its tests must fail.

    python -m tests.breaks [--jobs 2] [--only NAME...] [--tree DIR]

It does not check whether the tests pass without a break. The exit code is 0 if all breaks were caught.
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
    """Copy the files that Git tracks or would track; link a folder ``shared`` next to the tree."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=source, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)
    shared, link = source.parent / "shared", target.parent / "shared"
    if shared.is_dir() and not link.exists():
        link.symlink_to(shared)


def attempt(one: Break, tree: Path) -> Verdict:
    """Try a break in a copy of the tree, and restore the copy."""
    try:
        broken = one.broken(tree)
    except (ValueError, SyntaxError) as error:
        return Verdict(str(error))
    path = tree / one.file
    source = path.read_text(encoding="utf-8")
    path.write_text(broken, encoding="utf-8")
    try:
        for tests in one.tests.split():
            verdict = run_tests(tree, tests)
            if verdict.result != ESCAPED:
                break
    finally:
        path.write_text(source, encoding="utf-8")
    return verdict


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.breaks", description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree that work side by side")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="names of the breaks to try")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the tree to copy, with its tests")
    return parser.parse_args()


def main() -> int:
    arguments = read_arguments()
    breaks = [one for one in read_breaks() if not arguments.only or one.name in arguments.only]
    if unknown := set(arguments.only) - {one.name for one in breaks}:
        print(f"no break named {', '.join(sorted(unknown))}")
        return 2
    begun, results = time.monotonic(), dict[str, Verdict]()
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        trees: queue.Queue[Path] = queue.Queue()
        for number in range(arguments.jobs):
            copy_tree(arguments.tree.resolve(), Path(folder) / str(number))
            trees.put(Path(folder) / str(number))

        def try_out(one: Break) -> None:
            tree, start = trees.get(), time.monotonic()
            try:
                results[one.name] = attempt(one, tree)
            finally:
                trees.put(tree)
            print(f"{time.monotonic() - start:6.1f} s  {one.name}: {'  '.join(results[one.name])}", flush=True)

        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(try_out, breaks))
    missed = {name: verdict.result for name, verdict in results.items() if verdict.result != CAUGHT}
    print(f"{len(results) - len(missed)} of {len(breaks)} caught in {time.monotonic() - begun:.0f} s")
    for name, result in sorted(missed.items()):
        print(f"{name}: {result}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
