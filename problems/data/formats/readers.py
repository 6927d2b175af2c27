"""Choose the reader for a data set's name or for a site's file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from problems.data.formats import arrays, bundled, cifar, images, tables
from problems.data.formats.credit import FILES as CREDIT_FILES
from problems.data.formats.credit import credit
from problems.data.formats.files import find, folder, locate, not_found
from problems.data.formats.heart import FILES as HEART_FILES
from problems.data.formats.heart import heart_disease
from problems.data.formats.hub import fetch
from problems.data.source import Source
from problems.data.spec import OWN, SPARSE_LOGISTIC, TABLES, UNLABELLED, DataError, DataSpec, in_data_set

DEFAULT_POSITIVE: dict[str, str] = {
    "digits": "8",
    "breast-cancer": "malignant",
    "synthetic-offset-sites": "1",
    "fashion-mnist": "first-half",
    "cifar10": "first-half",
    "cifar100": "first-half",
    "stl10": "first-half",
    "uci-credit": "1",
    "heart-disease": "1,2,3,4",
    "w8a": "1",
}

_FOLDERS = "train/<class>/*.png and test/<class>/*.png"
_LOOKED_FOR: dict[str, tuple[str, ...]] = {
    "fashion-mnist": (", ".join(f"{name}[.gz]" for name in images.FASHION_FILES), _FOLDERS),
    "cifar10": ("data_batch_1 ... data_batch_5, test_batch", "data_batch_1.bin ... test_batch.bin", _FOLDERS),
    "cifar100": ("train, test (pickled)", "train.bin, test.bin", _FOLDERS),
    "stl10": (", ".join(images.STL10_FILES), _FOLDERS),
    "uci-credit": (" or ".join(CREDIT_FILES),),
    "heart-disease": (", ".join(HEART_FILES),),
    "w8a": (" or ".join(arrays.W8A_FILES),),
}


def read(spec: DataSpec) -> Source:
    """Return the rows of `spec.dataset`.

    Raises:
        DataError: when its files are missing or damaged.
    """
    match spec.dataset:
        case "digits":
            return bundled.digits()
        case "breast-cancer":
            return bundled.breast_cancer()
        case "synthetic-offset-sites":
            return bundled.synthetic_offset_sites(spec.seed)
        case "uci-credit":
            return credit(_named_file(spec, CREDIT_FILES))
        case "heart-disease":
            return heart_disease([_found(spec, (name,)) for name in HEART_FILES])
        case "w8a" | "svmlight":
            return arrays.svmlight(*svmlight_files(spec))
        case "npz":
            return arrays.npz(*locate("npz", spec.data_dir, arrays.NPZ_ENDINGS))
        case "image-folder":
            return _folders(folder(spec.data_dir))
        case "csv" | "parquet" as kind:
            endings = tables.CSV_ENDINGS if kind == "csv" else tables.PARQUET_ENDINGS
            return _table(*locate(kind, spec.data_dir, endings), spec)
        case name:
            return _image_set(name, spec.data_dir)


def svmlight_files(spec: DataSpec) -> tuple[Path, Path | None, int | None]:
    """The training file of "w8a" or "svmlight", its test file or None, and the number of features if fixed."""
    if spec.dataset == "w8a":
        return _named_file(spec, arrays.W8A_FILES), None, arrays.W8A_FEATURES
    return *locate("svmlight", spec.data_dir, arrays.SVMLIGHT_ENDINGS), _width(spec)


def check_readable(specs: Iterable[DataSpec]) -> None:
    """Check the data sets whose rows are on this machine: read each once and discard it.

    Raises:
        DataError: names all that are missing or damaged.
    """
    here = [spec for spec in specs if spec.partition != OWN and spec.dataset not in (*UNLABELLED, SPARSE_LOGISTIC)]
    faults = []
    for spec in {(one.dataset, one.data_dir, one.label_column, one.feature_columns): one for one in here}.values():
        try:
            read(spec)
        except DataError as error:
            faults.append(in_data_set(error, spec))
    if faults:
        raise DataError.joined(faults)


# Endings of a site's file, by the run config's data set; images come in a folder.
_SITE_ENDINGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(TABLES, (*tables.CSV_ENDINGS, *tables.PARQUET_ENDINGS)),
    "svmlight": arrays.SVMLIGHT_ENDINGS,
    "npz": arrays.NPZ_ENDINGS,
}


def read_site(path: Path, spec: DataSpec) -> Source:
    """Return the rows of one site's own file, or of its folder of class folders.

    Raises:
        DataError: when it is missing, damaged, or not of the kind of `spec.dataset`.
    """
    if not path.exists():
        raise DataError(
            repr(str(path)),
            got="no such file",
            allowed="an existing file, or for images a folder",
            hint="give its path",
        )
    if spec.dataset == "image-folder" and path.is_dir():
        return _folders(path)
    endings = _SITE_ENDINGS.get(spec.dataset, ("a folder of class folders",))
    if not path.is_file() or not path.name.endswith(endings):
        raise DataError(
            repr(str(path)),
            got=f"no file of dataset {spec.dataset!r}",
            allowed=", ".join(endings),
            hint="set dataset to its kind, or give another path",
        )
    if spec.dataset == "npz":
        return arrays.npz(path, None)
    if spec.dataset == "svmlight":
        return arrays.svmlight(path, None, _width(spec), site=True)
    return _table(path, None, spec, site=True)


def _table(train: Path, test: Path | None, spec: DataSpec, *, site: bool = False) -> Source:
    return tables.table(train, test, spec.label_column, spec.feature_columns, scale=spec.standardise, site=site)


def _width(spec: DataSpec) -> int | None:
    return int(spec.feature_columns) if spec.feature_columns else None


def _image_set(name: str, data_dir: str) -> Source:
    if not data_dir:
        try:
            return fetch(name)
        except DataError as error:
            raise not_found(name, _LOOKED_FOR[name], data_dir, also=f"{error.key}: {error.got}") from None
    root = folder(data_dir)
    if name == "fashion-mnist":
        found = images.fashion_mnist(root)
    elif name == "stl10":
        found = images.stl10(root)
    else:
        found = cifar.cifar(name, root)
    found = found or images.class_folders(root, bare=False)
    if found is None:
        raise not_found(name, _LOOKED_FOR[name], data_dir)
    return found


def _named_file(spec: DataSpec, names: Sequence[str]) -> Path:
    path = Path(spec.data_dir).expanduser()
    return path if path.is_file() else _found(spec, names)


def _found(spec: DataSpec, names: Sequence[str]) -> Path:
    path = find(folder(spec.data_dir), *names)
    if path is None:
        raise not_found(spec.dataset, _LOOKED_FOR[spec.dataset], spec.data_dir)
    return path


def _folders(root: Path) -> Source:
    found = images.class_folders(root)
    if found is None:
        raise DataError(
            repr(str(root)),
            got="no images",
            allowed=f"train/<class>/ (and test/<class>/), or <class>/, with files {', '.join(images.IMAGE_ENDINGS)}",
            hint="arrange the images so",
        )
    return found
