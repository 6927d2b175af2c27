"""Checks of a `DataSpec` before any data are read: the keys' values, and keys that contradict each other."""

import math
from collections.abc import Iterable
from typing import Any

from problems.data.borders import parse_borders
from problems.data.dialect import Dialect
from problems.data.groups import check_spec, path_pattern
from problems.data.image_size import ImageSize
from problems.data.markers import parse_markers
from problems.data.spec import (
    AUTO,
    CLASS,
    DATASETS,
    DRAWN,
    GENERIC,
    GIVEN,
    GUSTO_SITES,
    HUB_FORM,
    LOADER_FORM,
    MAX_BINS,
    MISSING,
    NEEDS_FILES,
    NUMBER,
    NUMBER_PARTITIONS,
    OFFSET_SITES,
    OWN,
    PAGE,
    PARTITIONS,
    SCALES,
    SITED,
    TABLES,
    TIMED,
    UNCERTAIN,
    UNLABELLED,
    DataError,
    DataSpec,
    is_hub,
    is_loader,
    parse_columns,
    parse_names,
    parse_rows,
)
from problems.data.subgroups import check_subgroups
from problems.data.times import parse_time_borders
from problems.errors import NOTHING, did_you_mean
from problems.importing import LOADERS, is_dotted, plugins


def validate(spec: DataSpec, *, from_site: bool = False) -> None:
    """Check the options of a data set without reading the data.

    Args:
        spec: The options.
        from_site: Whether a site reads its own file, so keys such as `data_dir` are not checked.

    Raises:
        DataError: A value is not allowed; names the run-config key, its value and the allowed values.
    """
    if not (is_loader(spec.dataset) or is_hub(spec.dataset)):
        names = [*DATASETS, *(plugin.name for plugin in plugins(LOADERS)), LOADER_FORM, HUB_FORM]
        _check_known("dataset", spec.dataset, names)
    if not is_dotted(spec.partition):
        _check_known("partition", spec.partition, [*PARTITIONS, "package.module:function"])
    is_given = spec.partition == GIVEN
    if is_given:
        parse_rows(spec.partition_rows)
    for key, is_valid, allowed in (
        ("partition-alpha", 0.0 < spec.partition_alpha < math.inf, "a number above 0"),
        ("partition-classes", spec.partition_classes >= 1, "1 or more"),
        ("partition-sites", spec.partition_sites >= 0, "0 (one part per client) or more"),
        ("partition-sites", not (is_given and spec.partition_sites), f"0 with partition {GIVEN!r}"),
        ("partition-rows", is_given or not spec.partition_rows, f"'' unless partition is {GIVEN!r}"),
        ("imbalance", 0.0 <= spec.imbalance < 1.0, "0 (off) or a number between 0 and 1"),
        ("label-noise", 0.0 <= spec.label_noise < 0.5, "at least 0 and below 0.5"),
        ("client-shift", math.isfinite(spec.client_shift), "a finite number"),
        ("client-shift-std", 0.0 <= spec.client_shift_std < math.inf, "0 or above"),
        ("test-fraction", 0.0 < spec.test_fraction < 1.0, "between 0 and 1, both excluded"),
        ("validation-fraction", 0.0 <= spec.validation_fraction < 1.0, "0 (none) or below 1"),
        ("synthetic.alpha", 0.0 <= spec.synthetic_alpha < math.inf, "0 or above"),
        ("synthetic.beta", 0.0 <= spec.synthetic_beta < math.inf, "0 or above"),
        ("synthetic.samples", spec.synthetic_samples >= 1, "1 or more"),
        ("seed", spec.seed >= 0, "0 or a positive integer"),
    ):
        _require(spec, key, is_valid, allowed)
    _check_columns(spec)
    check_subgroups(spec)
    _check_outcome(spec)
    _check_times(spec)
    _check_findings(spec)
    if spec.partition == OWN:
        _check_own(spec)
        return
    if from_site:
        return
    since = f"since dataset {spec.dataset!r}"
    if spec.dataset in NEEDS_FILES and not spec.data_dir:
        hint = f"set data-dir to the file or its folder, see {PAGE}"
        raise DataError("data-dir", got=NOTHING, allowed=f"a file or folder, {since} is read from files", hint=hint)
    if is_hub(spec.dataset):
        allowed = f"'', {since} is read from its hub, or from the path in its name"
        _require(spec, "data-dir", not spec.data_dir, allowed, f"remove data-dir, see {PAGE}")
    if spec.dataset in DRAWN:
        nature = "has no labels and has its own sites" if spec.dataset in UNLABELLED else "has its own sites"
        only: dict[str, tuple[object, ...]] = {
            "partition": ("iid", "natural"),
            "imbalance": (0.0,),
            "label-noise": (0.0,),
            "client-shift": (0.0,),
            "positive-label": ("",),
            "partition-sites": (0,),
        }
        for key, values in only.items():
            allowed = f"{values[-1]!r}, {since} {nature}"
            _require(spec, key, _value(spec, key) in values, allowed, f"remove {key}, see {PAGE}")
    if spec.dataset in UNLABELLED:
        allowed = f"0, {since} has no test set"
        _require(spec, "validation-fraction", not spec.validation_fraction, allowed, "remove validation-fraction")
    if spec.partition == "natural" and spec.dataset not in SITED and not spec.site_column:
        raise DataError(
            "partition",
            got=f"'natural' with dataset {spec.dataset!r}, which has no sites",
            allowed=f"dataset {', '.join(SITED)}, or a table with site-column",
            hint=f"set site-column, or set partition to 'consecutive' for slices in the file's order, see {PAGE}",
        )
    if spec.dataset == OFFSET_SITES:
        allowed = f"'natural', {since} has its own 16 sites"
        _require(spec, "partition", spec.partition in ("iid", "natural"), allowed, f"remove partition, see {PAGE}")


