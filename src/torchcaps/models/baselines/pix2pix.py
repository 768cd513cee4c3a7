"""pix2pix: Image-to-Image Translation with Conditional Adversarial Networks (Isola, Zhu, Zhou & Efros 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.models.registry import register_model
from torchcaps.models.synthesis import SpatialNoise, SynthesisModel

MAX_DEPTH = 8  # halvings of the paper's 256×256
DROPOUT_LAYERS = 3  # on the way up, the first ones


class Pix2Pix(SynthesisModel):
    """The generator: a U-Net of strided convolutions, down to a few positions and up again.

    Args:
        image_shape: (C, H, W) of the training images.
        num_classes: J, including the background.
        z: dimensions of the noise vector.
        noise: "broadcast": one input channel, as in CapsPix2Pix; "dropout": only that of dropout, which then stays on
            in evaluation mode, as published, with random numbers of torch's global generator.
        channels: of the first convolution; they double up to eight times as many.
        depth: number of halvings of the resolution; by default until one position is left, at most eight.
        **kwargs: arguments of `ImageModel`.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 256, 256),
        num_classes: int = 2,
        *,
        z: int = 100,
        noise: Literal["broadcast", "dropout"] = "broadcast",
        channels: int = 64,
        depth: int | None = None,
        **kwargs: Any,
    ):
        side = min(image_shape[1:], default=1)
        depth = min(MAX_DEPTH, (side & -side).bit_length() - 1) if depth is None else depth
        super().__init__(image_shape, num_classes, z=z, **kwargs)
        if noise not in ("broadcast", "dropout"):
            raise UserError(f"pix2pix: noise must be 'broadcast' or 'dropout', got {noise!r}")
        check_whole("pix2pix", channels=channels)
        check_whole("pix2pix", 0, depth=depth)
        if depth < 2:
            raise UserError(
                f"pix2pix: depth must be at least 2, got {depth} for images of "
                f"{self.image_shape[1]}×{self.image_shape[2]}"
            )
        self.multiple = 2**depth
        self.check_size(*self.image_shape[1:])
        self.has_noise = noise == "broadcast"
        self.noise = SpatialNoise(z) if self.has_noise else None
        inputs = num_classes - 1 + self.has_noise
        widths = [channels * min(8, 2**level) for level in range(depth)]
        self.down = nn.ModuleList(
            _halve(before, after, first=level == 0, last=level == depth - 1)
            for level, (before, after) in enumerate(zip([inputs, *widths], widths))
        )
        pairs = list(zip([widths[-1], *(2 * width for width in widths[-2:0:-1])], widths[-2::-1]))
        self.up = nn.ModuleList(_double(before, after) for before, after in pairs)
        self.head = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(2 * channels, self.image_shape[0], 4, 2, 1))
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.normal_(module.weight, std=0.02)
        self.init_bias_to_mean(self.head[1].bias)  # type: ignore[arg-type]

    def features(self, masks: Tensor, noise: Tensor) -> Tensor:
        x = self.one_hot(masks, noise)
        if self.noise is not None:
            x = torch.cat([x, self.noise(noise, *masks.shape[1:])], dim=1)
        found = []
        for layer in self.down:
            found.append(x := layer(x))
        for level, (layer, skipped) in enumerate(zip(self.up, found[-2::-1])):
            x = layer(x)
            if level < DROPOUT_LAYERS:
                x = functional.dropout(x, 0.5, training=self.training or not self.has_noise)
            x = torch.cat([x, skipped], dim=1)
        return x


@register_model
def pix2pix(image_shape: Sequence[int] = (1, 256, 256), num_classes: int = 2, **options: Any) -> Pix2Pix:
    """Build the usual generator with 64 to 512 channels: 54.4 million parameters at 256×256."""
    return Pix2Pix(image_shape, num_classes, **options)


@register_model
def pix2pix_small(image_shape: Sequence[int] = (1, 64, 64), num_classes: int = 2, **options: Any) -> Pix2Pix:
    """Build a generator with a quarter of the channels, for small images and two CPU cores."""
    return Pix2Pix(image_shape, num_classes, **{"channels": 16, **options})


def _halve(before: int, after: int, first: bool, last: bool) -> nn.Sequential:
    layers: list[nn.Module] = [] if first else [nn.LeakyReLU(0.2)]
    layers.append(nn.Conv2d(before, after, 4, 2, 1, bias=False))
    return nn.Sequential(*layers, *([] if first or last else [nn.BatchNorm2d(after)]))


def _double(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after))
