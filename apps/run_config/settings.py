"""The run-config keys that all algorithms share, except the training keys, as typed models; and `ConfigError`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_type_hints

from pydantic import Field, create_model, field_validator

from payloads.settings import Settings, TrainingSettings, setting
from problems.augmentation import NONE, STRENGTHS
from problems.data import DataSpec
from problems.errors import InputError
from problems.importing import is_dotted
from problems.models import LIBRARY_FORMS, MODELS
from problems.objectives.classification import CROSS_ENTROPY, SOFTMAX

Scalar = bool | int | float | str

# Keys that change only the output: runs that differ only in these keys compute the same results.
SHOWING_KEYS = ("output-dir", "pictures", "tracking-uri", "tracking-experiment")


# the value of ``batch-norm`` with which each site keeps its batch norms
LOCAL_NORMS = "local"
# the repeats of permutation importance with importance=true
REPEATS = 5


class ConfigError(InputError, ValueError):
    """An invalid run config, node config or command line."""


class RunSettings(Settings):
    """Keys of a run's parts and of its results."""

    # `apps.config.known_keys` lists the names
    strategy: str = setting(
        "The algorithm, or [your own algorithm](tutorials/your-own-algorithm.md#outside-the-project).", "fedx2"
    )
    strategy_settings: str = setting(
        "The keys of your own strategy.", "", "key=value pairs separated by commas, or empty"
    )
    model: str = setting(
        "The network. auto: the default of the data set.",
        "mlp",
        f"auto, {', '.join([*MODELS, *LIBRARY_FORMS])}, or package.module:factory",
    )
    init_from: str = setting(
        "A file of weights that a new run starts from. The server reads it.", "", "an absolute path, or empty"
    )
    weights: str = setting(
        "A file of [published weights](networks.md#published-weights) that a new run starts from. The server reads it.",
        "",
        "an absolute path that ends in .safetensors, .pth or .pt, or empty",
    )
    frozen: str = setting(
        "The parameters that are [not trained](networks.md#frozen-parts).",
        "",
        "names of parameters or patterns with * separated by commas, all-but-head, or empty",
    )
    batch_norm: Literal["averaged", "frozen", "local"] = setting(
        "Whether [batch norms](networks.md#batch-norm) are averaged, frozen, or different at each site.",
        "averaged",
    )
    precision: Literal["full", "bf16", "fp16"] = setting(
        "The numbers of a network's layers in training. [bf16 and fp16](networks.md#precision) have 16 bits.", "full"
    )
    augment: str = setting(
        "The [random changes](augmentation.md) of the images that sites train on.",
        NONE,
        f"{NONE}, {', '.join(STRENGTHS)}, or package.module:factory",
    )
    accumulate: int = setting(
        "The parts in which a step computes its batch, to [need less memory](networks.md#batches-in-parts).", 1, ge=1
    )
    output_dir: str = setting(
        "The folder of the runs' directories.", "results", "a path that is not empty", min_length=1
    )
    run_name: str = setting(
        "The name of the run's directory. Empty: strategy, data set and seed.", "", "a folder's name, or empty"
    )
    resume: bool = setting("Whether to continue the run named run-name from its newest checkpoint.", False)
    pictures: bool = setting("Whether to draw curves.png and, with site-metrics, pictures of the sites' figures.", True)
    tracking_uri: str = setting(
        "The [MLflow](following.md#mlflow) server or folder that gets a run's results.",
        "",
        "file:///folder, or http:// or https:// without user and password, or empty",
        pattern=r"^$|^file:///.+$|^https?://[^@]+$",
    )
    tracking_experiment: str = setting(
        "The name of the experiment in MLflow.", "florilegium", "a name that is not empty", min_length=1
    )

    @field_validator("augment")
    @classmethod
    def _is_augmentation(cls, text: str) -> str:
        if text not in (NONE, *STRENGTHS) and not is_dotted(text):
            raise ValueError("not an augmentation")
        return text


