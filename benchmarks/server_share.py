"""The share of a run's round time that the server needs outside the exchange of messages, from the run's metrics.jsonl.

python benchmarks/server_share.py results/fedx2-heart-disease-seed0
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

LIMIT = 0.05


def main() -> None:
    lines = [json.loads(line) for line in (Path(sys.argv[1]) / "metrics.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["round"] >= 2]  # the first round also imports and opens files
    server, total = (sum(line[key] for line in rounds) for key in ("server_seconds", "seconds"))
    print(f"server half: {1000 * server / len(rounds):.1f} ms of {1000 * total / len(rounds):.1f} ms a round, ", end="")
    print(f"{100 * server / total:.1f}% (limit {100 * LIMIT:.0f}%)")
    if server > LIMIT * total:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
