"""Data: from a name and a few options to binary-labelled samples, one share a client."""

from problems.data.federated import FederatedData, load, load_site
from problems.data.samples import Samples
from problems.data.spec import DATASETS, PARTITIONS, SPARSE_LOGISTIC, UNLABELLED, DataError, DataSpec, validate

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "SPARSE_LOGISTIC",
    "UNLABELLED",
    "DataError",
    "DataSpec",
    "FederatedData",
    "Samples",
    "load",
    "load_site",
    "validate",
]
