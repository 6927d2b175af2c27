"""The model, the data and the training loop: plain PyTorch."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn


class Net(nn.Module):
    """A network with batch norm for the ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(32)
        self.output = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.norm(self.hidden(images))))


def new_net() -> Net:
    """The network with the same initial weights at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def load(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The images, (n, 64), and labels of "train" or "test"."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16, labels, test_size=0.3, stratify=labels, random_state=0)
    images, labels = split[0::2] if part == "train" else split[1::2]
    return torch.tensor(images, dtype=torch.float32), torch.tensor(labels)


def load_site(place: int, sites: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The images and labels of one of several sites."""
    images, labels = load("train")
    return images[place::sites], labels[place::sites]


def train(net: Net, images: torch.Tensor, labels: torch.Tensor, epochs: int, learning_rate: float) -> float:
    """Train, and return the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    net.train()
    losses = []
    for _ in range(epochs):
        for batch in torch.arange(len(images)).split(32):
            loss = nn.functional.cross_entropy(net(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.inference_mode()
def accuracy(net: Net, images: torch.Tensor, labels: torch.Tensor) -> float:
    net.eval()
    return float((net(images).argmax(dim=1) == labels).double().mean())
