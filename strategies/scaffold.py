"""The server half of SCAFFOLD; `methods.scaffold` is the method."""

from __future__ import annotations

from typing import ClassVar

from methods.scaffold import SCAFFOLD
from strategies.method import MethodStrategy


class Scaffold(MethodStrategy):
    """SCAFFOLD: any clients in a round. The server keeps c, in float64.

    c is the mean of all N clients' c_i, weighted as the clients are. A client whose reply was lost has moved its c_i,
    which c never learns: from then on c is off that mean by its share of the lost changes, and the corrections c - c_i
    of all clients no longer sum to zero. So it would be, too, after a client has lost its c_i: the change it sends is
    from 0. No later round mends that. Once the server notices, c and all c_i are 0 again from the next round on, which
    is where any run of SCAFFOLD may start.
    """

    method = SCAFFOLD
    joint_states = True
    unread: ClassVar[tuple[str, ...]] = ("score",)
