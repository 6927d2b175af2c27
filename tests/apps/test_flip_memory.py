"""Stored label flips: many runs reveal no more about a label than one run."""

import logging
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apps.config import ConfigError, Scalar
from apps.parties.column_use import ColumnUse
from apps.parties.flip_memory import FlipMemory
from apps.parties.table import PartyTable
from problems.data import DataSpec
from tests.apps.vertical_runs import CSV, EVERYBODY, own_files, play, states_of
from tests.refusals import refuses
from vertical.policy import PolicyError
from vertical.problem.objectives import make_objective
from vertical.segment.dominator import draw_flips

ROWS, RUNS = 4000, 25
MARKS = [f"row {number}" for number in range(ROWS)]


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the system's generator by a seeded one, so the counts of a test are reproducible."""
    monkeypatch.setattr("os.urandom", np.random.default_rng(0).bytes)


def right(epsilon: float) -> float:
    """Return the probability that a label is reported correctly."""
    return 1 / (1 + float(np.exp(-epsilon)))


def near(rate: float, expected: float, rows: int = ROWS) -> bool:
    return abs(rate - expected) < 3 * np.sqrt(expected * (1 - expected) / rows)


def majority(flips: list[Any]) -> float:
    """Return how often the majority of some runs is right."""
    return float((np.mean(flips, axis=0) < 0.5).mean())


def test_the_majority_of_25_runs_knows_what_one_run_tells(tmp_path: Path, seeded: None) -> None:
    """Each run has its own process and order of rows; flips drawn again each time would reveal nearly all labels."""
    found = []
    for run in range(RUNS):
        order = np.random.default_rng(run).permutation(ROWS)
        flips, new, spent = FlipMemory(tmp_path).recall([MARKS[row] for row in order], 1.0)
        assert (new, spent) == (0 if run else ROWS, 1.0)
        found.append(flips[np.argsort(order)])
    assert near(majority(found), right(1.0))
    assert majority([draw_flips(ROWS, 1.0) for _ in range(RUNS)]) > 0.95


@pytest.mark.parametrize("order", list(permutations((0.5, 1.0, 2.0))))
def test_in_whatever_order_each_epsilon_has_its_rate(order: tuple[float, ...], tmp_path: Path, seeded: None) -> None:
    """Given the flips for a larger epsilon, the flips for a smaller epsilon reveal nothing more."""
    flips = {epsilon: FlipMemory(tmp_path).recall(MARKS, epsilon)[0] for epsilon in order}
    for epsilon, kept in flips.items():
        assert near(1 - kept.mean(), right(epsilon))
    for smaller, larger in ((0.5, 1.0), (1.0, 2.0), (0.5, 2.0)):
        changed = (right(larger) - right(smaller)) / (2 * right(larger) - 1)
        for value in (False, True):
            rows = flips[larger] == value
            assert near(np.mean(flips[smaller][rows] != value), changed, int(rows.sum()))
    assert FlipMemory(tmp_path).recall(MARKS[:1], 0.5)[2] == 2.0  # the epsilon that all runs have spent together


def test_flips_of_another_reporter_are_kept_beside_ones_own(tmp_path: Path) -> None:
    memory = FlipMemory(tmp_path)
    own, _, _ = memory.recall(MARKS[:10], 1.0)
    told = np.concatenate([~own, np.tile([True, False], 5)])
    memory.keep(MARKS[:20], 1.0, told)
    kept, new, _ = memory.recall(MARKS[:20], 1.0)
    assert (kept.tolist(), new) == ([*own.tolist(), *told[10:].tolist()], 0)


@pytest.mark.parametrize(("name", "told"), [("label-flips.key", "3 bytes"), ("label-flips-1.0.safetensors", "1.0")])
def test_what_is_damaged_is_not_drawn_again(name: str, told: str, tmp_path: Path) -> None:
    FlipMemory(tmp_path).recall(MARKS[:5], 1.0)
    (tmp_path / name).write_bytes(b"cut")
    with refuses(ConfigError, f"state-dir: got unusable label flips: .*{told}.*; restore a copy"):
        FlipMemory(tmp_path).recall(MARKS[:5], 1.0)


