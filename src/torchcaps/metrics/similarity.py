"""Similarity of drawn to real images: SSIM, and the kernel distance of network features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchcaps.models import UNet
from torchcaps.models.tiles import predict_map

WINDOW = 11  # side in pixels, the usual one


def ssim(drawn: Sequence[Tensor], real: Sequence[Tensor]) -> float:
    """Compute the mean SSIM (Wang et al. 2004) of N pairs of images (C, H, W) in [0, 1]; 1 if equal."""
    from monai.metrics import SSIMMetric  # takes two seconds

    side = min(WINDOW, *drawn[0].shape[1:])
    measure = SSIMMetric(spatial_dims=2, data_range=1.0, win_size=side - (side + 1) % 2)
    each = [float(torch.as_tensor(measure(a[None], b[None])).mean()) for a, b in zip(drawn, real, strict=True)]
    return sum(each) / len(each)


def kid(first_NF: Tensor, second_MF: Tensor) -> float:
    """Compute the kernel inception distance (Bińkowski et al. 2018): 0 on average for equally distributed features.

    The estimate is unbiased, so it may be slightly negative.

    Args:
        first_NF, second_MF: (N, F) and (M, F) features, with N and M at least 2.
    """
    F = first_NF.shape[1]
    x, y = first_NF.double(), second_MF.double()
    within = [(a @ a.T / F + 1).pow(3) for a in (x, y)]
    across = (x @ y.T / F + 1).pow(3)
    apart = [(each.sum() - each.diagonal().sum()) / (len(each) * (len(each) - 1)) for each in within]
    return float(apart[0] + apart[1] - 2 * across.mean())


def features_of(model: UNet, images: Sequence[Tensor]) -> Tensor:
    """Return (N, F) features: the U-Net's lowest layer, averaged over pixels.

    Args:
        model: whose features are used.
        images: N of (C, H, W), each no larger than a tile.
    """
    found: list[Tensor] = []
    hook = model.down[-1].register_forward_hook(lambda _, __, output: found.append(output.mean((2, 3)).cpu()))
    try:
        for image in images:
            predict_map(model, image)
    finally:
        hook.remove()
    return torch.cat(found)
