"""Batch norms that stay at their site (X. Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021).

A client trains its batch norms like all parameters and keeps them in its memory. Its reply has the message's values in
their place, which reveal nothing, so the server's batch norms stay as they started.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from payloads.record import FloatArray, Payload, array
from payloads.wire import ready_to_send
from problems.models import FlatModel


@dataclass(frozen=True, eq=False)
class LocalNorms(Payload):
    """A client's memory: the weights w of its batch norms, and the running statistics s."""

    weights: FloatArray = array("w")
    statistics: FloatArray = array("s")


def take_norms(model: FlatModel, arrays: Sequence[FloatArray]) -> LocalNorms:
    """Return the batch norms in a model's flat arrays.

    Args:
        model: The model; provides the places of its batch norms.
        arrays: The flat arrays.
    """
    statistics = arrays[-1][: len(model.statistics)].copy()
    return LocalNorms(weights=arrays[0][model.norm_entries], statistics=statistics)


def put_norms(model: FlatModel, arrays: Sequence[FloatArray], norms: LocalNorms | None) -> list[FloatArray]:
    """Return flat arrays with a client's batch norms.

    Args:
        model: The model; provides the places of its batch norms.
        arrays: The flat arrays, which do not change.
        norms: The batch norms. None: the client has not trained yet, so the arrays stay as they are.

    Raises:
        PayloadError: The batch norms belong to another model.
    """
    if norms is None:
        return list(arrays)
    norms.check({"w": len(model.norm_entries), "s": len(model.statistics)})
    changed = [part.copy() for part in arrays]
    changed[0][model.norm_entries] = norms.weights
    changed[-1][: len(model.statistics)] = norms.statistics
    return [ready_to_send(part) for part in changed]
