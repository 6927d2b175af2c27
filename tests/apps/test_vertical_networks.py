"""Vertical runs whose parties have networks: training, stored weights, resumed runs, scoring, and errors."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from apps.config import ConfigError, Scalar, parse_run_config
from apps.parties.blocks import BlockFile, read_block
from clients.vfb2 import VFB2Client
from problems.data import DataSpec
from simulations.engines.launch import run_nonfederated
from tests.apps.vertical_runs import CSV, EVERYBODY, client_of, own_files, play
from tests.battery.federation import Run, flat_config
from tests.refusals import refuses
from vertical.parties import Party, find_network
from vertical.problem.blocks.network import Architecture, make_network
from vertical.problem.data import load_vertical
from vertical.problem.head import Head
from vertical.problem.objectives import make_objective

KEYS: dict[str, Scalar] = {"vfb2.embedding": 4, "vfb2.active-parties": 1, "vfb2.assemble": False, "vfb2.window": 1}
OWN = f"{__name__}:tower"


def tower(columns: int, embedding: int) -> nn.Module:
    """Return a network with a skip and a norm, for one party."""
    return nn.Sequential(nn.LayerNorm(columns), nn.Linear(columns, 5), nn.Tanh(), nn.Linear(5, embedding))


class Fourier(nn.Module):
    """A network with random features that are not part of its state."""

    def __init__(self, columns: int, embedding: int) -> None:
        super().__init__()
        self.drawn, self.top = torch.randn(columns, 6, dtype=torch.float64), nn.Linear(6, embedding)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cos(rows @ self.drawn))


def towers(columns: int, embedding: int) -> nn.Module:
    return nn.Linear(columns, embedding)


def droppy(columns: int, embedding: int) -> nn.Module:
    return nn.Sequential(nn.Linear(columns, embedding), nn.Dropout(0.5))


def normed(columns: int, embedding: int) -> nn.Module:
    return nn.Sequential(nn.Linear(columns, embedding), nn.BatchNorm1d(embedding))


def frozen(columns: int, embedding: int) -> nn.Module:
    module = nn.Linear(columns, embedding)
    module.bias.requires_grad_(False)
    return module


def slow(columns: int, embedding: int) -> nn.Module:
    time.sleep(0.01)  # another party's factory may run at the same time
    return nn.Linear(columns, embedding)


class Squeezed(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows).mean(dim=1)


def kept(run: Run, score_run: str = "") -> list[BlockFile]:
    return [read_block({}, score_run or str(run.path), "logistic", (party, 3)) for party in range(3)]


def predicted(blocks: list[BlockFile], parts: list[Any]) -> np.ndarray:
    """Return (n,) z of the stored networks and head. Only the first party has the head."""
    assert [block.head is None for block in blocks] == [False, True, True]
    sums = np.zeros((len(parts[0]), blocks[0].embedding))
    for block, part in zip(blocks, parts, strict=True):
        network = make_network(Architecture(block.model, 0), part.shape[1], block.embedding)
        network.weights[:] = block.weights
        sums += network.embed(part)
    head = Head(blocks[0].embedding, 0, make_objective("logistic"), 1.0)
    head.set_weights(blocks[0].head)  # type: ignore[arg-type]
    return head.predict(sums)


def test_parties_with_networks_of_their_own_learn_and_score(tmp_path: Path) -> None:
    nodes: list[dict[str, Scalar]] = [{}, {"model": "mlp"}, {"model": OWN}]
    run, _ = play(tmp_path / "run", {**KEYS, "num-server-rounds": 4, "learning-rate": 0.05}, nodes)
    blocks = kept(run)
    assert [block.model for block in blocks] == ["linear", "mlp", OWN]
    data = load_vertical(DataSpec("breast-cancer"), 3)
    held = [data.party(party) for party in range(3)]
    z = predicted(blocks, [test for _, test in held])
    last = run.lines[-1]
    assert last["auc"] == pytest.approx(roc_auc_score(data.test_labels > 0, z), abs=1e-12)
    assert last["auc"] > 0.97
    penalty = 0.5e-4 * sum(
        float(np.square(part).sum()) for b in blocks for part in (b.weights, b.head) if part is not None
    )
    z = predicted(blocks, [train for train, _ in held])
    assert last["objective"] == pytest.approx(np.mean(np.logaddexp(0, -data.train_labels * z)) + penalty, abs=1e-9)
    assert "suboptimality" not in last
    # scoring needs neither the embedding nor the models in its config
    scored, _ = play(tmp_path / "scores", {"vfb2.score-run": str(run.path)}, [{}] * 3)
    (file,) = scored.path.rglob("scores.csv")
    both = predicted(blocks, [np.concatenate(parts) for parts in held])
    np.testing.assert_allclose(pd.read_csv(file)["score"], both, rtol=0, atol=1e-9)
    with refuses(RuntimeError, r"vfb2.score-for: got 'all', allowed: 'label-holders', since only party 0 has the"):
        play(tmp_path / "all", {"vfb2.score-run": str(run.path), "vfb2.score-for": "all"}, [{}] * 3)


def test_several_classes_by_softmax(tmp_path: Path) -> None:
    """Only the label holder knows the classes' names, in the order of their indices."""
    nodes, whole = own_files(tmp_path, [EVERYBODY] * 3, labelled=1)
    level = np.digitize(whole["x0"] / 1.0 + whole["x3"] / 2.0, [-0.5, 0.5])
    own = pd.read_csv(tmp_path / "party-0.csv").drop(columns="label")
    names = dict(zip(whole["id"], np.array(["low", "middle", "top"])[level], strict=True))
    own.assign(label=own["id"].map(names)).to_csv(tmp_path / "party-0.csv", index=False)
    nodes = [{**node, "state-dir": str(tmp_path / "state")} for node in nodes]
    softmax: dict[str, Scalar] = {**CSV, **KEYS, "vfb2.problem": "softmax", "vfb2.embedding": 3}
    run, _ = play(
        tmp_path / "run", {**softmax, "num-server-rounds": 1, "vfb2.epochs": 200, "learning-rate": 0.5}, nodes
    )
    assert run.lines[-1]["objective"] < 0.4 * np.log(3)
    assert {"accuracy", "loss"} <= run.lines[-1].keys()
    assert "auc" not in run.lines[-1]
    token = (run.path / "run-token").read_text()
    score: dict[str, Scalar] = {**CSV, "vfb2.problem": "softmax", "vfb2.score-run": token, "vfb2.score-for": "all"}
    paths = [tmp_path / f"scores-{party}.csv" for party in range(3)]
    nodes = [{**node, "scores-path": str(path)} for node, path in zip(nodes, paths, strict=True)]
    play(tmp_path / "scores", score, nodes)
    blocks = [read_block(node, token, "softmax", (p, 3)) for p, node in enumerate(nodes)]
    assert [block.classes for block in blocks] == [("low", "middle", "top"), (), ()]
    assert all(block.head is None for block in blocks)
    first, other = (pd.read_csv(path, dtype={"class": str}) for path in paths[:2])
    assert np.mean(first["class"] == first["id"].map(names)) > 0.8
    chances = first[["probability-low", "probability-middle", "probability-top"]].to_numpy()
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    assert [("low", "middle", "top")[place] for place in chances.argmax(axis=1)] == first["class"].tolist()
    np.testing.assert_allclose(other[[f"probability-{place}" for place in range(3)]], chances, rtol=0, atol=1e-9)
    assert set(other["class"]) <= {"0", "1", "2"}
    with refuses(RuntimeError, r"party 0: vfb2\.embedding: got 4, allowed: 3, the number of classes; set"):
        play(tmp_path / "more", {**softmax, "vfb2.embedding": 4}, nodes)


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    config = {**KEYS, "vfb2.model": "mlp", "checkpoint-every": 2}
    whole, _ = play(tmp_path / "whole", {**config, "num-server-rounds": 4}, [{}] * 3)
    play(tmp_path / "run", {**config, "num-server-rounds": 2}, [{}] * 3)
    run, _ = play(tmp_path / "run", {**config, "num-server-rounds": 4, "resume": True}, [{}] * 3)
    for one, other in zip(kept(whole), kept(run), strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)
    np.testing.assert_array_equal(kept(whole)[0].head, kept(run)[0].head)
    assert kept(run)[0].epochs == 4


