"""The model, the data, the settings and the strategies that the app can use."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from clients.scoring import FedX1Client, FedX2Client
from methods.pairwise import FedXSettings
from payloads.settings import TrainingSettings
from strategies.fedx import FedX1, FedX2

STRATEGIES = {"fedx1": (FedX1, FedX1Client), "fedx2": (FedX2, FedX2Client)}


class Net(nn.Module):
    """One raw score a sample, (batch,): the only thing FedX asks of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3, padding=1)
        self.output = nn.Linear(8 * 4 * 4, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = torch.max_pool2d(torch.relu(self.convolution(images)), 2)
        return self.output(hidden.flatten(1)).squeeze(1)


def new_net() -> Net:
    """The network with the same initial weights at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def load(part: str) -> tuple[np.ndarray, np.ndarray]:
    """(n, 1, 8, 8) images and (n,) labels of "train" or "test": the digit 8 against the others."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    labels = (digits.target == 8).astype(np.float32)
    split = train_test_split(images, labels, test_size=0.3, stratify=labels, random_state=0)
    return (split[0], split[2]) if part == "train" else (split[1], split[3])


def load_site(place: int, sites: int) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of one of several sites."""
    images, labels = load("train")
    return images[place::sites], labels[place::sites]


def settings(run_config: dict) -> tuple[TrainingSettings, FedXSettings]:
    """Return the settings that server and clients share; both make them from the same run config."""
    training = TrainingSettings(
        num_server_rounds=run_config["num-server-rounds"],
        local_steps=run_config["local-steps"],
        learning_rate=run_config["learning-rate"],
    )
    return training, FedXSettings(lambda_=run_config["lambda"])
