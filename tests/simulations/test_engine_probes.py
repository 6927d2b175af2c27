"""Tests that both engines answer the probes alike, and of the known differences.

The questions and the ClientApp that answers them are in `tests.simulations.probes`.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from apps.registry import ALGORITHMS
from apps.sites.resources import hold_threads
from payloads.settings import TrainingSettings
from simulations.engines.grid import task_identity
from simulations.engines.in_process import InProcessGrid
from tests.battery.federation import FEW_STEPS, SAMPLING, federate, network_of
from tests.simulations.probes import NODES, REASON, Observation, client_app, observe

PROJECT = Path(__file__).resolve().parent.parent.parent
SECONDS_OF_FLOWER = 300
FLOWER = pytest.param("flower", marks=[pytest.mark.flower, pytest.mark.slow, pytest.mark.gate])
ENGINES = ["in-process", "in-process-4-threads", FLOWER]
UNKNOWN_ERROR, APP_RAISED, NODE_UNAVAILABLE = 0, 2, 5

Ask = Callable[[str], Observation]


def in_process(threads: int) -> dict[str, Observation]:
    with task_identity():
        grid = InProcessGrid(client_app, NODES, {}, threads=threads)
        try:
            return observe(grid)
        finally:
            grid.close()


def with_flower(path: Path) -> dict[str, Observation]:
    """Return the observations from a separate process: Ray leaves threads behind, and Flower an identity."""
    variables = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "tests.simulations.probes", str(path)]
    with (path.parent / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=PROJECT, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            status = process.wait(SECONDS_OF_FLOWER)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    assert status == 0, (path.parent / "log").read_text()[-2000:]
    seen: dict[str, Observation] = pickle.loads(path.read_bytes())
    return seen


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def seen(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Return the observations of one run, by probe."""
    if engine == "flower":
        observations = with_flower(tmp_path_factory.mktemp("flower") / "observations.pickle")
    else:
        observations = in_process(4 if "threads" in engine else 1)

    def one(name: str) -> Observation:
        assert "exception" not in observations[name], observations[name]["exception"]
        return observations[name]

    return one


def test_nodes_have_distinct_ids_and_all_partitions(seen: Ask) -> None:
    nodes = seen("nodes")
    assert len(set(nodes["ids"])) == NODES
    assert all(type(node) is int for node in nodes["ids"])
    assert sorted(nodes["again"]) == sorted(nodes["infos"]) == sorted(nodes["ids"])
    assert [fact["node"] for fact in nodes["facts"]] == [str(node) for node in nodes["ids"]]
    assert sorted(fact["place"] for fact in nodes["facts"]) == list(range(NODES))
    assert {fact["count"] for fact in nodes["facts"]} == {NODES}


def test_messages_and_replies_carry_their_metadata(seen: Ask) -> None:
    metadata = seen("metadata")
    assert metadata["before"] == [""] * NODES
    assert len({*metadata["ids"], *metadata["reply_ids"]} - {""}) == 2 * NODES
    assert metadata["reply_to"] == metadata["ids"] == [fact["id"] for fact in metadata["facts"]]
    assert [(b, a, run) for a, b, run in metadata["replies"]] == metadata["messages"]
    assert {run for *_, run in metadata["messages"]} == {metadata["run"]} == {seen("nodes")["run"]}
    assert metadata["groups"] == [fact["group"] for fact in metadata["facts"]] == ["seven"] * NODES
    assert [fact["ttl"] for fact in metadata["facts"]] == [1234.0] * NODES
    assert all(1234.0 - 120 < ttl < 1234.0 for ttl in metadata["ttls"])


def test_pushed_messages_are_answered_once(seen: Ask, engine: str) -> None:
    pulls = seen("push_then_pull")
    assert pulls["ids"] == pulls["set"]
    assert sorted(pulls["pulled"]) == sorted(pulls["ids"])
    assert pulls["nothing"] == []
    # Flower returns an error for a message that it has dropped or never received.
    expected = ["error"] if engine == "flower" else []
    assert pulls["again"] == pulls["unknown"] == expected


def test_message_types_reach_their_functions(seen: Ask) -> None:
    kinds = seen("kinds")
    for kind in ("query", "train", "evaluate"):
        assert kinds[kind] == [kind] * NODES
    assert seen("metadata")["types"] == ["train"] * NODES
    assert [failure["code"] for failure in kinds["unregistered"]] == [APP_RAISED] * NODES
    told = "No evaluate function registered with name 'unheard_of'"
    assert all(told in failure["reason"] for failure in kinds["unregistered"])


