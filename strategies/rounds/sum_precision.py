"""The precision of secure sums."""

from logging import INFO

from flwr.common import log

from payloads.secure_sum import make_ring
from strategies.rounds.errors import SetupError
from strategies.rounds.family import Family


def log_precision(family: Family, clients: int) -> None:
    """Log the range and the precision of secure sums over a number of clients.

    Raises:
        SetupError: The range is too large for this number of clients.
    """
    limit = family.privacy.secure_range
    try:
        ring = make_ring(family.training.dtype, limit, clients)
    except ValueError as error:
        got, hint = str(error), "lower privacy.secure-range, or set dtype to float64"
        raise SetupError("privacy.secure-range", got=got, allowed="a smaller range", hint=hint) from None
    text = "secure sums over %d clients: %d bits, values within +-%g, rounding errors up to %.1g"
    log(INFO, text, clients, ring.bits, limit, 2.0 ** -(ring.fraction_bits + 1))
