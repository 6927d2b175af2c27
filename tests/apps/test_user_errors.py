"""Errors of bad input at the command line: the key, the value, the allowed values, and the hint.

The rows are the most frequent mistakes. ``tests/problems/test_errors.py`` checks all errors, and
``tests/apps/test_raised_errors.py`` checks how the sources raise them.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.programs import Line
from tests.simulations.fabricated import refusal

LIST = "`florilegium list"
KEYS = f"{LIST} keys`"
OWN = "tests.apps.own_models"
TINY = 'strategy="local-sgd" model="linear" num-server-rounds=1 local-steps=1 batch-size=2'
DATA = f'{TINY} dataset="breast-cancer"'
FILES = f'{TINY} dataset="csv" data-dir="{{tmp}}/data"'
GOOD = "a,b,label\n" + "".join(f"{x * 7 % 40},{x % 3},{x % 2}\n" for x in range(40))
LONGEST = 500  # characters without paths


class Row(NamedTuple):
    """A command line that fails, and parts of its message in their order: key, got, allowed and hint.

    In both, ``{tmp}`` is the folder of the files.
    """

    name: str
    arguments: tuple[str, ...]  # after ``florilegium``
    says: tuple[str, str, str, str]
    files: Mapping[str, str] = MappingProxyType({})


def run(*configs: str, clients: int = 2, nodes: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the command line of a run."""
    sites = [word for node in nodes for word in ("-n", node)] or ["--clients", str(clients)]
    return ("run", "--out", "{tmp}/run", "--quiet", *(word for config in configs for word in ("-c", config)), *sites)


def sites(*paths: str) -> tuple[str, ...]:
    nodes = tuple(f'data-path="{path}"' if path else "x=1" for path in paths)
    return run(f'{TINY} dataset="csv" partition="own"', nodes=nodes)


def parties(keys: str = "") -> tuple[str, ...]:
    nodes = tuple(f'data-path="{{tmp}}/{name}.csv" labels="label" fewest-rows=1 fewest-columns=1' for name in "abc")
    return run(f'strategy="vfb2-sgd" dataset="csv" num-server-rounds=1 batch-size=4 {keys}', nodes=nodes)


def ids(count: int = 12, labels: bool = True) -> str:
    header = "id,x,label\n" if labels else "id,x\n"
    return header + "".join(f"{row},{row % 5}{f',{row % 2}' if labels else ''}\n" for row in range(count))


