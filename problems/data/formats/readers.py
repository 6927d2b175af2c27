"""The choice of the reader: for a data set's name (`read`), or for a site's file (`read_site`)."""

from collections.abc import Sequence
from pathlib import Path

from problems.data.formats import arrays, bundled, cifar, hub, image_folders, images, tables
from problems.data.formats.dialysis import DIALYSIS_FILES, dialysis
from problems.data.formats.files import find, folder, locate
from problems.data.formats.gusto import GUSTO_FILES, gusto
from problems.data.formats.image_tables import TABLE_ENDINGS, image_table
from problems.data.formats.loaders import call_loader
from problems.data.formats.uci import CREDIT_FILES, HEART_FILES, credit, heart_disease
from problems.data.samples import Source
from problems.data.spec import TABLES, DataError, DataSpec, is_hub, loader_path

# The defaults of `positive-label`. For other data sets with two labels, the last label is positive.
DEFAULT_POSITIVE: dict[str, str] = {
    "digits": "8",
    **dict.fromkeys(("fashion-mnist", "cifar10", "cifar100", "stl10"), "first-half"),
    "heart-disease": "1,2,3,4",
}

_FOLDERS = "train/<class>/*.png and test/<class>/*.png"
_LIBSVM = "LIBSVM's page of binary data sets"
# The place to download a data set from, and its files; several entries are alternatives.
_FILES: dict[str, tuple[str, ...]] = {
    "fashion-mnist": (
        "the four .gz files of github.com/zalandoresearch/fashion-mnist (data/fashion)",
        ", ".join(f"{name}[.gz]" for name in images.FASHION_FILES),
        _FOLDERS,
    ),
    "cifar10": (
        "cifar-10-python.tar.gz, unpacked, of www.cs.toronto.edu/~kriz/cifar.html",
        "data_batch_1 ... data_batch_5, test_batch",
        "data_batch_1.bin ... test_batch.bin",
        _FOLDERS,
    ),
    "cifar100": (
        "cifar-100-python.tar.gz, unpacked, of www.cs.toronto.edu/~kriz/cifar.html",
        "train, test (pickled)",
        "train.bin, test.bin",
        _FOLDERS,
    ),
    "stl10": (
        "stl10_binary.tar.gz, unpacked, of cs.stanford.edu/~acoates/stl10",
        ", ".join(images.STL10_FILES),
        _FOLDERS,
    ),
    "uci-credit": (
        "UCI_Credit_Card.csv, the Kaggle form of UCI's 'Default of Credit Card Clients'",
        " or ".join(CREDIT_FILES),
    ),
    "heart-disease": ("the four processed.*.data of UCI's 'Heart Disease'", ", ".join(HEART_FILES)),
    "gusto": ("gusto.csv.gz of github.com/Tirgit/D3A_fairness_workshop", " or ".join(GUSTO_FILES)),
    "dialysis": ("dialysis.csv.gz, 'Dialysis' of the R package RcmdrPlugin.survival", " or ".join(DIALYSIS_FILES)),
    "a9a": (f"a9a from {_LIBSVM}", " or ".join(arrays.A9A_FILES)),
    "w8a": (f"w8a from {_LIBSVM}", " or ".join(arrays.W8A_FILES)),
    "pneumonia-mnist": ("PneumoniaMNIST of MedMNIST v2, medmnist.com", arrays.PNEUMONIA_FILE),
}


def read(spec: DataSpec) -> Source:
    """Return the rows of `spec.dataset`.

    Raises:
        DataError: The files are missing or damaged, or a user's loader fails.
    """
    if path := loader_path(spec.dataset):
        return call_loader(path, spec.data_dir, spec.seed, group_column=spec.group_column)
    match spec.dataset:
        case "digits":
            return bundled.digits()
        case "breast-cancer":
            return bundled.breast_cancer()
        case "synthetic-offset-sites":
            return bundled.synthetic_offset_sites(spec.seed)
        case "synthetic-long-servedio":
            return bundled.synthetic_long_servedio(spec.seed)
        case "uci-credit":
            return credit(_named_file(spec, CREDIT_FILES), spec)
        case "heart-disease":
            return heart_disease([_found(spec, (name,)) for name in HEART_FILES] if spec.data_dir else None, spec)
        case "gusto":
            return gusto(_named_file(spec, GUSTO_FILES), spec)
        case "dialysis":
            return dialysis(_named_file(spec, DIALYSIS_FILES), spec)
        case "a9a":
            return arrays.a9a(_named_file(spec, arrays.A9A_FILES))
        case "w8a" | "svmlight":
            return arrays.svmlight(*svmlight_files(spec))
        case "pneumonia-mnist":
            return arrays.npz(_named_file(spec, (arrays.PNEUMONIA_FILE,)), None)
        case "npz":
            return arrays.npz(*locate("npz", spec.data_dir, arrays.NPZ_ENDINGS))
        case "image-folder" if spec.image_column:
            return image_table(*locate("image-folder", spec.data_dir, TABLE_ENDINGS), spec)
        case "image-folder":
            return _folders(folder(spec.data_dir), spec)
        case "csv" | "parquet" as kind:
            endings = tables.CSV_ENDINGS if kind == "csv" else tables.PARQUET_ENDINGS
            return tables.table(*locate(kind, spec.data_dir, endings), spec)
        case name if is_hub(name):
            return hub.hugging_face(name, spec)
        case name:
            return _image_set(name, spec)


