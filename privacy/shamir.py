"""Shamir's secret sharing: any threshold of shares restores a secret, and fewer shares reveal nothing about the secret.

A. Shamir, "How to Share a Secret", Communications of the ACM 22, 1979.

A secret of 32 bytes is the value at 0 of a random polynomial over the integers modulo a prime. Holder h has the value
at h + 1. A threshold of holders can compute the polynomial. The arithmetic uses Python's integers: a library that
shares 16 bytes at a time in GF(2^128) took a hundred times as long.
"""

import secrets
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod

SECRET_BYTES = 32
# bytes of a share
SHARE_BYTES = 33
# the smallest prime above 2^256, so it exceeds every secret
_PRIME = 2**256 + 297


def split(secret: bytes, threshold: int, holders: Sequence[int]) -> dict[int, bytes]:
    """Return each holder's share of a secret.

    Args:
        secret: The secret, `SECRET_BYTES` long.
        threshold: The number of shares that restore the secret.
        holders: The holders' numbers, from 0 on.

    Raises:
        ValueError: The threshold is not from 1 to the number of holders, or the secret has another length.

    Example:
        >>> shares = split(bytes(SECRET_BYTES), threshold=2, holders=[0, 1, 2])
        >>> join({0: shares[0], 2: shares[2]}) == bytes(SECRET_BYTES)
        True
    """
    if not 1 <= threshold <= len(holders):
        raise ValueError(f"a threshold of {threshold} shares among {len(holders)} holders")
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes, not {SECRET_BYTES}")
    coefficients = [secrets.randbelow(_PRIME) for _ in range(threshold - 1)]
    constant, shares = int.from_bytes(secret, "big"), {}
    for holder in holders:
        value = 0
        for coefficient in coefficients:
            value = (value + coefficient) * (holder + 1)
        shares[holder] = ((value + constant) % _PRIME).to_bytes(SHARE_BYTES, "big")
    return shares


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret that was split into shares.

    Args:
        shares: The shares, by the holder's number. Their number must be the threshold, and all must be correct.

    Raises:
        ValueError: The shares do not belong to a secret: a share is wrong, or there are too few.
    """
    points = [holder + 1 for holder in shares]
    # Lagrange's interpolation at 0: the sum of value * prod(points) / (x * prod(other - x))
    divisors = [x * prod([other - x for other in points if other != x]) for x in points]
    values = (int.from_bytes(share, "big") for share in shares.values())
    total = sum(value * inverse for value, inverse in zip(values, _invert(divisors), strict=True))
    if (secret := total * prod(points) % _PRIME) >= 2**256:
        raise ValueError("the shares do not belong to one secret")
    return secret.to_bytes(SECRET_BYTES, "big")


def _invert(numbers: Sequence[int]) -> list[int]:
    """Return the inverses of numbers modulo the prime. One inversion and products are faster than many inversions."""
    products = list(accumulate(numbers, lambda left, right: left * right % _PRIME))
    inverse, inverses = pow(products[-1], -1, _PRIME), []
    for before, number in zip(reversed([1, *products[:-1]]), reversed(numbers), strict=True):
        inverses.append(inverse * before % _PRIME)
        inverse = inverse * number % _PRIME
    return inverses[::-1]
