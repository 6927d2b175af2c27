"""The terms of a vertical exchange: a digest of everything that the server sends all parties alike."""

from collections.abc import Mapping

from flwr.app import ConfigRecord

from payloads.flower_internals import fill
from payloads.record import specs_of
from payloads.vfb2 import Segment
from payloads.wire import Values, content, digest


def agreed_terms(
    run_config: Mapping[str, bool | int | float | str], scalars: Values, segment: Segment
) -> dict[str, str]:
    """Return a SHA-256 digest (hexadecimal) of each run-config key, scalar and field, by a name for errors.

    Args:
        run_config: The flat run config, as Flower hands it to the app.
        scalars: The scalars of the message.
        segment: The message's payload; an absent field has a digest too.
    """
    fields = segment.to_record()
    groups: dict[str, Mapping[str, object]] = {
        "run-config key": run_config,
        "message scalar": scalars,
        "segment field": {name: fields.get(name, b"") for name in specs_of(Segment)},
    }
    return {
        f"{kind} {name}": _digest(kind, name, value) for kind, group in groups.items() for name, value in group.items()
    }


def _digest(kind: str, name: str, value: object) -> str:
    return digest(content(config=fill(ConfigRecord, {name: value})), kind).hex()
