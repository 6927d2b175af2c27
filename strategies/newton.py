"""The strategy of exact regression, defined by `methods.newton` and `methods.cox`."""

from methods.cox import REGRESSION
from strategies.method import strategy_of

Newton = strategy_of(REGRESSION, "Newton")
