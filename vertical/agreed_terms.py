"""Digests of everything that the server must send equally to all parties. `vertical.agreement` compares them."""

from collections.abc import Mapping

from payloads.record import specs_of
from payloads.wire import Values, hash_parts, parts_of
from vertical.records import Segment


def agreed_terms(
    run_config: Mapping[str, bool | int | float | str], scalars: Values, segment: Segment
) -> dict[str, str]:
    """Return a SHA-256 digest (hexadecimal) of each run-config key, scalar and field, keyed by its name in errors.

    Args:
        run_config: The flat run config, as the app gets it from Flower.
        scalars: The scalars of the message.
        segment: The payload of the message. Absent fields also have a digest.
    """
    fields = segment.to_record()
    groups: dict[str, Mapping[str, object]] = {
        "run-config key": run_config,
        "message scalar": scalars,
        # each party gets its own package
        "segment field": {name: fields.get(name, b"") for name in specs_of(Segment) if name != "package"},
    }
    return {
        f"{kind} {name}": hash_parts([kind.encode(), *parts_of(name, value)]).hex()
        for kind, group in groups.items()
        for name, value in group.items()
    }
