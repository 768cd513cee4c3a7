"""U-Net: Convolutional Networks for Biomedical Image Segmentation (Ronneberger, Fischer & Brox 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.losses import check_masks
from torchcaps.models.base import SegmentationOutput
from torchcaps.models.registry import register_model
from torchcaps.models.segmentation import SegmentationModel
from torchcaps.ops.squash import at_least_float32

MAX_DEPTH = 12  # at which 4,096 pixels become one


class UNet(SegmentationModel):
    """Two convolutions at each resolution, down to the coarsest and up again, with skip connections.

    Convolutions are padded, so that the output has the size of the image; those of the paper lose two pixels each.

    Args:
        image_shape: (C, H, W) of the training images.
        num_classes: J, including the background; with 2 classes the output is the probability of the foreground.
        channels: of the first convolution; they double with every halving of the resolution.
        depth: number of halvings of the resolution.
        batch_norm: whether batch normalisation follows each convolution; the paper has none.
        **kwargs: arguments of `ImageModel`.
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
        check_whole("unet", channels=channels, depth=depth)
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
        self.margin = _receptive_margin(depth)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")  # the paper's √(2/N)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None
    ) -> SegmentationOutput:
        """Segment images.

        Args:
            images: (B, C, H, W) in [0, 1], of any size.
            targets: (B, H, W) class ids, which do not change anything.
            each: is ignored.

        Returns:
            (B, K, H, W) probabilities, by sigmoid for K = 1 and by softmax for K > 2, and their logits.
        """
        if targets is not None:
            check_masks("UNet", images, targets)
        features = self.pad(self.normalise(images))
        seen = []
        for level, convolutions in enumerate(self.down):
            features = convolutions(functional.max_pool2d(features, 2) if level else features)
            seen.append(features)
        for enlarge, convolutions, skipped in zip(self.enlarge, self.up, seen[-2::-1]):
            features = convolutions(torch.cat([skipped, enlarge(features)], dim=1))
        H, W = images.shape[-2:]
        logits = at_least_float32(self.head(features))[..., :H, :W]
        return SegmentationOutput(logits.sigmoid() if self.maps == 1 else logits.softmax(1), logits=logits)


@register_model
def unet(image_shape: Sequence[int] = (1, 256, 256), num_classes: int = 2, **options: Any) -> UNet:
    """Build the usual U-Net with 64 to 1024 channels: 31.0 million parameters for grey images and one class."""
    return UNet(image_shape, num_classes, **options)


def _receptive_margin(depth: int) -> int:
    """Pixels that the receptive field extends: two per resolution on the way down and up, and what pooling adds."""
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
