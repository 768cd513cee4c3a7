"""Efficient-CapsNet: Capsule Network with Self-Attention Routing (Mazzia, Salvetti & Chiaberge 2021)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.layers import DenseCaps, make_decoder
from torchcaps.models.base import CapsuleModel
from torchcaps.models.registry import register_model
from torchcaps.ops.attention import squash_exponential

KERNELS = (5, 3, 3, 3)
STRIDES = (1, 1, 1, 2)
MIN_SIDE = 11  # pixels: the output of the last convolution is then 1×1


class EfficientCapsNet(CapsuleModel):
    """Four convolutions, few primary capsules that each see the whole image, self-attention routing, a decoder.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        channels: of the four convolutions; `dim` must divide the last.
        dim: dimensions of a primary capsule.
        class_dim: dimensions of a class capsule.
        decoder: "dense" (the paper's), "conv", "none", or "auto": dense up to 4,096 values per image.
        hidden: units of the dense decoder's hidden layers.
        **kwargs: arguments of `ImageModel`.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 28, 28),
        num_classes: int = 10,
        *,
        channels: Sequence[int] = (32, 64, 64, 128),
        dim: int = 8,
        class_dim: int = 16,
        decoder: Literal["auto", "dense", "conv", "none"] = "auto",
        hidden: Sequence[int] = (512, 1024),
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        colours, height, width = self.image_shape
        if min(height, width) < MIN_SIDE:
            raise UserError(
                f"efficient_capsnet: images of {height}×{width} are too small for its convolutions: they must be at "
                f"least {MIN_SIDE}×{MIN_SIDE}. Enlarge them (data.image_size)"
            )
        check_whole("efficient_capsnet", dim=dim, class_dim=class_dim)
        if len(channels) != len(KERNELS):
            raise UserError(f"efficient_capsnet: channels must be {len(KERNELS)} numbers, got {tuple(channels)}")
        check_whole("efficient_capsnet", **{f"channels[{index}]": each for index, each in enumerate(channels)})
        if channels[-1] % dim:
            raise UserError(f"efficient_capsnet: dim must divide the last channels, got {dim} and {channels[-1]}")
        self.grid = (1, 1)  # every capsule sees the whole image
        self.conv = _Convolutions(colours, *channels)
        self.primary = _WholeMapCaps(channels[-1], dim, ((height - MIN_SIDE) // 2 + 1, (width - MIN_SIDE) // 2 + 1))
        types = channels[-1] // dim
        std = math.sqrt(2 / (types * num_classes * dim))  # the authors': He, all axes but D as inputs
        self.classes = DenseCaps(types, dim, num_classes, class_dim, routing="self_attention", iterations=1, std=std)
        self.decoder = make_decoder(decoder, num_classes, class_dim, self.image_shape, tuple(hidden))

    def children_of(self, images: Tensor) -> Capsules:
        """Compute the primary capsules, see `CapsuleModel.children_of`."""
        return self.primary(self.conv(self.normalise(images)))

    @property
    def convolutions(self) -> list[nn.Conv2d]:
        return [each for each in (*self.conv, self.primary.conv) if isinstance(each, nn.Conv2d)]


@register_model
def efficient_capsnet(
    image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any
) -> EfficientCapsNet:
    """Build the network of the paper: 161,824 parameters for 1×28×28 images and 10 classes, plus a decoder."""
    return EfficientCapsNet(image_shape, num_classes, **options)


class _Convolutions(nn.Sequential):
    """Four times convolution without padding, ReLU, batch normalisation, in the order of the authors' code."""

    def __init__(self, *channels: int):
        layers: list[nn.Module] = []
        for (width, wider), kernel, stride in zip(itertools.pairwise(channels), KERNELS, STRIDES):
            conv = nn.Conv2d(width, wider, kernel, stride)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
            layers += [conv, nn.ReLU(inplace=True), nn.BatchNorm2d(wider)]
        super().__init__(*layers)


class _WholeMapCaps(nn.Module):
    """A depthwise convolution with a kernel as large as the map; `dim` neighbouring channels form a capsule.

    Args:
        channels: of the input (B, channels, H, W); the output has poses (B, channels / dim, dim).
        dim: dimensions of a capsule.
        size: (H, W) of the input.
    """

    def __init__(self, channels: int, dim: int, size: tuple[int, int]):
        super().__init__()
        self.dim = dim
        self.conv = nn.Conv2d(channels, channels, size, stride=size, groups=channels)
        nn.init.xavier_uniform_(self.conv.weight)
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]

    def forward(self, maps: Tensor) -> Capsules:
        return Capsules(squash_exponential(self.conv(maps).flatten(1).unflatten(1, (-1, self.dim))))
