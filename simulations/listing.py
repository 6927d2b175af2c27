"""The command ``list``: strategies, data sets, partitions, models, run-config keys and experiments.

The command reads ``listing.json``, since importing the listed modules would load PyTorch, which takes seconds. After a
change of a description, a key or an experiment, write the file again; a test compares the file with the modules:

    python -m simulations.listing
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from problems.importing import LOADERS, ROWS, plugins
from simulations.arguments import Json
from simulations.results.output import format_cell, print_json

FILE = Path(__file__).with_suffix(".json")
Section = Literal["strategies", "datasets", "partitions", "models", "keys", "experiments"]
TITLES: dict[Section, str] = {
    "strategies": "strategies",
    "datasets": "data sets",
    "partitions": "partitions",
    "models": "models",
    "keys": "run-config keys",
    "experiments": "experiments",
}
GROUPS: dict[Section, str] = {"strategies": ROWS, "datasets": LOADERS}
"""The entry-point groups by which other installed packages (plugins) add lines to a section."""


def collect() -> dict[Section, dict[str, Any]]:
    """Collect the lines of each section from the project's modules.

    Returns:
        By section and name: a description; for an experiment its title, paper, figure, data sets and minutes.

    Raises:
        ConfigError: An experiment's file is wrong.
    """
    from apps.config import known_keys
    from apps.registry import ALGORITHMS, ANALYSES
    from problems.data import DATASETS, PARTITIONS
    from problems.models import LIBRARY_FORMS, MODELS
    from simulations.experiments.expansion import data_sets
    from simulations.experiments.experiment import find_packaged, read_experiment

    experiments = {name: read_experiment(path) for name, path in find_packaged().items()}
    return {
        "strategies": {
            name: row.description + (" [--stack has no effect]" if row.strategy.clients_meet else "")
            for name, row in {**ALGORITHMS, **ANALYSES}.items()
        },
        "datasets": dict(DATASETS),
        "partitions": dict(PARTITIONS),
        "models": {name: entry.description for name, entry in MODELS.items()} | LIBRARY_FORMS,
        "keys": known_keys(),
        "experiments": {
            name: {
                "title": experiment.title,
                "paper": experiment.paper,
                "figure": experiment.figure,
                "datasets": data_sets(experiment),
                "minutes": {profile: settings.minutes for profile, settings in experiment.profiles.items()},
            }
            for name, experiment in experiments.items()
        },
    }


def list_everything(
    section: Annotated[Section | None, typer.Argument(help="section to list; default: all sections")] = None,
    as_json: Json = False,
) -> None:
    """List strategies, data sets, partitions, models, run-config keys and experiments, one line each.

    SECTION restricts the list to one of these. Lines of plugins follow the project's own lines, with the plugin's
    package in brackets.
    """
    lines: dict[Section, dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    chosen = {name: {**rows, **_of_packages(name, rows)} for name, rows in lines.items() if section in (None, name)}
    if as_json:
        print_json(chosen)
        return
    for name, rows in chosen.items():
        typer.echo(f"{TITLES[name]}:")
        width = max(map(len, rows))
        for key, row in rows.items():
            typer.echo(f"  {key:<{width}}  {row if isinstance(row, str) else _describe(row)}")


def _of_packages(section: Section, own: Mapping[str, Any]) -> dict[str, str]:
    group = GROUPS.get(section)
    if group is None or not any(plugin.name not in own for plugin in plugins(group)):
        return {}
    from apps.plugins import describe_plugins

    return describe_plugins(group, own)


def _describe(experiment: Mapping[str, Any]) -> str:
    minutes = ", ".join(f"{name} {format_cell(value)}" for name, value in experiment["minutes"].items())
    origin = f"{experiment['paper']}, {experiment['figure']}"
    return f"{experiment['title']} ({origin}; {', '.join(experiment['datasets'])}; minutes: {minutes})"


def write() -> None:
    """Write listing.json again."""
    FILE.write_text(json.dumps(collect(), indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    write()
