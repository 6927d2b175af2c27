"""A party's policy, from its node config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from clients.vertical.policy import (
    ALLOW_INTERSECTION,
    ALLOWED_MASKINGS,
    FEWEST_PARTIES,
    LARGEST_EPSILON,
    PEER_CA,
    PINNED_PEERS,
    Policy,
    PolicyError,
    parse_maskings,
    parse_pins,
)

_PAGE = "see docs/vertical.md"


def policy_of(node: Mapping[str, Any]) -> Policy:
    """The policy in a node config.

    Raises:
        PolicyError: a value has the wrong type or is out of range, or `peer-ca` cannot be read; names the key.
    """
    pins = parse_pins(_text(node, PINNED_PEERS)) if PINNED_PEERS in node else {}
    authority = node.get(PEER_CA) if pins else None
    epsilon = _value(
        node, LARGEST_EPSILON, None, "a number > 0", lambda value: _is_number(value) and 0 < value < float("inf")
    )
    return Policy(
        fewest_parties=_value(
            node, FEWEST_PARTIES, 0, "an integer >= 0", lambda value: type(value) is int and value >= 0
        ),
        pins=pins,
        authorities=_authorities(Path(str(authority)).expanduser()) if authority else (),
        largest_label_epsilon=None if epsilon is None else float(epsilon),
        allow_intersection=_value(
            node, ALLOW_INTERSECTION, True, "true or false", lambda value: isinstance(value, bool)
        ),
        allowed_maskings=parse_maskings(_text(node, ALLOWED_MASKINGS)) if ALLOWED_MASKINGS in node else (),
    )


def _value(node: Mapping[str, Any], name: str, default: Any, allowed: str, fits: Callable[[Any], bool]) -> Any:
    value = node.get(name, default)
    if value is not default and not fits(value):
        raise PolicyError(name, got=repr(value), allowed=allowed, hint=_PAGE)
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(node: Mapping[str, Any], name: str) -> str:
    return str(_value(node, name, "", "text", lambda value: isinstance(value, str)))


def _authorities(path: Path) -> tuple[bytes, ...]:
    """The certificates (DER) in a PEM file."""
    try:
        return tuple(one.public_bytes(Encoding.DER) for one in x509.load_pem_x509_certificates(path.read_bytes()))
    except (ValueError, OSError) as error:
        raise PolicyError(PEER_CA, got=f"{path}: {error}", allowed="a PEM file of certificates", hint=_PAGE) from None
