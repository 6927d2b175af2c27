"""The strategies for composite objectives f + g: `methods.composite`, `fedcanon`, `fedda` and `fast_fedda`.

f is the mean of the clients' losses, and g a penalty or a constraint with a proximal operator.
"""

from methods.composite import COMPOSITE
from methods.fast_fedda import FAST_FEDDA
from methods.fedcanon import FEDCANON
from methods.fedda import FEDDA, FEDMID
from strategies.method import MethodStrategy, strategy_of


class ProximalStrategy(MethodStrategy):
    """Base of the strategies for f + g: clients send points before the proximal step, and the server averages them."""


Composite = strategy_of(COMPOSITE, "Composite", ProximalStrategy)
FedCanon = strategy_of(FEDCANON, "FedCanon", ProximalStrategy)
FedMid = strategy_of(FEDMID, "FedMid", ProximalStrategy)
FedDA = strategy_of(FEDDA, "FedDA", ProximalStrategy)
FastFedDA = strategy_of(FAST_FEDDA, "FastFedDA", ProximalStrategy)
