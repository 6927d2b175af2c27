"""The data of the runs that are compared with a reference."""

from pathlib import Path

import numpy as np
import pytest

from apps.config import Scalar
from tests.algorithms.watched import ROWS, rows_of


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Scalar]:
    """Sites of unequal sizes and unequal shares of positives, including a site without positives."""
    labels = (np.arange(ROWS) % 10 < 3).astype(int)
    return {**rows_of(labels.tolist(), tmp_path / "data.npz"), "partition": "positives-skewed", "partition-alpha": 0.6}
