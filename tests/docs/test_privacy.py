"""docs/privacy.md says of every algorithm what Flower's mods and wrappers do with it."""

import pytest

from apps.config import parse_run_config
from apps.mods import uncovered
from apps.registry import ALGORITHMS
from tests.docs.markdown import PROJECT, codes, rows, section

PAGE = PROJECT / "docs" / "privacy.md"
TABLE = {name: row for row in rows(section(PAGE, "Which with which")) for name in codes(row[0])}
# what a field of a payload is called there
NAMED = {"momentum": "momentum", "change": "control variate", "gradient": "gradient", "positive_scores": "scores"}


def test_every_algorithm_has_a_row() -> None:
    assert sorted(TABLE) == sorted(ALGORITHMS)


@pytest.mark.parametrize("strategy", ALGORITHMS)
def test_the_row_is_what_the_code_does(strategy: str) -> None:
    config = parse_run_config({"strategy": strategy})
    _, size, *changing, beside = TABLE[strategy]
    assert size == "works"
    expected = "refused" if config.algorithm.objection else "model" if uncovered(config.algorithm.client) else "covered"
    assert changing == [expected] * 3
    assert (beside == "nothing") == (not uncovered(config.algorithm.client) and not config.algorithm.strategy.vertical)
    # fedx1 and local-pair share fedx2's records
    if strategy not in ("fedx1", "local-pair") and not config.algorithm.strategy.vertical:
        told = {field: word in beside or field in codes(beside) for field, word in NAMED.items()}
        assert [field for field in uncovered(config.algorithm.client) if not told.get(field, True)] == []
