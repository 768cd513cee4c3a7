"""U-Net: Convolutional Networks for Biomedical Image Segmentation (Ronneberger, Fischer & Brox 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.errors import UserError
from torchcaps.models.base import Output
from torchcaps.models.registry import register_model
from torchcaps.models.segmentation import SegmentationModel
from torchcaps.ops.squash import at_least_float32

MAX_DEPTH = 12  # 4,096 pixels of an image are then one


class UNet(SegmentationModel):
    """Two convolutions at each resolution, down to the coarsest and up again, where the way down is seen once more.

    Convolutions are padded, so that the answer is as large as the image; the paper's lose two pixels each.

    num_classes  2: background and one positive class, whose probability is the answer; more: one answer for each
    channels     of the first convolution; they double with every step down
    depth        how often the resolution is halved
    batch_norm   after each convolution; the paper has none
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 256, 256),
        num_classes: int = 2,
        *,
        channels: int = 64,
        depth: int = 4,
        batch_norm: bool = False,
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        if channels < 1 or depth < 1:
            raise UserError(f"unet: channels and depth must be at least 1, got {channels} and {depth}")
        if depth > MAX_DEPTH:
            raise UserError(f"unet: depth must be at most {MAX_DEPTH}, got {depth}")
        widths = [channels * 2**level for level in range(depth + 1)]
        inputs = [self.image_shape[0], *widths]
        self.down = nn.ModuleList(_convolutions(a, b, batch_norm) for a, b in zip(inputs, widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))  # from coarse to fine
        self.enlarge = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.up = nn.ModuleList(_convolutions(2 * b, b, batch_norm) for _, b in pairs)
        self.head = nn.Conv2d(channels, self.maps, 1)
        self.multiple = 2**depth
        self.margin = _reach(depth)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")  # the paper's √(2/N)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None) -> Output:
        """images (B, C, H, W) in [0, 1], H and W as they come; the rest is accepted, and unused, as in every model.

        lengths  (B, K, H, W)  K = 1: the positive class's probability (sigmoid); K > 2: every class's (softmax)
        logits   (B, K, H, W)
        """
        features = self.padded(self.normalise(images))
        seen = []
        for level, convolutions in enumerate(self.down):
            features = convolutions(functional.max_pool2d(features, 2) if level else features)
            seen.append(features)
        for enlarge, convolutions, skipped in zip(self.enlarge, self.up, seen[-2::-1]):
            features = convolutions(torch.cat([skipped, enlarge(features)], dim=1))
        H, W = images.shape[-2:]
        logits = at_least_float32(self.head(features))[..., :H, :W]
        return Output(logits.sigmoid() if self.maps == 1 else logits.softmax(1), logits=logits)


@register_model
def unet(image_shape: Sequence[int] = (1, 256, 256), num_classes: int = 2, **options: Any) -> UNet:
    """The usual U-Net, 64 to 1024 channels: 31.0 million parameters for grey images and one positive class."""
    return UNet(image_shape, num_classes, **options)


def _reach(depth: int) -> int:
    """How far around a pixel it looks: two pixels of each resolution on the way down and up, and what pooling adds."""
    down = sum(2 * 2**level for level in range(depth + 1))
    up = sum(2 * 2**level for level in range(depth))
    return down + up + 2 * 2**depth


def _convolutions(before: int, after: int, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers.append(nn.Conv2d(channels, after, 3, padding=1, bias=not batch_norm))
        layers += [nn.BatchNorm2d(after)] if batch_norm else []
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)
