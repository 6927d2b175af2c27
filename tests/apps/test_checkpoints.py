"""A resumed run reads its files as they were written, or ends with one error that names the file and the problem."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from apps.config import ConfigError, parse_run_config
from apps.registry import ALGORITHMS
from apps.run_directory import artifacts, checkpoints
from apps.run_directory.artifacts import RunDirectory
from apps.run_directory.checkpoints import Checkpoint
from apps.sites.files import read_sealed, read_tensors, write_sealed
from apps.sites.state_store import StateStore
from methods.pairwise import InnerEstimates
from methods.scaffold import ControlVariate
from payloads.record import PayloadError
from problems import files
from problems.files import make_folder, write_atomic
from strategies.rounds.replies import SiteStates
from tests.battery.federation import Run, federate, flat_config
from tests.refusals import refuses, states

CONFIG: dict[str, Any] = {"strategy": "fedx2", "num-server-rounds": 3, "checkpoint-every": 1}
NEWEST = "round-000003.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose clients keep state. Copy it before you change it."""
    return federate(tmp_path_factory.mktemp("whole") / "run", CONFIG)[0].path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def resumed(run: Path) -> Run:
    return federate(run, {**CONFIG, "resume": True, "num-server-rounds": 4})[0]


def refusal(run: Path) -> str:
    """Return why a run cannot be resumed. Assert that the attempt changes no file."""
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(RuntimeError) as refused:
        resumed(run)
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert after == before
    return str(refused.value)


