"""The audit log of a party's owner: one line for every message, and no row in any line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from apps.config import Scalar
from tests.apps.vertical_runs import CSV, EVERYBODY, identified, own_files, play
from tests.battery.federation import payloads_of
from tests.refusals import refuses
from vertical.transport.identity import Identity, fingerprint

IDS = [f"patient-{number:03}" for number in range(60)]
INTERSECTION: dict[str, Scalar] = {**CSV, "vfb2.alignment": "intersection", "num-server-rounds": 2}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_every_message_leaves_a_line(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [IDS[:50], IDS[5:], IDS[:2] + IDS[10:]])
    nodes = identified(tmp_path, nodes)
    nodes[0]["state-dir"] = str(tmp_path / "state")
    nodes[1]["audit-log"] = str(tmp_path / "logs" / "one.jsonl")
    nodes[2]["share-block"] = False
    config = {**INTERSECTION, "vfb2.label-epsilon": 1.0, "checkpoint-every": 2}
    run, tap = play(tmp_path / "run", config, nodes)
    told = lines(tmp_path / "state" / "audit.jsonl")
    events = "handshake credentials data-summary intersection alignment segment segment"
    assert " ".join(line["event"] for line in told) == events
    token = (run.path / "run-token").read_text()
    assert {line["token"] for line in told[1:]} == {token}
    assert {(line["party"], line["run"], line["server"]) for line in told} == {(0, told[0]["run"], 1)}
    assert (told[0]["alignment"], told[0]["label-epsilon"]) == ("intersection", 1.0)
    shown = [
        fingerprint(Identity.from_files(str(node["peer-cert"]), str(node["peer-key"])).certificate) for node in nodes
    ]
    peers = [{"party": party, "name": f"member-{party}", "certificate": shown[party]} for party in (1, 2)]
    assert all(line["peers"] == peers for line in told[2:])
    assert told[3]["ids"] == {"offered": 50, "theirs": {"1": 55, "2": 52}, "common": 40}
    named = {"problem": "logistic", "label-column": "label", "id-column": "id"}
    assert {name: told[0][name] for name in named} == named
    assert all({name: line[name] for name in named} == named for line in told[2:])
    assert all(line["columns"] == ["x0", "x1", "x2"] for line in told[2:])
    assert {line["label-column"] for line in lines(tmp_path / "logs" / "one.jsonl")[2:]} == {"label"}
    assert told[3]["bytes-to-peers"] > 40 * 32
    flips = {"drawn": 32, "reused": 0, "epsilon-spent": 1.0}
    common = {"rows": 32, "test-rows": 8, "active": [0], "masking": "pairwise", "label-epsilon": 1.0, "evaluated": True}
    segments = [{"segment": n, "attempt": n + 2, "epochs": min(n, 1), "flips": None if n else flips} for n in range(3)]
    for line, segment in zip(told[4:], segments, strict=True):
        expected = {**common, **segment}
        assert {name: line.get(name) for name in expected} == expected
        assert line["bytes-to-peers"] > 0
    # the log lists the same payload fields that the server received
    sent = [payloads_of("vfb2-sgd", exchange)[1] for exchange in tap.exchanges if exchange.partition == 0]
    fields = [{name: value.nbytes for name, value in payload.arrays().items()} for payload in sent if payload]
    assert [line["to-server"] for line in told[1:]] == [{"num-examples": 8, **one} for one in fields]
    assert len(told[4]["digest"]) == 64
    assert "weights" not in told[-1]["to-server"]
    assert len(lines(tmp_path / "logs" / "one.jsonl")) == len(told)
    for path in (tmp_path / "state" / "audit.jsonl", tmp_path / "logs" / "one.jsonl"):
        assert "patient" not in path.read_text().replace(str(tmp_path), "")


def test_a_refusal_and_a_failure_leave_one_too(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [IDS] * 3)
    log = tmp_path / "audit.jsonl"
    nodes[1] |= {"audit-log": str(log), "fewest-parties": 4}
    with pytest.raises(RuntimeError, match="fewest-parties"):
        play(tmp_path / "refused", CSV, nodes)
    told = {
        "asked": "handshake",
        "key": "party 1: fewest-parties",
        "got": "a run of 3 parties",
        "allowed": "4 or more parties",
    }
    (line,) = lines(log)
    assert {name: line[name] for name in ("event", *told)} == {"event": "refused", **told}
    del nodes[1]["fewest-parties"]
    file = Path(str(nodes[1]["data-path"]))
    file.write_text(file.read_text() + f"{IDS[7]},1,1,1,1\n")
    with pytest.raises(RuntimeError, match="1 ids more than once, such as in rows") as caught:
        play(tmp_path / "failed", CSV, nodes)
    assert "patient" not in str(caught.value)
    line = lines(log)[-1]
    assert (line["event"], line["asked"], line["error"]) == ("failed", "data-summary", "DataError")
    assert line["key"].endswith("column 'id'")
    assert "patient" not in log.read_text()


@pytest.mark.parametrize(
    ("log", "told"), [("", "Is a directory"), ("party-0.csv/logs/audit.jsonl", "(File exists|Not a directory)")]
)
def test_a_log_that_cannot_be_written_ends_the_run_before_it_begins(log: str, told: str, tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    nodes[0]["audit-log"] = str(tmp_path / log)
    with refuses(RuntimeError, f"party 0: audit-log: got '.*': {told}, allowed: a writable file"):
        play(tmp_path / "run", CSV, nodes)


def test_flips_that_nobody_keeps_add_up(tmp_path: Path) -> None:
    """Each file has its own budget."""
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    log = tmp_path / "audit.jsonl"
    nodes[0]["audit-log"] = str(log)
    for number, epsilon in enumerate((1.0, 0.5)):
        play(tmp_path / f"run-{number}", {**CSV, "vfb2.label-epsilon": epsilon, "num-server-rounds": 1}, nodes)
        with log.open("a") as file:
            file.write('{"time": "20\n')
    other = tmp_path / "other.csv"
    other.write_bytes(Path(str(nodes[0]["data-path"])).read_bytes())
    nodes[0]["data-path"] = str(other)
    play(tmp_path / "run-2", {**CSV, "vfb2.label-epsilon": 1.0, "num-server-rounds": 1}, nodes)
    whole = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    flips = [line["flips"] for line in whole if "flips" in line]
    assert [(one["drawn"], one["epsilon-spent"]) for one in flips] == [(48, 1.0), (48, 1.5), (48, 1.0)]


def test_a_party_s_files_are_its_owner_s_only(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    kept = [{**node, "state-dir": str(tmp_path / "deep" / "state")} for node in nodes]
    previous = os.umask(0)
    try:
        play(tmp_path / "run", {**CSV, "vfb2.label-epsilon": 1.0, "checkpoint-every": 1}, kept)
    finally:
        os.umask(previous)
    found = [tmp_path / "deep", *(tmp_path / "deep").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in found if path.is_dir()} == {0o700}
    files = [path for path in found if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    endings = {"audit.jsonl", "label-flips.key", "label-flips-1.0.safetensors", "block.safetensors"}
    assert endings < {path.name for path in files}
    assert any(path.name.startswith("round-") for path in files)
