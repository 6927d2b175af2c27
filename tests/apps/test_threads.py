"""How many threads a process computes with."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from apps.sites.resources import hold_threads
from payloads.settings import TrainingSettings


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    hold_threads(TrainingSettings(torch_threads=before))


def test_torch_and_numpy_take_the_threads_of_the_run() -> None:
    assert np.dot(np.ones((2, 2)), np.ones(2)).tolist() == [2, 2]  # its BLAS is there
    for threads in (2, 1, 1, 2):
        hold_threads(TrainingSettings(torch_threads=threads))
        blas = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
        assert (torch.get_num_threads(), blas) == (threads, {threads})
