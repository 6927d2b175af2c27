"""The options of a data set: the names and values that a user may set.

The fields of `DataSpec` are named like the run-config keys (`partition_alpha` is `partition-alpha`, `synthetic_alpha`
is `synthetic.alpha`), which docs/configuration.md explains.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from problems.data.quoting import split_items, split_values, unquote
from problems.errors import InputError
from problems.importing import LOADERS, find_plugin, is_dotted


class DataError(InputError, ValueError):
    """An error in the data or in their settings."""


PAGE = "docs/data.md"

DATASETS: dict[str, str] = {
    "digits": "1,797 8x8 images of digits, bundled with scikit-learn; positive: the digit 8",
    "breast-cancer": "569 tumours, 30 standardised features, bundled with scikit-learn; positive: malignant",
    "synthetic-offset-sites": "16 sites, whose offsets hide the best feature across sites",
    "synthetic-long-servedio": "8,000 rows of 21 signs; convex losses fail on flipped labels",
    "synthetic-pl": "100 samples a client of a nonconvex-PL minimax problem, for the minimax strategies; no labels",
    "synthetic-sparse-logistic": "unit vectors of 60 features, each client's own: Synthetic(alpha, beta) of FedProx",
    "fashion-mnist": "70,000 28x28 grey images of clothing, 10 classes; positive: the first five",
    "cifar10": "60,000 32x32 colour images, 10 classes; positive: the first five",
    "cifar100": "60,000 32x32 colour images, 100 fine classes; positive: the first fifty",
    "stl10": "13,000 96x96 colour images, 10 classes; positive: the first five",
    "uci-credit": "30,000 credit card clients, 90 features after one-hot encoding; positive: default",
    "heart-disease": "740 patients of four hospitals, 13 features, with FLamby's split; positive: any disease",
    "gusto": "40,830 heart attacks at 121 groups of hospitals, 32 features; positive: death within 30 days",
    "a9a": "32,561 adults, 123 binary features; sites: 16 levels of education; positive: the 24 % labelled +1",
    "w8a": "49,749 web pages, 300 binary features; positive: the 3 % labelled +1",
    "pneumonia-mnist": "chest X-rays of children, 28x28 grey, of MedMNIST; positive: pneumonia",
    "csv": "your table (.csv, .csv.gz) with a header line and a label column",
    "parquet": "your table (.parquet) with a label column",
    "svmlight": "your svmlight / LIBSVM text (.svm, .svmlight, .libsvm, .txt; .gz, .bz2)",
    "npz": "your arrays (.npz): X and y; X_test and y_test if you have them",
    "image-folder": "your images: train/<class>/*.png and perhaps test/<class>/*.png",
}

PARTITIONS: dict[str, str] = {
    "iid": "shuffled and dealt out evenly, positives as well as negatives",
    "dirichlet": "each class's shares drawn from Dirichlet(partition-alpha)",
    "pathological": "each client has partition-classes of the original classes",
    "shard": "sorted by original class, cut into shards, partition-classes shards a client",
    "linear": "shuffled, client i gets a share proportional to i + 1",
    "natural": "the data set's own sites, or the sites in site-column",
    "consecutive": "the order of the file in even slices",
    "sorted-90": "90 % sorted by original class in consecutive slices, 10 % dealt at random",
    "positives-skewed": "unequal: shares of positives and of negatives each from Dirichlet(partition-alpha)",
    "given": "partition-rows sets each client's number of rows and their share of positives",
    "own": "no partition: every node reads its own file, the data-path of its node config",
}

# Data sets that no table lists: the result of a user's function, and a data set on Hugging Face.
LOADER_FORM, HUB_FORM = "package.module:loader", "hf:owner/name"
HUB = "hf:"
# The values of `missing` and `scale`.
MISSING: dict[str, str] = {
    "error": "missing cells are an error",
    "mean": "numbers: filled with the mean over all training rows",
    "median": "numbers: filled with the median over all training rows",
    "indicator": "as mean, and each column with missing cells gets a 0/1 column that marks them",
}
SCALES: dict[str, str] = {
    "standard": "mean 0 and variance 1",
    "quantile": "the level among all training rows, scaled to mean 0 and variance 1",
    "log": "sign(x) log(1 + |x|), then mean 0 and variance 1",
    "range": "0 for the least number of the training rows and 1 for the largest",
    "bins": "a 0/1 feature for each bin between quantiles of all training rows",
    "none": "no scaling",
}
# Half of the groups between quantiles, so each bin has at least two of them.
MOST_BINS = 32
_QUOTES = "quoted if they contain commas or brackets"
# In a text column, all values that are not listed; in a list of columns, all columns that are not listed.
REST = "*"

OWN, GIVEN = "own", "given"
AUTO = "auto"
# Partitions that can keep the rows of a group together.
GROUPED_PARTITIONS = ("iid", "dirichlet", "linear", "natural", "consecutive", "positives-skewed", OWN)
TABLES = ("csv", "parquet")
GENERIC = ("csv", "parquet", "svmlight", "npz", "image-folder")
SPARSE_LOGISTIC = "synthetic-sparse-logistic"
# Samples of special problems, without labels and without a test set.
UNLABELLED = ("synthetic-pl",)
# Drawn client by client, one site per client: they cannot be partitioned, disturbed or relabelled.
DRAWN = (*UNLABELLED, SPARSE_LOGISTIC)
OFFSET_SITES = "synthetic-offset-sites"
# Data sets with their own sites, which become the clients with partition "natural".
SITED = (*DRAWN, OFFSET_SITES, "heart-disease", "gusto", "a9a")
# Columns of gusto that name its sites: 121 and 48 groups of hospitals, and 16 regions.
GUSTO_SITES = ("GRPS", "GRPL", "REGL")
NEEDS_FILES = (*GENERIC, "uci-credit", "gusto", "a9a", "w8a", "pneumonia-mnist")


def is_hub(dataset: str) -> bool:
    """Return whether a data set comes from Hugging Face, from its hub or from the disk."""
    return dataset.startswith(HUB) and len(dataset) > len(HUB)


def is_loader(dataset: str) -> bool:
    """Return whether a data set is the result of a function of a user or of an installed package."""
    return bool(loader_path(dataset))


def loader_path(dataset: str) -> str:
    """Return the ``package.module:loader`` that a data set's name is, or stands for; "" if it is another data set.

    Raises:
        DataError: Several packages have the name.
    """
    if dataset in DATASETS or dataset.startswith(HUB):
        return ""
    if is_dotted(dataset):
        return dataset

    def refuse(got: str) -> DataError:
        return DataError(
            "dataset", got=got, allowed=f"a name of a single package, or '{LOADER_FORM}'", hint=f"see {PAGE}"
        )

    plugin = find_plugin(LOADERS, dataset, refuse)
    return plugin.path if plugin else ""


@dataclass(frozen=True)
class Column:
    """A column of ``feature-columns``. A text column lists its values in ``categories``; `REST` means all others."""

    name: str
    categories: tuple[str, ...] = ()


def parse_columns(text: str) -> tuple[Column, ...]:
    """Read ``"age, sex[f|m]"`` as columns in that order; "" as no columns, which means all columns, as ``"*"`` does.

    A name or value with a comma, bracket or bar is quoted: ``"weight, kg"``.

    Raises:
        DataError: A name is empty or occurs twice, brackets do not close, or there are fewer than two categories.
    """
    columns = [_column(part.strip(), text) for part in split_items(text)] if text.strip() else []
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            got = f"{text!r}: column {name!r} occurs twice"
            raise DataError(
                "feature-columns", got=got, allowed="each column once", hint=f"remove one of them, see {PAGE}"
            )
    return tuple(columns)


def fill_in(columns: Sequence[Column], names: Iterable[str]) -> tuple[Column, ...]:
    """Replace `REST` in a list of columns by the columns that the list does not name.

    Args:
        columns: The result of `parse_columns`; an empty list means `REST` alone.
        names: The names of all columns of features, in the order in which they are filled in.
    """
    columns = columns or (Column(REST),)
    listed = {column.name for column in columns}
    unlisted = [Column(name) for name in names if name not in listed]
    return tuple(item for column in columns for item in (unlisted if column.name == REST else [column]))


def _column(part: str, text: str) -> Column:
    try:
        name, listed = split_values(part)
    except ValueError:
        name, listed = "", None
    categories = tuple(listed or ())
    if not name:
        got, allowed = (
            f"{text!r}: {part!r} is not a column",
            f"names with commas, name[value|value] for text; {_QUOTES}",
        )
    elif listed is not None and (len(set(categories)) != len(categories) or len(categories) < 2 or "" in categories):
        got, allowed = f"{text!r}: {part!r}", "two or more different values in its brackets"
    else:
        return Column(name, categories)
    raise DataError("feature-columns", got=got, allowed=allowed, hint=f"see {PAGE}")


def parse_names(key: str, text: str) -> tuple[str, ...]:
    """Read ``"id, when"`` as ("id", "when"), and "" as (). A name with a comma is quoted, as in `parse_columns`.

    Args:
        key: The run-config key, for errors.
        text: The key's value.

    Raises:
        DataError: A name is empty or occurs twice.
    """
    names = tuple(map(unquote, split_items(text))) if text.strip() else ()
    if "" in names or len(set(names)) < len(names):
        raise DataError(key, got=repr(text), allowed=f"different names with commas; {_QUOTES}", hint=f"see {PAGE}")
    return names


def parse_rows(text: str) -> list[tuple[int, int]]:
    """Read ``"4000:0.05, 200:0.6"`` as the clients' numbers of negatives and positives: (3800, 200) and (80, 120).

    Raises:
        DataError: There is no client, a part is not ``rows:share``, rows are below 1, or a share is outside [0, 1].
    """
    counts = []
    for part in text.split(","):
        rows, _, share = (word.strip() for word in part.partition(":"))
        try:
            number, positives = int(rows), round(int(rows) * float(share))
        except (ValueError, OverflowError):
            number = positives = 0
        if number < 1 or not 0 <= positives <= number:
            allowed = "rows:share of each client with commas, rows an integer >= 1, share in [0, 1]"
            hint = f"for example '4000:0.05,200:0.6', see {PAGE}"
            raise DataError("partition-rows", got=repr(text), allowed=allowed, hint=hint)
        counts.append((number - positives, positives))
    return counts


def _key(default: Any, description: str, allowed: str | None = None, **bounds: float) -> Any:
    """Declare a field that a run config sets; without `allowed`, its type and bounds describe the allowed values."""
    return field(default=default, metadata={"description": description, "title": allowed, **bounds})


@dataclass(frozen=True)
class DataSpec:
    """A data set, and the way it is made binary, disturbed and spread over clients.

    Example:
        >>> DataSpec(dataset="digits", partition="dirichlet").partition_alpha
        0.5
    """

    dataset: str = _key(
        "digits", "The [data set](data.md#data-sets).", f"one of {', '.join(DATASETS)}, '{LOADER_FORM}' or '{HUB_FORM}'"
    )
    data_dir: str = _key("", "The files of a data set that is not bundled.", "a folder or file, or empty")
    partition: str = _key(
        "iid",
        "The [spread](data.md#partitions) of training rows, or of a vertical run's columns, over clients.",
        f"one of {', '.join(PARTITIONS)}",
    )
    partition_alpha: float = _key(0.5, "The concentration of dirichlet and positives-skewed.", gt=0)
    partition_classes: int = _key(
        2, "The classes of a client for pathological, the shards of a client for shard.", ge=1
    )
    partition_sites: int = _key(
        0, "The sites that rows are spread over; the clients are the first of them. 0: as many as clients.", ge=0
    )
    partition_rows: str = _key(
        "", "The clients' rows and shares of positives for given.", "rows:share of each client with commas, or empty"
    )
    positive_label: str = _key(
        "", "The positive labels. Empty: the data set's own.", "a label, labels with commas, first-half, or empty"
    )
    label_column: str = _key("", "The label column of a table. Empty: label.", "a column's name, or empty")
    site_column: str = _key(
        "", "The column of a table that names each row's site, for natural.", "a column's name, or empty"
    )
    group_column: str = _key(
        "",
        "The column whose equal cells [keep rows together](data.md#rows-that-belong-together).",
        "a column's name, or empty; of images: folder, or a pattern with one group",
    )
    feature_columns: str = _key(
        "",
        "The [columns](data.md#columns-of-a-table) that are features. Empty: all except the label.",
        "names with commas, name[value|value] for text, or empty; of svmlight: a count",
    )
    drop_columns: str = _key(
        "", "The columns of a table that are not features, such as ids.", "names with commas, or empty"
    )
    missing: str = _key(
        "error", "The treatment of a table's [missing cells](data.md#missing-cells).", f"one of {', '.join(MISSING)}"
    )
    missing_values: str = _key(
        "",
        "The cells of a table that mean missing, in addition to empty cells.",
        "cells with commas, column:cell|cell for one column, or empty",
    )
    scale: str = _key(
        "standard",
        "The [scaling](data.md#scaling) of a table's numbers. auto: standard, or range in vertical runs.",
        f"auto, {', '.join(SCALES)}",
    )
    separator: str = _key(
        AUTO,
        "The separator of a [csv](data.md#the-form-of-a-csv)'s columns.",
        "auto, comma, semicolon, tab, bar, space, or one character",
    )
    decimal: str = _key(AUTO, "The decimal mark of a csv's numbers.", "auto, a point or a comma")
    encoding: str = _key(AUTO, "The encoding of a csv.", "auto, or a name such as utf-8, cp1252 or mac-roman")
    bins: int = _key(10, "The bins of each number with scale bins.", ge=2, le=MOST_BINS)
    pixel_bits: int = _key(
        0,
        "The bits in use of an image-folder's [16-bit images](data.md#images). 0: found in the images.",
        "0, or an integer from 8 to 16",
        ge=0,
        le=16,
    )
    imbalance: float = _key(0.0, "The share of positives left in the training set. 0: all.", ge=0, lt=1)
    label_noise: float = _key(0.0, "The share of each class's training labels that is flipped.", ge=0, lt=0.5)
    client_shift: float = _key(0.0, "The step from client to client of the mean of added Gaussian noise. 0: no noise.")
    client_shift_std: float = _key(0.2, "The noise's standard deviation.", ge=0)
    test_fraction: float = _key(0.2, "The share of each class held out if a data set has no test split.", gt=0, lt=1)
    validation_fraction: float = _key(
        0.0, "The share of training rows to [evaluate on](data.md#choosing-on-training-rows). 0: none.", ge=0, lt=1
    )
    synthetic_alpha: float = _key(10.0, "The variance over clients of the mean of the label vector.", ge=0)
    synthetic_beta: float = _key(10.0, "The variance over clients of the mean of the samples' centre.", ge=0)
    synthetic_samples: int = _key(2000, "The training samples of a client. A tenth as many are test samples.", ge=1)
    seed: int = 0

    @property
    def labels_in(self) -> str:
        """The name of the label column of a table."""
        return self.label_column or "label"


def in_data_set(error: DataError, spec: DataSpec) -> DataError:
    """Return an error with the name of the data set and the page about data sets added.

    Args:
        error: The error; its further errors are treated the same way.
        spec: The data set's options.
    """
    prefix = "" if error.key.startswith(("dataset", "data set")) else f"dataset {spec.dataset!r}"
    errors = [DataError.of(error, prefix), *error.also]
    last = errors[-1].hint
    hint = last if PAGE in last else f"{last}; see {PAGE}"
    return DataError.join([DataError.of(each, hint=hint) if each.hint == last else each for each in errors])
