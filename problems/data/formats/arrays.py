"""Readers of arrays: svmlight / LIBSVM text (dense in memory) and NumPy's npz files."""

import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from scipy import sparse

from problems.data.formats.containers import open_packed
from problems.data.mapped import concatenate
from problems.data.samples import Source, make_source
from problems.data.spec import DataError

NPZ_ENDINGS = (".npz",)
SVMLIGHT_ENDINGS = tuple(
    f"{ending}{packed}" for ending in (".svm", ".svmlight", ".libsvm", ".txt") for packed in ("", ".gz", ".bz2")
)
A9A_FILES, W8A_FILES = ((f"{name}.svm", f"{name}.svm.gz", name, f"{name}.bz2") for name in ("a9a", "w8a"))
A9A_FEATURES, EDUCATION = 123, slice(18, 34)
W8A_FEATURES = 300
PNEUMONIA_FILE = "pneumoniamnist.npz"
MEDMNIST = ("train", "val", "test")
MAX_DENSE_BYTES = 8 * 2**30

# features (n, *shape) and labels (n,)
Pair = tuple[NDArray[Any], NDArray[Any]]


def svmlight(train: Path, test: Path | None, features: int | None = None, *, site: bool = False) -> Source:
    """Return svmlight text as dense rows in float32.

    Args:
        train: See `read_svmlight`.
        test: See `read_svmlight`.
        features: See `read_svmlight`.
        site: See `read_svmlight`.

    Raises:
        DataError: See `read_svmlight`; or dense rows would not fit into memory.
    """
    matrix, labels, train_count = read_svmlight(train, test, features, dtype=np.float32, site=site)
    return make_source(labels, _dense(train, matrix), train_count)


def svmlight_rows(
    path: Path, width: int, *, from_one: bool
) -> tuple[Float32[np.ndarray, "n {width}"], Float64[np.ndarray, "n"]]:
    """Return the features and labels of new rows. An index must select the same feature as in training.

    Args:
        path: The file.
        width: The number of the model's features.
        from_one: Whether indices started at 1 in training. If False, training guessed the start, and the file must
            show its own start by an index that is 0 or ``width``.

    Raises:
        DataError: The file cannot be read, has more features, or does not show whether indices start at 0 or 1.
    """
    loaded, labels = _load_svmlight([path], width + 1, np.float32, zero_based=True, site=False)
    matrix = loaded.tocsc()
    first, last = (bool(matrix[:, [column]].nnz) for column in (0, width))
    if first and (last or from_one):
        got, allowed = f"indices from 0 to {width if last else width - 1}", f"{width} features, as in training"
        raise DataError(path, got=got, allowed=allowed, hint="write indices that start at 1")
    if not (first or last or from_one):
        got = f"indices between 1 and {width - 1}, which do not show whether they start at 0 or at 1"
        allowed = f"an index 0 or {width} in some row, since the run has {width} features and no feature-columns"
        raise DataError(path, got=got, allowed=allowed, hint="convert the rows to an npz file")
    columns = matrix[:, :width] if first else matrix[:, 1:]
    return _dense(path, columns), labels


def _dense(path: Path, matrix: Any) -> Float32[np.ndarray, "n f"]:
    rows, columns = matrix.shape
    if rows * columns * 4 > MAX_DENSE_BYTES:
        got = f"{rows:,} x {columns:,} dense features, which need {rows * columns * 4 / 2**30:.0f} GiB"
        allowed = f"at most {MAX_DENSE_BYTES // 2**30} GiB"
        raise DataError(path, got=got, allowed=allowed, hint="use fewer rows or features")
    dense: np.ndarray = matrix.toarray()
    return dense


def a9a(path: Path) -> Source:
    """Return the rows of the data set a9a, with 123 features. A row's site is the person's education (16 levels).

    Raises:
        DataError: See `svmlight`; or a row does not have exactly one level of education.
    """
    matrix, labels, _ = read_svmlight(path, None, A9A_FEATURES, dtype=np.float32)
    features = matrix.toarray()
    education = features[:, EDUCATION]
    if not (education.sum(axis=1) == 1).all():
        got = "a row without a level of education"
        raise DataError(path, got=got, allowed="a level in columns 19 to 34", hint="use the published file")
    return make_source(labels, features, sites=education.argmax(axis=1))


