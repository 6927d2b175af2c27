"""The networks that score a sample, and the flat view of them that the algorithms work on."""

from problems.models.flat import FlatModel
from problems.models.frozen import freeze
from problems.models.vectors import NUMPY_DTYPES, Layout
from problems.models.zoo import LIBRARY_FORMS, MODELS, ModelEntry, ModelError, build_model, largest_step

__all__ = [
    "LIBRARY_FORMS",
    "MODELS",
    "NUMPY_DTYPES",
    "FlatModel",
    "Layout",
    "ModelEntry",
    "ModelError",
    "build_model",
    "freeze",
    "largest_step",
]
