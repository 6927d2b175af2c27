"""Demonstrations of attacks on vertical runs: they print what information one party can still get about other parties.

    python -m benchmarks.attacks [NAME ...]

Without a name all demonstrations run, on the bundled breast-cancer data or on synthetic numbers, for about a second
each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from benchmarks.attacks import decoding, leaks, shares, split_networks
from benchmarks.attacks.watched import Numbers
from simulations.results.output import print_json, table

_FUNCTIONS: list[Callable[[], Numbers]] = [
    *(leaks.labels, leaks.label_cost, leaks.gram, leaks.two_parties),
    *(leaks.trees, leaks.float_masks, leaks.intersection),
    *(decoding.before_training, decoding.assembled, decoding.looks, decoding.votes),
    *(split_networks.networks, shares.shares),
]
DEMONSTRATIONS = {function.__name__.replace("_", "-"): function for function in _FUNCTIONS}


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help=", ".join(DEMONSTRATIONS))] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Run attacks on a vertical run, and print the information that they reveal."""
    unknown = sorted(set(names or ()) - set(DEMONSTRATIONS))
    if unknown:
        raise typer.BadParameter(f"got {', '.join(unknown)}, allowed: one or more of {', '.join(DEMONSTRATIONS)}")
    found = {name: DEMONSTRATIONS[name]() for name in names or DEMONSTRATIONS}
    if as_json:
        print_json(found)
        return
    for name, numbers in found.items():
        typer.echo(table([name, "measured"], [[what, f"{value:.4g}"] for what, value in numbers.items()]) + "\n")


if __name__ == "__main__":
    typer.run(main)
