"""Print the seconds of the gate (`.ci/run`): of each stage, and of the slowest tests.

    python .ci/summary.py REPORTS SECONDS

REPORTS is a folder with ``stages.tsv`` (the second at which each stage began, and its name) and pytest's reports in
JUnit's XML. SECONDS is the duration of the gate.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

SLOWEST = 20


def main(reports: Path, seconds: float) -> None:
    """Print both tables. Incomplete reports of a killed pytest are skipped."""
    stages = [line.split("\t", 1) for line in (reports / "stages.tsv").read_text("utf-8").splitlines()]
    starts = [float(start) for start, _ in stages] + [seconds]
    print("\nseconds  stage")
    for index, (_, name) in enumerate(stages):
        print(f"{starts[index + 1] - starts[index]:7.0f}  {name}")
    print(f"{seconds:7.0f}  in all")
    cases = []
    for report in sorted(reports.glob("*.xml")):
        try:
            root = ET.parse(report)
        except ET.ParseError:
            continue
        for case in root.iter("testcase"):
            cases.append((float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}"))
    if cases:
        print(f"\nseconds  the slowest of {len(cases)} tests")
    for time, name in sorted(cases, reverse=True)[:SLOWEST]:
        print(f"{time:7.1f}  {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
