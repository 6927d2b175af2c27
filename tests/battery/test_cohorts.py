"""A cohort whose replies are one block has the results of the same clients on separate messages, bit for bit."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from apps.evaluation.measurement import Measurement
from apps.guards.memory import STATE, STORED_ROUND
from apps.registry import ALGORITHMS
from apps.server_app import RunFailedError
from apps.server_app import app as server_app
from apps.sites import rows
from apps.sites.resources import federated_data, new_model
from apps.sites.rows import RowSites
from methods.composite import CorrectionState
from methods.scaffold import ControlChange
from methods.scgdam import CompositionalUp
from payloads.broadcast import BlockReplies, Broadcast, Introductions, ReplyBlock
from payloads.wire import CONFIG, ROUND, model_record
from simulations.engines.grid import error_reply, task_identity
from simulations.engines.in_process import InProcessGrid
from simulations.engines.stacked import cohorts
from simulations.engines.stacked.memories import Memories, choose_sound
from simulations.engines.stacked.messages import make_stacker
from strategies.base import PayloadStrategy
from strategies.rounds.errors import StrategyError
from strategies.rounds.exchange import Exchange
from strategies.rounds.handshake import collect_reports
from tests.battery.federation import SAMPLING, Run, Wiretap, federate, flat_config, save_npz, serve
from tests.battery.test_trajectories import CASES, COMMON
from tests.refusals import refuses

CLIENTS = 7
STACKED = [case for case in CASES if ALGORITHMS[case.split(",")[0]].strategy.shares_model]


class Counter(InProcessGrid):
    """A grid that counts the clients whose replies were rows of a block."""

    rows = 0

    def answer_cohort(self, cohort: Broadcast) -> BlockReplies | Introductions | None:
        replies = super().answer_cohort(cohort)
        self.rows += sum(len(rows) for _, rows in replies.blocks) if isinstance(replies, BlockReplies) else 0
        return replies


def states(grid: InProcessGrid) -> list[dict[str, dict[str, Any]]]:
    """Return the memories in the nodes' contexts."""
    contexts = grid._contexts.values()
    return [{name: dict(one.state[name]) for name in (STATE, STORED_ROUND) if name in one.state} for one in contexts]


def both_ways(folder: Path, config: Mapping[str, Scalar], stack: int = CLIENTS) -> int:
    """Run a federation with blocks and with messages, compare the results, and return the number of a block's rows."""
    apart, tap = federate(folder / "apart", config, clients=CLIENTS, stack=stack)
    blocks, grid = in_blocks(folder / "blocks", config, stack)
    assert blocks.untimed == apart.untimed
    assert blocks.model_bytes == apart.model_bytes
    assert states(grid) == states(tap)
    return grid.rows


def in_blocks(path: Path, config: Mapping[str, Scalar], stack: int = CLIENTS) -> tuple[Run, Counter]:
    """Run a federation with blocks, if possible."""
    flat = flat_config(path, config)
    grid = Counter(client_app, CLIENTS, flat, together=make_stacker(stack, flat))
    serve(grid, server_app, flat)
    grid.close()
    return Run(path), grid


def rows_of_sites(folder: Path) -> dict[str, Scalar]:
    """Save rows for sites of different sizes, and return the keys that read them."""
    labels = np.arange(61) % 2
    features = np.random.default_rng(5).normal(size=(61, 3)) + 0.7 * labels[:, None]
    return {**save_npz(folder / "rows.npz", features, labels), "partition": "linear", "partition-rows": ""}


@pytest.mark.parametrize("fraction", [1.0, 0.6])
@pytest.mark.parametrize("case", STACKED)
def test_every_method_has_the_same_results_both_ways(case: str, fraction: float, tmp_path: Path) -> None:
    strategy = case.split(",")[0]
    config = {**COMMON, **CASES[case], **rows_of_sites(tmp_path), "strategy": strategy, "num-server-rounds": 4}
    if fraction < 1 and strategy not in SAMPLING:
        pytest.skip("this strategy needs all clients")
    found = both_ways(tmp_path, {**config, "fraction-train": fraction})
    assert (found > 0) == ALGORITHMS[strategy].strategy.method.stacked


