"""Tests of losses of single samples, and of the smooth part of a composite objective, against NumPy and differences."""

import numpy as np
import pytest
import torch

from problems.models import build_model
from problems.objectives.classification import SAMPLE_LOSSES
from problems.objectives.composite import LinearObjective, linear_features, linear_smoothness
from problems.objectives.number_losses import NUMBER_LOSSES

each_loss = pytest.mark.parametrize("name", SAMPLE_LOSSES)
bounded = [name for name, loss in SAMPLE_LOSSES.items() if np.isfinite(loss.curvature)]


def losses(name: str, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the losses of labels 0 and 1; the squared error reads them as -1 and +1."""
    if name == "cross-entropy":
        return np.logaddexp(0, scores) - labels * scores
    if name == "softmax":  # of log-odds
        return labels * np.logaddexp(0, -scores)
    if name in NUMBER_LOSSES:
        return (scores - labels) ** 2 / 2 if name == "squared" else np.exp(scores) - labels * scores
    return (scores - np.where(labels == 1, 1.0, -1.0)) ** 2 / 2


@each_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_slopes_and_curvatures(name: str, dtype: torch.dtype) -> None:
    loss, rng = SAMPLE_LOSSES[name], np.random.default_rng(3)
    numbers, labels = rng.normal(0, 3, 12), (np.arange(12) % 3 == 0).astype(float)
    scores, targets = torch.tensor(numbers, dtype=dtype, requires_grad=True), torch.tensor(labels, dtype=dtype)
    tolerance = 1e-6 if dtype is torch.float32 else 1e-14
    each = loss.each(scores, targets)
    assert each.dtype is dtype
    np.testing.assert_allclose(each.detach(), losses(name, numbers, labels), rtol=10 * tolerance, atol=tolerance)
    each.sum().backward()
    slope = loss.slope(scores.detach(), targets)
    torch.testing.assert_close(slope, scores.grad, rtol=10 * tolerance, atol=tolerance)
    assert slope.dtype is dtype


# The smooth part of a composite objective.


@pytest.mark.parametrize(("name", "width"), [("linear", 7), ("linear-no-intercept", 6), ("mlp", None)])
def test_the_features_of_a_linear_model_are_the_gradients_of_its_scores(name: str, width: int | None) -> None:
    features = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    module = build_model(name, (2, 3), 0).double()
    rows = linear_features(module, features)
    if width is None:
        assert rows is None
        assert linear_smoothness(module, features, SAMPLE_LOSSES["cross-entropy"]) is None
        return
    assert rows.shape == (4, width)
    for i in range(4):
        gradients = torch.autograd.grad(module(features[i : i + 1])[0], list(module.parameters()))
        assert torch.equal(rows[i], torch.cat([part.flatten() for part in gradients]))
    second = float(np.linalg.eigvalsh((rows.T @ rows / 4).numpy())[-1])
    assert linear_smoothness(module, features, SAMPLE_LOSSES["poisson"]) is None
    for loss in (SAMPLE_LOSSES[name] for name in bounded):
        assert linear_smoothness(module, features, loss) == pytest.approx(loss.curvature * second, rel=1e-6)


@pytest.mark.parametrize("name", bounded)
def test_the_objective_is_a_weighted_sum_with_a_ridge(name: str) -> None:
    rng, h = np.random.default_rng(2), 1e-6
    rows, labels, weights, ridge = (
        rng.normal(size=(9, 4)),
        np.arange(9) % 2,
        rng.random(9),
        np.array([0.3, 0.0, 0.1, 0.5]),
    )
    tensors = [torch.tensor(array) for array in (rows, labels, weights)]
    objective = LinearObjective(*tensors, SAMPLE_LOSSES[name], torch.tensor(ridge))

    def value(x: np.ndarray) -> float:
        return float(weights @ losses(name, rows @ x, labels) + (ridge * x**2).sum() / 2)

    x = rng.normal(size=4)
    found, gradient = objective(torch.tensor(x))
    assert found == pytest.approx(value(x), rel=1e-14)
    expected = [(value(x + h * e) - value(x - h * e)) / (2 * h) for e in np.eye(4)]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)

    second = SAMPLE_LOSSES[name].curvature * rows.T @ np.diag(weights) @ rows
    curvature = float(np.linalg.eigvalsh(second + np.diag(ridge))[-1])
    assert curvature <= objective.lipschitz < 1.02 * (np.linalg.eigvalsh(second)[-1] + 0.5)
    assert objective.convexity == 0.0
