"""The tests, imported as a package, since `.pytest.ini` names a function of `tests.shapes`."""

from tests import shapes as shapes
