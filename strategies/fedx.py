"""The strategies of FedX, `methods.fedx`, and of its local counterpart, `methods.local_pair`."""

from methods.fedx import FEDX1, FEDX2
from methods.local_pair import LOCAL_PAIR
from strategies.method import MethodStrategy, strategy_of


class PairwiseStrategy(MethodStrategy):
    """Common base class of `FedX1`, `FedX2` and `LocalPair`, for ``isinstance``. Adds nothing to `MethodStrategy`."""


FedX1 = strategy_of(FEDX1, "FedX1", PairwiseStrategy)
FedX2 = strategy_of(FEDX2, "FedX2", PairwiseStrategy)
LocalPair = strategy_of(LOCAL_PAIR, "LocalPair", PairwiseStrategy)
