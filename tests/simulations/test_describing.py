"""The command `florilegium describe`, its files, and the report's section."""

import csv
import json
from pathlib import Path

import pytest

from apps.run_directory.table_one import MOST_SITES, as_rows
from tests.apps.test_describe import CONFIG, table
from tests.programs import Line

KEYS = "".join(f'{key}="{value}" ' for key, value in CONFIG.items() if key != "strategy")


@pytest.fixture
def sites(tmp_path: Path) -> list[str]:
    """Write four files, and return the options that name them. The last site has four rows."""
    for site, rows in enumerate((200, 120, 60, 4)):
        table(rows, site).to_csv(tmp_path / f"{site}.csv", index=False)
    return [
        part for site in range(4) for part in ("-n", f'data-path="{tmp_path}/{site}.csv" site-name="clinic {site}"')
    ]


def test_the_command_prints_the_table_and_writes_its_files(tmp_path: Path, sites: list[str], command: Line) -> None:
    out = tmp_path / "run"
    code, printed, err = command("describe", "--out", str(out), "-c", KEYS, *sites)
    assert code == 0, err
    assert printed == (out / "describe.txt").read_text("utf-8")
    head, *lines = printed.splitlines()
    assert head.split()[-1] == "IV"
    assert all(f"clinic {site}" in head for site in range(4))
    assert "1 site shows nothing, with too few rows." in lines
    figures = list(csv.DictReader((out / "describe.csv").read_text("utf-8").splitlines()))
    found = json.loads((out / "describe.json").read_text("utf-8"))
    rows = {line["site"]: line["value"] for line in figures if line["statistic"] == "rows"}
    assert rows == {"all": str(found["rows"]), "clinic 0": "200", "clinic 1": "120", "clinic 2": "60", "clinic 3": ""}
    mean = next(one for one in figures if (one["site"], one["column"], one["statistic"]) == ("all", "age", "mean"))
    assert float(mean["value"]) == found["columns"][0]["all"]["mean"]
    command("report", str(out))
    page = (out / "report.html").read_text("utf-8")
    assert "<h2>Table one</h2>" in page
    assert "age: information value" in page


def test_json_and_quiet(tmp_path: Path, sites: list[str], command: Line) -> None:
    _, printed, _ = command("describe", "--json", "--out", str(tmp_path / "a"), "-c", KEYS, *sites)
    assert json.loads(printed)["sites_that_show_nothing"] == 1
    assert command("describe", "--quiet", "--out", str(tmp_path / "b"), "-c", KEYS, *sites)[:2] == (0, "")


def test_many_sites_are_shown_as_a_range() -> None:
    site = {"rows": 20, "positives": 5, "negatives": 15, "prevalence": 0.25}
    sites = [{"site": str(number), **site, "rows": 20 + number} for number in range(MOST_SITES + 1)]
    found = {**site, "sites": sites, "outcome": "ill", "positive_label": "yes", "columns": []}
    heads, rows = as_rows(found)
    assert heads[2] == "range over sites"
    assert rows[0][:3] == ["rows", "20", "20 to 28"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (("describe", "-c", 'strategy="fedx2"'), "remove strategy, or use `florilegium run`"),
        (("run", "--baselines", "-c", 'strategy="describe" dataset="breast-cancer"'), "--baselines: remove"),
        (("centralized", "-c", 'strategy="describe" dataset="breast-cancer"'), "which trains no model"),
        (("describe", "-c", 'dataset="synthetic-pl"'), "cannot solve"),
    ],
)
def test_wrong_uses_are_errors(line: tuple[str, ...], text: str, tmp_path: Path, command: Line) -> None:
    code, _, err = command(*line, "--out", str(tmp_path / "run"))
    assert code == 1
    assert text in err
