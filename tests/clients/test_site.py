"""Tests of a client's resident data."""

import numpy as np
import pytest
import torch

from clients.base import Site


def test_features_of_the_run_s_type_stay_where_they_are() -> None:
    rows = np.arange(12.0).reshape(6, 2)
    shared = rows[2:].view()
    shared.setflags(write=False)  # as the parts of a data set are
    site = Site.from_arrays(0, shared, np.array([0, 1, 1, 0]), dtype=torch.float64)
    assert site.features.data_ptr() == shared.ctypes.data
    assert not shared.flags.writeable


@pytest.mark.parametrize("fixed", [False, True])
def test_others_are_copied(fixed: bool) -> None:
    rows = np.frombuffer(np.arange(8.0).tobytes()).reshape(4, 2) if fixed else np.arange(8.0).reshape(4, 2)
    dtype = torch.float64 if fixed else torch.float32
    site = Site.from_arrays(0, rows, np.array([0, 1, 1, 0]), dtype=dtype)
    assert site.features.dtype == dtype
    site.features.zero_()
    assert rows.sum() == 28
