"""The run-config keys common to all algorithms, as typed models, and the error of a wrong config."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import Field, create_model, field_validator

from payloads.settings import Settings, TrainingSettings
from problems.data import DataSpec
from problems.errors import InputError
from problems.models import MODELS

Scalar = bool | int | float | str

# Keys that say where and how results are shown: runs that differ in these alone compute the same.
SHOWING_KEYS = ("output-dir", "pictures", "tracking-uri", "tracking-experiment")


class ConfigError(InputError, ValueError):
    """A run config, or a command line, that cannot be run."""


class RunSettings(Settings):
    """Keys that say where a run's parts come from and where its results go."""

    # `apps.config.known_keys` lists the names
    strategy: str = Field("fedx2", description="the name of a strategy")
    strategy_settings: str = Field(
        "", description="key=value pairs with commas for the table of a strategy of your own, or empty"
    )
    model: str = Field(
        "mlp", description=f"auto: the data set's own, one of {', '.join(MODELS)}, or 'package.module:factory'"
    )
    init_from: str = Field(
        "", description="the whole path of a model file whose weights a new run starts from, or empty"
    )
    output_dir: str = Field("results", min_length=1, description="the folder that holds the runs' directories")
    run_name: str = Field("", description="the run directory's name, or empty: strategy-dataset-seed")
    resume: bool = Field(False, description="true: continue the run of that name from its newest checkpoint; or false")
    pictures: bool = Field(True, description="true: draw curves.png and other pictures beside the metrics; or false")
    tracking_uri: str = Field(
        "",
        pattern=r"^$|^file:///.+$|^https?://[^@]+$",
        description="of MLflow: file:///folder, or http:// or https:// without user and password; or empty: none",
    )
    tracking_experiment: str = Field("florilegium", min_length=1, description="the name of the experiment in MLflow")


class EvaluationSettings(Settings):
    """Keys that say what a run makes of its evaluations."""

    select_by: str = Field("", description="the metric on validation rows that selects a round's model, or empty: none")
    patience: int = Field(
        0, ge=0, description="evaluations without a better select-by that end the run, an integer >= 0 (0: none do)"
    )
    threshold_at: str = Field(
        "",
        description="what a threshold must reach on validation rows: sensitivity=x or specificity=x, x in (0, 1]; or "
        "empty: none is chosen",
    )
    site_metrics: bool = Field(
        False, description="true: at the end figures with intervals of each site and of all together; or false"
    )
    site_metrics_every: int = Field(
        0, ge=0, description="figures of each site every so many rounds too, an integer >= 0 (0: at the end only)"
    )

    @field_validator("threshold_at")
    @classmethod
    def _is_rule(cls, text: str) -> str:
        if text and not 0 < _rule(text)[1] <= 1:
            raise ValueError("not in (0, 1]")
        return text

    @property
    def rule(self) -> tuple[str, float] | None:
        """What the threshold must reach: "sensitivity" or "specificity", and its least value; None: there is none."""
        return _rule(self.threshold_at) if self.threshold_at else None

    @property
    def counts(self) -> bool:
        """Whether scores are counted, for figures or a threshold."""
        return self.site_metrics or bool(self.threshold_at)

    @property
    def tests(self) -> bool:
        """Whether the model that the run leaves is measured on the test rows, though the run has validation rows."""
        return bool(self.select_by or self.threshold_at)

    def has_figures(self, server_round: int, training: TrainingSettings) -> bool:
        """Whether the line of an evaluated round has figures of sites: round 0, every so many rounds, and the last."""
        every = self.site_metrics_every
        return bool(every) and (server_round % every == 0 or server_round == training.num_server_rounds)

    def check(
        self, strategy: str, training: TrainingSettings, spec: DataSpec, *, shares_model: bool, scored: bool
    ) -> None:
        """Check the keys against those of the data and of the training.

        Args:
            strategy: its name.
            shares_model: Whether the server has a model.
            scored: whether the model scores rows.

        Raises:
            ConfigError: there is no model or no score to make anything of, the choice would be made on other than
                validation rows, or a key would have no effect.
        """
        if self.patience and not self.select_by:
            allowed = "0 without select-by, whose metric it waits for"
            raise ConfigError("patience", got=self.patience, allowed=allowed, hint="set select-by to a metric")
        self._check_rounds(training.evaluate_every)
        for key, value, needs_scores in (
            ("select-by", self.select_by, False),
            ("threshold-at", self.threshold_at, True),
            ("site-metrics", self.site_metrics, True),
        ):
            if not value:
                continue
            none = "''" if isinstance(value, str) else "false"
            if not shares_model:
                got, allowed = f"{value!r} with strategy {strategy!r}", f"{none}, since its parties keep their blocks"
                raise ConfigError(key, got=got, allowed=allowed, hint="leave it out")
            if needs_scores and not scored:
                got, allowed = f"{value!r} with loss {training.loss!r}", f"{none}, since it has no scores of rows"
                raise ConfigError(key, got=got, allowed=allowed, hint="leave it out")
            if isinstance(value, str) and not spec.validation_fraction:
                got, hint = f"{value!r} without validation rows", "set validation-fraction, for example to 0.2"
                allowed = f"{none}, or with validation rows, since no choice is made on test rows"
                raise ConfigError(key, got=got, allowed=allowed, hint=hint)

    def _check_rounds(self, evaluate_every: int) -> None:
        every, key = self.site_metrics_every, "site-metrics-every"
        if every and not self.site_metrics:
            allowed = "0 without site-metrics, whose figures it is about"
            raise ConfigError(key, got=every, allowed=allowed, hint="set site-metrics to true")
        if every % evaluate_every:
            allowed = f"a multiple of evaluate-every, {evaluate_every}: other rounds have no scores"
            raise ConfigError(key, got=every, allowed=allowed, hint="set it so, or evaluate-every to 1")


def _rule(text: str) -> tuple[str, float]:
    name, _, value = (part.strip() for part in text.partition("="))
    if name not in ("sensitivity", "specificity"):
        raise ValueError(f"{name} is neither sensitivity nor specificity")
    return name, float(value)


_types = get_type_hints(DataSpec)
_data_keys: dict[str, Any] = {
    key.name: (_types[key.name], Field(key.default, **key.metadata)) for key in fields(DataSpec) if key.metadata
}
# The keys of the data set, its partition and its transformations, and those of the table that draws a synthetic one.
DataSettings = create_model(
    "DataSettings",
    __base__=Settings,
    **{name: key for name, key in _data_keys.items() if not name.startswith("synthetic_")},
)
SyntheticSettings = create_model(
    "SyntheticSettings",
    __base__=Settings,
    **{name.removeprefix("synthetic_"): key for name, key in _data_keys.items() if name.startswith("synthetic_")},
)


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Flatten a TOML file's tables, as Flower hands them over: ``{"fedx": {"gamma": 0.5}}`` -> ``{"fedx.gamma": 0.5}``.

    Args:
        prefix: what stands before every key, for the tables inside; "" at the top.
    """
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
