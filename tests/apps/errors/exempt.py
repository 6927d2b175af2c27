"""Raise statements that no row reaches, and why a user cannot, or not in a test that is this quick."""

from __future__ import annotations

from tests.apps.errors.harness import Site

Place = tuple[str, str, str]  # file, function, and what the raised expression has in it

EXEMPT: dict[str, list[Place]] = {
    "ends the process: the log, or the message before it, has said why": [
        ("simulations/__main__.py", "run", "SystemExit(1)"),
        ("simulations/__main__.py", "main", "SystemExit(130)"),
        ("simulations/reproduce.py", "Runs.make", "ReproductionInterruptedError"),
        ("simulations/sweep.py", "run_sweep", "SweepInterruptedError"),
        ("simulations/stepped.py", "SteppedRun._hear", "_EndedError"),
    ],
    "starts Ray or processes for as long as all other rows take: tests/simulations": [
        ("simulations/__main__.py", "sweep", "trials failed"),
        ("simulations/__main__.py", "reproduce", "count"),
        ("simulations/tuning.py", "_ray", "ConfigError"),
    ],
    "Flower's own words, after a SuperLink has been started: tests/simulations/test_flower_commands.py": [
        ("simulations/__main__.py", "_run_with_flower", "RunFailedError"),
        ("simulations/flower.py", "run_with_flower", "ended as"),
        ("simulations/flower.py", "_flwr_json", "failed"),
    ],
    "a caller's mistake: what a user writes has been checked before": [
        ("apps/vertical.py", "SimulatedParty.holding", "simulated parties"),
        ("simulations/engine.py", "InProcessGrid.__init__", "node configs for"),
        ("simulations/engine.py", "InProcessGrid.push_messages", "sent before"),
        ("simulations/engine.py", "_check_reply", "ClientApp"),
        ("simulations/parties.py", "_check", "ValueError"),
        ("simulations/plan.py", "Sweep.trials", "allowed: an integer"),
        ("problems/data/federated.py", "FederatedData.client", "no client"),
        ("problems/data/federated.py", "_load", "number of clients must be"),
        ("problems/data/source.py", "make_source", "rows of features"),
        ("problems/data/source.py", "label_classes", "one column"),
        ("problems/models/zoo.py", "build_model", "input_shape must hold"),
        ("problems/vertical/data.py", "VerticalData.party", "no party"),
        ("problems/vertical/data.py", "_check", "drawn client by client"),
        ("problems/vertical/data.py", "_check", "column partition"),
        ("problems/vertical/data.py", "_check", "number of parties"),
        ("strategies/fedx.py", "FedX1.__init__", "linear f"),
    ],
    "the benchmarks' parties, which no command starts": [
        ("simulations/parties.py", "_in_threads", "PartiesError"),
        ("simulations/parties.py", "_in_processes", "PartiesError"),
    ],
    "a site or a file that lies, not a user's mistake: tests/battery, tests/apps/test_checkpoints.py": [
        ("apps/training.py", "Training.resume", "keeps no state"),
        ("problems/data/own.py", "SiteRows.samples", "standardised by all sites"),
        ("strategies/roster.py", "_read_report", "a site failed"),
        ("strategies/roster.py", "_read_report", "bytes, allowed"),
        ("strategies/roster.py", "_read_report", "without a report"),
        ("strategies/roster.py", "_read_report", "malformed"),
        ("strategies/roster.py", "_by_partition", "must be partitions"),
        ("strategies/fedprox.py", "FedProx.combine", "no client that answered"),
    ],
    "a contributor's module, refused when it is imported, before any command is read: tests/apps/test_registry.py": [
        ("apps/registry.py", "rows_of", "ROWS must be"),
        ("apps/registry.py", "gathered", "has a row in"),
        ("apps/registry.py", "gathered", "table"),
    ],
    "a wrapper of the project's own strategies, which is code: tests/algorithms/test_composite.py": [
        ("strategies/composite.py", "Composite.inquire", "not the one"),
    ],
    "needs SuperNodes whose files change under a run: tests/vertical/test_resume.py": [
        ("strategies/vfb2.py", "VFB2.introduce", "began with"),
    ],
    "guards flwr-datasets' partitioners": [
        ("problems/data/partitions.py", "partition", "does not place every sample"),
    ],
}


def is_at(place: Place, site: Site) -> bool:
    """Whether a place is that of a raise statement."""
    file, function, text = place
    return (file, function) == (site.file, site.function) and text in site.text
