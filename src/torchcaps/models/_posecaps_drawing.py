"""What pose capsules draw, and how well it matches the image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.geometry import Affine, sampling_grid
from torchcaps.models.base import Placement

MIN_ENERGY = 1e-4  # of an image times a drawing: below it nothing can match


def classes_to_draw(presence_BJ: Tensor, targets: Tensor | None, each: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """(B, M) ids of the classes to draw; for multi-hot targets all J, and the targets as a (B, J) mask."""
    if each is not None:
        return each, None
    if targets is None:
        return presence_BJ.argmax(-1, keepdim=True), None
    if targets.ndim == 1:
        return targets[:, None].long(), None
    return torch.arange(presence_BJ.shape[1], device=targets.device).expand_as(targets), targets


def select_classes(placement: Placement, classes_BM: Tensor) -> Placement:
    """The placement of these classes only, each (B, M)."""
    return Placement(*(None if part is None else part.gather(1, classes_BM) for part in placement))  # type: ignore[arg-type]


def transform(upright: Tensor, pose: Affine) -> Tensor:
    """Move upright drawings (N, C, H, W) to poses (N)."""
    size = upright.shape[-2], upright.shape[-1]
    grid = sampling_grid(pose.inverse(), size, size)
    return F.grid_sample(upright, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def correlation(images: Tensor, drawings: Tensor) -> Tensor:
    """The correlation over pixels of two batches (B, C, H, W): (B,)."""
    seen, drawn = (part.flatten(1) for part in (images, drawings))
    seen, drawn = seen - seen.mean(1, keepdim=True), drawn - drawn.mean(1, keepdim=True)
    energy = seen.square().sum(1) * drawn.square().sum(1)
    return (seen * drawn).sum(1) / (energy + MIN_ENERGY).sqrt()
