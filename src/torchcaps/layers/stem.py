"""The convolutions in front of pose capsules and of the CNNs that they are compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STRIDE = 4  # pixels of an image for one position of the stem's map


class BlurPool(nn.Module):
    """Halve a map after smoothing it with [1, 2, 1] / 4 in both directions: shifts by one pixel change little.

    Zhang 2019, Making convolutional networks shift-invariant again.

    Args:
        channels: C.
    """

    kernel: Tensor

    def __init__(self, channels: int):
        super().__init__()
        row = torch.tensor([1.0, 2.0, 1.0]) / 4
        self.register_buffer("kernel", (row[:, None] * row).repeat(channels, 1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C, ⌈H/2⌉, ⌈W/2⌉)."""
        return F.conv2d(x, self.kernel.to(x.dtype), stride=2, padding=1, groups=x.shape[1])


class ConvStem(nn.Sequential):
    """Six 3×3 convolutions, each with batch normalisation and GELU; two blur pools between them.

    Args:
        in_channels: of the image.
        width: w, for w/2, w, 2w, 2w, 4w and 4w channels.
    """

    def __init__(self, in_channels: int, width: int):
        layers: list[nn.Module] = []
        previous = in_channels
        for stage, widths in enumerate(((max(1, width // 2), width), (2 * width,) * 2, (4 * width,) * 2)):
            if stage:
                layers.append(BlurPool(previous))
            for channels in widths:
                layers += [nn.Conv2d(previous, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.GELU()]
                previous = channels
        super().__init__(*layers)
        self.out_channels = previous