def svmlight_files(spec: DataSpec) -> tuple[Path, Path | None, int | None]:
    """Find the files of "w8a" or "svmlight".

    Returns:
        The training file; the test file or None; the number of features, or None if it is not fixed.

    Raises:
        DataError: The files do not exist.
    """
    if spec.dataset == "w8a":
        return _named_file(spec, arrays.W8A_FILES), None, arrays.W8A_FEATURES
    return *locate("svmlight", spec.data_dir, arrays.SVMLIGHT_ENDINGS), _width(spec)


# The endings of a site's file for each kind of data set; images need a folder.
_SITE_ENDINGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(TABLES, (*tables.CSV_ENDINGS, *tables.PARQUET_ENDINGS)),
    "svmlight": arrays.SVMLIGHT_ENDINGS,
    "npz": arrays.NPZ_ENDINGS,
}


def read_site(path: Path, spec: DataSpec) -> Source:
    """Return the rows of a site's own file, or of its folder of class folders.

    Args:
        path: The path of the file or folder.
        spec: The options. `dataset` is the kind of file; the keys for columns also apply.

    Raises:
        DataError: The file is missing, damaged, or not of the kind of `spec.dataset`; or a user's loader fails.
    """
    if not path.exists():
        allowed = "an existing file, or for images a folder"
        raise DataError(repr(str(path)), got="no such file", allowed=allowed, hint="correct the path")
    if loader := loader_path(spec.dataset):
        return call_loader(loader, str(path), spec.seed, site=True, group_column=spec.group_column)
    if spec.image_column:
        return image_table(*locate("image-folder", str(path), TABLE_ENDINGS), spec)
    if spec.dataset == "image-folder" and path.is_dir():
        return _folders(path, spec)
    endings = _SITE_ENDINGS.get(spec.dataset, ("a folder of class folders",))
    opened = tables.OPENED_ENDINGS if spec.dataset in TABLES else endings
    if not path.is_file() or not path.name.lower().endswith(opened):
        got, hint = f"no file of dataset {spec.dataset!r}", "set dataset to the kind of the file, or change the path"
        raise DataError(repr(str(path)), got=got, allowed=", ".join(endings), hint=hint)
    if spec.dataset == "npz":
        return arrays.npz(path, None)
    if spec.dataset == "svmlight":
        return arrays.svmlight(path, None, _width(spec), site=True)
    return tables.table(path, None, spec, site=True)


def _width(spec: DataSpec) -> int | None:
    return int(spec.feature_columns) if spec.feature_columns else None


def _image_set(name: str, spec: DataSpec) -> Source:
    data_dir = spec.data_dir
    if not data_dir:
        try:
            return hub.fetch(name)
        except DataError as error:
            raise _not_found(name, data_dir, also=f" ({error.key}: {error.got})") from None
    root = folder(data_dir)
    if name == "fashion-mnist":
        source = images.fashion_mnist(root)
    elif name == "stl10":
        source = images.stl10(root)
    else:
        source = cifar.cifar(name, root)
    source = source or image_folders.class_folders(root, spec, bare=False)
    if source is None:
        raise _not_found(name, data_dir)
    return source


def _named_file(spec: DataSpec, names: Sequence[str]) -> Path:
    path = Path(spec.data_dir).expanduser()
    return path if path.is_file() else _found(spec, names)


def _found(spec: DataSpec, names: Sequence[str]) -> Path:
    path = find(folder(spec.data_dir), *names)
    if path is None:
        raise _not_found(spec.dataset, spec.data_dir)
    return path


def _folders(root: Path, spec: DataSpec) -> Source:
    source = image_folders.class_folders(root, spec)
    if source is None:
        allowed = (
            f"train/<class>/ (and test/<class>/), or <class>/, with files {', '.join(image_folders.IMAGE_ENDINGS)}"
        )
        raise DataError(
            repr(str(root)),
            got=f"no folders of images{image_folders.count_files(root)}",
            allowed=allowed,
            hint="move the images into a folder for each class",
        )
    return source


def _not_found(dataset: str, data_dir: str, also: str = "") -> DataError:
    where, *looked_for = _FILES[dataset]
    got = f"no such files in data-dir {data_dir!r} and the folders in it" if data_dir else "no data-dir"
    return DataError(
        f"data set {dataset!r}",
        got=got + also,
        allowed=f"a folder with {'; or '.join(looked_for)}",
        hint=f"download {where}, and set data-dir to the folder with the files",
    )
