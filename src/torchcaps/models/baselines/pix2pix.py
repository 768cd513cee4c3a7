"""pix2pix: Image-to-Image Translation with Conditional Adversarial Networks (Isola, Zhu, Zhou & Efros 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.errors import UserError
from torchcaps.models.registry import register_model
from torchcaps.models.synthesis import Grain, SynthesisModel

MAX_DEPTH = 8  # halvings of the paper's 256×256
DROPPED = 3  # the first layers on the way up have dropout


class Pix2Pix(SynthesisModel):
    """The generator: a U-Net of strided convolutions, from the image down to a few places and up again.

    noise     "broadcast": a channel beside the label map, as in CapsPix2Pix; "dropout": none but that of dropout, which
              then also acts when an image is drawn, as published, by torch's own random numbers
    channels  of the first convolution; they double down to eight times as many
    depth     how often the resolution is halved; by default until a place is left, at most eight times
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
        if channels < 1 or depth < 2:
            raise UserError(
                f"pix2pix: channels must be at least 1 and depth at least 2, got {channels} and {depth} for images of "
                f"{self.image_shape[1]}×{self.image_shape[2]}"
            )
        self.multiple = 2**depth
        self.check_size(*self.image_shape[1:])
        self.has_noise = noise == "broadcast"
        self.noise = Grain(z) if self.has_noise else None
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
        self.start_at_mean(self.head[1].bias)  # type: ignore[arg-type]

    def features(self, masks: Tensor, noise: Tensor) -> Tensor:
        seen = self.labels(masks, noise)
        if self.noise is not None:
            seen = torch.cat([seen, self.noise(noise, *masks.shape[1:])], dim=1)
        found = []
        for layer in self.down:
            found.append(seen := layer(seen))
        for level, (layer, skipped) in enumerate(zip(self.up, found[-2::-1])):
            seen = layer(seen)
            if level < DROPPED:
                seen = functional.dropout(seen, 0.5, training=self.training or not self.has_noise)
            seen = torch.cat([seen, skipped], dim=1)
        return seen


@register_model
def pix2pix(image_shape: Sequence[int] = (1, 256, 256), num_classes: int = 2, **options: Any) -> Pix2Pix:
    """The usual size, 64 to 512 channels: 54.4 million parameters at 256×256."""
    return Pix2Pix(image_shape, num_classes, **options)


@register_model
def pix2pix_small(image_shape: Sequence[int] = (1, 64, 64), num_classes: int = 2, **options: Any) -> Pix2Pix:
    """A quarter of its channels, for small images and two CPU cores."""
    return Pix2Pix(image_shape, num_classes, **{"channels": 16, **options})


def _halve(before: int, after: int, first: bool, last: bool) -> nn.Sequential:
    layers: list[nn.Module] = [] if first else [nn.LeakyReLU(0.2)]
    layers.append(nn.Conv2d(before, after, 4, 2, 1, bias=False))
    return nn.Sequential(*layers, *([] if first or last else [nn.BatchNorm2d(after)]))


def _double(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after))