# Checkpoints.


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A directory with one small checkpoint, which tests overwrite."""
    path = tmp_path_factory.mktemp("small") / "run"
    directory = RunDirectory.open(parse_run_config({"output-dir": str(path.parent), "run-name": path.name}))
    (path / "metrics.jsonl").touch()
    state, sites = ControlVariate(control=np.array([0.5, 1.5])), SiteStates(kept=np.array([7]), since=np.array([0]))
    model = [np.arange(3, dtype=np.float32), np.ones(1, dtype=np.float32)]
    directory.save_checkpoint(Checkpoint(7, model, state.arrays(), sites.arrays(), {"auc": 0.75}))
    return directory


@pytest.fixture(scope="module")
def sound(small: RunDirectory) -> bytes:
    return newest(small).read_bytes()


def newest(directory: RunDirectory) -> Path:
    return directory.path / "checkpoints" / "round-000007.safetensors"


def plain(of: Checkpoint) -> tuple[Any, ...]:
    named = {**dict(enumerate(of.model)), **of.state, **of.sites}
    arrays = [(str(name), value.dtype.str, value.shape, value.tobytes()) for name, value in named.items()]
    return of.server_round, of.best, sorted(arrays)


def test_a_checkpoint_is_read_as_it_was_written(small: RunDirectory, sound: bytes) -> None:
    newest(small).write_bytes(sound)
    found = small.newest_checkpoint()
    assert (found.server_round, found.best) == (7, {"auc": 0.75})
    assert [value.tolist() for value in found.model] == [[0, 1, 2], [1]]
    assert {name: value.tolist() for name, value in found.state.items()} == {"control": [0.5, 1.5]}
    assert {name: value.tolist() for name, value in found.sites.items()} == {"kept": [7], "since": [0]}


def test_cut_anywhere_it_is_refused(small: RunDirectory, sound: bytes) -> None:
    for length in range(len(sound)):
        newest(small).write_bytes(sound[:length])
        with refuses(ConfigError, r"resume: got an unusable checkpoint, .*round-000007\.safetensors: "):
            small.newest_checkpoint()


def test_a_changed_value_is_refused(small: RunDirectory, sound: bytes) -> None:
    newest(small).write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with refuses(ConfigError, r"resume: got an unusable checkpoint, .*round-000007\.safetensors: "):
        small.newest_checkpoint()


@given(data=st.data())
def test_changed_anywhere_it_is_refused_or_the_same(small: RunDirectory, sound: bytes, data: st.DataObject) -> None:
    """A change may alter how the header is written, but not its content."""
    newest(small).write_bytes(sound)
    expected = small.newest_checkpoint()
    changed = bytearray(sound)
    for place in data.draw(st.lists(st.integers(0, len(sound) - 1), min_size=1, max_size=3)):
        changed[place] = data.draw(st.integers(0, 255))
    newest(small).write_bytes(changed)
    reason = ""
    try:
        found = small.newest_checkpoint()
    except ConfigError as error:
        reason = str(error)
    told = f"resume: got an unusable checkpoint, {newest(small)}: "
    assert states(reason, told) or (not reason and plain(found) == plain(expected))


def sealed_again(path: Path, change: Callable[[dict[str, Any], dict[str, str]], Any]) -> None:
    """Write a checkpoint with a change and with valid checksums."""
    arrays, metadata = read_sealed(path, checkpoints.CHECKPOINT_FORMAT, checkpoints.CHECKPOINT_VERSION)
    change(arrays, metadata)
    write_sealed(path, checkpoints.CHECKPOINT_FORMAT, metadata.get("version", ""), arrays, metadata)


# change -> parts of the error
FORGED: dict[str, tuple[Callable[[dict[str, Any], dict[str, str]], Any], str]] = {
    "version": (lambda a, m: m.update(version="1"), "format 'florilegium-checkpoint' of version '1', expected"),
    "another run": (lambda a, m: m.update(run="0" * 32), "of another run: '000"),
    "another round": (lambda a, m: m.update(round="2"), "of round '2', which differs from its name"),
    "no best": (lambda a, m: m.pop("best"), "'best' is None, expected numbers by name"),
    "best torn": (lambda a, m: m.update(best='{"auc": 0.'), "'best' is '{\"auc\": 0.', expected numbers by name"),
    "selection torn": (
        lambda a, m: (m.update(selected="[1, 0.5"), a.update({"selected.parameters": a["model.parameters"]})),
        "'selected' is '[1, 0.5', expected a round, a value and a count",
    ),
    "selection without a model": (lambda a, m: m.update(selected="[1, 0.5, 0]"), "selected of [], expected"),
    "a model without a selection": (
        lambda a, m: a.update({"selected.parameters": a["model.parameters"]}),
        "unknown array 'selected.parameters'",
    ),
    "short selected model": (
        lambda a, m: (m.update(selected="[1, 0.5, 0]"), a.update({"selected.parameters": a["model.parameters"][1:]})),
        "model: 'parameters' is float32(64,), expected float32(65,)",
    ),
    "unknown array": (lambda a, m: a.update(extra=np.zeros(2)), "unknown array 'extra', allowed: model.*"),
    "no model": (lambda a, m: a.pop("model.parameters"), "model of [], expected ['parameters', 'buffers']"),
    "short model": (
        lambda a, m: a.update({"model.parameters": a["model.parameters"][1:]}),
        "model: 'parameters' is float32(64,), expected float32(65,)",
    ),
    "short state": (lambda a, m: a.pop("strategy.runs"), "FedXState.runs: missing"),
    "misshapen state": (
        lambda a, m: a.update({"strategy.momentum": np.zeros(64)}),
        "FedXState.momentum: got shape (64,)",
    ),
    "other sites": (lambda a, m: a.update({"sites.kept": np.zeros(4, int)}), "SiteStates.kept: got shape (4,)"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_checkpoint_that_does_not_fit_is_refused(what: str, copy: Path) -> None:
    change, told = FORGED[what]
    sealed_again(copy / "checkpoints" / NEWEST, change)
    with pytest.raises(RuntimeError) as refused:
        resumed(copy)
    assert str(refused.value).startswith("resume: ")
    assert states(str(refused.value), told)


def test_the_refusal_says_how_to_go_on(copy: Path) -> None:
    path = copy / "checkpoints" / NEWEST
    path.write_bytes(path.read_bytes()[:-1])
    assert "to resume from the checkpoint before it" in refusal(copy)
    path.unlink()
    assert [line["round"] for line in resumed(copy).lines] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"not a checkpoint", "header too large"),
        (b"PK\x03\x04" + bytes(60), "invalid header"),
        (save({"x": np.zeros(2)}), "format 'none' of version 'none', expected 'florilegium-checkpoint' of version '2'"),
        (save({"x": np.zeros(2)}, {"format": "florilegium-checkpoint", "version": "2"}), "after it was written"),
    ],
)
def test_a_foreign_file_is_refused(content: bytes, told: str, copy: Path) -> None:
    path = copy / "checkpoints" / "round-000009.safetensors"
    path.write_bytes(content)
    reason = refusal(copy)
    assert states(reason, f"resume: got an unusable checkpoint, {path}: ")
    assert states(reason, told)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F8_E5M2", "F4"])
def test_number_types_that_numpy_has_not_are_a_payload_error(dtype: str, tmp_path: Path) -> None:
    size = {"BF16": 4, "F4": 1}.get(dtype, 2)
    header = json.dumps({"x": {"dtype": dtype, "shape": [2], "data_offsets": [0, size]}})
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(size))
    with pytest.raises(PayloadError, match=r"x\.safetensors: "):
        read_tensors(path)


# The run's other files.


@pytest.mark.parametrize("torn", [b'{"round": 4, "au', b'{"round": 4}', b"\xff\xfe"])
def test_a_torn_last_line_is_cut_off(torn: bytes, copy: Path) -> None:
    """If the server was killed while it wrote a line, the round runs again."""
    with (copy / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    run = resumed(copy)
    assert [line["round"] for line in run.lines] == [0, 1, 2, 3, 4]
    assert run.result["bytes_up"] == sum(line["bytes_up"] for line in run.lines)


@pytest.mark.parametrize(
    ("number", "text"), [(0, ""), (1, "{"), (3, "[]"), (1, "{}"), (0, '{"round": "1"}'), (3, '{"round": 1.0}')]
)
def test_a_damaged_line_is_named(number: int, text: str, copy: Path) -> None:
    lines = (copy / "metrics.jsonl").read_text("utf-8").splitlines()
    lines[number] = text
    (copy / "metrics.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    assert states(refusal(copy), f"metrics.jsonl: line {number + 1}: got {text!r}")


@pytest.mark.parametrize("kept", [[], [0, 1, 2], [0, 2, 3], [0, 1, 1, 2, 3], [1, 0, 2, 3]])
def test_the_lines_that_a_checkpoint_stands_for_are_all_there(kept: list[int], copy: Path) -> None:
    lines = (copy / "metrics.jsonl").read_text("utf-8").splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[number] for number in kept), "utf-8")
    told = f"metrics.jsonl: got {len(kept)} lines of rounds up to 3, allowed: one line for each round from 0 to "
    assert states(refusal(copy), told)
    (copy / "metrics.jsonl").write_text("".join(lines).replace('"bytes_up"', '"bytes_left"', 1), "utf-8")
    assert "with bytes_up and bytes_down" in refusal(copy)


@pytest.mark.parametrize("token", [None, b"", b"abc", b"\xff" * 32, b"../" * 10 + b"ab"])
def test_a_run_token_that_is_none_is_refused(token: bytes | None, copy: Path) -> None:
    (copy / "run-token").unlink()
    if token is not None:
        (copy / "run-token").write_bytes(token)
    told = "got a missing or damaged file, allowed: a file with 32 hexadecimal digits; begin a new run"
    assert states(refusal(copy), f"resume: {copy / 'run-token'}: {told}")


def test_a_config_cut_anywhere_is_refused(copy: Path) -> None:
    """A cut config is accepted only if it keeps its value: the last number is 0.0, or 0."""
    (copy / "config.toml").rename(copy / "kept.toml")
    told = f"resume: got true, but {copy} has no run, allowed: true with an existing run; set run-name"
    assert states(refusal(copy), f"{told} (or --out) to an existing run, or remove resume")
    (copy / "kept.toml").rename(copy / "config.toml")
    config = parse_run_config(flat_config(copy, {**CONFIG, "resume": True, "num-server-rounds": 4}))
    whole = (copy / "config.toml").read_bytes()
    assert whole.endswith(b" = 0.0\n")
    for length in (*range(len(whole) - len(b".0\n")), len(whole) - len(b"0\n")):
        (copy / "config.toml").write_bytes(whole[:length])
        with refuses(ConfigError, r"^resume: .*(config\.toml|at the start of the run)"):
            RunDirectory.open(config)


# The clients' states on disk.


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "token" / "client-1", 0)


ESTIMATES = InnerEstimates(u=np.array([[0.5], [0.25]]), observed=np.array([True, False]))


def test_a_state_is_read_as_it_was_written(store: StateStore) -> None:
    for number in (2, 5):
        store.save(number, replace(ESTIMATES, u=ESTIMATES.u * number))
    for since, before, made in ((0, 9, 5), (0, 5, 2), (5, 9, 5), (3, 5, 0), (0, 2, 0)):
        state, found = store.load(InnerEstimates, since, before)
        assert found == made
        if made:
            np.testing.assert_array_equal(state.u, ESTIMATES.u * made)
        else:
            assert state is None


def test_a_state_cut_anywhere_is_refused(store: StateStore) -> None:
    store.save(2, ESTIMATES)
    sound = store.file(2).read_bytes()
    for length in range(len(sound)):
        store.file(2).write_bytes(sound[:length])
        with pytest.raises(PayloadError, match=r"client-1/round-000002\.safetensors: "):
            store.load(InnerEstimates, 0, 3)


def of_another_client(store: StateStore) -> None:
    other = StateStore(store.folder.with_name("client-2"), 0)
    other.save(2, ESTIMATES)
    other.file(2).replace(store.file(2))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda s: s.file(2).rename(s.file(3)), "round '2', expected '3'"),
        (of_another_client, "owner 'token/client-2', expected"),
        (lambda s: s.save(2, ControlVariate(control=np.zeros(3))), "kind 'ControlVariate', expected 'InnerEstimates'"),
        (lambda s: save_file({"u": ESTIMATES.u}, s.file(2)), "format 'none' of version"),
    ],
)
def test_a_foreign_state_is_refused(spoil: Callable[[StateStore], Any], told: str, store: StateStore) -> None:
    store.save(2, ESTIMATES)
    spoil(store)
    with pytest.raises(PayloadError) as refused:
        store.load(InnerEstimates, 0, 4)
    assert states(str(refused.value), told)


def test_names_that_are_not_of_a_round_are_not_read(store: StateStore) -> None:
    store.save(2, ESTIMATES)
    for name in ("round-.safetensors", "round-x.safetensors", "round--1.safetensors", "round-2.safetensors.bak"):
        (store.folder / name).write_bytes(b"?")
    assert store.rounds() == [2]
    assert store.load(InnerEstimates, 0, 9)[1] == 2


def test_a_damaged_client_state_is_named_and_its_site_dropped(copy: Path) -> None:
    files = list(copy.glob("client-state/*/client-1/*"))
    assert files
    for state in files:
        state.write_bytes(state.read_bytes()[:20])
    (line,) = resumed(copy).lines[4:]
    assert states(line["dropped"]["1"], "state-dir: got an unusable client state: /")
    assert "client-1/round-000003.safetensors" in line["dropped"]["1"]
    assert line["clients_answered"] == 2
    assert line["state_lost"] == []


def test_every_memory_has_a_name_of_its_own() -> None:
    """Otherwise one algorithm could load a state of another algorithm with the same fields."""
    kinds = {row.client.memory for row in ALGORITHMS.values()} - {None}
    assert len({kind.__name__ for kind in kinds if kind is not None}) == len(kinds) >= 4


def test_a_file_is_on_the_disk_before_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, rename = files.os.fsync, Path.replace

    def noted(descriptor: int) -> None:
        steps.append("fsync folder" if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir() else "fsync file")
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(self, target)

    monkeypatch.setattr(files.os, "fsync", noted)
    monkeypatch.setattr(Path, "replace", renamed)
    write_atomic(tmp_path / "file", b"new")
    assert steps == ["fsync file", "rename", "fsync folder"]
    steps.clear()
    make_folder(tmp_path / "a" / "b")
    assert steps == ["fsync folder", "fsync folder"]
    make_folder(tmp_path / "a" / "b")
    assert len(steps) == 2


def test_the_lines_are_on_the_disk_before_the_checkpoint(small: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    flush, write = artifacts.flush, artifacts.write_checkpoint
    monkeypatch.setattr(artifacts, "flush", lambda path: (steps.append(path.name), flush(path)))
    monkeypatch.setattr(
        artifacts, "write_checkpoint", lambda path, *rest: (steps.append(path.name), write(path, *rest))
    )
    small.save_checkpoint(Checkpoint(7, [np.zeros(1, np.float32)], {}, {}, {}))
    assert steps == ["metrics.jsonl", "round-000007.safetensors"]


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "file", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]
