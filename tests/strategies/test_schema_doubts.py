"""Tests of the server's warnings about reports of sites with their own files: other units, and columns missing
everywhere."""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apps.sites.rows import own_report
from problems.data import OWN, DataSpec, read_own
from strategies.rounds.schema import agree

FACTORS = (1.0, 2.2046, 1.0)


@pytest.mark.parametrize("scale", ["standard", "log", "quantile"])
def test_a_partition_with_another_unit_is_named(scale: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = DataSpec("csv", partition=OWN, scale=scale, missing="mean", missing_values="weight:999,wieght:999")
    reports = []
    for place, factor in enumerate(FACTORS):
        rng = np.random.default_rng(place)
        weights = factor * rng.normal(80, 15, 200)
        table = pd.DataFrame({"age": rng.integers(20, 90, 200), "weight": weights, "label": np.arange(200) % 2})
        table.to_csv(tmp_path / f"{place}.csv", index=False)
        reports.append(own_report(read_own(str(tmp_path / f"{place}.csv"), spec, place), place, 3))
    with caplog.at_level(logging.WARNING):
        agree(reports)
    names, units = caplog.messages
    assert names == "missing-values has markers for 'wieght', which no site has as a feature"
    assert units.startswith(
        "sites whose numbers are far from the numbers of all other sites, perhaps in another unit: "
    )
    assert "partition 1: 'weight' (centre" in units
    assert units.count("partition") == 1
    caplog.clear()
    agree([reports[0], reports[2]])
    assert len(caplog.messages) == 1
