"""The networks that score a sample, and the flat view of them that the algorithms work on.

`build_model` makes a network from its run-config name or from a user's `package.module:factory`; every one
takes `(batch, *input_shape)` and returns one raw logit a sample, `(batch,)`. `FlatModel` puts the parameters,
the gradient and the buffers of such a network each into one contiguous vector.
"""

from problems.models.flat import NUMPY_DTYPES, FlatModel, Layout
from problems.models.zoo import MODELS, ModelEntry, ModelError, build_model

__all__ = ["MODELS", "NUMPY_DTYPES", "FlatModel", "Layout", "ModelEntry", "ModelError", "build_model"]
