"""Real data sets train without a warning."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulations.python.runs import run
from tests.programs import REAL, needs_real

LINEAR = {"strategy": "local-sgd", "model": "linear"}
GUSTO = {
    "dataset": "csv",
    "data-dir": str(REAL / "gusto" / "gusto.csv.gz"),
    "label-column": "DAY30",
    "site-column": "GRPS",
    "drop-columns": "REGL,GRPL,TX",
}
RUNS: list[Any] = [
    ({"dataset": "digits"}, 4),
    ({"dataset": "breast-cancer"}, 4),
    ({"dataset": "breast-cancer", **LINEAR, "learning-rate": 1.0}, 4),
    *(
        pytest.param({"data-dir": str(REAL), **LINEAR, **keys}, clients, marks=marks)
        for keys, clients, marks in (
            ({"dataset": "uci-credit"}, 4, [needs_real]),
            ({"dataset": "heart-disease", "partition": "natural", "batch-size": 16}, 4, [needs_real]),
            ({"dataset": "a9a", "partition": "natural"}, 16, [needs_real]),
            ({**GUSTO, "partition": "natural"}, 121, [needs_real, pytest.mark.slow]),  # 30 s
        )
    ),
]


@pytest.fixture
def warnings_of_runs() -> Iterator[list[logging.LogRecord]]:
    """The records of level WARNING and above of all modules."""
    records = list[logging.LogRecord]()

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Collector(logging.WARNING)
    loggers = logging.getLogger(), logging.getLogger("flwr")
    for logger in loggers:
        logger.addHandler(handler)
    yield records
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.mark.parametrize(("keys", "clients"), RUNS)
def test_real_data_train_without_a_warning(
    keys: dict[str, Any], clients: int, tmp_path: Path, warnings_of_runs: list[logging.LogRecord]
) -> None:
    run({"num-server-rounds": 2, "pictures": False, **keys}, tmp_path / "run", clients)
    assert [record.getMessage() for record in warnings_of_runs] == []
