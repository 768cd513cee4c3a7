"""Images of nothing, made of training images: what a network should find no class in."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SIDES = (4, 8)  # patches on each side; beside these, single pixels are shuffled


def shuffle_patches(images: Tensor, patch: int) -> Tensor:
    """Cut images (B, C, H, W) into squares of this side and put them together in a random order, another for each.

    What is left of a side that is no multiple of it becomes 0.
    """
    B, _, H, W = images.shape
    rows, columns = H // patch, W // patch
    squares = F.unfold(images[..., : rows * patch, : columns * patch], patch, stride=patch)  # (B, C·patch², squares)
    order = torch.rand(B, 1, rows * columns, device=images.device).argsort(-1)
    shuffled = squares.gather(2, order.expand_as(squares))
    whole = F.fold(shuffled, (rows * patch, columns * patch), patch, stride=patch)
    return F.pad(whole, (0, W - columns * patch, 0, H - rows * patch))


def negatives(images: Tensor) -> Tensor:
    """Make of each image (B, C, H, W) one that shows nothing, in four ways by turns.

    Patches of a quarter of the side, of an eighth, and single pixels are shuffled; every fourth image becomes a single
    grey. Where patches would be smaller than a pixel, single pixels are shuffled.
    """
    smaller = min(images.shape[-2:])
    patches = (*(max(1, smaller // side) for side in SIDES), 1)
    made = [shuffle_patches(images[kind::4], patch) for kind, patch in enumerate(patches)]
    grey = images[3::4]
    made.append(torch.rand(len(grey), 1, 1, 1, device=images.device, dtype=images.dtype).expand_as(grey))
    return torch.cat(made)
