"""The demands of a site's owner on secure sums, in which the server sees only sums over sites.

The owner sets these keys of the node config:

- ``secure-sum=true`` demands runs with secure sums.
- ``fewest-summed`` is the smallest number of clients in a sum.
- ``sum-peers`` is a file with the public keys of the sites that may take part.
- ``sum-key`` is a file with the site's own private key. Other sites may list its public key in their ``sum-peers``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError, Scalar
from apps.sites.settings import SiteConfig
from clients.secure_sum import Demands
from privacy.keys import read_private, read_public
from privacy.secure_sum import FEWEST_MEMBERS

T = TypeVar("T")


def check_sums(node: Mapping[str, Scalar], config: RunConfig) -> None:
    """Refuse a run whose server sees more than sums, if the owner demands sums.

    Raises:
        ConfigError: The run has no secure sums. The error names the key of the node config and the run's value.
    """
    own, demands = SiteConfig.of(node).privacy, demands_of(node)
    if (own.secure_sum or demands.min_clients > FEWEST_MEMBERS or demands.peers) and not config.privacy.secure_sum:
        got, allowed = "a run with privacy.secure-sum=false", "true, since this site's settings demand secure sums"
        raise ConfigError("secure-sum", got=got, allowed=allowed, hint="set privacy.secure-sum to true")


def demands_of(node: Mapping[str, Scalar]) -> Demands:
    """Return the demands on sums in a node config.

    Raises:
        ConfigError: A setting of the site has a wrong value, or a file has no keys.
    """
    own = SiteConfig.of(node).privacy
    box_key = _read(own.sum_key, "sum-key", read_private) if own.sum_key else b""
    peers = _read(own.sum_peers, "sum-peers", read_public) if own.sum_peers else frozenset[bytes]()
    return Demands(own.fewest_summed, box_key, peers)


def _read(path: Path, key: str, read: Callable[[bytes], T]) -> T:
    try:
        return read(path.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        writer = "genpkey -algorithm x25519" if key == "sum-key" else "pkey -in KEY.pem -pubout"
        kind = "an X25519 private key" if key == "sum-key" else "X25519 public keys"
        allowed = f"a file of {kind} in PEM, such as `openssl {writer}` writes"
        hint = f"set {key} to the absolute path of a PEM file"
        raise ConfigError(key, got=f"{str(path)!r}: {error}", allowed=allowed, hint=hint) from None