def test_nothing_kept_names_a_row(tmp_path: Path) -> None:
    FlipMemory(tmp_path).recall(["Mustermann"], 1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["label-flips-1.0.safetensors", "label-flips.key"]
    assert not any(b"Mustermann" in path.read_bytes() for path in tmp_path.iterdir())


def test_a_mark_is_of_a_row_and_what_its_label_says(tmp_path: Path) -> None:
    """The mark does not depend on which class is positive, but on the label, and with three classes on the question."""

    def marks(labels: str, positive: str) -> dict[str, str]:
        frame = pd.DataFrame({"id": list("abcdefgh"), "x": range(8), "label": list(labels)})
        frame.to_csv(tmp_path / "party.csv", index=False)
        spec = DataSpec("csv", positive_label=positive, test_fraction=0.25)
        use = ColumnUse(labels=("label",), fewest_columns=1)
        told = PartyTable(tmp_path / "party.csv", spec, "id", make_objective("logistic"), use=use).training_marks(None)
        return {mark[-1]: mark for mark in told}

    two = marks("nynynyny", "y")
    assert marks("nynynyny", "n") == two
    assert len(set(two.values())) == 6
    assert not marks("ynynynyn", "y").items() & two.items()
    assert not marks("nynynynz", "y").items() & marks("nynynynz", "n").items()


def held_flips(grid: Any) -> list[np.ndarray | None]:
    return [state.flips for state in states_of(grid)]


def test_a_party_flips_the_same_labels_in_every_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The reporting party has no influence. Without a state folder, the party warns that each run draws again."""
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    config: dict[str, Scalar] = {**CSV, "vfb2.active-parties": 2, "vfb2.label-epsilon": 1.0, "num-server-rounds": 1}
    kept = [{**node, "state-dir": str(tmp_path / f"state-{party}")} for party, node in enumerate(nodes)]
    with caplog.at_level(logging.WARNING, logger="flwr"):
        first, second, third = held_flips(play(tmp_path / "one", config, kept)[1])
        assert first is not None
        np.testing.assert_array_equal(first, second)
        assert third is None
        turned = [kept[1], kept[0], kept[2]]
        for number, parties in enumerate((kept, turned)):
            again = held_flips(play(tmp_path / f"again-{number}", config, parties)[1])
            np.testing.assert_array_equal(again[0], first)
    assert "drawn again" not in caplog.text
    with caplog.at_level(logging.WARNING, logger="flwr"):
        other = held_flips(play(tmp_path / "bare", config, nodes)[1])[0]
    assert (
        caplog.text.count("party 0: the flips of its labels are drawn again, since its node config has no state") == 1
    )
    assert not np.array_equal(other, first)


@pytest.mark.parametrize("party", [0, 1])
def test_another_id_column_does_not_draw_the_flips_again(party: int, tmp_path: Path) -> None:
    """This applies to the party that draws the flips, and to another label holder."""
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    for node in nodes:
        frame = pd.read_csv(str(node["data-path"]))
        frame.insert(0, "number", frame["id"].str.removeprefix("row-").astype(int))
        frame.to_csv(str(node["data-path"]), index=False)
    nodes[party] |= {"state-dir": str(tmp_path / "state")}
    config: dict[str, Scalar] = {**CSV, "vfb2.active-parties": 2, "vfb2.label-epsilon": 1.0, "num-server-rounds": 1}
    first = held_flips(play(tmp_path / "one", {**config, "drop-columns": "number"}, nodes)[1])[party]
    with refuses(RuntimeError, f"party {party}: vfb2.id-column: got 'number'.*allowed: 'id'"):
        play(tmp_path / "two", {**config, "vfb2.id-column": "number", "drop-columns": "id"}, nodes)
    if not party:
        again = held_flips(play(tmp_path / "three", {**config, "drop-columns": "number", "seed": 0}, nodes)[1])[0]
        np.testing.assert_array_equal(again, first)


def test_flips_keep_how_each_party_reads_ids(tmp_path: Path) -> None:
    reading = {"vfb2.id-column": "id", "encoding": "utf-8"}
    own = FlipMemory(tmp_path, 0, reading).recall(MARKS[:10], 1.0)[0]
    FlipMemory(tmp_path, 1, {**reading, "encoding": "latin-1"}).keep(MARKS[:10], 1.0, own)
    for memory in (FlipMemory(tmp_path, 0, {**reading, "encoding": "latin-1"}), FlipMemory(tmp_path, 1, reading)):
        with refuses(PolicyError, "encoding: got .*would be flipped again"):
            memory.recall(MARKS[:10], 1.0)
    (tmp_path / "label-flips-ids.json").write_text("[")
    with refuses(ConfigError, "state-dir: got unusable label flips"):
        FlipMemory(tmp_path, 0, reading).check()
