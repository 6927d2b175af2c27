"""Segments with a process for each party."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.parties import PartiesError, run_parties
from clients.vertical.transport.endpoint import Limits
from clients.vertical.transport.frames import PartyError
from tests.clients.party_problems import make_case

pytestmark = pytest.mark.slow

LIMITS = Limits(join=20.0, beat=0.5, silence=4.0, close=2.0)


@pytest.mark.gate
def test_processes_over_unix_sockets_and_tcp_are_centralised() -> None:
    case = make_case(4, (2, 0), algorithm="saga", synchronous=True, epochs=3)
    plan = case.plan
    plans = [replace(plan, serial=1, epochs=1), replace(plan, serial=2, epochs=2, first_epoch=1, start=False)]
    for transport in ("unix", "tcp"):
        segments = run_parties(case.holdings, plans, transport=transport, limits=LIMITS)
        np.testing.assert_allclose(case.whole(segments[-1]), case.centralised(), rtol=0, atol=1e-9)
        for outcomes in segments:
            assert outcomes[2].metrics.keys() == {"objective", "loss", "accuracy", "auc"}
            assert all(outcome.counters["cpu_training"] > 0 for outcome in outcomes)
    assert not multiprocessing.active_children()


@pytest.mark.alone
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP])
def test_a_party_that_dies_or_hangs_is_named(stop: signal.Signals) -> None:
    case = make_case(4, (1,), rows=200, batch_size=1, epochs=20000)
    known = set(multiprocessing.active_children())

    def strike() -> None:
        # the processes start in the parties' order
        while len(children := [c for c in multiprocessing.active_children() if c not in known]) < 4:
            time.sleep(0.05)
        time.sleep(3.0)
        children.sort(key=lambda child: int(child.name.rpartition("-")[2]))
        os.kill(children[3].pid or 0, stop)

    thread = threading.Thread(target=strike)
    thread.start()
    with pytest.raises(PartiesError) as caught:
        run_parties(case.holdings, case.plan, limits=LIMITS, timeout=25.0)
    thread.join()
    errors = caught.value.errors
    assert isinstance(errors.pop(3), RuntimeError | TimeoutError)
    assert [isinstance(errors[party], PartyError) and errors[party].party for party in range(3)] == [3, 3, 3]
    assert not set(multiprocessing.active_children()) - known