class EvaluationSettings(Settings):
    """Keys of a run's evaluations: selection, threshold and figures."""

    select_by: str = setting(
        "The metric that [selects a round](data.md#selecting-a-round) on validation rows.", "", "a metric, or empty"
    )
    patience: int = setting(
        "The successive evaluations without a better select-by that end the run early. 0: never.", 0, ge=0
    )
    threshold_at: str = setting(
        "The rule of a [threshold](run-directory.md#figures-of-sites-and-a-threshold) on validation rows.",
        "",
        "sensitivity=x, specificity=x with x in (0, 1], or empty",
    )
    calibration: Literal["none", "platt", "isotonic"] = setting(
        "The map from scores to [probabilities](scoring.md#calibrated-probabilities), fitted on validation rows.",
        "none",
    )
    horizon: float = setting(
        "The [time](survival.md#metrics) until which events are predicted and measured. 0: the middle time border.",
        0.0,
        ge=0,
    )
    site_metrics: bool = setting(
        "Whether the run ends with [each site's figures](run-directory.md#figures-of-sites-and-a-threshold).", False
    )
    site_metrics_every: int = setting(
        "The rounds between [sites' figures](run-directory.md#in-the-rounds). 0: at the end only.", 0, ge=0
    )

    importance: int = setting(
        "The repeats of [permutation importance](after-a-run.md#importance-of-columns) at the end. 0: none.",
        0,
        "an integer >= 0, or true for 5 repeats",
        ge=0,
    )

    metrics: str = setting(
        "Further [metrics](python.md#metrics-of-yours) of the test rows.",
        "",
        "package.module:function of labels and scores, separated by commas, or empty",
    )

    fine_tune_steps: int = setting(
        "The steps of each site's [fine-tuning](after-a-run.md#personal-models) after the run. 0: none.",
        0,
        ge=0,
    )

    @field_validator("importance", mode="before")
    @classmethod
    def _count_repeats(cls, value: object) -> object:
        return REPEATS * value if isinstance(value, bool) else value

    @field_validator("threshold_at")
    @classmethod
    def _is_rule(cls, text: str) -> str:
        if text and not 0 < _rule(text)[1] <= 1:
            raise ValueError("not in (0, 1]")
        return text

    @property
    def rule(self) -> tuple[str, float] | None:
        """The rule of the threshold: "sensitivity" or "specificity", and its required value. None: no threshold."""
        return _rule(self.threshold_at) if self.threshold_at else None

    @property
    def counts(self) -> bool:
        """Whether scores are counted, for figures, a threshold or a calibration."""
        return self.site_metrics or bool(self.threshold_at) or self.calibrates

    @property
    def calibrates(self) -> bool:
        """Whether the run fits a calibration."""
        return bool(self.calibration != "none")

    @property
    def tests(self) -> bool:
        """Whether the final model is measured on the test rows although the run has validation rows."""
        return bool(self.select_by or self.threshold_at) or self.calibrates

    def has_figures(self, server_round: int, training: TrainingSettings) -> bool:
        """Return whether an evaluated round has figures of sites: multiples of the key, and the last round."""
        every = self.site_metrics_every
        return bool(every) and (server_round % every == 0 or server_round == training.num_server_rounds)

    def check(
        self, strategy: str, training: TrainingSettings, spec: DataSpec, *, shares_model: bool, scored: bool
    ) -> None:
        """Check that the strategy, the training keys and the data allow these keys.

        Args:
            strategy: The strategy's name.
            training: The training settings.
            spec: The data.
            shares_model: Whether the server has a model.
            scored: Whether the model scores rows.

        Raises:
            ConfigError: A key needs a model, scores or validation rows that the run does not have, or has no effect.
        """
        if self.patience and not self.select_by:
            allowed = "0, since without select-by no metric can improve"
            raise ConfigError("patience", got=self.patience, allowed=allowed, hint="set select-by to a metric")
        if self.horizon and not spec.has_times:
            allowed = "0, since without time-column rows have no times"
            raise ConfigError("horizon", got=self.horizon, allowed=allowed, hint="remove horizon, or set time-column")
        self._check_rounds(training.evaluate_every)
        self._check_after(strategy, training, spec, possible=shares_model and scored)
        for key, value, needs_scores in (
            ("select-by", self.select_by, False),
            ("threshold-at", self.threshold_at, True),
            ("calibration", self.calibration if self.calibrates else "", True),
            ("site-metrics", self.site_metrics, True),
            ("metrics", self.metrics, False),
        ):
            if not value:
                continue
            none = "'none'" if key == "calibration" else "''" if isinstance(value, str) else "false"
            if not shares_model:
                got, allowed = (
                    f"{value!r} with strategy {strategy!r}",
                    f"{none}, since the parties keep their parts of the model, so the server has no model",
                )
                raise ConfigError(key, got=got, allowed=allowed, hint=f"remove {key}")
            if needs_scores and spec.has_numbers:
                allowed = f"{none}, since with label-type 'number' rows have no classes"
                raise ConfigError(key, got=repr(value), allowed=allowed, hint=f"remove {key}")
            if needs_scores and spec.has_times:
                allowed = f"{none}, since these figures ignore the times to an event"
                raise ConfigError(key, got=repr(value), allowed=allowed, hint=f"remove {key}")
            if needs_scores and not scored:
                got, allowed = (
                    f"{value!r} with loss {training.loss!r}",
                    f"{none}, since with this loss rows have no scores",
                )
                raise ConfigError(key, got=got, allowed=allowed, hint=f"remove {key}")
            if key not in ("select-by", "metrics") and isinstance(value, str) and training.loss == SOFTMAX:
                allowed = f"{none} with loss {SOFTMAX!r}, which predicts the most probable class"
                raise ConfigError(key, got=repr(value), allowed=allowed, hint=f"remove {key}, or loss")
            if isinstance(value, str) and not spec.validation_fraction and key != "metrics":
                got, hint = f"{value!r} without validation rows", "set validation-fraction, for example to 0.2"
                allowed = f"{none}, since without validation rows the choice would be made on test rows"
                raise ConfigError(key, got=got, allowed=allowed, hint=hint)

    def _check_after(self, strategy: str, training: TrainingSettings, spec: DataSpec, *, possible: bool) -> None:
        for key, value, none in (
            ("subgroups", spec.subgroups, "''"),
            ("importance", self.importance, "0"),
            ("site-metrics-every", self.site_metrics_every if spec.findings else 0, "0"),
            ("fine-tune-steps", self.fine_tune_steps, "0"),
        ):
            if value and spec.findings:
                allowed = f"{none}, since these figures are of a single label"
                raise ConfigError(key, got=repr(value), allowed=allowed, hint=f"remove {key}, or label-columns")
            if value and not possible:
                allowed = f"{none}, since with strategy {strategy!r} and loss {training.loss!r} no server scores rows"
                raise ConfigError(key, got=repr(value), allowed=allowed, hint=f"remove {key}")
            if value and not self.site_metrics:
                allowed = f"{none}, since without site-metrics=true a run computes no figures"
                raise ConfigError(key, got=repr(value), allowed=allowed, hint="set site-metrics to true")

        if self.fine_tune_steps and training.loss != CROSS_ENTROPY:
            got, allowed = f"{self.fine_tune_steps} with loss {training.loss!r}", "0, since steps are on cross-entropy"
            raise ConfigError("fine-tune-steps", got=got, allowed=allowed, hint="remove fine-tune-steps")

    def _check_rounds(self, evaluate_every: int) -> None:
        every, key = self.site_metrics_every, "site-metrics-every"
        if every and not self.site_metrics:
            allowed = "0, since without site-metrics=true a run computes no figures of sites"
            raise ConfigError(key, got=every, allowed=allowed, hint="set site-metrics to true")
        if every % evaluate_every:
            allowed = f"a multiple of {evaluate_every} (evaluate-every), since only those rounds have scores"
            raise ConfigError(
                key, got=every, allowed=allowed, hint=f"set {key} to such a multiple, or evaluate-every to 1"
            )


def _rule(text: str) -> tuple[str, float]:
    name, _, value = (part.strip() for part in text.partition("="))
    if name not in ("sensitivity", "specificity"):
        raise ValueError(f"{name} is neither sensitivity nor specificity")
    return name, float(value)


_types = get_type_hints(DataSpec)
_data_keys: dict[str, Any] = {
    key.name: (_types[key.name], Field(key.default, **key.metadata)) for key in fields(DataSpec) if key.metadata
}
# The keys of the data set, its partition and its transformations, and the keys of the table for synthetic data.
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
    """Flatten a TOML file's tables as Flower does: the key ``gamma`` of the table ``fedx`` becomes ``fedx.gamma``.

    Args:
        nested: The tables.
        prefix: The text before every key. It is empty except in recursive calls.

    Example:
        >>> flatten({"seed": 1, "fedx": {"gamma": 0.5}})
        {'seed': 1, 'fedx.gamma': 0.5}
    """
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
