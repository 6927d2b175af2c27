"""Tests that docs/architecture.md and CONTRIBUTING.md list all floors, rooms, functions, records, letters and
markers."""

import re
from configparser import ConfigParser
from dataclasses import fields

from apps.registry import ALGORITHMS
from methods.method import ClientHalf, ServerHalf
from payloads import secure_sum, wire
from payloads.record import Payload, specs_of
from problems.randomness import Purpose
from tests.docs.markdown import DOCS, PROJECT, codes, rows, section

PAGE = DOCS / "architecture.md"
CONTRACTS = ConfigParser()
CONTRACTS.read(PROJECT / ".importlinter")
PYTEST = ConfigParser(interpolation=None)
PYTEST.read(PROJECT / ".pytest.ini")


def names(title: str, column: int = 0) -> list[str]:
    """Return the names in a column of a section's tables."""
    return [name for row in rows(section(PAGE, title)) for name in codes(row[column])]


def letters_of(*records: type[Payload] | None) -> set[str]:
    """Return the letters of the records' dimensions."""
    dims = [dim for one in records if one for spec in specs_of(one).values() for dim in spec.dims]
    return {dim for dim in dims if isinstance(dim, str)}


def test_the_floors_are_those_of_the_import_contract() -> None:
    floors = [line.split(" | ") for line in CONTRACTS["importlinter:contract:floors"]["layers"].split("\n") if line]
    table = rows(section(PROJECT / "CONTRIBUTING.md", "The house"))
    assert [[name.rstrip("/") for name in codes(row[1])] for row in table] == floors
    assert [row[0] for row in table] == ["", *map(str, reversed(range(len(floors) - 1)))]


def test_the_rooms_are_the_folders() -> None:
    package, rooms = "", set()
    for row in rows(section(PAGE, "Rooms")):
        package = (codes(row[0]) or [package])[0]
        rooms.add(f"{package}/{codes(row[1])[0]}")
    folders = {path.parent.relative_to(PROJECT) for path in PROJECT.glob("*/*/__init__.py")}
    assert rooms == {folder.as_posix() for folder in folders if folder.parts[0] not in ("tests", "benchmarks")}


def test_the_functions_of_a_method_are_all_there() -> None:
    halves = [field.name for half in (ClientHalf, ServerHalf) for field in fields(half)]
    assert [name.partition("(")[0] for name in names("Six floors", 1) if "(" in name] == halves


def test_the_parts_of_a_round_are_all_there() -> None:
    parts = {path.stem for path in (PROJECT / "strategies" / "rounds").glob("[!_]*.py")}
    assert set(names("The parts of a round")) == parts


def test_the_records_and_the_purposes_are_all_there() -> None:
    assert {*wire._DOWN, wire.METRICS} <= set(names("The wire"))
    assert set(names("Determinism")) == set(Purpose.__members__)


def test_every_letter_of_a_reply_has_its_limit() -> None:
    table = [(codes(row[1]), set(row[0].split(", "))) for row in rows(section(PAGE, "The wire")) if row[0][0] != "`"]
    for name, row in ALGORITHMS.items():
        listed = {letter for strategies, letters in table if name in strategies for letter in letters}
        kind = row.strategy.settings_type
        settings = [kind()] + [kind(pool="histogram") for field in kind.model_fields if field == "pool"]
        variants = [(chosen, loss) for chosen in settings for loss in row.losses or [""]]
        records = [record for variant in variants for record in row.strategy.ups_of(*variant).values()]
        assert letters_of(*records) - {"d"} == listed, name
    stages = (secure_sum.PublicKeys, secure_sum.Boxes, secure_sum.MaskedValues, secure_sum.Views, secure_sum.Shares)
    assert ([], letters_of(*stages)) in table


def test_the_markers_are_all_there() -> None:
    markers = {line.partition(":")[0] for line in PYTEST["pytest"]["markers"].split("\n") if line}
    commands = " ".join(codes(row[0])[0] for row in rows(section(PROJECT / "CONTRIBUTING.md", "Parts of it")))
    assert set(re.findall(r"-m (\w+)", commands)) >= markers
