"""A party's policy, from its node config."""

from __future__ import annotations

from collections.abc import Mapping
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
        PolicyError: names the key, if a value is of another kind or out of range, or `peer-ca` cannot be read.
    """
    pins = parse_pins(_text(node, PINNED_PEERS)) if PINNED_PEERS in node else {}
    authority = node.get(PEER_CA) if pins else None
    return Policy(
        fewest_parties=_fewest(node),
        pins=pins,
        authorities=_authorities(Path(str(authority)).expanduser()) if authority else (),
        largest_label_epsilon=_epsilon(node),
        allow_intersection=_allow_intersection(node),
        allowed_maskings=parse_maskings(_text(node, ALLOWED_MASKINGS)) if ALLOWED_MASKINGS in node else (),
    )


def _fewest(node: Mapping[str, Any]) -> int:
    value = node.get(FEWEST_PARTIES, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PolicyError(FEWEST_PARTIES, got=repr(value), allowed="an integer >= 0", hint=_PAGE)
    return value


def _epsilon(node: Mapping[str, Any]) -> float | None:
    value = node.get(LARGEST_EPSILON)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise PolicyError(LARGEST_EPSILON, got=repr(value), allowed="a number > 0", hint=_PAGE)
    return float(value)


def _allow_intersection(node: Mapping[str, Any]) -> bool:
    value = node.get(ALLOW_INTERSECTION, True)
    if not isinstance(value, bool):
        raise PolicyError(ALLOW_INTERSECTION, got=repr(value), allowed="true or false", hint=_PAGE)
    return value


def _text(node: Mapping[str, Any], name: str) -> str:
    value = node[name]
    if not isinstance(value, str):
        raise PolicyError(name, got=repr(value), allowed="text", hint=_PAGE)
    return value


def _authorities(path: Path) -> tuple[bytes, ...]:
    """The certificates (DER) in a PEM file."""
    try:
        return tuple(one.public_bytes(Encoding.DER) for one in x509.load_pem_x509_certificates(path.read_bytes()))
    except (ValueError, OSError) as error:
        raise PolicyError(PEER_CA, got=f"{path}: {error}", allowed="a PEM file of certificates", hint=_PAGE) from None