@pytest.mark.parametrize(
    ("more", "blocks"),
    [
        ({"torch-threads": 2, "num-server-rounds": 6}, True),
        ({"steps-by-rows": True, "client-weights": "examples", "lr-decay-every": 0}, True),
        ({"aggregation": "trimmed-mean", "reply-seconds": "20:0.5"}, True),
        ({"checkpoint-every": 1}, True),
        ({"privacy.secure-sum": True, "privacy.secure-threshold": 0.7}, False),
    ],
)
def test_other_keys_have_the_same_results_both_ways(more: dict[str, Scalar], blocks: bool, tmp_path: Path) -> None:
    config = {**COMMON, **rows_of_sites(tmp_path), "strategy": "scaffold", **more}
    assert (both_ways(tmp_path, config, stack=3) > 0) == blocks


def with_messages(path: Path, config: Mapping[str, Scalar]) -> tuple[Run, Wiretap]:
    return federate(path, config, clients=CLIENTS, stack=CLIENTS)


def with_a_gap(path: Path, config: Mapping[str, Scalar]) -> tuple[Run, Counter]:
    """Run a federation with blocks, but with messages in round 5."""
    opened = cohorts._open

    def open_other_rounds(cohort: Broadcast, *others: Any) -> Any:
        if cohort[0].content.config_records[CONFIG][ROUND] == 5:
            raise ValueError("no block")
        return opened(cohort, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cohorts, "_open", open_other_rounds)
        return in_blocks(path, config)


