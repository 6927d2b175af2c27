"""The run-config keys common to all algorithms, as typed models, and the error of a wrong config."""

from __future__ import annotations

from pydantic import Field

from payloads.settings import Settings
from problems.data import DATASETS, PARTITIONS
from problems.errors import InputError
from problems.models import MODELS

Scalar = bool | int | float | str

# Keys that say where and how results are shown: runs that differ in these alone compute the same.
SHOWING_KEYS = ("output-dir", "pictures")


class ConfigError(InputError, ValueError):
    """A run config, or a command line, that cannot be run."""


class RunSettings(Settings):
    """Keys that say where a run's parts come from and where its results go."""

    # `apps.config.known_keys` lists the names
    strategy: str = Field("fedx2", description="the name of a strategy")
    model: str = Field(
        "mlp", description=f"auto: the data set's own, one of {', '.join(MODELS)}, or 'package.module:factory'"
    )
    output_dir: str = Field("results", min_length=1, description="the folder that holds the runs' directories")
    run_name: str = Field("", description="the run directory's name, or empty: strategy-dataset-seed")
    resume: bool = Field(False, description="true: continue the run of that name from its newest checkpoint; or false")
    pictures: bool = Field(True, description="true: draw curves.png beside the metrics; or false")


class DataSettings(Settings):
    """Keys of the data set, its partition and its transformations; `problems.data.DataSpec` explains them."""

    dataset: str = Field("digits", description=f"one of {', '.join(DATASETS)}")
    data_dir: str = Field("", description="the folder or file of a data set that is not bundled")
    partition: str = Field("iid", description=f"one of {', '.join(PARTITIONS)}")
    partition_alpha: float = Field(0.5, gt=0, description="Dirichlet concentration, a number > 0")
    partition_classes: int = Field(2, ge=1, description="classes a client holds, an integer >= 1 (pathological, shard)")
    partition_sites: int = Field(
        0,
        ge=0,
        description="sites that rows are spread over, of which the clients are the first; 0: as many as clients",
    )
    partition_rows: str = Field(
        "", description="what each client holds, rows:share of positives with commas, or empty (given)"
    )
    positive_label: str = Field("", description="a label, labels with commas, first-half, or empty: the data set's own")
    label_column: str = Field("", description="label column of a tabular file, or empty: 'label'")
    feature_columns: str = Field(
        "",
        description="columns of a table, with commas; name[value|value] for text; of svmlight: how many; or empty: all",
    )
    standardise: bool = Field(
        True, description="true: a table's numbers get mean 0 and variance 1 over all clients' training rows; or false"
    )
    imbalance: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of positives left in the training set, in (0, 1), or 0: as they are",
    )
    label_noise: float = Field(0.0, ge=0, lt=0.5, description="share of each class's labels flipped, in [0, 0.5)")
    client_shift: float = Field(0.0, description="step from client to client of the mean of added Gaussian noise")
    client_shift_std: float = Field(
        0.2, ge=0, description="its standard deviation, a number >= 0 (no effect while client-shift is 0)"
    )
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="share held out for testing where a set has no test split, in (0, 1)"
    )
    validation_fraction: float = Field(
        0.0, ge=0, lt=1, description="share of the training rows to evaluate on instead of the test rows, or 0: none"
    )


class SyntheticSettings(Settings):
    """Table ``synthetic``: how that data set is drawn; the fields ``synthetic_*`` of `problems.data.DataSpec`."""

    alpha: float = Field(10.0, ge=0, description="variance over clients of their label vectors' mean, a number >= 0")
    beta: float = Field(10.0, ge=0, description="variance over clients of their samples' mean, a number >= 0")
    samples: int = Field(2000, ge=1, description="training samples of a client, an integer >= 1")