def read_svmlight(
    train: Path, test: Path | None, features: int | None, *, dtype: type = np.float64, site: bool = False
) -> tuple[Any, Float64[np.ndarray, "n"], int | None]:
    """Read svmlight text.

    Indices start at 1 if the number of features is fixed, or if the file belongs to a site: different guesses at two
    sites would shift their columns. In other cases the start, 0 or 1, is guessed from the files.

    Args:
        train: The file of the training rows.
        test: The file of the test rows; None without test rows.
        features: The number of features. None: the largest index that occurs determines the number.
        dtype: The features' number type.
        site: Whether the file belongs to a single site.

    Returns:
        The rows as CSR (n, f), their labels, and the number of training rows, None without a test file.

    Raises:
        DataError: A file cannot be read as svmlight.
    """
    paths = [path for path in (train, test) if path is not None]
    zero_based: bool | str = False if site or features is not None else "auto"
    loaded = _load_svmlight(paths, features, dtype, zero_based=zero_based, site=site)
    matrix = sparse.csr_array(sparse.vstack(loaded[0::2], format="csr"))
    return matrix, np.concatenate(loaded[1::2]), None if test is None else len(loaded[1])


def _load_svmlight(
    paths: list[Path], features: int | None, dtype: type, *, zero_based: bool | str, site: bool
) -> list[Any]:
    """Return the matrix and labels of each file."""
    from sklearn.datasets import load_svmlight_files

    try:
        with ExitStack() as stack:
            streams = [stack.enter_context(open_packed(path)) for path in paths]
            loaded: list[Any] = load_svmlight_files(streams, n_features=features, dtype=dtype, zero_based=zero_based)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        why = type(error).__name__ if site else error  # the error quotes the file, and the server gets a site's errors
        got, hint = f"a file that cannot be read as svmlight ({why})", "repair the file, or set dataset to its kind"
        key = " or ".join(map(str, paths))
        raise DataError(key, got=got, allowed="lines such as '1 3:0.5 7:1'", hint=hint) from error
    return loaded


def npz(train: Path, test: Path | None) -> Source:
    """Return the samples of an npz file: `X` and `y` (or `features` and `labels`), `X_test` and `y_test` if present.

    uint8 features are pixels. The function also reads MedMNIST's files; their validation images become training images.

    Args:
        train: The file.
        test: A separate file with the test arrays; None if there is no separate file.

    Raises:
        DataError: A needed array is missing; lists the names in the file.
    """
    arrays = _arrays(train)
    pair = _pair(train, arrays, "")
    if pair is None:
        raise _lacking(train, arrays, "X and y (or features and labels)")
    held_out = _pair(train, arrays, "_test") if test is None else _pair(test, _arrays(test), "")
    return join(train, pair, held_out)


def join(where: str | Path, pair: Pair, held_out: Pair | None) -> Source:
    """Combine training arrays and test arrays in a `Source`.

    Args:
        where: The origin of the arrays, for the error.
        pair: The features (n, *shape) and labels (n,) of the training rows, which `check_pair` has checked.
        held_out: The arrays of the test rows; None without test rows.

    Raises:
        DataError: The test features differ in shape or number type.
    """
    features, labels = pair
    if held_out is None:
        return make_source(labels, features)
    test_features, test_labels = held_out
    if features.shape[1:] != test_features.shape[1:] or features.dtype != test_features.dtype:
        ours, theirs = (f"{array.shape[1:]} {array.dtype}" for array in (features, test_features))
        got = f"training features {ours} but test features {theirs}"
        raise DataError(
            where,
            got=got,
            allowed="equal shapes and types",
            hint="convert training and test features to the same shape and type",
        )
    return make_source(
        np.concatenate((labels, test_labels)), concatenate((features, test_features)), train_count=len(labels)
    )


