"""The columns of a data set or of a site's file as numbers, before scaling and filling, for their description."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped

from problems.data.agreement import Encoded
from problems.data.federated import FederatedData, load_rows
from problems.data.image_rows import ImageRows
from problems.data.preprocessing import Feature, Preprocessing
from problems.data.spec import DRAWN, TABLES, UNLABELLED, DataError, DataSpec, in_data_set, is_hub
from problems.data.validation import validate


def remove_scaling(spec: DataSpec) -> DataSpec:
    """Return the options of a data set without scaling, with missing cells allowed, and with times as numbers."""
    missing = "mean" if spec.dataset in TABLES or is_hub(spec.dataset) else spec.missing
    spec = replace(spec, time_column="", entry_column="", time_borders="")
    return replace(spec, scale="none", validation_fraction=0.0, missing=missing)


def load_columns(spec: DataSpec, num_clients: int) -> FederatedData:
    """Read a data set like `load`, with features that are the encoded columns: not scaled, NaN for a missing cell.

    Args:
        spec: The data set and its options. The keys of scaling and filling have no effect.
        num_clients: The number of clients.

    Returns:
        The data, whose features are float64, and whose preprocessing is not fitted.

    Raises:
        DataError: As for `load`, or the data set is not a table.
    """
    validate(spec)
    spec = remove_scaling(spec)
    try:
        if spec.dataset not in DRAWN:
            return load_rows(spec, num_clients, _raw)
        data = load_rows(spec, num_clients)
        if spec.dataset in UNLABELLED:
            raise _not_a_table(f"{spec.dataset!r}, which has no labels")
        data.columns = name_features(data.train.features)
        return data
    except DataError as error:
        raise in_data_set(error, spec) from error


def _not_a_table(got: str) -> DataError:
    return DataError("dataset", got=got, allowed="a table with labels", hint="set dataset to a table, such as csv")


def name_features(features: Shaped[np.ndarray, "n *shape"] | ImageRows) -> Preprocessing:
    """Return the preprocessing of features without names.

    Raises:
        DataError: The samples are images or have another shape than rows.
    """
    if features.ndim != 2:
        raise _not_a_table(f"samples of shape {features.shape[1:]}")
    return Preprocessing(
        tuple(Feature(f"feature {index}", "number") for index in range(features.shape[1])), "mean", scale="none"
    )


def _raw(encoded: Any) -> tuple[Float64[np.ndarray, "n f"], Preprocessing]:
    """Return the encoded columns of all rows, from the result of `Source.encode`."""
    if isinstance(encoded, Encoded):
        return encoded.values, encoded.preprocessing
    values, columns = encoded if isinstance(encoded, tuple) else (encoded, None)
    columns = columns or name_features(values)
    if np.isinf(values).any():
        raise DataError("features", got="infinite numbers", allowed="finite numbers", hint="replace the values")
    names = tuple(Feature(name, "number") for name in columns.names)
    return values.astype(np.float64), replace(columns, outputs=names, scale="none", missing="mean")