def test_a_run_does_not_go_on_with_another_network_of_as_many_weights(tmp_path: Path) -> None:
    config = {**KEYS, "checkpoint-every": 1}
    play(tmp_path / "run", {**config, "num-server-rounds": 1}, [{}, {}, {"model": f"{__name__}:towers"}])
    with pytest.raises(RuntimeError, match="its weights belong to another network"):
        play(tmp_path / "run", {**config, "num-server-rounds": 2, "resume": True}, [{}, {}, {"model": "linear"}])


def test_parties_with_files_go_on_from_their_secret_weights_and_score_new_rows(tmp_path: Path) -> None:
    """The step is too small to move a weight, so a network drawn again would be noticed."""
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3, labelled=1)
    nodes = [{**node, "state-dir": str(tmp_path / "state")} for node in nodes]
    nodes[2]["model"] = "mlp"
    config = {**CSV, **KEYS, "learning-rate": 1e-12, "checkpoint-every": 1}
    run, _ = play(tmp_path / "run", {**config, "num-server-rounds": 1}, nodes)
    token = (run.path / "run-token").read_text()
    before = [read_block(node, token, "logistic", (p, 3)) for p, node in enumerate(nodes)]
    run, _ = play(tmp_path / "run", {**config, "num-server-rounds": 2, "resume": True}, nodes)
    blocks = [read_block(node, token, "logistic", (p, 3)) for p, node in enumerate(nodes)]
    for one, other in zip(before, blocks, strict=True):
        assert (one.epochs, other.epochs) == (1, 2)
        np.testing.assert_allclose(one.weights, other.weights, rtol=0, atol=1e-9)
    np.testing.assert_allclose(before[0].head, blocks[0].head, rtol=0, atol=1e-9)  # type: ignore[arg-type]
    (tmp_path / "new").mkdir()
    new, table = own_files(tmp_path / "new", [["b", "a", "c"], ["c", "a", "d"], ["a", "c", "e"]], labelled=0)
    new = [{**node, "state-dir": str(tmp_path / "state")} for node in new]
    play(tmp_path / "scores", {**CSV, "vfb2.score-run": token, "vfb2.alignment": "intersection"}, new)
    (file,) = (tmp_path / "state").rglob("scores.csv")
    assert pd.read_csv(file)["id"].tolist() == ["a", "c"]
    rows = table.set_index("id").loc[["a", "c"]]
    scaled = [b.preprocessing.transform(b.preprocessing.encode(rows)) for b in blocks]  # type: ignore[union-attr]
    np.testing.assert_allclose(pd.read_csv(file)["score"], predicted(blocks, scaled), rtol=0, atol=1e-9)


