"""The examples in docstrings, ``>>>``, run and print the text below them."""

import doctest
import importlib

import pytest

from tests.docs.markdown import PROJECT
from tests.docs.test_words import MODULES

# the modules with an example, as imported
NAMES = [
    ".".join(path.relative_to(PROJECT).with_suffix("").parts) for path in MODULES if ">>> " in path.read_text("utf-8")
]


def find_examples(name: str) -> list[doctest.DocTest]:
    """The docstrings of a module with an example."""
    return [one for one in doctest.DocTestFinder().find(importlib.import_module(name)) if one.examples]


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_a_module_print_what_they_show(name: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for example in find_examples(name):
        runner.run(example)
    assert runner.tries > 0
    assert runner.failures == 0


def test_at_least_thirty_public_functions_and_classes_have_an_example() -> None:
    assert len([one for name in NAMES for one in find_examples(name)]) >= 30
