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


PAGE, PAGE_AFTER = "docs/data.md", "docs/after-a-run.md"

DATASETS: dict[str, str] = {
    "digits": "1,797 8x8 images of digits, bundled with scikit-learn; positive: the digit 8",
    "breast-cancer": "569 tumours, 30 standardised features, bundled with scikit-learn; positive: malignant",
    "synthetic-offset-sites": "16 sites, whose offsets hide the best feature across sites",
    "synthetic-long-servedio": "8,000 rows of 21 signs; convex losses fail on flipped labels",
    "synthetic-pl": "a nonconvex-PL minimax problem for the minimax strategies: 100 samples per client, no labels",
    "synthetic-sparse-logistic": "Synthetic(alpha, beta) of FedProx: each client has its own unit vectors, 60 features",
    "fashion-mnist": "70,000 28x28 grey images of clothing, 10 classes; positive: the first five",
    "cifar10": "60,000 32x32 colour images, 10 classes; positive: the first five",
    "cifar100": "60,000 32x32 colour images, 100 fine classes; positive: the first fifty",
    "stl10": "13,000 96x96 colour images, 10 classes; positive: the first five",
    "uci-credit": "30,000 credit card clients, 90 features after one-hot encoding; positive: default",
    "heart-disease": "740 patients of four hospitals, 13 features, with FLamby's split; positive: any disease",
    "gusto": "40,830 heart attacks at 121 groups of hospitals, 32 features; positive: death within 30 days",
    "dialysis": "6,805 patients on dialysis at 67 centres, 5 features; time to death, 24 % observed",
    "a9a": "32,561 adults, 123 binary features; sites: 16 levels of education; positive: the 24 % labelled +1",
    "w8a": "49,749 web pages, 300 binary features; positive: the 3 % labelled +1",
    "pneumonia-mnist": "chest X-rays of children, 28x28 grey, of MedMNIST; positive: pneumonia",
    "csv": "your table (.csv, .csv.gz) with a header line and a label column",
    "parquet": "your table (.parquet) with a label column",
    "svmlight": "your svmlight / LIBSVM text (.svm, .svmlight, .libsvm, .txt; .gz, .bz2)",
    "npz": "your arrays (.npz): X and y; optionally X_test and y_test",
    "image-folder": "your images: train/<class>/*.png; optionally test/<class>/*.png",
}

PARTITIONS: dict[str, str] = {
    "iid": "shuffled and dealt out evenly, positives as well as negatives",
    "dirichlet": "each class's shares drawn from Dirichlet(partition-alpha)",
    "pathological": "each client has partition-classes of the original classes",
    "shard": "sorted by original class, cut into shards, partition-classes shards a client",
    "linear": "shuffled, client i gets a share proportional to i + 1",
    "natural": "the data set's own sites, or the sites in site-column",
    "consecutive": "slices of equal size, in the order of the file",
    "sorted-90": "90 % sorted by original class in consecutive slices, 10 % dealt at random",
    "positives-skewed": "unequal: shares of positives and of negatives each from Dirichlet(partition-alpha)",
    "given": "partition-rows sets each client's number of rows and share of positives",
    "own": "no partition: every node reads its own file, which data-path in its node config names",
}

# The forms of names that `DATASETS` does not list: a user's function, and a data set on Hugging Face.
LOADER_FORM, HUB_FORM = "package.module:loader", "hf:owner/name"
HUB = "hf:"
# The values of `missing` and `scale`.
MISSING: dict[str, str] = {
    "error": "missing cells are an error",
    "mean": "numbers: filled with the mean over all training rows",
    "median": "numbers: filled with the median over all training rows",
    "indicator": "as mean; in addition, a 0/1 feature marks the missing cells of each column that has any",
}
# The meaning of a finding's cell -1, by the value of `uncertain`.
UNCERTAIN: dict[str, float] = {"ignore": float("nan"), "zero": 0.0, "one": 1.0}
SCALES: dict[str, str] = {
    "auto": "quantile for numbers with long tails, standard for the others",
    "standard": "mean 0 and variance 1",
    "quantile": "the rank among all training rows, scaled to mean 0 and variance 1",
    "log": "sign(x) log(1 + |x|), then mean 0 and variance 1",
    "range": "0 for the minimum of the training rows and 1 for the maximum",
    "bins": "a 0/1 feature for each bin between quantiles of all training rows",
    "none": "no scaling",
}
# Half of the 64 groups into which the stored quantiles divide the rows, so each bin has at least two groups.
MAX_BINS = 32
_QUOTES = "quoted if they contain commas or brackets"
# Stands for all values of a text column that are not listed, or for all columns that are not listed.
REST = "*"

