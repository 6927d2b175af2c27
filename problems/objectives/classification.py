"""Cross-entropy, the loss of the averaging baselines."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CROSS_ENTROPY = "cross-entropy"


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean binary cross-entropy of (n,) raw logits against (n,) labels in {0, 1}."""
    return functional.binary_cross_entropy_with_logits(logits, labels)


def cross_entropy_slope(logits: Tensor, labels: Tensor) -> Tensor:
    """(n,) its derivative in the logits: (sigmoid(logit) - label) / n."""
    return (torch.sigmoid(logits) - labels) / len(logits)
