"""The strategy of exact regression, defined by `methods.newton`."""

from methods.newton import NEWTON
from strategies.method import strategy_of

Newton = strategy_of(NEWTON, "Newton")
