"""The limits that a site's owner sets on the privacy budgets of runs, by keys of the site's settings.

``largest-epsilon`` and ``largest-delta`` limit the budget of a run. ``largest-total-epsilon`` limits the sum over all
runs on the site's file.
"""

from collections.abc import Mapping

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError, Scalar
from apps.sites.ledger import check_folder
from apps.sites.settings import SiteConfig

LARGEST, LARGEST_TOTAL, LARGEST_DELTA = "largest-epsilon", "largest-total-epsilon", "largest-delta"


def check_epsilon(node: Mapping[str, Scalar], config: RunConfig) -> None:
    """Refuse a run that may reveal more of a sample than the owner allows, before any data are read.

    Raises:
        ConfigError: A limit is exceeded. The error names the key of the node config and the run's value.
    """
    own = SiteConfig.of(node).privacy
    for key in (LARGEST, LARGEST_TOTAL):
        largest = getattr(own, key.replace("-", "_"))
        if largest is None:
            continue
        epsilon = config.privacy.epsilon
        if not 0 < epsilon <= largest:
            got = f"a run with privacy.epsilon={epsilon:g}"
            allowed = f"a value above 0 and at most {largest:g}, which this site's settings demand"
            raise ConfigError(key, got=got, allowed=allowed, hint=f"set privacy.epsilon to {largest:g} or less")
    if LARGEST_TOTAL in node:
        check_folder(node, LARGEST_TOTAL)
    if (largest := own.largest_delta) is None:
        return
    for key, delta in _deltas_of(config).items():
        if delta > largest:
            got, allowed = f"a run with {key}={delta:g}", f"at most {largest:g}, which this site's settings demand"
            raise ConfigError(LARGEST_DELTA, got=got, allowed=allowed, hint=f"set {key} to {largest:g} or less")


def _deltas_of(config: RunConfig) -> dict[str, float]:
    """Return the deltas of a run's budgets, by their keys."""
    deltas = {"privacy.delta": config.privacy.delta} if config.privacy.epsilon else {}
    if getattr(config.family, "pool_epsilon", 0.0):
        deltas["fedx.pool-delta"] = config.family.pool_delta  # type: ignore[attr-defined]
    return deltas