OWN, GIVEN = "own", "given"
# the values of `label_type`
CLASS, NUMBER = "class", "number"
# Partitions that do not depend on classes, so they can divide rows whose labels are numbers.
NUMBER_PARTITIONS = ("iid", "linear", "natural", "consecutive", OWN)
AUTO = "auto"
# Partitions that can keep the rows of a group together.
GROUPED_PARTITIONS = ("iid", "dirichlet", "linear", "natural", "consecutive", "positives-skewed", OWN)
TABLES = ("csv", "parquet")
GENERIC = ("csv", "parquet", "svmlight", "npz", "image-folder")
SPARSE_LOGISTIC = "synthetic-sparse-logistic"
# Data sets of minimax problems, without labels and without a test set.
UNLABELLED = ("synthetic-pl",)
# Data sets that are drawn client by client: `partition`, `imbalance`, `label-noise` and the like do not apply.
DRAWN = (*UNLABELLED, SPARSE_LOGISTIC)
OFFSET_SITES = "synthetic-offset-sites"
# Data sets with their own sites, which become the clients with partition "natural".
SITED = (*DRAWN, OFFSET_SITES, "heart-disease", "gusto", "dialysis", "a9a")
# Data sets with times to an event, and their borders between intervals of time.
TIMED = {"dialysis": "1:44"}
# Columns of gusto that name its sites: 121 and 48 groups of hospitals, and 16 regions.
GUSTO_SITES = ("GRPS", "GRPL", "REGL")
NEEDS_FILES = (*GENERIC, "uci-credit", "gusto", "dialysis", "a9a", "w8a", "pneumonia-mnist")


def is_hub(dataset: str) -> bool:
    """Return whether a data set's name selects Hugging Face's hub, or a data set in its format on disk."""
    return dataset.startswith(HUB) and len(dataset) > len(HUB)


def is_loader(dataset: str) -> bool:
    """Return whether a function, of a user or of an installed package, loads the data set."""
    return bool(loader_path(dataset))


def loader_path(dataset: str) -> str:
    """Return the path of the function that loads a data set, ``package.module:loader``; "" if no function loads it.

    Args:
        dataset: The data set's name: such a path, or a name that an installed package has registered for a loader.

    Raises:
        DataError: Several packages have registered the name.
    """
    if dataset in DATASETS or dataset.startswith(HUB):
        return ""
    if is_dotted(dataset):
        return dataset

    def refuse(got: str) -> DataError:
        return DataError(
            "dataset",
            got=got,
            allowed=f"a name that a single package registers, or '{LOADER_FORM}'",
            hint=f"set dataset to the loader's path, see {PAGE}",
        )

    plugin = find_plugin(LOADERS, dataset, refuse)
    return plugin.path if plugin else ""


@dataclass(frozen=True)
class Column:
    """A column in ``feature-columns``. ``categories`` lists a text column's values; `REST` is any other value."""

    name: str
    categories: tuple[str, ...] = ()


def parse_columns(text: str) -> tuple[Column, ...]:
    """Parse the value of ``feature-columns``, such as ``age, sex[f|m]``.

    A name or value with a comma, bracket or bar must be quoted: ``"weight, kg"``.

    Args:
        text: The value. An empty text returns no columns, which means all columns, like ``*``.

    Raises:
        DataError: A name is empty or occurs twice, brackets do not close, or a column has fewer than two categories.
    """
    columns = [_column(part.strip(), text) for part in split_items(text)] if text.strip() else []
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            got = f"{text!r}: column {name!r} occurs twice"
            raise DataError(
                "feature-columns", got=got, allowed="each column once", hint=f"remove the repeated column, see {PAGE}"
            )
    return tuple(columns)


def fill_in(columns: Sequence[Column], names: Iterable[str]) -> tuple[Column, ...]:
    """Replace `REST` in a list of columns by the columns that the list does not name.

    Args:
        columns: The result of `parse_columns`; an empty list means `REST` alone.
        names: The names of all columns of features. They replace `REST` in this order.
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
            f"comma-separated names, name[value|value] for text; {_QUOTES}",
        )
    elif listed is not None and (len(set(categories)) != len(categories) or len(categories) < 2 or "" in categories):
        got, allowed = f"{text!r}: {part!r}", "two or more different values in brackets"
    else:
        return Column(name, categories)
    raise DataError("feature-columns", got=got, allowed=allowed, hint=f"correct the list of columns, see {PAGE}")


def parse_names(key: str, text: str) -> tuple[str, ...]:
    """Split a list of column names: ``id, when`` becomes ("id", "when"), and an empty text becomes ().

    A name with a comma must be quoted, as in `parse_columns`.

    Args:
        key: The run-config key, for errors.
        text: The key's value.

    Raises:
        DataError: A name is empty or occurs twice.
    """
    names = tuple(map(unquote, split_items(text))) if text.strip() else ()
    if "" in names or len(set(names)) < len(names):
        allowed = f"different comma-separated names; {_QUOTES}"
        raise DataError(key, got=repr(text), allowed=allowed, hint=f"correct the list of columns, see {PAGE}")
    return names


def parse_rows(text: str) -> list[tuple[int, int]]:
    """Parse the value of ``partition-rows`` into each client's numbers of negatives and positives.

    ``4000:0.05, 200:0.6`` means (3800, 200) and (80, 120).

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
            allowed = "comma-separated rows:share of each client, rows an integer >= 1, share of positives in [0, 1]"
            hint = f"write it like '4000:0.05,200:0.6', see {PAGE}"
            raise DataError("partition-rows", got=repr(text), allowed=allowed, hint=hint)
        counts.append((number - positives, positives))
    return counts


