"""Data: from a name and a few options to binary-labelled samples, one share per client."""

from problems.data.federated import FederatedData, load
from problems.data.own import SiteRows, read_own
from problems.data.preprocessing import Preprocessing
from problems.data.sample_format import SampleFormat
from problems.data.samples import Samples
from problems.data.spec import DATASETS, GIVEN, OWN, PARTITIONS, SPARSE_LOGISTIC, UNLABELLED, DataError, DataSpec
from problems.data.validation import validate

__all__ = [
    "DATASETS",
    "GIVEN",
    "OWN",
    "PARTITIONS",
    "SPARSE_LOGISTIC",
    "UNLABELLED",
    "DataError",
    "DataSpec",
    "FederatedData",
    "Preprocessing",
    "SampleFormat",
    "Samples",
    "SiteRows",
    "load",
    "read_own",
    "validate",
]
