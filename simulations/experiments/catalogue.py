"""What ``list experiments`` says: the experiments that come with the project, on one line each."""

from __future__ import annotations

from typing import Any

from simulations.experiments.expansion import data_sets
from simulations.experiments.experiment import Experiment, packaged, read_experiment
from simulations.results.output import shown


def catalogue() -> dict[str, Experiment]:
    """The experiments that come with the project, by their names.

    Raises:
        ConfigError: a file is wrong.
    """
    return {name: read_experiment(path) for name, path in packaged().items()}


def summary(experiment: Experiment) -> dict[str, Any]:
    """An experiment in a few words and numbers; ``minutes`` has its profiles."""
    return {
        "title": experiment.title,
        "paper": experiment.paper,
        "figure": experiment.figure,
        "datasets": data_sets(experiment),
        "minutes": {name: profile.minutes for name, profile in experiment.profiles.items()},
    }


def description(experiment: Experiment) -> str:
    """The same on one line."""
    said = summary(experiment)
    minutes = ", ".join(f"{name} {shown(value)}" for name, value in said["minutes"].items())
    origin = f"{experiment.paper}, {experiment.figure}"
    return f"{experiment.title} ({origin}; {', '.join(said['datasets'])}; minutes: {minutes})"