def _key(default: Any, description: str, allowed: str | None = None, **bounds: float) -> Any:
    """Declare a field of `DataSpec` that a run config may set.

    Args:
        default: The default.
        description: The field's description in the docs.
        allowed: The allowed values, as text. None: the type and the bounds describe them.
        bounds: The bounds, such as ``ge=0``.
    """
    return field(default=default, metadata={"description": description, "title": allowed, **bounds})


@dataclass(frozen=True)
class DataSpec:
    """The options of a data set: its files, its labels and columns, experimental changes, and the partition.

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
        "The [partition](data.md#partitions) of the training rows, or of a vertical run's columns, among the clients.",
        f"one of {', '.join(PARTITIONS)}, or package.module:function",
    )
    partition_alpha: float = _key(0.5, "The Dirichlet concentration of dirichlet and positives-skewed.", gt=0)
    partition_classes: int = _key(2, "The number of classes (pathological) or shards (shard) of a client.", ge=1)
    partition_sites: int = _key(
        0, "The number of parts that rows are divided into; clients get the first parts. 0: one part per client.", ge=0
    )
    partition_rows: str = _key(
        "",
        "Each client's number of rows and share of positives, for given.",
        "comma-separated rows:share of each client, or empty",
    )
    positive_label: str = _key(
        "",
        "The labels that count as positive. Empty: the data set's default.",
        "a label, comma-separated labels, first-half, or empty",
    )
    label_column: str = _key("", "The label column of a table. Empty: label.", "a column's name, or empty")
    label_columns: str = _key(
        "",
        "The columns of several [binary labels](findings.md) of a table, or their names if an array has them, or "
        "[classes](findings.md#several-classes), each against the rest. Empty: one label.",
        "comma-separated names, or empty",
    )
    label_separator: str = _key(
        "",
        "The text between findings in cells of label-column, such as | in mass|scar. Empty: a column for each finding.",
        "text, or empty",
    )
    uncertain: str = _key("ignore", "The meaning of -1 in label-columns: unknown, 0 or 1.", ", ".join(UNCERTAIN))
    label_type: str = _key(
        CLASS,
        "The type of a table's labels: classes, or [numbers](numeric-outcomes.md) for the losses squared and poisson.",
        f"{CLASS} or {NUMBER}",
    )
    offset_column: str = _key(
        "",
        "The column of a table whose numbers are added to each row's score: an [offset](numeric-outcomes.md#offsets).",
        "a column's name, or empty",
    )
    time_column: str = _key(
        "",
        "The column of a table with the time to an [event](survival.md). The label tells whether the event happened.",
        "a column's name, or empty",
    )
    entry_column: str = _key(
        "", "The column with the time from which a row is observed. Empty: from 0.", "a column's name, or empty"
    )
    time_borders: str = _key(
        "",
        "The borders of the [intervals of time](survival.md#the-grid). Empty: quantiles of the events' times.",
        "ascending numbers, first:last:step, or empty",
    )
    site_column: str = _key(
        "", "The column of a table that names each row's site, for natural.", "a column's name, or empty"
    )
    test_sites: str = _key(
        "",
        "The sites whose rows are the [test rows](data.md#a-new-site); the other sites train. Empty: no such sites.",
        "comma-separated sites, as site-column names them, or empty",
    )
    group_column: str = _key(
        "",
        "The column that identifies patients or the like: rows with equal cells "
        "[stay together](data.md#rows-that-belong-together).",
        "a column's name, or empty; of images: folder, or a pattern with one group",
    )
    feature_columns: str = _key(
        "",
        "The [columns](data.md#columns-of-a-table) that are features. Empty: all except the label.",
        "comma-separated names, name[value|value] for text, or empty; for svmlight: the number of features",
    )
    drop_columns: str = _key(
        "", "The columns of a table that are not features, such as ids.", "comma-separated names, or empty"
    )
    subgroups: str = _key(
        "",
        "The columns of a table by whose [groups](after-a-run.md#subgroups) the final model is measured.",
        "comma-separated names, name[value|value] or name(border, border), or empty",
    )
    missing: str = _key(
        "error", "The treatment of a table's [missing cells](data.md#missing-cells).", f"one of {', '.join(MISSING)}"
    )
    missing_values: str = _key(
        "",
        "The cells of a table that mean missing, in addition to empty cells.",
        "comma-separated cells, column:cell|cell for one column, or empty",
    )
    scale: str = _key(
        AUTO,
        "The [scaling](data.md#scaling) of a table's numbers. auto: chosen for each number, or range in vertical runs.",
        ", ".join(SCALES),
    )
    separator: str = _key(
        AUTO,
        "The separator of a [csv](data.md#the-form-of-a-csv)'s columns.",
        "auto, comma, semicolon, tab, bar, space, or one character",
    )
    decimal: str = _key(AUTO, "The decimal mark of a csv's numbers.", "auto, a point or a comma")
    encoding: str = _key(AUTO, "The encoding of a csv.", "auto, or a name such as utf-8, cp1252 or mac-roman")
    bins: int = _key(10, "The bins of each number with scale bins.", ge=2, le=MAX_BINS)
    borders: str = _key(
        "",
        "The borders of [bins](data.md#bins) of columns with scale bins. Empty: quantiles.",
        "column:number|number for each column, comma-separated, or empty",
    )
    image_column: str = _key(
        "",
        "The column of a table beside images that [names their files](data.md#a-table-beside-images). Empty: folders.",
        "a column's name, or empty",
    )
    pixel_bits: int = _key(
        0,
        "The bits in use of an image-folder's [16-bit images](data.md#images). 0: found in the images.",
        "0, or an integer from 8 to 16",
        ge=0,
        le=16,
    )
    image_size: str = _key(
        "",
        "The size to which an image-folder's [images](data.md#images) are resized. Empty: all have one size.",
        "side, height x width or depth x height x width, such as 224 or 224x320; ' pad' after it: zeros instead of a "
        "crop; or empty",
    )
    image_cache: int = _key(
        0,
        "MB of memory for an image-folder's images. Larger sets are [read when batches need them]"
        "(data-formats.md#sets-larger-than-memory). 0: a quarter of the free memory.",
        ge=0,
    )
    read_workers: int = _key(
        2, "Threads that read an image-folder's images ahead of the batches. 0: none.", ge=0, le=64
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
    synthetic_samples: int = _key(
        2000, "The number of a client's training samples. A tenth of this number are its test samples.", ge=1
    )
    seed: int = 0
    precise: bool = False
    """Whether features keep 64 bits. The strategy determines it, so it has no key."""

    @property
    def labels_in(self) -> str:
        """The name of the label column of a table."""
        return self.label_column or "label"

    @property
    def findings(self) -> tuple[str, ...]:
        """The names of the [findings](findings.md), the binary labels in ``label-columns``; () with a single label."""
        return parse_names("label-columns", self.label_columns)

    @property
    def num_labels(self) -> int:
        """The number of labels of a row, which is the number of a network's outputs."""
        return max(len(self.findings), 1)

    @property
    def label_sources(self) -> tuple[str, ...]:
        """The columns of a table that contain the labels."""
        return (self.labels_in,) if self.label_separator or self.lists_classes or not self.findings else self.findings

    @property
    def lists_classes(self) -> bool:
        """Whether ``label-columns`` lists values of ``label-column``, one of which each row has."""
        return bool(self.findings and self.label_column and not self.label_separator)

    @property
    def has_matrix(self) -> bool:
        """Whether a table's columns of labels determine each finding by themselves."""
        return bool(self.findings) and not self.lists_classes

    @property
    def has_numbers(self) -> bool:
        """Whether labels are numbers, not classes."""
        return self.label_type == NUMBER

    @property
    def has_times(self) -> bool:
        """Whether rows have times to an event."""
        return bool(self.time_column) or self.dataset in TIMED


def in_data_set(error: DataError, spec: DataSpec) -> DataError:
    """Add the data set's name and the page about data to an error, and to each of its further errors."""
    prefix = "" if error.key.startswith(("dataset", "data set")) else f"dataset {spec.dataset!r}"
    errors = [DataError.of(error, prefix), *error.also]
    last = errors[-1].hint
    hint = last if PAGE in last else f"{last}; see {PAGE}"
    return DataError.join([DataError.of(each, hint=hint) if each.hint == last else each for each in errors])
