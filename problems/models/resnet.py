"""Residual networks for small images: ResNet-20 and ResNet-18 with one output.

Source: K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016. ResNet-20 is the
CIFAR-10 network of section 4.2 (n = 3, shortcuts of option A). ResNet-18 is the network of Table 1 with its ImageNet
stem (7 x 7 convolution, stride 2, max-pooling) replaced by one 3 x 3 convolution of stride 1, as is usual for 32 x 32
images, and shortcuts of option B.

The paper does not specify the positions of option A's zero channels; here they follow the old channels. Convolutions
start from He's normal initialisation over the fan-out, the last layer from torch's default.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from problems.models.networks import channels_last, drop_column


class ZeroPadShortcut(nn.Module):
    """Option A: every `stride`-th pixel, and zeros for the channels that are new."""

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.new_channels = new_channels
        self.stride = stride

    def forward(self, x: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b _ _ _"]:
        return functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with batch norm and a shortcut: `relu(f(x) + shortcut(x))` (eq. 1 and 2)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, *, projection: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module
        if stride == 1 and in_channels == out_channels:
            self.shortcut = nn.Identity()
        elif projection:
            convolution = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(out_channels))
        else:
            self.shortcut = ZeroPadShortcut(out_channels - in_channels, stride)

    def forward(self, x: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b _ _ _"]:
        residual = torch.relu(self.norm1(self.conv1(x)))
        residual = self.norm2(self.conv2(residual))
        return torch.relu(residual + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network: a 3 x 3 convolution, stages of basic blocks, global average, one logit.

    Each stage except the first halves the sides of the images.

    Args:
        in_channels: The channels of the image.
        widths: The channels of each stage.
        blocks_per_stage: The basic blocks in a stage (the paper's n).
        projection: The shortcuts that change shape: True for option B (1 x 1 convolution), False for option A (zeros
            for the new channels, no parameters).
    """

    def __init__(self, in_channels: int, widths: Sequence[int], blocks_per_stage: int, *, projection: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        self.stages, channels = nn.Sequential(), widths[0]
        for index, width in enumerate(widths):
            first_stride = 1 if index == 0 else 2
            blocks = [BasicBlock(channels, width, first_stride, projection=projection)]
            blocks += [BasicBlock(width, width, 1, projection=projection) for _ in range(blocks_per_stage - 1)]
            self.stages.append(nn.Sequential(*blocks))
            channels = width
        self.output = nn.Linear(channels, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b *outputs"]:
        stem = torch.relu(self.norm(self.conv(channels_last(images))))
        features = self.stages(stem)  # (b, widths[-1], h, w)
        scores: Tensor = self.output(features.mean(dim=(2, 3)))  # (b, 1)
        return drop_column(scores)


def resnet20(input_shape: tuple[int, ...]) -> ResNet:
    """Make ResNet-20 for CIFAR (0.27 million parameters): stages of 16, 32 and 64 channels, three blocks each."""
    return ResNet(input_shape[0], (16, 32, 64), 3, projection=False)


def resnet18(input_shape: tuple[int, ...]) -> ResNet:
    """Make ResNet-18 for 32 x 32 images (11.2 million parameters): 64 to 512 channels, two blocks a stage."""
    return ResNet(input_shape[0], (64, 128, 256, 512), 2, projection=True)