ROWS = [
    # keys and values of the run config
    Row(
        "near-miss key",
        run("learning-rat=0.1"),
        ("learning-rat: ", "an unknown", "the ", "did you mean 'learning-rate'?"),
    ),
    Row(
        "two at once",
        run("seed=-1", "patience=-2"),
        ("seed", "-1", "an integer >= 0); patience (got -2; allowed: ", KEYS),
    ),
    Row("near miss", run('strategy="fedx"'), ("strategy", "'fedx'", "fedx1, fedx2", f"see {LIST} strategies`")),
    Row("key twice", run("seed=1 seed=3"), ("--config", "seed occurs twice", "once", "remove one seed")),
    Row("no such file", run("{tmp}/none.toml"), ("--config", "{tmp}/none.toml", ".toml file", "docs/configuration.md")),
    # values that exclude each other
    Row(
        "objective without margin",
        run('strategy="fedx2" loss="auprc" fedx.surrogate="squared-hinge" fedx.margin=0.0'),
        ("loss", "needs a margin > 0, got 0", "options that fit this loss", KEYS),
    ),
    # files of a data set
    Row("no files", run('dataset="csv"'), ("data-dir", "nothing", "'csv' is read from files", "docs/data.md")),
    Row(
        "no such folder", run(FILES), ("data-dir", "{tmp}/data', which does not exist", "existing file", "set data-dir")
    ),
    Row(
        "file where a folder is needed",
        run(f'{TINY} dataset="cifar10" data-dir="{{tmp}}/a.bin"'),
        ("data-dir", "{tmp}/a.bin', which is a file", "a folder", "set data-dir to the folder of the data set's files"),
        {"a.bin": "x"},
    ),
    Row(
        "no column of labels",
        run(FILES, 'label-column="c"'),
        ("label-column", "'c'", "columns a, b, label", "choose a column of {tmp}/data/a.csv; see docs/data.md"),
        {"data/a.csv": GOOD},
    ),
    # the data files of sites and parties
    Row("no file of a site", sites("", ""), ("data-path", "nothing", "a path in every node config", "docs/data.md")),
    Row("relative", sites("a.csv", "a.csv"), ("partition 0: ", "which is relative", "an absolute path", "set the")),
    Row(
        "sites of other columns",
        sites("{tmp}/a.csv", "{tmp}/b.csv"),
        (
            "partition 1: columns",
            "lacks 'b' and has 'c' in addition",
            "the columns of partition 0",
            "set feature-columns",
        ),
        {"a.csv": GOOD, "b.csv": GOOD.replace("b", "c", 1)},
    ),
    Row(
        "parties of other rows",
        parties(),
        ("party 2", "other rows (9) than 2 of 3 parties", "the same ids", 'set vfb2.alignment="intersection"'),
        {"a.csv": ids(), "b.csv": ids(), "c.csv": ids(9)},
    ),
    Row("no file of a party", parties(), ("partition 0: data-path", "no such file", "an existing", "docs/vertical.md")),
    Row(
        "labels at too few parties",
        parties("vfb2.active-parties=2"),
        ("vfb2.active-parties", "2, but only party 0 has labels", "at most 1", "lower vfb2.active-parties"),
        {"a.csv": ids(), "b.csv": ids(labels=False), "c.csv": ids(labels=False)},
    ),
    # models, and errors that a strategy finds once it knows its clients
    Row(
        "model whose factory fails",
        run(DATA, f'model="{OWN}:failing"'),
        ("model", "a factory's own fault", "factory(input_shape) -> torch.nn.Module", "docs/configuration.md"),
    ),
    Row(
        "model that no reply survives",
        run(DATA, f'model="{OWN}:Replacing"'),
        ("0 of 2 clients sent a valid reply", "another tensor for its buffer 'seen'", "the same", "copy_()"),
    ),
    Row("too few nodes", run(DATA, "min-train-nodes=5"), ("min-train-nodes", "5", "at most 2", "lower min-train")),
    # options of the other commands
    Row(
        "unknown experiment",
        ("reproduce", "fedx-fgi2", "--out", "{tmp}/run"),
        ("experiment", "'fedx-fgi2'", "fedx-fig2, ", f"did you mean 'fedx-fig2'? If not, see {LIST} experiments`"),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_wrong_input_is_one_line(command: Line, row: Row, tmp_path: Path) -> None:
    """The four parts are in order, and the message contains no internal word."""

    def filled(text: str) -> str:
        return text.replace("{tmp}", str(tmp_path))

    for name, content in row.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    message = refusal(command, *map(filled, row.arguments))
    key, got, allowed, way_out = (re.escape(filled(part)) for part in row.says)
    assert re.search(rf"{key}.*{way_out}.*\(got .*{got}.*; allowed: .*{allowed}", message)
    assert not re.search(r"\b(Config|Data|Input|Model|Payload|Problem|Setup|Strategy|Wrong)Error\b", message)
    assert len(message.replace(str(tmp_path), "")) <= LONGEST


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("trian",), "No such command 'trian'"),
        (("run",), "Missing option '--out'"),
        (run("seed=1", clients=0), "0 is not in the range x>=1"),
        (("list", "losses"), "'losses' is not one of 'strategies', 'datasets'"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(command: Line, arguments: tuple[str, ...], says: str) -> None:
    code, _, console = command(*arguments)
    assert code == 2
    # without typer's frame, colours and line breaks
    assert says in " ".join(re.sub(r"\x1b\[[0-9;]*m|[╭╮╰╯│─]", " ", console).split())
    assert "--help" in console
    assert "Traceback" not in console
