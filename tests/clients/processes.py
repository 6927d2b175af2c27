"""Parties of a mesh as real processes: one that starts, and forks the parties while it is small and has one thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from clients.vertical.failures import PartyError
from tests.clients.meshes import Town, all_heard, converse, wait_for_failure

ROOT = Path(__file__).resolve().parents[2]


class Processes:
    """Parties as real processes; each reports in lines of JSON."""

    def __init__(self, place: Town, present: dict[int, Town] | None = None, frames: int = 0) -> None:
        self.place = place
        present = dict.fromkeys(range(place.parties), place) if present is None else present
        self._starter = subprocess.Popen(
            [sys.executable, "-c", "from tests.clients.processes import serve; serve()"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        self._lines = self._starter.stdout
        pickle.dump((present, frames), self._starter.stdin)
        self._starter.stdin.close()
        self.pids = {int(party): pid for party, pid in self._read()["pids"].items()}

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        assert line, "the parties ended without a word"
        return dict(json.loads(line))

    def reports(self, event: str, parties: set[int]) -> dict[int, dict[str, Any]]:
        """Wait until each of the parties has reported `event`; others' words are passed over."""
        found: dict[int, dict[str, Any]] = {}
        while set(found) != parties:
            line = self._read()
            if line["party"] in parties:
                assert line["event"] == event, line
                found[line["party"]] = line
        return found

    def kill(self, party: int, number: int) -> None:
        os.kill(self.pids[party], number)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._starter.wait(10.0)
        self._lines.close()
        # a killed party leaves its socket file; nobody else does
        for address in self.place.addresses:
            if address.kind == "unix":
                Path(address.text).unlink(missing_ok=True)


def serve() -> None:
    """The starter's work: fork the parties, then wait for them."""
    present, frames = pickle.load(sys.stdin.buffer)
    pids: dict[int, int] = {}
    gate, lift = os.pipe()
    for party, place in present.items():
        pids[party] = os.fork()
        if not pids[party]:
            os.close(lift)
            os.read(gate, 1)
            os._exit(_live(party, place, frames))
    _print({"pids": pids})
    os.close(lift)
    for pid in pids.values():
        os.waitpid(pid, 0)


def _live(party: int, place: Town, frames: int) -> int:
    began = time.monotonic()

    def report(event: str, **words: Any) -> None:
        _print({"party": party, "event": event, "seconds": time.monotonic() - began, **words})

    async def life() -> None:
        mesh = place.mesh(party)
        if frames:
            heard = await converse(mesh, frames)
            report("heard", right=heard == all_heard(party, place.parties, frames))
        else:
            await wait_for_failure(mesh, report)

    try:
        asyncio.run(life())
    except PartyError as error:
        report("failed", culprit=error.party, reason=error.reason)
    except BaseException as error:
        report("broke", reason=repr(error))
    return 0


def _print(words: dict[str, Any]) -> None:
    # one write of less than a pipe's atom: the parties share it
    os.write(1, json.dumps(words).encode() + b"\n")
