"""The demands of a site's owner on a run, which the site checks before it reads any data.

The owner sets them as keys of the site's settings. If these contain a run-config key that determines how the file is
read, the site refuses runs with another value. With ``split-seed`` all such keys are fixed, and the site draws its
held-out rows with that seed, so every run gets the same facts about the file.
"""

from collections.abc import Mapping
from typing import Any

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError, Scalar
from apps.sites.cells import LEAST, least_cell
from apps.sites.ledger import LIMITS, check_limits
from apps.sites.rows import DATA_PATH, SCORE_PATH, SPLIT_SEED
from apps.sites.sample_privacy import LARGEST, LARGEST_DELTA, LARGEST_TOTAL, check_epsilon
from apps.sites.secure_sums import check_sums
from apps.sites.settings import FIXED as FIXED_KEYS
from problems.data import OWN, DataSpec
from problems.errors import NOTHING
from vertical.policy import FEWEST_PARTIES, PINNED_PEERS
from vertical.settings import VFB2Settings

DATASET, STRATEGIES = "dataset", "allowed-strategies"
# a site with one of these keys takes part in vertical runs
OF_PARTIES = ("labels", "columns", "id-column", "fewest-columns", FEWEST_PARTIES, PINNED_PEERS)
# run-config key -> its default, to which split-seed fixes the key if the node config does not name it
FIXED: dict[str, Any] = {key: getattr(DataSpec, key.replace("-", "_")) for key in FIXED_KEYS}


def check_demands(node: Mapping[str, Scalar], config: RunConfig) -> None:
    """Refuse a run that does not meet the owner's demands, before any data are read.

    Args:
        node: The site's effective node config, see `apps.sites.site_config.effective`.
        config: The run config.

    Raises:
        ConfigError: A demand is not met. The error names the key of the node config and the run's value.
    """
    check_limits(node)
    _check_strategy(node, config)
    _check_fixed(node, config)
    check_epsilon(node, config)
    check_sums(node, config)


def _check_strategy(node: Mapping[str, Scalar], config: RunConfig) -> None:
    """Refuse a strategy that the owner does not allow, since strategies differ in the values that they send.

    A party whose owner limits the use of its columns takes part only in vertical runs, unless the owner names other
    strategies.
    """
    strategy = config.run.strategy
    use = [key for key in OF_PARTIES if key in node]
    if use and STRATEGIES not in node and not config.algorithm.sites.hold_columns:
        got, allowed = f"{strategy!r}", f"a vertical strategy, since this site's settings have {use[0]}"
        hint = f"set strategy to a vertical strategy, or let the owner add {strategy} to {STRATEGIES}"
        raise ConfigError("strategy", got=got, allowed=allowed, hint=hint)
    names = str(node.get(STRATEGIES, "")).split(",")
    if STRATEGIES in node and strategy not in map(str.strip, names):
        allowed = f"{node[STRATEGIES]}, which this site's settings allow"
        raise ConfigError("strategy", got=repr(strategy), allowed=allowed, hint="set strategy to an allowed strategy")


def _check_fixed(node: Mapping[str, Scalar], config: RunConfig) -> None:
    """Refuse a partition other than the owner's file, and values that differ from the owner's fixed values."""
    data = config.data
    scores = isinstance(config.family, VFB2Settings) and bool(config.family.score_run)
    party = config.algorithm.sites.hold_columns and (DATA_PATH in node or (scores and SCORE_PATH in node))
    of_rows, of_data = (*LIMITS.values(), LARGEST_TOTAL), (SPLIT_SEED, *FIXED)
    # the owner's keys that need partition="own" or, at a party, a strategy that is not vertical
    demands = [key for key in (of_rows if party else (*of_data, *of_rows)) if key in node]
    # a server could name the same file as the run's data set, to which these keys would not apply
    if DATA_PATH in node and not party:
        demands += [key for key in (STRATEGIES, LARGEST, LARGEST_DELTA) if key in node]
        demands += [LEAST] * (LEAST in node and least_cell(node) > 1)
    if demands and party:
        got, allowed = (
            f"{config.run.strategy!r}",
            f"a strategy that is not vertical, since this site's settings have {demands[0]}",
        )
        raise ConfigError(
            "strategy", got=got, allowed=allowed, hint=f"set another strategy, or let the owner remove {demands[0]}"
        )
    if demands and data.partition != OWN:
        got, allowed = f"a run with partition={data.partition!r}", f"{OWN!r}, since this site's settings require it"
        raise ConfigError(demands[0], got=got, allowed=allowed, hint=f'set partition="{OWN}"')
    if party and data.seed != node.get(SPLIT_SEED, data.seed):
        allowed = f"{node[SPLIT_SEED]!r}, the {SPLIT_SEED} of this site's settings: all parties hold out the same rows"
        raise ConfigError(
            "seed", got=f"a run with seed={data.seed}", allowed=allowed, hint=f"set seed to {node[SPLIT_SEED]!r}"
        )
    for key, wanted in _agreement(node).items():
        if (got := getattr(data, key.replace("-", "_"))) != wanted:
            allowed = f"{wanted!r}, which this site's settings fix"
            raise ConfigError(key, got=f"a run with {key}={got!r}", allowed=allowed, hint=f"set {key} to {wanted!r}")


def _agreement(node: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the values that the owner has fixed, by key."""
    fixed = {key: node[key] for key in FIXED if key in node}
    if SPLIT_SEED not in node:
        return fixed
    if DATASET not in fixed:
        got, allowed = f"{NOTHING}, with {SPLIT_SEED}", "the kind of the file, such as 'csv'"
        raise ConfigError(
            f"node config: {DATASET}", got=got, allowed=allowed, hint="set dataset in the site's settings"
        )
    return FIXED | fixed
