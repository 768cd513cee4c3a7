"""From feature maps to the first capsules."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules import module

from torchcaps.capsules import Capsules
from torchcaps.checks import check_floats, check_whole
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
        check_whole("PrimaryCaps", in_channels=in_channels, types=types, dim=dim)
        sides = {"kernel_size": kernel_size, "stride": stride}  # pairs are as good as numbers
        check_whole("PrimaryCaps", **{label: side for label, side in sides.items() if not isinstance(side, tuple)})
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

        With maps=True the pose is (B, T, dim, H', W'). `conv` may be any module with such maps as output: it may be
        wrapped, hooked, parametrised or replaced.
        """
        conv, bias = self.conv, None if self.bias is None else self.bias.flatten()
        if type(conv) is nn.Conv2d:
            self._check(features, conv)
        if bias is None and _is_plain(conv):  # then the bias of conv is added in the same pass as the squash
            maps, bias = conv._conv_forward(features, conv.weight, None), conv.bias
        else:
            maps = conv(features)
        if maps.ndim != 4 or maps.shape[1] != self.types * self.dim:
            raise ValueError(
                f"PrimaryCaps: conv must return maps of shape (B, {self.types}·{self.dim}, H, W), "
                f"got {tuple(maps.shape)}; give it {self.types * self.dim} output channels"
            )
        pose = squash_maps(maps, bias, self.dim, self.scale)
        if self.maps:
            pose = pose.unflatten(1, (self.types, *maps.shape[2:])).movedim(4, 2)
        return Capsules(pose)

    @staticmethod
    def _check(features: Tensor, conv: nn.Conv2d) -> None:
        check_floats("PrimaryCaps", features=features)
        reach = [dilation * (kernel - 1) + 1 for dilation, kernel in zip(conv.dilation, conv.kernel_size)]
        padding = (reach if conv.padding == "same" else (0, 0)) if isinstance(conv.padding, str) else conv.padding
        rows, columns = (max(1, side - 2 * added) for side, added in zip(reach, padding))
        small = features.ndim == 4 and (features.shape[2] < rows or features.shape[3] < columns)
        if features.ndim != 4 or features.shape[1] != conv.in_channels or small:
            raise ValueError(
                f"PrimaryCaps: expected maps of shape (B, {conv.in_channels}, H, W) of at least {rows}×{columns}, "
                f"got {tuple(features.shape)}"
            )

    def extra_repr(self) -> str:
        return f"types={self.types}, dim={self.dim}, scale={self.scale:.4g}"


def _is_plain(conv: nn.Module) -> bool:
    """Whether calling the module does nothing but convolve with its weight and add its bias, so that we may do that.

    Wrappers and parametrisations have another type.
    """
    hooks = (
        conv._forward_hooks
        or conv._forward_pre_hooks
        or conv._backward_hooks
        or conv._backward_pre_hooks
        or module._has_any_global_hook()
    )
    changed = "forward" in conv.__dict__ or "_conv_forward" in conv.__dict__ or conv._compiled_call_impl is not None
    return type(conv) is nn.Conv2d and not hooks and not changed