def _check_outcome(spec: DataSpec) -> None:
    """Check the keys of labels that are numbers, and of the offset."""
    _check_known("label-type", spec.label_type, (CLASS, NUMBER))
    of_table = f"dataset {' or '.join(TABLES)}"
    classes = f"{CLASS!r} with dataset {spec.dataset!r}; {NUMBER!r} with {of_table}"
    _require(spec, "label-type", spec.dataset in TABLES or not spec.has_numbers, classes, "remove label-type")
    no_offset = f"'' with dataset {spec.dataset!r}; a column with {of_table}"
    _require(spec, "offset-column", spec.dataset in TABLES or not spec.offset_column, no_offset, "remove offset-column")
    if spec.offset_column:
        features = {column.name for column in parse_columns(spec.feature_columns)}
        used = {spec.labels_in, spec.site_column, spec.group_column, *features}
        allowed = "a column that is neither the label, the site nor the group, and not in feature-columns"
        hint = "remove the column from the other key"
        _require(spec, "offset-column", spec.offset_column not in used, allowed, hint)
    if not spec.has_numbers:
        return
    since = f"since with label-type {NUMBER!r} rows have no classes"
    partitions = f"{', '.join(NUMBER_PARTITIONS)}, {since}"
    _require(spec, "partition", spec.partition in NUMBER_PARTITIONS, partitions)
    for key, plain in (("positive-label", ""), ("imbalance", 0.0), ("label-noise", 0.0)):
        _require(spec, key, _value(spec, key) == plain, f"{plain!r}, {since}", f"remove {key}")


def _check_times(spec: DataSpec) -> None:
    """Check the keys of times to an event."""
    for key in ("time-column", "entry-column"):
        of_table = f"'' with dataset {spec.dataset!r}; a column with dataset {' or '.join(TABLES)}"
        _require(spec, key, spec.dataset in TABLES or not _value(spec, key), of_table, f"remove {key}")
    if not spec.has_times:
        for key in ("entry-column", "time-borders"):
            _require(spec, key, not _value(spec, key), "'' without time-column", f"set time-column, or remove {key}")
        return
    parse_time_borders(spec.time_borders)
    if spec.dataset in TIMED:
        return
    features = {column.name for column in parse_columns(spec.feature_columns)}
    others = {spec.labels_in, spec.site_column, spec.group_column, spec.offset_column, *features}
    for key, used in (("time-column", others), ("entry-column", {*others, spec.time_column})):
        allowed = "a column that no other key names"
        hint = "remove the column from the other key"
        _require(spec, key, _value(spec, key) not in used - {""}, allowed, hint)
    since = "since with times the label tells whether an event happened"
    _require(spec, "label-type", spec.label_type == CLASS, f"{CLASS!r}, {since}", "remove label-type")
    for key, plain in (("imbalance", 0.0), ("label-noise", 0.0), ("offset-column", "")):
        _require(spec, key, _value(spec, key) == plain, f"{plain!r}, {since}", f"remove {key}")


