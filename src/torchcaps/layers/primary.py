"""From feature maps to the first capsules."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.capsules import Capsules
from torchcaps.ops import squash_maps


class PrimaryCaps(nn.Module):
    """One convolution whose output channels are read as `types` kinds of `dim`-dimensional capsules at each position.

    Args:
        in_channels: of the feature maps.
        types: T types of capsules.
        dim: dimensions of a capsule.
        kernel_size: of the convolution.
        stride: of the convolution.
        padding: of the convolution.
        routed: the form of the authors' code. The layer below is one capsule with equal couplings to all types: the
            convolution is divided by the number of types, and a bias is added to each type's sum.
        leaky: divide by one more than the number of types.
        maps: return maps (B, T, dim, H', W'), as convolutional capsules take them, instead of a list.
        gain: factor on PyTorch's initial weight; by default capsules start between a half and one long behind features
            whose root mean square is between 0.05 and 1.
    """

    def __init__(
        self,
        in_channels: int,
        types: int,
        dim: int,
        kernel_size: int = 9,
        stride: int = 2,
        padding: int = 0,
        *,
        routed: bool = False,
        leaky: bool = False,
        maps: bool = False,
        gain: float | None = None,
    ):
        super().__init__()
        self.types = types
        self.dim = dim
        self.conv = nn.Conv2d(in_channels, types * dim, kernel_size, stride, padding, bias=not routed)
        self.bias = nn.Parameter(torch.full((types, dim, 1), 0.1)) if routed else None
        self.scale = 1 / (types + leaky) if routed else 1.0
        self.maps = maps
        if gain is None:
            # PyTorch's weight of std 1 / √(3 · inputs) makes sums of length √(dim / 3) for features of 1: make it 20.
            gain = 20 * math.sqrt(3 / dim) / self.scale
        with torch.no_grad():
            self.conv.weight.mul_(gain)

    def forward(self, features: Tensor) -> Capsules:
        """Map (B, in_channels, H, W) to pose (B, T·H'·W', dim), ordered type first, then row, then column.

        With maps=True the pose is (B, T, dim, H', W').
        """
        self._check(features)
        conv, bias = self.conv, None if self.bias is None else self.bias.flatten()
        if conv.bias is None or conv._forward_hooks or conv._forward_pre_hooks:  # of pruning, or a user's
            maps = conv(features)
        else:
            maps, bias = functional.conv2d(features, conv.weight, None, conv.stride, conv.padding), conv.bias
        pose = squash_maps(maps, bias, self.dim, self.scale)
        if self.maps:
            pose = pose.unflatten(1, (self.types, *maps.shape[2:])).movedim(4, 2)
        return Capsules(pose)

    def _check(self, features: Tensor) -> None:
        channels, kernel, padding = self.conv.in_channels, self.conv.kernel_size[0], int(self.conv.padding[0])
        if features.ndim != 4 or features.shape[1] != channels or min(features.shape[2:]) + 2 * padding < kernel:
            least = max(1, kernel - 2 * padding)
            raise ValueError(
                f"PrimaryCaps: expected maps of shape (B, {channels}, H, W) of at least {least}×{least}, "
                f"got {tuple(features.shape)}"
            )

    def extra_repr(self) -> str:
        return f"types={self.types}, dim={self.dim}, scale={self.scale:.4g}"
