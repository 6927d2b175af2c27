"""The most frequent mistakes of a user, a command line each."""

import shutil
from pathlib import Path

import numpy as np

from tests.apps.errors.harness import FINISHED, Row, run

KEYS = "`python -m simulations list keys`"
OWN = "tests.apps.errors.own"
TINY = 'strategy="local-sgd" model="linear" num-server-rounds=1 local-steps=1 batch-size=2'
DATA = f'{TINY} dataset="breast-cancer"'
VERTICAL = 'strategy="vfb2-sgd" dataset="breast-cancer" num-server-rounds=1'
GOOD = "a,b,label\n" + "".join(f"{x * 7 % 40},{x % 3},{x % 2}\n" for x in range(40))
GRID = "\n[tune]\ngrid.learning-rate = [0.1, 1.0]\n"
EXPERIMENT = """
title = "Two methods on digits"
paper = "A paper"
figure = "Table 9"
clients = 2
metrics = ["auc"]
curve = "{method}"

[config]
model = "linear"
num-server-rounds = 1
local-steps = 1

[profiles.quick]
minutes = 0.1
seeds = 1

[[runs]]
name = "FedX"
strategy = "fedx1"

[[runs]]
name = "Local SGD"
strategy = "local-sgd"
"""


def arrays(path: Path) -> None:
    features = np.arange(80.0).reshape(40, 2)
    np.savez(path, X=np.where(features == 3, np.inf, features), y=np.arange(40) % 2)


def copied(tmp: Path, finished: Path) -> None:
    shutil.copytree(finished, tmp / "run")


def cut_checkpoint(tmp: Path, finished: Path) -> None:
    copied(tmp, finished)
    path = tmp / "run" / "checkpoints" / "round-000002.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def without_checkpoints(tmp: Path, finished: Path) -> None:
    copied(tmp, finished)
    shutil.rmtree(tmp / "run" / "checkpoints")


def data(dataset: str, *configs: str) -> tuple[str, ...]:
    return run(f'{TINY} dataset="{dataset}" data-dir="{{tmp}}/data"', *configs)


def sites(*configs: str, paths: tuple[str, ...] = ("{tmp}/a.csv", "{tmp}/b.csv")) -> tuple[str, ...]:
    nodes = tuple(f'data-path="{path}"' if path else "x=1" for path in paths)
    return run(f'{TINY} dataset="csv" partition="own"', *configs, nodes=nodes)


def parties(*configs: str, nodes: tuple[str, str, str] = ("", "", "")) -> tuple[str, ...]:
    whole = tuple(f'data-path="{{tmp}}/{name}.csv" {node}' for name, node in zip("abc", nodes, strict=True))
    return run('strategy="vfb2-sgd" dataset="csv" num-server-rounds=1 batch-size=4', *configs, nodes=whole)


def ids(count: int = 12, labels: bool = True) -> str:
    header = "id,x,label\n" if labels else "id,x\n"
    return header + "".join(f"{row},{row % 5}{f',{row % 2}' if labels else ''}\n" for row in range(count))


def reproduce(*options: str) -> tuple[str, ...]:
    return ("simulations", "reproduce", "{tmp}/small.toml", "--out", "{out}", "--quiet", *options)


def sweep(*options: str) -> tuple[str, ...]:
    return ("simulations", "sweep", "--out", "{out}", "--quiet", *options)


