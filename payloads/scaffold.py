"""SCAFFOLD's records, which CODASCA's clients use too.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML
2020), Option II.

| paper                 | here                                              |
|-----------------------|---------------------------------------------------|
| x, y_i                | the message's model, the reply's                  |
| c_i, c                | `ControlVariate`                                  |
| the change of c_i     | `ControlChange`                                   |
| eta_l, K; eta_g       | ``learning-rate``, ``local-steps``; ``server-learning-rate`` |
"""

from __future__ import annotations

import dataclasses

from payloads.record import FloatArray, Payload, array


@dataclasses.dataclass(frozen=True, eq=False)
class ControlVariate(Payload):
    """A client's state, c_i; down and at the server, c."""

    control: FloatArray = array("d")


@dataclasses.dataclass(frozen=True, eq=False)
class ControlChange(Payload):
    """Up: the client's new control variate minus its old one."""

    change: FloatArray = array("d")
