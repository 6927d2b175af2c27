"""A long run of a real deployment whose sites are killed again and again. It must lose no round and leak no memory.

    PYTHONPATH=. python benchmarks/soak.py [--rounds 200] [--seed 0] [--smoke] [--no-check]

A SuperLink and three SuperNodes on the loopback interface, with TLS and a key for each site, train fedx2, whose clients
have state. Every 8 to 16 rounds a random site and its ClientApp get SIGKILL at a random moment of the round. The site
is then started again until the SuperLink accepts it. A round waits 60 s for its replies.

The benchmark fails if the run does not complete, if metrics.jsonl does not contain each round once and in order, if a
checkpoint is newer than the last line or more than one round older, or if the last checkpoint is not from the last
round. It also fails if the ServerApp's resident memory ever differs by more than 5 % from its first reading. The memory
is read after each round, starting with round 20 (--smoke: with the middle of the run). --no-check only prints it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from harness import check, table

from apps.config import Scalar
from simulations.engines.flower_internals import UNFINISHED
from tests.battery.federation import Run
from tests.deployment.federation import SERVER_APP, Deployment, deployed, until

SITES = 3
SETTLED = 20
LIMIT = 0.05
# rounds between two kills, and seconds from the beginning of a round to a kill
GAP, MOMENT = (8, 17), (0.0, 6.0)
CONFIG: dict[str, Scalar] = {
    "strategy": "fedx2",
    "dataset": "breast-cancer",
    "checkpoint-every": 1,
    "round-timeout": 60.0,
}


@dataclass
class Soak:
    """A run whose sites are killed.

    Attributes:
        memory: The resident MiB of the ServerApp's process, by the last round before the reading.
        kills, restarts: The numbers of kills and restarts until now.
    """

    deployment: Deployment
    run: Path
    rounds: int
    rng: np.random.Generator
    memory: dict[int, float] = field(default_factory=dict)
    kills: int = 0
    restarts: int = 0
    away: dict[int, threading.Thread] = field(default_factory=dict)

    def last(self) -> None:
        """Submit the run and follow it to its end: check each round, and kill a site at random rounds."""
        run_id = self.deployment.submit(self.run, {**CONFIG, "num-server-rounds": self.rounds})
        try:
            self.attend()
        finally:
            for thread in self.away.values():
                thread.join()
        until(lambda: self.deployment.status(run_id) not in UNFINISHED, "the run ends")
        assert self.deployment.status(run_id) == "finished:completed", self.deployment.logs()

    def attend(self) -> None:
        seen, strike = -1, self.gap()
        while not (self.run / "result.json").exists():
            time.sleep(0.2)
            if (self.run / "failure.json").exists():
                raise SystemExit((self.run / "failure.json").read_text("utf-8"))
            self.away = {site: thread for site, thread in self.away.items() if thread.is_alive()}
            newest = self.look()
            if newest == seen:
                continue
            seen = newest
            if strike <= newest < self.rounds and len(self.away) < SITES - 1:
                time.sleep(self.rng.uniform(*MOMENT))
                self.strike()
                strike = newest + self.gap()

    def gap(self) -> int:
        return int(self.rng.integers(*GAP)) if self.rounds > SETTLED else 3

    def look(self) -> int:
        """Return the newest round in metrics.jsonl, check its checkpoint, and read the memory."""
        before = self.checkpoints()
        newest = self.written()
        after = self.checkpoints()
        assert max(before, default=0) <= max(newest, 0), f"checkpoint {before} beside round {newest}"
        assert max(after, default=0) >= newest - 1, f"checkpoint {after} beside round {newest}"
        if newest >= 0 and newest not in self.memory:
            for process in self.deployment.processes_of("superlink", SERVER_APP):
                self.memory[newest] = resident(process)
        return newest

    def written(self) -> int:
        path = self.run / "metrics.jsonl"
        return path.read_bytes().count(b"\n") - 1 if path.exists() else -1

    def checkpoints(self) -> list[int]:
        found = (self.run / "checkpoints").glob("round-*.safetensors")
        return sorted(int(path.stem.removeprefix("round-")) for path in found)

    def strike(self) -> None:
        """Kill a running site, which is started again while the rounds continue."""
        site = int(self.rng.choice([site for site in range(SITES) if site not in self.away]))
        self.deployment.kill(f"site-{site}")
        self.kills += 1
        print(f"after round {self.written()}: site {site} killed; {self.memory_now():.1f} MiB", file=sys.stderr)
        self.away[site] = threading.Thread(target=self.bring_back, args=(site,))
        self.away[site].start()

    def memory_now(self) -> float:
        return self.memory[max(self.memory)]

    def bring_back(self, site: int) -> None:
        self.deployment.restart_node(site)
        self.restarts += 1

    def check_rounds(self) -> int:
        """Check that all rounds and the last three checkpoints exist.

        Return the number of rounds with a dropped site.
        """
        lines = Run(self.run).lines
        assert [line["round"] for line in lines] == list(range(self.rounds + 1))
        assert self.checkpoints() == list(range(self.rounds + 1))[-3:]
        assert all(line["clients_answered"] + len(line["dropped"]) == SITES for line in lines[1:])
        return sum(bool(line["dropped"]) for line in lines)


def resident(process: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random kills")
    parser.add_argument("--smoke", action="store_true", help="a run of two minutes: 6 rounds, one kill")
    parser.add_argument("--no-check", action="store_true", help="print the memory, and ignore its limit")
    options = parser.parse_args()
    rounds = 6 if options.smoke else options.rounds
    settled = min(SETTLED, rounds // 2)
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        deployed(Path(folder), SITES) as deployment,
    ):
        soak = Soak(deployment, Path(folder) / "out" / "run", rounds, np.random.default_rng(options.seed))
        soak.last()
        dropped = soak.check_rounds()
    after = [soak.memory[at] for at in sorted(soak.memory) if at >= settled]
    first = after[0]
    print(f"{SITES} sites, fedx2, a killed site every {GAP[0]} to {GAP[1] - 1} rounds, seed {options.seed}; MiB")
    table(
        ["", "kills", "restarts", "rounds with a drop", "seconds", f"after {settled}", "max", "last"],
        [
            [
                f"{rounds} rounds",
                *(str(count) for count in (soak.kills, soak.restarts, dropped)),
                f"{time.monotonic() - begun:.0f}",
                *(f"{value:.1f}" for value in (first, max(after), after[-1])),
            ]
        ],
    )
    moved = max(max(after) - first, first - min(after)) / first
    failures = (
        [] if moved <= LIMIT else [f"memory moves by {moved:.1%} after round {settled}, the limit is {LIMIT:.0%}"]
    )
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
