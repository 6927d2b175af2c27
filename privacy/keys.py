"""The cryptography of secure sums: secrets that two sites agree on, streams of masks, and boxes for one receiver.

A box is authenticated encryption. The primitives are X25519 (RFC 7748), HKDF-SHA256 (RFC 5869), AES-256 in counter mode
and AES-256-GCM, all from the package ``cryptography``.
"""

from functools import cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from numpy.typing import NDArray

KEY_BYTES = 32
# the bytes that a box has in addition to its content
BOX_BYTES = 16
# A key makes a single stream or a single box, so a fixed counter and a fixed nonce are used once.
_COUNTER, _NONCE = bytes(16), bytes(12)
_PIECE = 2**20
_BEGIN = b"-----BEGIN PUBLIC KEY-----"


def agree(private: X25519PrivateKey, peer_public: bytes, *, info: bytes, own_public: bytes = b"") -> bytes:
    """Return 32 bytes that only the owners of the two key pairs can compute: X25519, then HKDF-SHA256.

    Args:
        private: The own private key.
        peer_public: The peer's public key, 32 bytes.
        info: The purpose of the secret. The secret is also bound to both public keys.
        own_public: The own public key. Empty: computed from the private key.

    Raises:
        ValueError: The peer's key is malformed, of small order, or our own.
    """
    own_public = own_public or private.public_key().public_bytes_raw()
    if len(peer_public) != KEY_BYTES:
        raise ValueError(f"a public key of {len(peer_public)} bytes; X25519 has {KEY_BYTES}")
    if peer_public == own_public:
        raise ValueError("the peer sent our own public key back")
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(peer_public))
    except ValueError as error:
        raise ValueError(
            "the peer's public key is a point of small order, so the secret would be predictable"
        ) from error
    return derive(shared, info + b"".join(sorted((own_public, peer_public))))


def derive(secret: bytes, info: bytes) -> bytes:
    """Return 32 bytes of HKDF-SHA256 for the purpose ``info``."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


def expand(key: bytes, info: bytes) -> bytes:
    """Return 32 bytes for one purpose of a uniform key: the second half of HKDF-SHA256.

    Args:
        key: Random bytes, or bytes from `agree`.
        info: The purpose.
    """
    return HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=info).derive(key)


def stream(key: bytes, count: int, bits: int, *, into: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return (count,) uniform elements of Z_2^bits: the beginning of the key's only stream.

    Args:
        key: The key, 32 bytes.
        count: The number of elements.
        bits: The bits of an element.
        into: An array of this shape and type to fill and return. None: a new array.
    """
    block = np.empty(count, dtype=f"<u{bits // 8}") if into is None else into
    written = block.view(np.uint8).data
    encryptor = Cipher(algorithms.AES(key), modes.CTR(_COUNTER)).encryptor()
    for begin in range(0, len(written), _PIECE):
        piece = written[begin : begin + _PIECE]
        encryptor.update_into(_zeros()[: len(piece)], piece)
    return block


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Return a box with the content: encrypted and authenticated, `BOX_BYTES` longer than the content.

    Args:
        key: A key that seals no other box.
        content: The content.
        about: Further bytes that are needed to open the box. The box does not contain these bytes.
    """
    return AESGCM(key).encrypt(_NONCE, content, about)


def unseal(key: bytes, box: bytes, about: bytes) -> bytes:
    """Return the content of a box.

    Raises:
        cryptography.exceptions.InvalidTag: The box was sealed with another key or another ``about``, or was changed.
    """
    return AESGCM(key).decrypt(_NONCE, box, about)


def read_private(pem: bytes) -> bytes:
    """Return the 32 bytes of an X25519 private key.

    Raises:
        ValueError, TypeError: The text is not such a key, or needs a password.
    """
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, X25519PrivateKey):
        raise ValueError("a private key of another kind than X25519")
    return key.private_bytes_raw()


def read_public(pem: bytes) -> frozenset[bytes]:
    """Return the 32 bytes of each X25519 public key in a text.

    Args:
        pem: The keys, one after another.

    Raises:
        ValueError: The text contains no key, or a key of another kind.
    """
    keys = [load_pem_public_key(_BEGIN + block) for block in pem.split(_BEGIN)[1:]]
    if not keys:
        raise ValueError("the text contains no public key")
    raw = [key.public_bytes_raw() for key in keys if isinstance(key, X25519PublicKey)]
    if len(raw) < len(keys):
        raise ValueError("a public key of another kind than X25519")
    return frozenset(raw)


@cache
def _zeros() -> memoryview:
    return memoryview(bytes(_PIECE))
