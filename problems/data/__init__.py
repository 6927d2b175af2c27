"""Reading of data sets: samples with labels 0 and 1, divided among the clients.

`load` reads a data set in one process and divides the rows, for a simulation. `read_own` reads a single site's own
file, for a federation of real sites. A `DataSpec` has the options of both.
"""

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
