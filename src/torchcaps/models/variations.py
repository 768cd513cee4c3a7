"""Altered training images: negatives, which show no class, and partly covered images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PATCHES_PER_SIDE = (4, 8)  # besides these, single pixels are shuffled


def shuffle_patches(images: Tensor, patch: int) -> Tensor:
    """Shuffle square patches of each image; pixels beyond the last whole patch become 0.

    Args:
        images: (B, C, H, W).
        patch: side of a patch in pixels.
    """
    B, C, H, W = images.shape
    rows, columns = H // patch, W // patch
    cut = images[..., : rows * patch, : columns * patch].reshape(B, C, rows, patch, columns, patch)
    squares = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2).flatten(2)  # (B, squares, C·patch²)
    order = torch.rand(B, rows * columns, 1, device=images.device).argsort(1)
    shuffled = squares.gather(1, order.expand_as(squares)).view(B, rows, columns, C, patch, patch)
    whole = shuffled.permute(0, 3, 1, 4, 2, 5).reshape(B, C, rows * patch, columns * patch)
    return F.pad(whole, (0, W - columns * patch, 0, H - rows * patch))


def negatives(images: Tensor) -> Tensor:
    """Make an image without any class from each image.

    In turn, patches of a quarter of the side, patches of an eighth and single pixels are shuffled; every fourth image
    becomes a uniform grey.

    Args:
        images: (B, C, H, W).
    """
    smaller = min(images.shape[-2:])
    patches = (*(max(1, smaller // side) for side in PATCHES_PER_SIDE), 1)
    made = [shuffle_patches(images[kind::4], patch) for kind, patch in enumerate(patches)]
    grey = images[3::4]
    made.append(torch.rand(len(grey), 1, 1, 1, device=images.device, dtype=images.dtype).expand_as(grey))
    return torch.cat(made)


def cover(images: Tensor, largest: int, share: float) -> Tensor:
    """Cover a part of some images by a black rectangle around a bright position.

    Args:
        images: (B, C, H, W), 0 or more.
        largest: maximum side of a rectangle in pixels.
        share: of the images that are covered.
    """
    B, _, H, W = images.shape
    brightness = images.detach().float().sum(1).flatten(1)
    # The largest of log(brightness) plus Gumbel noise is a position drawn in proportion to brightness.
    position = (brightness.log() - (-torch.rand_like(brightness).log()).log()).argmax(1)
    sides = largest * torch.rand(2, B, device=images.device)
    sides = sides * (torch.rand(B, device=images.device) < share)
    covered = []
    for middle, side, pixels in ((position // W, sides[0], H), (position % W, sides[1], W)):
        apart = torch.arange(pixels, device=images.device) - middle[:, None]
        covered.append(apart.abs() < side[:, None] / 2)
    return images.masked_fill((covered[0][:, :, None] & covered[1][:, None, :])[:, None], 0)