def _check_findings(spec: DataSpec) -> None:
    """Check the keys of several binary labels."""
    allowed, plain = ", ".join(UNCERTAIN), "'ignore' without label-columns"
    _require(spec, "uncertain", spec.uncertain in UNCERTAIN, allowed)
    if not spec.label_columns:
        unused = "'' without label-columns"
        _require(spec, "label-separator", not spec.label_separator, unused, "set label-columns")
        _require(spec, "uncertain", spec.uncertain == "ignore", plain, "set label-columns, or remove uncertain")
        return
    few = "two or more names; for a single label set label-column"
    _require(spec, "label-columns", len(spec.findings) > 1, few, "set label-column")
    kinds = f"'' with dataset {spec.dataset!r}, whose labels are not several classes"
    _require(spec, "label-columns", spec.dataset not in (*DRAWN, *TIMED), kinds, "remove label-columns")
    features = {column.name for column in parse_columns(spec.feature_columns)}
    used = {
        spec.site_column,
        spec.group_column,
        spec.image_column,
        *features,
        *parse_names("drop-columns", spec.drop_columns),
    }
    hint = "remove the column from the other key"
    columns = {*spec.findings} if spec.label_sources == spec.findings else set()
    _require(spec, "label-columns", not used & columns, "columns that no other key names", hint)
    since = "since label-columns names several labels"
    partitions = f"{', '.join(NUMBER_PARTITIONS)}, {since}"
    _require(spec, "partition", spec.partition in NUMBER_PARTITIONS, partitions)
    tabular = spec.dataset in TABLES or bool(spec.image_column)
    lists = f"'' with dataset {spec.dataset!r}, whose labels are not in a table"
    _require(spec, "label-separator", tabular or not spec.label_separator, lists, "remove label-separator")
    plain_keys: dict[str, object] = dict.fromkeys(("positive-label", "time-column"), "")
    if spec.label_column or spec.label_separator:
        plain_keys["uncertain"] = "ignore"
    plain_keys |= dict.fromkeys(("offset-column", "subgroups"), "")
    plain_keys |= {"label-type": CLASS, "imbalance": 0.0, "label-noise": 0.0}
    for key, value in plain_keys.items():
        _require(spec, key, _value(spec, key) == value, f"{value!r}, {since}", f"remove {key}, or label-columns")