def test_first_weights_of_a_party_with_its_own_rows_are_its_secret(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3, labelled=1)
    nodes = [{**node, "state-dir": str(tmp_path / "state")} for node in nodes]
    starts = []
    for name in ("one", "two"):
        run, _ = play(tmp_path / name, {**CSV, **KEYS, "learning-rate": 1e-12, "num-server-rounds": 1}, nodes)
        token = (run.path / "run-token").read_text()
        starts.append([read_block(node, token, "logistic", (p, 3)).weights for p, node in enumerate(nodes)])
    assert not any(np.allclose(one, two, atol=1e-3) for one, two in zip(*starts, strict=True))
    # in an experiment, where parties have all columns, the first weights follow from the seed and the party
    data = load_vertical(DataSpec("breast-cancer"), 3)
    seeds = []
    for place in (0, 1, 1):
        rows = type("Rows", (), {"block": None, "keys": {"seed": 0}, "columns": data.party(place)[0].shape[1]})()
        client: VFB2Client = client_of(tmp_path, Party(place, 3, lambda rows=rows: rows), KEYS)  # type: ignore[misc]
        seeds.append(find_network(client.party, client.training.seed).seed)
    assert seeds[0] != seeds[1] == seeds[2]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"strategy": "vfb2-saga"},
            "strategy: got 'vfb2-saga' with vfb2.embedding=4, allowed: vfb2-sgd, since SVRG and SAGA",
        ),
        (
            {"vfb2.active-parties": 2},
            "vfb2.active-parties: got 2 with vfb2.embedding=4, allowed: 1, or vfb2.embedding=1",
        ),
        ({"vfb2.update-passive": False}, "vfb2.update-passive: got False with"),
        (
            {"vfb2.problem": "softmax", "vfb2.embedding": 1},
            "vfb2.embedding: got 1, allowed: the number of classes",
        ),
        ({"vfb2.assemble": True}, "vfb2.assemble: got True with"),
        (
            {"vfb2.model": "cnn"},
            "vfb2.model: got 'cnn', an unknown model, allowed: linear, mlp, or 'package.module:fac",
        ),
    ],
)
def test_what_networks_have_no_place_in_is_refused(config: dict[str, Scalar], told: str) -> None:
    with refuses(ConfigError, told):
        parse_run_config({"strategy": "vfb2-sgd", "dataset": "breast-cancer", **KEYS, **config})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cnn", "node config: model: got 'cnn', an unknown model"),
        ("nowhere.to:find", "party 2: vfb2.model: got 'nowhere.to:find': cannot import 'nowhere.to'"),
        (f"{__name__}:droppy", "random in training, or depends on the batch"),
        (f"{__name__}:normed", "vfb2.model: got .*normed'"),
        (f"{__name__}:frozen", "whose module has bias"),
        (f"{__name__}:Fourier", "another function with the same weights when it is built again"),
        (f"{__name__}:Squeezed", r"returned \(32,\) for 32 rows, but the embedding is 4"),
        ("heapq:merge", "'heapq:merge', which returned generator"),
        ("json:dumps", "which failed on 10 columns"),
        ("os:dup2", "'os:dup2', which does not return a module"),
        ("torch.nn:RMSNorm", "whose module returned"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_before_any_segment(name: str, told: str, tmp_path: Path) -> None:
    with refuses(RuntimeError, told):
        play(tmp_path / "run", KEYS, [{}, {}, {"model": name}])


def test_the_linear_reference_is_not_one_of_networks(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {
        "strategy": "vfb2-sgd",
        "dataset": "breast-cancer",
        "vfb2.embedding": 1,
        "vfb2.assemble": False,
    }
    with refuses(ConfigError, r"vfb2\.embedding: got 1, allowed: 0"):
        run_nonfederated(flat_config(tmp_path, config))
    assert "vfb2.check-step='refuse'" in parse_run_config({**config, "vfb2.check-step": "refuse"}).warning


def test_parties_of_one_process_do_not_draw_each_other_s_weights() -> None:
    def first_weights(seed: int) -> np.ndarray:
        return make_network(Architecture(f"{__name__}:slow", seed), 3, 2).weights

    alone = [first_weights(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        np.testing.assert_array_equal(list(pool.map(first_weights, range(4))), alone)


def test_a_module_s_update_is_torch_s() -> None:
    columns, rng = 6, np.random.default_rng(1)
    made, rows, slopes = (
        make_network(Architecture(OWN, 3), columns, 4),
        rng.standard_normal((9, columns)),
        rng.standard_normal((9, 4)),
    )
    torch.manual_seed(3)
    module = tower(columns, 4).double()
    before = torch.random.get_rng_state()
    again = make_network(Architecture(OWN, 3), columns, 4)
    assert torch.equal(before, torch.random.get_rng_state())
    embedded = module(torch.from_numpy(rows))
    np.testing.assert_allclose(made.embed(rows), embedded.detach().numpy(), rtol=0, atol=1e-12)
    embedded.backward(torch.from_numpy(slopes))
    whole = torch.cat([one.grad.ravel() for one in module.parameters()]).numpy()  # type: ignore[union-attr]
    np.testing.assert_allclose(made.pull(rows, slopes), whole, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(again.weights, made.weights)