def npz_rows(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the features and labels of new rows: the test split's if the file has a test split. Labels may be None.

    Raises:
        DataError: The file has no features, or a different number of labels.
    """
    arrays = _arrays(path)
    for ending in ("_test", ""):
        features, labels = _features(arrays, ending), _labels(arrays, ending)
        if features is not None:
            check_pair(path, features, labels)
            return features, labels
    raise _lacking(path, arrays, "X (or features), and y (or labels) if there are any")


def _lacking(path: Path, arrays: dict[str, NDArray[Any]], wanted: str) -> DataError:
    got = f"arrays {', '.join(arrays)}" if arrays else "no arrays"
    return DataError(path, got=got, allowed=f"arrays {wanted}", hint=f"save the arrays as {wanted}")


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file; MedMNIST's arrays are renamed to X, y, X_test and y_test."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        got, allowed = f"a file that cannot be read as npz ({error})", "arrays without Python objects"
        raise DataError(path, got=got, allowed=allowed, hint="save the arrays with numpy.savez") from error
    medmnist = {f"{split}_{part}" for split in MEDMNIST for part in ("images", "labels")} <= arrays.keys()
    return _from_medmnist(arrays) if medmnist else arrays


def _from_medmnist(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return MedMNIST's arrays as X and X_test (n, channels, height, width), y and y_test (n,)."""

    def join(part: str, *splits: str) -> NDArray[Any]:
        return np.concatenate([arrays[f"{split}_{part}"] for split in splits])

    renamed = {}
    for ending, splits in (("", MEDMNIST[:2]), ("_test", MEDMNIST[2:])):
        images, labels = join("images", *splits), join("labels", *splits)
        renamed[f"X{ending}"] = images[:, None] if images.ndim == 3 else np.moveaxis(images, -1, 1)
        renamed[f"y{ending}"] = labels[:, 0] if labels.shape[1:] == (1,) else labels
    return renamed


def _pair(path: Path, arrays: dict[str, NDArray[Any]], ending: str) -> Pair | None:
    """Return the features and labels whose names have an ending; None if neither exists."""
    features, labels = _features(arrays, ending), _labels(arrays, ending)
    if features is None and labels is None:
        return None
    if features is None or labels is None:
        got = f"only one of features and labels{ending}: {', '.join(arrays)}"
        raise DataError(path, got=got, allowed="both features and labels", hint="save features and labels")
    check_pair(path, features, labels)
    return features, labels


def check_pair(where: str | Path, features: NDArray[Any], labels: NDArray[Any] | None) -> None:
    """Check the shapes and types of features and labels.

    Args:
        where: The origin of the arrays, for the error.
        features: An array of any shape and number type.
        labels: An array of any shape and type; None without labels.

    Raises:
        DataError: The features are not numbers of two or more dimensions, or there is not exactly one label, or one row
            of several labels, per row.
    """
    if features.ndim < 2 or features.dtype.kind not in "biuf":
        got = f"features of shape {features.shape} and type {features.dtype}"
        allowed = "numbers of shape (rows, columns), or with more dimensions, such as (rows, 28, 28)"
        flat = "reshape the features to (rows, columns); a single column to (rows, 1), with features[:, None]"
        hint = flat if features.ndim < 2 else "convert the features to numbers"
        raise DataError(where, got=got, allowed=allowed, hint=hint)
    if labels is not None and (labels.ndim not in (1, 2) or len(labels) != len(features) or labels.shape[1:] == (1,)):
        got = f"features {features.shape} and labels {labels.shape}, which do not belong together"
        raise DataError(where, got=got, allowed="exactly one label per row", hint="provide one label for each row")


def _features(arrays: dict[str, NDArray[Any]], ending: str) -> NDArray[Any] | None:
    return next((arrays[name + ending] for name in ("X", "x", "features") if name + ending in arrays), None)


def _labels(arrays: dict[str, NDArray[Any]], ending: str) -> NDArray[Any] | None:
    return next((arrays[name + ending] for name in ("y", "labels") if name + ending in arrays), None)