def _check_columns(spec: DataSpec) -> None:
    number = spec.feature_columns
    tabular = spec.dataset in TABLES or is_hub(spec.dataset)
    if tabular:
        parse_columns(number)
    elif spec.dataset == "svmlight":
        counts = not number or (number.isdigit() and int(number) > 0)
        _require(spec, "feature-columns", counts, "a number of features")
    else:
        allowed = (
            f"'' with dataset {spec.dataset!r}, whose columns are fixed; a value with dataset "
            f"{', '.join((*TABLES, 'svmlight', HUB_FORM))}"
        )
        _require(spec, "feature-columns", not number, allowed, "remove feature-columns")
    listed = tabular or bool(spec.image_column)
    no_list = f"'' with dataset {spec.dataset!r}; a column with dataset 'image-folder'"
    _require(spec, "image-column", spec.dataset == "image-folder" or not spec.image_column, no_list)
    if spec.image_column:
        used = {spec.labels_in, spec.site_column, spec.group_column}
        allowed = "a column that no other key names"
        _require(spec, "image-column", spec.image_column not in used, allowed, "remove the column from the other key")
    tables = f"'' unless dataset is {' or '.join(TABLES)} in one file, or image-column is set"
    if spec.dataset == "gusto":
        allowed = f"'' or {', '.join(GUSTO_SITES)}, the three levels of its sites"
        _require(spec, "site-column", spec.site_column in ("", *GUSTO_SITES), allowed)
    else:
        _require(spec, "site-column", not spec.site_column or (listed and spec.partition != OWN), tables)
    has_sites = bool(spec.site_column) or (spec.dataset in SITED and spec.dataset not in DRAWN)
    allowed = "'' for data without sites in one place"
    hint = "set site-column, or remove test-sites"
    _require(spec, "test-sites", not spec.test_sites or (has_sites and spec.partition != OWN), allowed, hint)
    for key, names in (("missing", MISSING), ("scale", SCALES)):
        word = _value(spec, key)
        _require(spec, key, word in names, ", ".join(names), did_you_mean(word, names, f"see {PAGE}"))
    Dialect.of(spec).check()
    grouped = tabular or spec.dataset == "image-folder" or is_loader(spec.dataset)
    allowed = "'' with this dataset; a column with tables, image-folder, loaders and Hugging Face"
    _require(spec, "group-column", grouped or not spec.group_column, allowed, "remove group-column")
    if spec.group_column:
        check_spec(spec)
        if spec.dataset == "image-folder" and not spec.image_column:
            path_pattern(spec.group_column)
    plain_keys = {"label-column": "", "drop-columns": "", "missing": "error", "missing-values": "", "scale": AUTO}
    for key, plain in plain_keys.items():
        got, only = _value(spec, key), f"{plain!r} with dataset {spec.dataset!r}, which is not a table"
        amounts = (spec.dataset, key) == ("uci-credit", "scale")
        if amounts:
            only = f"{plain!r} or 'bins' with dataset {spec.dataset!r}, whose columns are fixed"
        labels = key == "label-column" and listed
        _require(spec, key, tabular or labels or got == plain or (amounts and got == "bins"), only, f"remove {key}")
    for key in ("separator", "decimal", "encoding"):
        files = f"{AUTO!r} with dataset {spec.dataset!r}, or another value with dataset {' or '.join(TABLES)}"
        has_file = spec.dataset in TABLES or bool(spec.image_column)
        _require(spec, key, has_file or _value(spec, key) == AUTO, files, f"set {key} to {AUTO}")
    private = "a scale except 'range' with partition 'own', since sites do not reveal their minimum and maximum"
    _require(spec, "scale", spec.scale != "range" or spec.partition != OWN, private)
    _require(spec, "bins", 2 <= spec.bins <= MAX_BINS, f"an integer from 2 to {MAX_BINS}")
    plain_bins = f"{DataSpec.bins} with scale {spec.scale!r}, or another with scale 'bins'"
    _require(spec, "bins", spec.scale == "bins" or spec.bins == DataSpec.bins, plain_bins, "set scale to bins")
    _require(
        spec, "borders", spec.scale == "bins" or not spec.borders, "'' unless scale is 'bins'", "set scale to bins"
    )
    parse_borders(spec.borders)
    images = f"0 with dataset {spec.dataset!r}, which has no image files; 0 or 8 to 16 with dataset 'image-folder'"
    depths = (0, *range(8, 17)) if spec.dataset == "image-folder" else (0,)
    _require(spec, "pixel-bits", spec.pixel_bits in depths, images if len(depths) == 1 else "0 or 8 to 16")
    no_images = f"'' with dataset {spec.dataset!r}; a size with dataset 'image-folder'"
    _require(spec, "image-size", spec.dataset == "image-folder" or not spec.image_size, no_images, "remove image-size")
    ImageSize.parse(spec.image_size)
    for key, value, default in (
        ("image-cache", spec.image_cache, DataSpec.image_cache),
        ("read-workers", spec.read_workers, DataSpec.read_workers),
    ):
        allowed = f"{default} with dataset {spec.dataset!r}; another number with dataset 'image-folder'"
        _require(spec, key, spec.dataset == "image-folder" or value == default, allowed, f"remove {key}")
    dropped, markers = parse_names("drop-columns", spec.drop_columns), parse_markers(spec.missing_values)
    columns = parse_columns(number) if tabular else ()
    if spec.group_column and listed:
        used = {spec.labels_in, spec.site_column, *(column.name for column in columns)}
        allowed = "a column that is neither label-column nor site-column, nor in feature-columns"
        _require(spec, "group-column", spec.group_column not in used, allowed, "remove the column from the other key")
    needed = {
        spec.labels_in,
        spec.site_column,
        spec.offset_column,
        spec.time_column,
        spec.entry_column,
        *(column.name for column in columns),
    }
    if both := needed.intersection(dropped):
        got = f"{spec.drop_columns!r}, with {min(both)!r}"
        raise DataError(
            "drop-columns", got=got, allowed="no column that another key names", hint="remove the column from one key"
        )
    if both := {value for column in columns for value in {*column.categories} & {*markers.of(column.name)}}:
        got = f"{spec.missing_values!r}, with {min(both)!r}"
        allowed = "no value that feature-columns lists"
        raise DataError("missing-values", got=got, allowed=allowed, hint="remove the value from one key")


def _check_own(spec: DataSpec) -> None:
    own = f"with partition {OWN!r}"
    kinds = f"{', '.join(GENERIC)} or '{LOADER_FORM}', since {own} every node reads its own data"
    _require(spec, "dataset", spec.dataset in GENERIC or is_loader(spec.dataset), kinds)
    for key in ("imbalance", "label-noise", "client-shift", "partition-sites"):
        allowed = f"0 {own}, since the sites' rows are used as they are"
        _require(spec, key, not _value(spec, key), allowed, f"remove {key}")
    _require(
        spec,
        "validation-fraction",
        not (spec.validation_fraction and spec.data_dir),
        f"0 {own} and a data-dir, since the server evaluates on its own file",
        "remove validation-fraction, or remove data-dir: the sites then hold out rows",
    )


def _check_known(key: str, got: str, allowed: Iterable[str]) -> None:
    names = list(allowed)
    if got not in names:
        hint = did_you_mean(got, names, f"see `florilegium list {key}s`")
        raise DataError(key, got=repr(got), allowed=", ".join(names), hint=hint)


def _require(spec: DataSpec, key: str, is_valid: bool, allowed: str, hint: str = "") -> None:
    if not is_valid:
        hint = hint or f"set {key} to an allowed value, see {PAGE}"
        raise DataError(key, got=repr(_value(spec, key)), allowed=allowed, hint=hint)


def _value(spec: DataSpec, key: str) -> Any:
    return getattr(spec, key.replace("-", "_").replace(".", "_"))
