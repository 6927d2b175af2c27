"""Keys that two sites agree on, streams of masks made from them, and boxes that only the two can open.

X25519 (RFC 7748), HKDF-SHA256 (RFC 5869), AES-256 in counter mode and AES-256-GCM, all from ``cryptography``.
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
# what a box adds to its content
BOX_BYTES = 16
# A key makes one stream or one box, so that a fixed counter and nonce are used once.
_COUNTER, _NONCE = bytes(16), bytes(12)
_PIECE = 2**20
_BEGIN = b"-----BEGIN PUBLIC KEY-----"


def agree(private: X25519PrivateKey, peer_public: bytes, *, info: bytes, own_public: bytes = b"") -> bytes:
    """Return 32 bytes that only the two holders of these keys can compute: X25519, then HKDF-SHA256.

    Args:
        peer_public: the other's public key, 32 bytes.
        info: what the secret is for. Both public keys are bound to it as well.
        own_public: the private key's public one, if it is at hand.

    Raises:
        ValueError: the peer's key is malformed, of small order, or our own.
    """
    own_public = own_public or private.public_key().public_bytes_raw()
    if len(peer_public) != KEY_BYTES:
        raise ValueError(f"a public key of {len(peer_public)} bytes; X25519 has {KEY_BYTES}")
    if peer_public == own_public:
        raise ValueError("the peer sent our own public key back")
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(peer_public))
    except ValueError as error:
        raise ValueError("the peer's public key is a point of small order, which makes no secret") from error
    return derive(shared, info + b"".join(sorted((own_public, peer_public))))


def derive(secret: bytes, info: bytes) -> bytes:
    """Return 32 bytes of HKDF-SHA256 for one purpose, which ``info`` names."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


def expand(key: bytes, info: bytes) -> bytes:
    """Return 32 bytes for one purpose of a key that is uniform already: the second half of HKDF-SHA256.

    Args:
        key: Random bytes, or bytes from `agree`.
        info: The purpose.
    """
    return HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=info).derive(key)


def stream(key: bytes, count: int, bits: int, *, into: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return (count,) uniform elements of Z_2^bits: the beginning of the key's one stream.

    Args:
        into: such an array, which is filled and returned; None: a new one.
    """
    block = np.empty(count, dtype=f"<u{bits // 8}") if into is None else into
    written = block.view(np.uint8).data
    encryptor = Cipher(algorithms.AES(key), modes.CTR(_COUNTER)).encryptor()
    for begin in range(0, len(written), _PIECE):
        piece = written[begin : begin + _PIECE]
        encryptor.update_into(_zeros()[: len(piece)], piece)
    return block


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Return a box with the content, `BOX_BYTES` longer.

    Args:
        key: which seals one box only.
        about: what must be known to open it, and is not in it.
    """
    return AESGCM(key).encrypt(_NONCE, content, about)


def unseal(key: bytes, box: bytes, about: bytes) -> bytes:
    """Return the content of a box.

    Raises:
        cryptography.exceptions.InvalidTag: another key or another ``about`` has sealed it, or it was changed.
    """
    return AESGCM(key).decrypt(_NONCE, box, about)


def read_private(pem: bytes) -> bytes:
    """Return the 32 bytes of an X25519 private key.

    Raises:
        ValueError, TypeError: it is none, or needs a password.
    """
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, X25519PrivateKey):
        raise ValueError("a private key of another kind than X25519")
    return key.private_bytes_raw()


def read_public(pem: bytes) -> frozenset[bytes]:
    """Return the 32 bytes of each of the X25519 public keys that follow each other in a text.

    Raises:
        ValueError: one is none, or there are none.
    """
    keys = [load_pem_public_key(_BEGIN + block) for block in pem.split(_BEGIN)[1:]]
    if not keys:
        raise ValueError("there is no public key")
    raw = [key.public_bytes_raw() for key in keys if isinstance(key, X25519PublicKey)]
    if len(raw) < len(keys):
        raise ValueError("a public key of another kind than X25519")
    return frozenset(raw)


@cache
def _zeros() -> memoryview:
    return memoryview(bytes(_PIECE))
