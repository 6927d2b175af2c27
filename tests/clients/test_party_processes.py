"""Tests of segments with a process for each party."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.parties import run_parties
from tests.clients.party_problems import make_case
from vertical.transport.endpoint import Limits

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
