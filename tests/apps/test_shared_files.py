"""Two companies with their own files train on secret shares, and score new customers."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apps.config import Scalar
from apps.parties.blocks import BLOCK_FORMAT, BLOCK_VERSION, write_block
from apps.server_app import RunFailedError
from apps.sites.files import read_sealed
from tests.apps.vertical_runs import CSV, identified, own_files, play, scores_of_blocks
from vertical.shares.dealer import Dealer
from vertical.transport.addresses import Address, free_port
from vertical.transport.identity import Identity, read_certificates

KEYS: dict[str, Scalar] = {**CSV, "strategy": "shared-sgd", "learning-rate": 0.3, "vfb2.assemble": False}
KEYS |= {"vfb2.alignment": "intersection"}
OLD = [f"row-{number:03}" for number in range(400)]
NEW = [f"new-{number:03}" for number in range(30)]


def test_two_companies_train_and_score_on_shares(tmp_path: Path) -> None:
    ids = [OLD[:390], OLD[10:]]
    nodes, _ = own_files(tmp_path, ids, labelled=1)
    folders = [tmp_path / f"state-{party}" for party in range(2)]
    kept = [
        {**node, "state-dir": str(folder), "allowed-maskings": "shares"}
        for node, folder in zip(nodes, folders, strict=True)
    ]
    run, tap = play(tmp_path / "run", {**KEYS, "num-server-rounds": 10}, kept)
    assert run.result["metrics"]["auc"] > 0.9
    assert run.model == {}
    packages = [e.message.content["payload"] for e in tap.exchanges if e.server_round == 1 and not e.phase]
    seeds = [bytes(package["package"])[:96] for package in packages]  # type: ignore[index]
    assert len({*seeds}) == 2
    token = (run.path / "run-token").read_text()
    (tmp_path / "new").mkdir()
    new, whole = own_files(tmp_path / "new", [NEW[:25], NEW[3:]], labelled=0)
    scoring = [{**old, **node} for old, node in zip(kept, new, strict=True)]
    play(tmp_path / "scored", {**KEYS, "vfb2.score-run": token}, scoring)
    (file,) = tmp_path.rglob("scores*.csv")
    scores = pd.read_csv(file).set_index("id")
    rows = whole[whole["id"].isin(NEW[3:25])]
    assert scores.index.tolist() == rows["id"].tolist()
    np.testing.assert_allclose(scores.iloc[:, 0], scores_of_blocks(rows, folders, token), atol=1e-9)
    assert json.loads((run.path / "result.json").read_text())["metrics"]["loss"] > 0


def test_two_companies_score_with_weights_that_stay_shared(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [OLD, OLD], labelled=1)
    shared: dict[str, Scalar] = {"vfb2.keep-shared": True}
    kept = [
        {**node, "state-dir": str(tmp_path / f"state-{party}"), "allowed-maskings": "shares"}
        for party, node in enumerate(nodes)
    ]
    config = {**KEYS, **shared, "num-server-rounds": 5}
    run, _ = play(tmp_path / "run", config, kept)
    token = (run.path / "run-token").read_text()
    opened, _ = play(tmp_path / "opened", {**config, "vfb2.keep-shared": False}, kept)
    (tmp_path / "new").mkdir()
    new, whole = own_files(tmp_path / "new", [NEW, NEW], labelled=0)
    scoring = [{**old, **node} for old, node in zip(kept, new, strict=True)]
    play(tmp_path / "scored", {**KEYS, **shared, "vfb2.score-run": token}, scoring)
    (file,) = tmp_path.rglob("scores*.csv")
    scores = pd.read_csv(file)
    folders = [tmp_path / f"state-{party}" for party in range(2)]
    expected = scores_of_blocks(whole, folders, (opened.path / "run-token").read_text())
    np.testing.assert_allclose(scores["score"], expected, atol=2e-3)
    with pytest.raises(RunFailedError, match=r"its block is shared, but vfb2.keep-shared is false: set strategy"):
        play(tmp_path / "open", {**KEYS, "vfb2.score-run": token}, scoring)
    (path,) = folders[1].rglob(f"{token}/client-1/block.safetensors")
    arrays, texts = read_sealed(path, BLOCK_FORMAT, BLOCK_VERSION)
    # a share of another attempt at the last segment
    header = {name: json.loads(text) for name, text in texts.items() if name not in ("format", "version", "seal")}
    write_block(path.parent, arrays, {**header, "history": "00" * 32})
    with pytest.raises(RunFailedError, match="not agree with the other parties on: .*history"):
        play(tmp_path / "mixed", {**KEYS, **shared, "vfb2.score-run": token}, scoring)


@contextlib.contextmanager
def dealing(folder: Path, nodes: list[dict[str, Scalar]]) -> Iterator[dict[str, Scalar]]:
    """Run a dealer that knows the nodes' certificates, and yield the settings with which a node uses it."""
    dealer, identity = f"127.0.0.1:{free_port()}", Identity.create("dealer")
    (folder / "dealer.pem").write_bytes(identity.chain)
    loop, parties = asyncio.new_event_loop(), [read_certificates(str(node["peer-cert"]))[0] for node in nodes]
    server = loop.run_until_complete(Dealer(identity, parties).listen(Address("tcp", dealer)))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield {"dealer": dealer, "dealer-cert": str(folder / "dealer.pem")}
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(server.wait_closed())
        loop.close()


def test_a_third_party_deals(tmp_path: Path) -> None:
    nodes = identified(tmp_path, own_files(tmp_path, [OLD, OLD], labelled=1)[0])
    nodes = [{**node, "allowed-maskings": "shares"} for node in nodes]
    with dealing(tmp_path, nodes) as settings:
        keys = {**KEYS, "num-server-rounds": 3}
        run, tap = play(tmp_path / "run", keys, [{**node, **settings} for node in nodes])
        assert run.result["metrics"]["auc"] > 0.85
        assert not any("package" in e.message.content["payload"] for e in tap.exchanges if e.server_round == 1)
        with pytest.raises(RunFailedError, match=r"dealer: set dealer in each .* \(got a dealer at parties \[1\] only"):
            play(tmp_path / "half", keys, [nodes[0], {**nodes[1], **settings}])
        (tmp_path / "other.pem").write_bytes(Identity.create("other").chain)
        other = {**settings, "dealer-cert": str(tmp_path / "other.pem")}
        with pytest.raises(RunFailedError, match="not agree with the other parties on: site setting dealer"):
            play(tmp_path / "two", keys, [{**nodes[0], **settings}, {**nodes[1], **other}])
        # masks need no dealer
        masked = {**keys, "strategy": "vfb2-sgd", "vfb2.allow-two-parties": True}
        nodes = [{**node, "allowed-maskings": "pairwise"} for node in nodes]
        play(tmp_path / "masks", masked, [{**nodes[0], **settings}, {**nodes[1], **other}])