ROWS = [
    # keys and values of the run config
    Row(
        "near-miss key",
        run("learning-rat=0.1"),
        ("learning-rat: ", "an unknown run-config key", "docs/configuration.md (did you mean 'learning-rate'?)", KEYS),
    ),
    Row("out of range", run("learning-rate=0.0"), ("learning-rate", "0.0", "a number > 0", KEYS)),
    Row("number or word", run('vfb2.skew="much"'), ("vfb2.skew", "'much'", "or auto", KEYS)),
    Row("two at once", run("seed=-1", "loss=3"), ("seed", "-1", "an integer >= 0; loss: got 3, allowed: ", KEYS)),
    Row(
        "near-miss strategy",
        run('strategy="fedx3"'),
        ("strategy", "'fedx3'", "(did you mean 'fedx", "`python -m simulations list strategies`"),
    ),
    Row(
        "near-miss data set",
        run('dataset="digit"'),
        ("dataset", "'digit'", "(did you mean 'digits'?)", "`python -m simulations list datasets`"),
    ),
    Row(
        "near-miss loss",
        run('loss="cross-entrpy"'),
        ("loss", "'cross-entrpy'", "(did you mean 'cross-entropy'?)", "docs/configuration.md"),
    ),
    Row("not pairs", run("nonsense"), ("--config", "'nonsense'", "key=value", "docs/configuration.md")),
    Row("key twice", run("seed=1 seed=3"), ("--config", "seed is there twice", "once", "leave one out")),
    Row("no such file", run("{tmp}/none.toml"), ("--config", "{tmp}/none.toml", ".toml file", "docs/configuration.md")),
    # what does not go together
    Row(
        "fraction of all clients",
        run('strategy="composite" fraction-train=0.5'),
        ("fraction-train", "0.5", "1.0, since strategy 'composite' keeps", "leave it out"),
    ),
    Row(
        "vertical partition of rows",
        run(VERTICAL, 'partition="dirichlet"'),
        ("partition", "'dirichlet'", "iid or consecutive, since the clients", "docs/vertical.md"),
    ),
    Row(
        "loss of another strategy",
        run('strategy="fedx1" loss="kl-opauc"'),
        ("loss", "'kl-opauc' with strategy 'fedx1'", "auto, ", "'kl-opauc' goes with strategy fedx2"),
    ),
    Row(
        "objective without margin",
        run('strategy="fedx2" loss="auprc" fedx.surrogate="squared-hinge" fedx.margin=0.0'),
        ("loss", "needs a margin > 0, got 0", "options that fit it", KEYS),
    ),
    # files of a data set
    Row("no files", run('dataset="csv"'), ("data-dir", "nothing", "'csv' is read from files", "docs/data.md")),
    Row("no such folder", data("csv"), ("data-dir", "{tmp}/data', which does not exist", "a file", "set data-dir")),
    Row(
        "file where a folder is needed",
        run(f'{TINY} dataset="cifar10" data-dir="{{tmp}}/a.bin"'),
        ("data-dir", "{tmp}/a.bin', which is a file", "the folder", "set data-dir to it"),
        {"a.bin": "x"},
    ),
    Row(
        "named set without its files",
        data("uci-credit"),
        ("'uci-credit'", "no such files in data-dir '{tmp}/data'", "UCI_Credit_Card.csv", "set data-dir"),
        {"data/a.txt": ""},
    ),
    Row(
        "no column of labels",
        data("csv", 'label-column="c"'),
        ("{tmp}/data/a.csv", "no column 'c'", "one of a, b, label", "set label-column; see docs/data.md"),
        {"data/a.csv": GOOD},
    ),
    Row(
        "number that is missing",
        data("csv"),
        ("dataset 'csv': column 'a'", "1 of 41 values missing", "none", "fill or drop them"),
        {"data/a.csv": GOOD + ",1,1\n"},
    ),
    Row(
        "three labels",
        data("csv"),
        ("positive-label", "nothing for 3 labels", "labels that occur: x, y, z", "set positive-label"),
        {"data/a.csv": "a,label\n" + "1,x\n2,y\n3,z\n" * 4},
    ),
    Row(
        "infinite features",
        data("npz"),
        ("features", "1 of 40 samples", "none", "fill or drop them"),
        {"data/a.npz": arrays},
    ),
    Row(
        "text that is not svmlight",
        data("svmlight"),
        ("{tmp}/data/a.svm", "cannot be read as svmlight", "1 3:0.5 7:1", "set dataset to its kind"),
        {"data/a.svm": "one two\n"},
    ),
    Row(
        "image that is none",
        data("image-folder"),
        ("{tmp}/data/train/a/1.png", "cannot be read as an image", "a whole image", "replace it, or remove it"),
        {"data/train/a/1.png": b"no", "data/train/b/2.png": b"no"},
    ),
    Row(
        "client without a row",
        data("csv", 'partition="pathological" partition-classes=3'),
        ("partition-classes", "3 for each of 2 clients", "1 to 2", "set it so"),
        {"data/a.csv": GOOD},
    ),
    # own data of sites and parties
    Row("no file of a site", sites(paths=("", "")), ("data-path", "''", "a path in every node config", "docs/data.md")),
    Row(
        "relative path",
        sites(paths=("a.csv", "a.csv")),
        ("partition 0: ", "'a.csv', which is relative", "a whole path", "give it"),
    ),
    Row(
        "sites of other columns",
        sites(),
        ("partition 1: columns", "lacks 'b' and 'c' besides", "the columns of partition 0", "set feature-columns"),
        {"a.csv": GOOD, "b.csv": GOOD.replace("b", "c", 1)},
    ),
    Row(
        "parties of other rows",
        parties(),
        ("party 2", "other rows (9) than 2 of 3 parties", "the same ids", 'set vfb2.alignment="intersection"'),
        {"a.csv": ids(), "b.csv": ids(), "c.csv": ids(9)},
    ),
    Row(
        "no file of a party",
        parties(),
        ("partition 0: data-path: '{tmp}/a.csv'", "no such file", "an existing file", "docs/vertical.md"),
    ),
    Row(
        "labels at too few parties",
        parties(),
        ("vfb2.active-parties", "2, but labels are held by party 0 only", "at most 1", "lower it"),
        {"a.csv": ids(), "b.csv": ids(labels=False), "c.csv": ids(labels=False)},
    ),
    Row(
        "certificate without a key",
        run(VERTICAL, nodes=('peer-cert="a.pem"', "a=1", "a=1")),
        ("node config", "peer-cert without peer-key", "both or neither", "give peer-key too"),
    ),
    Row(
        "run below a party's policy",
        parties("vfb2.active-parties=1 vfb2.label-epsilon=4.0", nodes=("", "largest-label-epsilon=1", "")),
        (
            "party 1: largest-label-epsilon",
            "a run with vfb2.label-epsilon=4",
            "above 0 and at most 1",
            "set vfb2.label",
        ),
    ),
    Row(
        "peer under no pin",
        parties(nodes=("", "", f'pinned-peers="bank={64 * "0"}"')),
        (
            "party 2: pinned-peers",
            "party 0 under no pin",
            "a certificate of that SHA-256",
            "pin it, or leave the party",
        ),
        {"a.csv": ids(), "b.csv": ids()},
    ),
    Row(
        "policy that cannot be read",
        parties(nodes=('pinned-peers="bank"', "", "")),
        ("party 0: pinned-peers", "'bank'", "name=SHA-256 in hexadecimal", "docs/vertical.md"),
    ),
    Row(
        "label flips that were cut",
        parties("vfb2.active-parties=1 vfb2.label-epsilon=1.0", nodes=('state-dir="{tmp}"', "", "")),
        ("state-dir", "unusable label flips: {tmp}/label-flips.key with 3 bytes", "whole ones", "bring back a copy"),
        {"a.csv": ids(), "b.csv": ids(), "c.csv": ids(), "label-flips.key": "cut"},
    ),
    Row("two parties", run(VERTICAL), ("number of parties", "2", "3 or more, since", "vfb2.allow-two-parties=true")),
    # models, and what a strategy finds once it knows its clients
    Row(
        "model of no module",
        run(DATA, 'model="no.such:factory"'),
        ("model", "cannot import 'no.such'", "factory(input_shape) -> torch.nn.Module", "docs/configuration.md"),
    ),
    Row(
        "model whose factory fails",
        run(DATA, f'model="{OWN}:failing"'),
        ("model", "a factory's own fault", "factory(input_shape) -> torch.nn.Module", "docs/configuration.md"),
    ),
    Row(
        "model that no reply survives",
        run(DATA, f'model="{OWN}:Replacing"'),
        ("0 good replies of 2, min-train-nodes is 0.5", "another tensor for its buffer 'seen'", "the same", "copy_()"),
    ),
    Row(
        "more nodes than there are",
        run(DATA, "min-train-nodes=5"),
        ("min-train-nodes", "5 for round 1", "at most 2", "lower min-train-nodes"),
    ),
    # resume
    Row("nothing to resume", run(FINISHED, "resume=true"), ("resume", "there is no run", "true where", "set run-name")),
    Row(
        "other settings",
        run(FINISHED, "resume=true local-steps=2"),
        ("resume: local-steps", "2", "1, with which the run in {out} was started", "set it so, or begin a new run"),
        before=copied,
    ),
    Row(
        "truncated checkpoint",
        run(FINISHED, "resume=true"),
        ("resume", "an unusable checkpoint, {out}/checkpoints/round-000002", "a whole one", "remove it"),
        before=cut_checkpoint,
    ),
    Row(
        "no checkpoint",
        run(FINISHED, "resume=true"),
        ("resume: {out}/checkpoints", "no checkpoint", "one at least", "checkpoint-every > 0"),
        before=without_checkpoints,
    ),
    Row(
        "fewer rounds",
        run(FINISHED, "resume=true num-server-rounds=1"),
        ("num-server-rounds", "1", "2 or more, since the run in {out}", "raise it"),
        before=copied,
    ),
    Row("directory with a run", run(FINISHED), ("run-name", "{out}", "a name of no run", "resume=true"), before=copied),
    # options of the other commands
    Row("no trials", sweep(), ("sweep", "no trials", "two at least", "give --grid, --random or --seeds")),
    Row(
        "grid of bare words",
        sweep("--grid", "loss=psm,auprc"),
        ("--grid 'loss=psm,auprc'", "'psm,auprc'", "strings in double quotes", "docs/simulations.md"),
    ),
    Row(
        "fixed and varied",
        sweep("-c", "local-steps=1", "--grid", "local-steps=2,3"),
        ("local-steps", "1 by --config, but it is varied too", "one of both", "leave one of both out"),
    ),
    Row(
        "trial that is wrong",
        sweep("--grid", "local-steps=1,0"),
        ("trial local-steps=0: local-steps", "0", "an integer >= 1", KEYS),
    ),
    Row("no run there", ("simulations", "compare", "{tmp}"), ("{tmp}", "no run", "a run's directory", "--out")),
    Row(
        "reference that is not vertical",
        run('strategy="fedx2"', clients=None, command="nonfederated"),
        ("strategy", "'fedx2', which is not vertical", "vfb2-sgd", "`python -m simulations centralized`"),
    ),
    Row(
        "unknown experiment",
        ("simulations", "reproduce", "fedx-fig3", "--out", "{out}"),
        ("experiment", "'fedx-fig3'", "(did you mean 'fedx-fig2'?)", "`python -m simulations list experiments`"),
    ),
    Row(
        "unknown key of an experiment",
        reproduce(),
        ("{tmp}/small.toml: papr", "an unknown key", "(did you mean 'paper'?)", "docs/simulations.md"),
        {"small.toml": "papr = 3\n" + EXPERIMENT},
    ),
    Row(
        "run config of an experiment",
        reproduce(),
        ("experiment 'small', FedX", "'fedx9'", "(did you mean 'fedx", "`python -m simulations list strategies`"),
        {"small.toml": EXPERIMENT.replace("fedx1", "fedx9")},
    ),
    Row(
        "claim of no run",
        reproduce(),
        ("claims[0]", "method = FedY, which no run has", "coordinates of the runs", "docs/simulations.md"),
        {"small.toml": EXPERIMENT + '\n[[claims]]\ntext = "More"\nbetter = "FedX"\nthan = "FedY"\n'},
    ),
    Row(
        "choice on the test rows",
        reproduce("--tune"),
        ("tune.validation-fraction", "0", "a number above 0, since 'auc'", "docs/simulations.md"),
        {"small.toml": EXPERIMENT + GRID + "validation-fraction = 0.0\n"},
    ),
]

DOCTOR = [
    Row(
        "node without a place",
        ("apps.doctor", "site", "--node-config", "x=1"),
        ("node config", "x, without 'partition-id'", "partition-id and num-partitions", "start the SuperNode with"),
    ),
    Row(
        "key that is none",
        ("apps.doctor", "site", "--node-config", "x=1", "--auth-supernode-private-key", "{tmp}/a.key"),
        ("{tmp}/a.key", "no such key", "OpenSSH's format", "deploy/node-key.sh"),
        {"a.key": "none"},
    ),
    Row(
        "folder that is not there",
        ("apps.doctor", "superlink", "--port", "0", "--database", "{tmp}/none/state.db"),
        ("database: folder", "{tmp}/none", "one that exists", "make it"),
    ),
]

# What typer finds: command line, and what it says.
USAGE = [
    (("simulations", "trian"), "No such command 'trian'"),
    (("simulations", "run"), "Missing option '--out'"),
    (run("seed=1", clients=0), "0 is not in the range x>=1"),
    (("simulations", "list", "losses"), "'losses' is not one of 'strategies', 'datasets'"),
    (("simulations.attacks", "colours"), "got colours, allowed: one or more of labels, label-cost"),
]