def test_a_client_that_raises_is_an_error_and_harms_no_other(seen: Ask) -> None:
    failing = seen("failing_client")
    failures = [failure for failure in failing["failures"] if failure]
    assert [failure["code"] for failure in failures] == [APP_RAISED]
    assert REASON in failures[0]["reason"]
    assert len(failing["failures"]) == NODES
    assert [fact["seen"] for fact in failing["after"]] == [1] * NODES  # its changes to the state are dropped


def test_an_unknown_node_gives_no_content(seen: Ask, engine: str) -> None:
    """Flower rejects the message silently; in process the server would wait for nothing."""
    unknown = seen("unknown_node")
    assert unknown["known_is_pushed"]
    assert unknown["known"] == [{}]
    if engine == "flower":
        assert unknown["pushed"] == 1
        assert unknown["unknown"] == []
    else:
        assert [failure["code"] for failure in unknown["unknown"]] == [NODE_UNAVAILABLE]


def test_state_persists_and_belongs_to_one_node(seen: Ask) -> None:
    state = seen("state")
    first, second = state["alone"]
    assert first["place"] == second["place"]
    assert second["seen"] == first["seen"] + 1
    counts = {fact["place"]: fact["seen"] for fact in state["everyone"]}
    before = {fact["place"]: fact["seen"] for fact in seen("failing_client")["after"]}
    assert counts == {place: seen + 1 + 2 * (place == first["place"]) for place, seen in before.items()}


def test_two_messages_to_one_node_are_both_answered(seen: Ask, engine: str) -> None:
    two = seen("two_messages_to_one_node")
    assert [fact["tag"] for fact in two["facts"]] == [1, 2, 3]
    counts = [fact["seen"] - two["start"] for fact in two["facts"]]
    if engine == "flower":  # the nodes may run at the same time, which loses counts
        assert set(counts) <= {1, 2, 3}
    else:
        assert counts == [1, 2, 3]


def test_the_run_config_cannot_be_changed(seen: Ask) -> None:
    configured = seen("run_config")
    for answers in (configured["first"], configured["second"]):
        assert sorted(answer.get("code", "told") == "told" for answer in answers) == [False, True, True]
        (refused,) = [answer for answer in answers if "code" in answer]
        assert refused["code"] == UNKNOWN_ERROR
        assert "run_config" in refused["reason"]
        assert not any(answer.get("before") for answer in answers)
    assert configured["query"] == ["query"] * NODES


def test_a_client_that_spoils_its_message_spoils_no_other_and_not_the_server_s(seen: Ask) -> None:
    vandals = seen("vandals")
    assert vandals["after"] == vandals["whole"]
    assert vandals["seen"] == [repr(vandals["whole"])] * (2 * NODES)
    assert vandals["messages"] == [("whole", "train.vandal", ["arrays", "config", "metrics"])] * NODES
    assert vandals["replies"] == [("whole", "train.vandal")] * NODES


def test_a_server_that_spoils_what_it_sent_or_got_leaves_states_whole(seen: Ask) -> None:
    kept = seen("kept_records")
    assert all("'kept': {'w': ((4,), [0.0, 1.0, 2.0, 3.0])}" in state for state in kept["before"])
    assert kept["after"] == kept["before"]


def test_a_message_is_pushed_once(seen: Ask) -> None:
    assert seen("pushed_twice")["again"] == ["ValueError"]


@pytest.mark.parametrize("kind", ["nothing", "stranger"])
def test_a_client_without_an_answer_is_silence_in_flower_and_an_error_here(seen: Ask, engine: str, kind: str) -> None:
    """Flower drops both and the server waits for its timeout."""
    answered = seen("no_answer")[kind]
    if engine == "flower":
        assert answered == []
    else:
        assert [(ours, failure.get("code")) for ours, failure in answered] == [(True, APP_RAISED)] * NODES


# Threads of the in-process engine, and of its computations.


def test_torch_and_numpy_take_the_threads_of_the_run() -> None:
    assert np.dot(np.ones((2, 2)), np.ones(2)).tolist() == [2, 2]  # BLAS is loaded
    before = torch.get_num_threads()
    for threads in (2, 1, 1, 2, before):
        hold_threads(TrainingSettings(torch_threads=threads))
        blas = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
        assert (torch.get_num_threads(), blas) == (threads, {threads})


@pytest.mark.parametrize("strategy", ALGORITHMS)
def test_threads_change_no_result(strategy: str, tmp_path: Path) -> None:
    config = {
        "strategy": strategy,
        "model": network_of(strategy),
        "fraction-train": 0.8 if strategy in SAMPLING else 1.0,
        **FEW_STEPS.get(strategy, {}),
    }
    alone, together = (federate(tmp_path / f"threads-{n}", config, clients=6, threads=n)[0] for n in (1, 4))
    assert together.untimed == alone.untimed
    assert together.model_bytes == alone.model_bytes
