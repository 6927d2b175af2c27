"""The tests; `.pytest.ini` names a function of `tests.shapes`, so that it must be imported with the package."""

from tests import shapes as shapes
