"""The plan of a sweep: the common run config, the varied keys, and the trials that follow from them."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from apps.config import ConfigError, RunConfig, Scalar, list_hint, parse_run_config
from apps.sites.rows import reads_own
from apps.sites.site_config import effective
from payloads.settings import kebab
from problems.data import UNLABELLED
from problems.randomness import stream
from simulations.arguments import Stack, nest
from simulations.engines.launch import IN_PROCESS
from simulations.results.output import format_cell
from simulations.results.records import OF_TRAINING, check_metric
from simulations.sweeps.ranges import Distribution

_LONGEST_NAME = 120
VALIDATION, TEST = "validation", "test"
FRACTION = "validation-fraction"
_DEFAULT_FRACTION = 0.2


@dataclass(frozen=True)
class Trial:
    """A run of a sweep.

    Attributes:
        name: The name of the run directory.
        varied: The values of the varied keys.
        seed: The seed.
        config: The complete flat run config, without the run directory.
        clients: The number of clients.
        rounds: The number of rounds, ``num-server-rounds``.
        fraction: The share of the training rows that is held out to evaluate the trial. 0: no rows.
        engine: The engine, see `launch`.
    """

    name: str
    varied: dict[str, Scalar]
    seed: int
    config: dict[str, Scalar]
    clients: int
    rounds: int
    fraction: float = 0.0
    engine: str = IN_PROCESS

    @property
    def title(self) -> str:
        return self.name


@dataclass(frozen=True)
class Sweep:
    """The plan of a sweep: values of run-config keys on a grid and from random draws, with several seeds.

    Each combination of a grid point, a random draw and a seed is a trial. All grid points use the same random draws, so
    they can be compared.
    """

    # the common run
    clients: int
    config: Mapping[str, Scalar]
    # the varied keys
    grid: Mapping[str, list[Scalar]] = field(default_factory=dict)
    random: Mapping[str, Distribution] = field(default_factory=dict)
    samples: int = 1
    search_seed: int = 0
    seeds: int = 1
    # the criterion
    metric: str = "auc"
    mode: str = "max"
    # early stopping after ``grace`` rounds; 0: off
    grace: int = 0
    # the node config of each client; empty: no node configs
    node_configs: Sequence[Mapping[str, Scalar]] = ()
    # the rows that decide: `VALIDATION`, held out of the training rows, or `TEST`
    select_on: str = VALIDATION
    # the maximum number of clients in one computation
    stack: Stack = 1

    def __post_init__(self) -> None:
        check_metric(self.metric, self.config)
        if "resume" in self.config:
            got, allowed = repr(self.config["resume"]), "no value, since a sweep sets it itself"
            raise ConfigError(
                "resume", got=got, allowed=allowed, hint="remove resume; to continue a sweep, use --resume"
            )
        varied = "values by --grid or --random"
        for key in self.varied:
            if key in ("output-dir", "run-name", "resume"):
                raise ConfigError(key, got=varied, allowed="no values, since the sweep sets it", hint=f"remove {key}")
            if key == "seed":
                raise ConfigError("seed", got=varied, allowed="a number of seeds by --seeds", hint="set --seeds")
            if key in self.config:
                got = f"{self.config[key]!r} by --config, but the key is also varied"
                raise ConfigError(
                    key, got=got, allowed="a fixed value or varied values", hint=f"remove {key} from --config"
                )
        fraction = self.config.get(FRACTION)
        if FRACTION in self.varied:
            allowed = "one value, since trials are compared on its held-out rows"
            raise ConfigError(FRACTION, got=varied, allowed=allowed, hint=f"set {FRACTION} by -c")
        if self.select_on == TEST and fraction:
            got = f"'test', with {FRACTION} = {fraction!r}"
            raise ConfigError(
                "--select-on",
                got=got,
                allowed=f"'validation' with {FRACTION}",
                hint=f"remove --select-on or {FRACTION}",
            )
        if self.select_on == VALIDATION and fraction == 0 and self.metric not in OF_TRAINING:
            allowed = "a number above 0, since a sweep chooses on validation rows"
            raise ConfigError(FRACTION, got="0", allowed=allowed, hint=f"remove {FRACTION}, or set --select-on test")
        if both := self.grid.keys() & self.random.keys():
            got = "values by --grid and by --random"
            raise ConfigError(min(both), got=got, allowed="values by one option", hint="remove one option")
        if self.samples > 1 and not self.random:
            got = f"{self.samples}, but there is nothing to draw"
            raise ConfigError("--samples", got=got, allowed="1, or any number with --random", hint="add --random")
        if not self.varied and self.seeds == 1:
            raise ConfigError(
                "sweep", got="no trials", allowed="at least two trials", hint="add --grid, --random or --seeds"
            )

    @property
    def varied(self) -> list[str]:
        """The varied keys, except the seed."""
        return [*self.grid, *self.random]

    def content(self) -> dict[str, Any]:
        """Return the content of sweep.toml: everything that determines the trials and their ranking."""
        plain = ("clients", "samples", "seeds", "search_seed", "metric", "mode", "grace", "select_on")
        return {
            **{kebab(name): getattr(self, name) for name in plain},
            "grid": {key: list(values) for key, values in self.grid.items()},
            "random": {key: distribution.text for key, distribution in self.random.items()},
            "config": nest(self.config),
            **({"node-configs": [effective(node) for node in self.node_configs]} if self.node_configs else {}),
        }

    def trials(self) -> list[Trial]:
        """Return all trials, with their configs checked. Repeated draws are skipped.

        Raises:
            ConfigError: A config is not valid. The message names the trial's values and the key.
        """
        first_seed = self.config.get("seed", 0)
        if isinstance(first_seed, bool) or not isinstance(first_seed, int):
            parse_run_config(self.config)  # raises the usual error for a wrong seed
            raise ConfigError("seed", got=repr(first_seed), allowed="an integer", hint=list_hint("keys"))
        trials: dict[str, Trial] = {}
        for values, seed in itertools.product(self._points(), range(first_seed, first_seed + self.seeds)):
            name = trial_name(values, seed)
            config: dict[str, Scalar] = {**self.config, **values, "seed": seed}
            try:
                fraction = self._fraction(parse_run_config(config))
                config |= {FRACTION: fraction} if fraction else {}
                rounds = parse_run_config(config).training.num_server_rounds
            except ConfigError as error:
                where = ", ".join(f"{key}={format_cell(value)}" for key, value in values.items())
                raise error.at(f"trial {where}") if where else error from None
            if self.grace > rounds:
                got = f"{self.grace}, but a trial has only {rounds} rounds"
                allowed = f"at most {rounds}"
                raise ConfigError("--grace", got=got, allowed=allowed, hint="lower --grace, or raise num-server-rounds")
            trials.setdefault(name, Trial(name, values, seed, config, self.clients, rounds, fraction))
        return list(trials.values())

    def finals(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the best configuration's trials again, without held-out rows and with metrics of the test rows.

        With ``select-by`` or ``threshold-at`` the trials keep their validation rows, on which they choose the model.

        Args:
            trials: The trials of the best configuration, one for each seed.
        """
        return [replace(trial, config=without_fraction(trial.config), fraction=0.0) for trial in trials]

    def _fraction(self, config: RunConfig) -> float:
        """Return the share of the training rows to hold out for the evaluation of a trial."""
        spec = config.data
        if spec.validation_fraction or self.select_on == TEST or self.metric in OF_TRAINING:
            return spec.validation_fraction
        if spec.dataset in UNLABELLED:
            return 0.0
        if reads_own(config) and spec.data_dir:
            raise ConfigError(
                "--select-on",
                got="'validation', but the server evaluates on its own file",
                allowed="'test'",
                hint="remove data-dir to let the sites hold out rows, or set --select-on test",
            )
        return _DEFAULT_FRACTION

    def _points(self) -> list[dict[str, Scalar]]:
        grid = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        draws = [
            {
                # each key and sample has a separate random stream, so further keys and samples do not change its value
                key: distribution.sample(stream(self.search_seed, f"sweep {key}", number))
                for key, distribution in self.random.items()
            }
            for number in range(self.samples)
        ]
        return [{**point, **draw} for point in grid for draw in draws]


def without_fraction(config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a flat run config without ``validation-fraction``, unless it chooses a model or a threshold."""
    chooses = config.get("select-by") or config.get("threshold-at")
    return {key: value for key, value in config.items() if key != FRACTION or chooses}


def trial_name(varied: Mapping[str, Scalar], seed: int) -> str:
    """Return the name of a trial's directory, such as ``learning-rate=0.1_fedx.gamma=0.5_seed=0``.

    Args:
        varied: The values of the varied keys, in their order in the name.
        seed: The seed.

    Returns:
        At most 120 letters, digits and ``_.+=-``. A longer name, or a name with other characters, is shortened or
        changed, and ends in a hash.
    """
    exact = "_".join(f"{key}={_word(value)}" for key, value in {**varied, "seed": seed}.items())
    name = re.sub(r"[^\w.+=-]", "-", exact, flags=re.ASCII)
    if name == exact and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(repr([*varied.items(), seed]).encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - 9].rstrip('.')}_{digest}"


def _word(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