@pytest.mark.parametrize("strategy", ["scaffold", "fedcanon", "codasca", "fgdro-kl"])
@pytest.mark.parametrize(
    "parts",
    [(in_blocks, in_blocks), (with_messages, in_blocks), (in_blocks, with_messages), (with_a_gap, in_blocks)],
)
def test_a_cut_run_continues_with_the_memories_of_its_checkpoint(
    strategy: str, parts: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails in round 6, after the checkpoint of round 4. Some clients have no memory of the rounds since."""
    config: dict[str, Scalar] = {**COMMON, **CASES[strategy], **rows_of_sites(tmp_path), "strategy": strategy}
    config |= {"fraction-train": 0.4, "num-server-rounds": 9, "checkpoint-every": 2, "evaluate-every": 1, "seed": 4}
    whole, tap = with_messages(tmp_path / "whole", config)
    measure = Measurement.measure

    def fail(measurement: Measurement, evaluator: Any, server_round: int, arrays: Any) -> dict[str, float]:
        if server_round == 6:
            raise KeyboardInterrupt
        return measure(measurement, evaluator, server_round, arrays)

    with monkeypatch.context() as patch:
        patch.setattr(Measurement, "measure", fail)
        with pytest.raises(KeyboardInterrupt):
            parts[0](tmp_path / "cut", config)
    blocks = sorted((tmp_path / "cut" / "client-state").glob("*/blocks/*"))
    assert bool(blocks) == (parts[0] is not with_messages)
    continued, _ = parts[1](tmp_path / "cut", {**config, "resume": True})
    assert continued.model_bytes == whole.model_bytes
    if parts[1] is in_blocks:  # the newest memories of the last checkpoint, and of the round since
        newest = {one.partition: one.server_round for one in tap.exchanges if one.server_round < 9 and not one.phase}
        rounds = {int(path.name.split("-")[1]) for path in (tmp_path / "cut" / "client-state").glob("*/blocks/*")}
        assert rounds
        assert rounds <= {*newest.values(), 9}


def test_a_damaged_file_of_memories_is_named(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {**COMMON, **rows_of_sites(tmp_path), "strategy": "scaffold"}
    config |= {"checkpoint-every": 2, "num-server-rounds": 2, "min-train-nodes": 1.0}
    in_blocks(tmp_path / "run", config)
    file = max((tmp_path / "run" / "client-state").glob("*/blocks/*"))
    file.write_bytes(file.read_bytes()[:-3])
    with refuses(RunFailedError, f"state-dir: remove the file .*an unusable client state: .*{file.stem}"):
        in_blocks(tmp_path / "run", {**config, "num-server-rounds": 3, "resume": True})


def test_one_client_s_fault_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = rows.site

    def refuse(config: Any, clients: int, partition: int) -> Any:
        if partition == 1:
            raise ValueError("this site is out of order")
        return read(config, clients, partition)

    monkeypatch.setattr(rows, "site", refuse)
    labels = np.arange(63) % 2
    features = np.where(np.arange(63)[:, None] // 9 == 2, 1e30, np.random.default_rng(5).normal(size=(63, 3)))
    config = {
        **COMMON,
        **save_npz(tmp_path / "rows.npz", features, labels),
        "partition-rows": "",
        "strategy": "scaffold",
    }
    assert both_ways(tmp_path, config) > 0
    dropped = Run(tmp_path / "blocks").lines[1]["dropped"]
    assert "this site is out of order" in dropped["1"]
    assert "not finite" in dropped["2"]

    def fail(*arguments: Any) -> Any:
        raise ValueError("no block")

    monkeypatch.setattr(cohorts, "fit_block", fail)
    assert both_ways(tmp_path / "failing", config) == 0


@pytest.mark.parametrize("grid", [InProcessGrid, Wiretap])
def test_a_site_that_cannot_join_is_named(grid: type[InProcessGrid], monkeypatch: pytest.MonkeyPatch) -> None:
    report = RowSites.report

    def refuse(self: RowSites, config: Any, context: Context, partition: tuple[int, int]) -> Any:
        if partition[0] == 2:
            raise ValueError("this site has no data")
        return report(self, config, context, partition)

    flat: dict[str, Scalar] = {"strategy": "local-sgd", "dataset": "breast-cancer"}
    with task_identity():
        joined = collect_reports(grid(client_app, 3, flat, together=make_stacker(3, flat)), 9.0)
        assert joined.class_counts.tolist() == [[95, 57], [95, 57], [96, 56]]
        assert joined.bytes_up == 3 * 4 * 8  # the identity and the class counts, two integers each
        monkeypatch.setattr(RowSites, "report", refuse)
        with refuses(StrategyError, "this site has no data"):
            collect_reports(grid(client_app, 3, flat, together=make_stacker(3, flat)), 9.0)


FAULTS = {
    "none": lambda block: block,
    "nan in a model": lambda block: spoil(block, points=np.nan),
    "infinite payload": lambda block: spoil(block, change=np.inf),
    "another number type": lambda block: replace(block, points=block.points.astype(np.float64)),
    "another length": lambda block: replace(block, points=block.points[:, :-1]),
    "no payload": lambda block: replace(block, up=None),
    "a long payload": lambda block: replace(block, up=ControlChange(change=np.zeros((3, 99), np.float32))),
    "a future memory": lambda block: replace(block, state_rounds=np.array([0, 9, 0])),
    "another round": lambda block: replace(block, server_round=2),
}


def spoil(block: ReplyBlock, points: float = 0.0, change: float = 0.0) -> ReplyBlock:
    """Add numbers to one value of the second row."""
    assert isinstance(block.up, ControlChange)
    shift = np.zeros_like(block.points)
    shift[1, 0] = 1
    return replace(
        block,
        points=np.where(shift, points, block.points) if points else block.points,
        up=ControlChange(change=np.where(shift, change, block.up.change)) if change else block.up,
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_block_is_validated_as_its_messages_are(fault: str) -> None:
    with task_identity():
        blocks, messages = (sort_replies(FAULTS[fault], as_messages) for as_messages in (False, True))
    assert blocks == messages
    assert len(blocks[0]) == {"none": 3}.get(fault, 2 if fault.startswith(("nan", "inf", "a future")) else 0)


@pytest.mark.parametrize("longer", [0, 1])
def test_a_payload_is_as_long_as_the_strategy_allows(longer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange, "check_payload", lambda *_: None)

    def compose(block: ReplyBlock) -> ReplyBlock:
        change = np.zeros_like(block.points)
        return replace(block, up=CompositionalUp(inner=change[:, 1 - longer :], momentum=change), state_rounds=None)

    with task_identity():
        blocks, messages = (sort_replies(compose, as_messages, "local-scgdam") for as_messages in (False, True))
    assert blocks == messages
    assert len(blocks[0]) == 3 * (1 - longer)


def sort_replies(
    spoiled: Callable[[ReplyBlock], ReplyBlock], as_messages: bool, strategy_name: str = "scaffold"
) -> tuple[Any, ...]:
    """Return the good replies of a cohort of four clients, the reasons of the others, and the counted bytes."""
    flat: dict[str, Scalar] = {"strategy": strategy_name, "dataset": "breast-cancer", "model": "linear"}
    config = parse_run_config(flat)
    grid = InProcessGrid(client_app, 4, flat)
    strategy: PayloadStrategy = config.algorithm.strategy(config.training, config.family)
    start = new_model(config, federated_data(config.data, 4).input_shape).arrays()
    cohort = strategy.configure_train(1, model_record(start), ConfigRecord(), grid)
    assert isinstance(cohort, Broadcast)
    grid.accept(cohort)
    points, change = np.random.default_rng(0).normal(size=(2, 3, len(start[0]))).astype(np.float32)
    block = ReplyBlock(1, points, ControlChange(change=change), [5, 6, 7], np.zeros(3, np.int64))
    apart = {1: error_reply(0, "the node is gone", cohort[1])}

    def reply(content: RecordDict, message: Message) -> Message:
        return Message(content, reply_to=message)

    replies = BlockReplies(cohort, [(spoiled(block), [0, 2, 3])], apart, reply)
    exchange = strategy.exchange
    assert exchange is not None
    exchange.sort(list(replies) if as_messages else replies)
    good = {
        client: (
            one.model[0].tobytes(),
            [value.tobytes() for value in one.payload.arrays().values()],
            one.num_examples,
            one.state_round,
        )
        for client, one in exchange.good_replies.items()
    }
    return good, exchange.reasons, strategy.report.bytes_up


@given(st.lists(st.tuples(st.sampled_from(["train", "ask"]), st.sets(st.integers(0, 5), min_size=1)), max_size=12))
def test_a_memory_is_in_a_block_or_in_a_context(events: list[tuple[str, set[int]]]) -> None:
    contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in range(6)}
    memories, known = Memories(CorrectionState), dict[int, tuple[int, float]]()
    for number, (event, nodes) in enumerate(events, 1):
        if event == "ask":
            for node in nodes:
                memories.give_back(contexts[node])
                assert bool(contexts[node].state) == (node in known)
            continue
        order = sorted(nodes, reverse=True)
        places = memories.take(contexts, order)
        rounds = memories.recall(places, 0, number)
        assert rounds.tolist() == [known.get(node, (0, 0.0))[0] for node in order]
        assert memories.recall(places, number, number).tolist() == [0] * len(order)
        for row, node in zip(places, order, strict=True):
            if node in known:
                memory = memories.read(np.array([row]))
                assert memory.arrays()["start"].tolist() == [[known[node][1]] * 2]
        values = np.array([[float(node * number)] * 2 for node in order])
        sound = np.array([node % 3 != 0 or number % 2 == 0 for node in order])
        same = np.array([number])
        memory = CorrectionState(server_round=same, correction=values, start=values, gradient=-values)
        good, fields = choose_sound(memory, sound)
        memories.keep(places[good], fields, number)
        known |= {node: (number, float(node * number)) for node, good in zip(order, sound, strict=True) if good}
