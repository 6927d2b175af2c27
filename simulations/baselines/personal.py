"""The models of each site on its own rows: the run's, the fine-tuned, and the model that the site trains alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apps.evaluation.personal import ALONE, COMMON, SITE_MODELS, TUNED, figures_of
from payloads.site_names import label_entry
from problems.data import Samples
from problems.files import write_atomic
from problems.intervals import AUC, BRIER
from problems.tallies import Tally
from simulations.baselines.measuring import score_rows
from simulations.results.output import Table, metric_cell
from simulations.results.records import RunRecord, read_run


def add_alone(run: RunRecord, folder: Path, test: Samples) -> list[dict[str, Any]]:
    """Add the figures of each site's own reference to ``site_models`` in result.json, and return these entries.

    Args:
        run: The finished run.
        folder: The folder of the references' run directories.
        test: The rows that evaluate the references, with their sites.

    Returns:
        The entries; [] if the run has no fine-tuned models.
    """
    models: list[dict[str, Any]] = run.result.get(SITE_MODELS, [])
    for entry in models:
        reference = folder / f"site-{entry['partition']}"
        entry[ALONE] = None
        if (reference / "result.json").exists() and test.sites is not None:
            own = test.sites == entry["partition"]
            scores = score_rows(read_run(reference), test)
            if scores is not None:
                entry[ALONE] = figures_of(Tally.of_rows(test.labels[own], scores[own]))
    if models:
        write_atomic(run.path / "result.json", (json.dumps(run.result, indent=2) + "\n").encode())
    return models


def show_models(models: Sequence[dict[str, Any]]) -> str:
    """Return a table of the sites' models, for a terminal."""
    kinds = (COMMON, TUNED, ALONE)
    rows = [
        [label_entry(entry), entry["rows"], entry["positives"]]
        + [metric_cell((entry[kind] or {}).get(name)) for name in (AUC, BRIER) for kind in kinds]
        for entry in models
    ]
    columns = [
        "site",
        "rows",
        "positives",
        *(f"{name} {kind.replace('_', '-')}" for name in (AUC, BRIER) for kind in kinds),
    ]
    return Table("models of each site on its own rows", columns, rows).text()
