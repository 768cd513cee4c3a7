"""A convolution of images with few channels, as patches times a matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

FEW = 4  # channels: a convolution of up to this many leaves tensor cores idle, and cuDNN has no fast kernel for it
ALIGNED = 8  # values: tensor cores need rows of a multiple of this


class PatchConv2d(nn.Conv2d):
    """`nn.Conv2d` with a stride of 1; on a GPU, for images of few channels, one matrix product of patches and weights.

    Weights are the same, and so are results up to rounding.
    """

    def forward(self, images: Tensor) -> Tensor:
        if not images.is_cuda or self.in_channels > FEW:
            return super().forward(images)
        return convolve_patches(images, self.weight, self.bias, int(self.padding[0]))


def convolve_patches(images_BCHW: Tensor, weight_NCkk: Tensor, bias_N: Tensor | None, padding: int = 0) -> Tensor:
    """Convolve to (B, N, Y, X), channels last in memory, in the type that autocast chooses."""
    kernel, kind = weight_NCkk.shape[-1], images_BCHW.device.type
    if torch.is_autocast_enabled(kind):
        images_BCHW = images_BCHW.to(torch.get_autocast_dtype(kind))  # before they become 81 times as many
    images_BCHW = functional.pad(images_BCHW, [padding] * 4)
    patches = images_BCHW.unfold(2, kernel, 1).unfold(3, kernel, 1).permute(0, 2, 3, 1, 4, 5).flatten(3)
    missing = -patches.shape[-1] % ALIGNED
    weights = functional.pad(weight_NCkk.flatten(1), (0, missing))
    return functional.linear(functional.pad(patches, (0, missing)), weights, bias_N).permute(0, 3, 1, 2)
