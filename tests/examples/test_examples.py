"""Every example runs from any folder, leaves nothing behind, and prints what its first lines say it shows."""

import re
from pathlib import Path

import pytest

from tests.docs.markdown import links
from tests.programs import PROJECT, ran

EXAMPLES = PROJECT / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))
Table = dict[str, dict[str, float]]


def printed(name: str, folder: Path) -> Table:
    """Row -> column -> number of the table that an example prints."""
    heading, *lines = ran(EXAMPLES / f"{name}.py", cwd=folder).splitlines()
    assert not list(folder.iterdir()), "an example must leave nothing behind"
    columns = [column for column in re.split(r" {2,}", heading.strip()) if column != "strategy"]
    table = {}
    for line in lines:
        *words, rest = re.split(r" {2,}", line, maxsplit=1)
        numbers = [float(number) for number in rest.split()]
        table[words[0]] = dict(zip(columns, numbers, strict=True))
    return table


@pytest.mark.slow
def test_fedx2_ranks_across_sites_and_local_pairs_do_not(tmp_path: Path) -> None:
    table = printed("fedx_partial_auc", tmp_path)
    assert sorted(table) == ["fedx2", "local-pair", "local-sgd"]
    assert table["fedx2"]["pAUC"] > table["local-pair"]["pAUC"] + 0.05


@pytest.mark.slow
def test_auc_losses_are_ahead_of_cross_entropy_where_a_class_is_rare(tmp_path: Path) -> None:
    table = printed("scgdam_imbalanced", tmp_path)
    assert set(table) == {"local-scgdam", "local-scgdam (inner)", "local-sgdam", "local-sgdm-rl", "local-sgdm"}
    assert min(table["local-scgdam"]["AUC"], table["local-sgdam"]["AUC"]) > table["local-sgdm"]["AUC"] + 0.02


@pytest.mark.slow
def test_control_variates_help_where_sites_miss_classes(tmp_path: Path) -> None:
    table = printed("minimax_auc", tmp_path)
    assert table["codasca"]["AUC"] > max(table[name]["AUC"] for name in ("coda", "local-sgdam", "local-sgd"))
    assert table["fedsgda-storm"]["AUC"] > table["local-sgd"]["AUC"]


@pytest.mark.slow
def test_composite_finds_the_minimum_and_averaging_does_not(tmp_path: Path) -> None:
    table = printed("composite_sparse", tmp_path)
    assert table["composite"]["distance"] < 0.01
    assert table["composite"]["support F1"] == 1
    for name in ("fedmid", "fedda"):
        assert table[name]["distance"] > 0.1
        assert table[name]["support F1"] < 1


@pytest.mark.slow
def test_three_parties_reach_what_one_table_does(tmp_path: Path) -> None:
    table = printed("vertical_credit", tmp_path)
    assert table["three parties"] == pytest.approx(table["one table"], abs=2e-3)
    assert table["the bank alone"]["AUC"] < table["three parties"]["AUC"] - 0.05


def test_every_example_is_checked_and_listed() -> None:
    checked = set(re.findall(r'printed\("(\w+)"', Path(__file__).read_text("utf-8")))
    assert set(SCRIPTS) == checked
    listed = links(EXAMPLES / "README.md")
    assert {f"{name}.py" for name in SCRIPTS} <= set(listed)
    assert all((EXAMPLES / link.partition("#")[0]).exists() for link in listed)
