"""Efficient-CapsNet: Capsule Network with Self-Attention Routing (Mazzia, Salvetti & Chiaberge 2021)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.errors import UserError
from torchcaps.layers import DenseCaps, make_decoder
from torchcaps.models.base import CapsuleModel
from torchcaps.models.registry import register_model
from torchcaps.ops.attention import squash_exponential

KERNELS = (5, 3, 3, 3)
STRIDES = (1, 1, 1, 2)
LEAST = 11  # rows and columns that give the last of these convolutions one place


class EfficientCapsNet(CapsuleModel):
    """Four convolutions, few primary capsules that each see the whole image, routing by self-attention, a decoder.

    channels   of the four convolutions; the last are read as primary capsules, so dim must divide them
    dim        of a primary capsule
    class_dim  of a class capsule
    decoder    "dense" (the paper's), "conv", "none", or "auto": dense up to 4,096 values an image
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
        if min(height, width) < LEAST:
            raise UserError(
                f"efficient_capsnet: images of {height}×{width} are too small for its convolutions: they must be at "
                f"least {LEAST}×{LEAST}. Enlarge them (data.image_size)"
            )
        if len(channels) != len(KERNELS) or min(channels) < 1:
            raise UserError(f"efficient_capsnet: channels must be {len(KERNELS)} numbers, got {tuple(channels)}")
        if dim < 1 or channels[-1] % dim:
            raise UserError(f"efficient_capsnet: {channels[-1]} channels do not make capsules of {dim} dimensions")
        self.grid = (1, 1)  # every capsule sees the whole image
        self.conv = _Convolutions(colours, *channels)
        self.primary = _WholeMapCaps(channels[-1], dim, ((height - LEAST) // 2 + 1, (width - LEAST) // 2 + 1))
        types = channels[-1] // dim
        std = math.sqrt(2 / (types * num_classes * dim))  # the authors': He's, with all but D taken for inputs
        self.classes = DenseCaps(types, dim, num_classes, class_dim, routing="self_attention", iterations=1, std=std)
        self.decoder = make_decoder(decoder, num_classes, class_dim, self.image_shape, tuple(hidden))

    def children_of(self, images: Tensor) -> Capsules:
        """The primary capsules (B, I, K)."""
        return self.primary(self.conv(self.normalise(images)))

    @property
    def convolutions(self) -> list[nn.Conv2d]:
        return [each for each in (*self.conv, self.primary.conv) if isinstance(each, nn.Conv2d)]


@register_model
def efficient_capsnet(
    image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any
) -> EfficientCapsNet:
    """The paper's network: 161,824 parameters for 1×28×28 images and 10 classes, and 1,411,344 of the decoder."""
    return EfficientCapsNet(image_shape, num_classes, **options)


class _Convolutions(nn.Sequential):
    """Convolution, ReLU, batch normalisation, four times, in the order of the authors' code; no padding."""

    def __init__(self, *channels: int):
        layers: list[nn.Module] = []
        for (width, wider), kernel, stride in zip(itertools.pairwise(channels), KERNELS, STRIDES):
            conv = nn.Conv2d(width, wider, kernel, stride)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
            layers += [conv, nn.ReLU(inplace=True), nn.BatchNorm2d(wider)]
        super().__init__(*layers)


class _WholeMapCaps(nn.Module):
    """One number from each map, by a kernel as large as the map; `dim` of them in a row are a capsule.

    input    (B, channels, H, W)
    returns  pose (B, channels / dim, dim)
    """

    def __init__(self, channels: int, dim: int, size: tuple[int, int]):
        super().__init__()
        self.dim = dim
        self.conv = nn.Conv2d(channels, channels, size, stride=size, groups=channels)
        nn.init.xavier_uniform_(self.conv.weight)
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]

    def forward(self, maps: Tensor) -> Capsules:
        return Capsules(squash_exponential(self.conv(maps).flatten(1).unflatten(1, (-1, self.dim))))
