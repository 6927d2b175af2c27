"""The step sizes of a run with a warm-up and a cosine, compared with PyTorch's schedulers."""

import numpy as np
import pytest
import torch

from apps.config import ConfigError, parse_run_config
from payloads.settings import TrainingSettings
from tests.refusals import refuses

ROUNDS, STEPS = 5, 8


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_step_sizes_are_those_of_pytorch(warmup: int, cosine: bool) -> None:
    total = ROUNDS * STEPS
    training = TrainingSettings(
        num_server_rounds=ROUNDS, local_steps=STEPS, learning_rate=0.2, lr_warmup=warmup, lr_cosine=cosine
    )
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.2)
    rise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / max(warmup, 1), 1.0))
    expected = []
    for _ in range(warmup):
        expected.append(rise.get_last_lr()[0])
        optimizer.step()
        rise.step()
    optimizer.param_groups[0]["lr"] = 0.2
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total - warmup)
    for _ in range(total - warmup):
        expected.append(optimizer.param_groups[0]["lr"] if cosine else 0.2)
        optimizer.step()
        fall.step()
    np.testing.assert_allclose([training.learning_rate_at(step) for step in range(total)], expected, rtol=1e-9)


def test_drops_come_on_top() -> None:
    training = TrainingSettings(num_server_rounds=1, local_steps=8, learning_rate=1.0, lr_decay=0.5, lr_decay_every=4)
    smooth = training.model_copy(update={"lr_cosine": True})
    plain = smooth.model_copy(update={"lr_decay": 1.0})
    for step in range(8):
        expected = plain.learning_rate_at(step) * training.learning_rate_at(step)
        assert smooth.learning_rate_at(step) == pytest.approx(expected)


def test_a_warm_up_ends_before_the_run() -> None:
    keys = {"strategy": "local-sgd", "num-server-rounds": 2, "local-steps": 4}
    assert parse_run_config({**keys, "lr-warmup": 7}).training.lr_warmup == 7
    with refuses(ConfigError, "lr-warmup: got 8, allowed: less than 8, the local steps of the run"):
        parse_run_config({**keys, "lr-warmup": 8})
