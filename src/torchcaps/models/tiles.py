"""An image of any size through a model that answers for every pixel, tile by tile."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.models.segmentation import SegmentationModel
from torchcaps.ops.squash import at_least_float32

# Weights along an axis are multiples of 1/4096, their products of 1/2²⁴: float32 holds those, and their sums, exactly.
# So answers in [0, 1] stay there when they are blended.
_PARTS = 4096

TILE = 512  # side of what a model is given of a larger image


def predict_map(model: SegmentationModel, image_CHW: Tensor) -> Tensor:
    """(K, H, W), on the model's device, of a uint8 or float image of any size; by tiles if it is larger than TILE."""
    tile = max(TILE, 3 * model.margin + 2 * model.multiple)

    def answer(tiles: Tensor) -> Tensor:
        pixels = tiles.to(model.device)
        return model(pixels if pixels.is_floating_point() else pixels.float() / 255).probabilities

    return by_tiles(answer, image_CHW.to(model.device), tile=tile, margin=model.margin, align=model.multiple)


@torch.no_grad()
def by_tiles(
    model_fn: Callable[[Tensor], Tensor],
    image_CHW: Tensor,
    *,
    tile: int = 512,
    margin: int = 64,
    batch: int = 1,
    align: int = 8,
) -> Tensor:
    """What a model answers for an image, from overlapping tiles that are blended.

    Where a tile is cut out of the image its outer margin counts for nothing, and its weight rises to 1 over the next.
    So no pixel's answer changes if the model looks no further than `margin` around it, and pools on a grid that
    `align` is a multiple of. At the image's own border a tile ends where the image does, and is padded by the model.

    model_fn   (b, C, h, w) → (b, K, h, w); of a model on another device it moves the tiles there
    image_CHW  an image no larger than a tile is answered in one call, as it is
    tile       the largest height and width the model is given
    margin     at least as far as the model looks, for the same answer as that for the whole image
    batch      how many tiles the model is given at once
    align      the product of the model's strides: tiles begin at its multiples
    returns    (K, H, W)  on the image's device
    """
    if image_CHW.ndim != 3 or 0 in image_CHW.shape:
        raise ValueError(f"by_tiles: expected an image of shape (C, H, W), got {tuple(image_CHW.shape)}")
    if min(batch, align) < 1 or margin < 0:
        raise UserError(
            f"by_tiles: batch and align must be at least 1 and margin at least 0, got {batch}, {align}, {margin}"
        )
    if tile < 3 * margin + 2 * align:
        raise UserError(
            f"by_tiles: tiles of {tile} are too small for a margin of {margin}: take at least 3 margins and twice "
            f"align, {3 * margin + 2 * align}, or a smaller margin"
        )
    H, W = image_CHW.shape[1:]
    h, rows = _tiles_along(H, tile, margin, align)
    w, columns = _tiles_along(W, tile, margin, align)
    weights_H, weights_W = (
        _weights_along(size, length, starts, margin).to(image_CHW.device)
        for size, length, starts in ((H, h, rows), (W, w, columns))
    )
    blended: Tensor | None = None
    corners = list(product(enumerate(rows), enumerate(columns)))
    for first in range(0, len(corners), batch):
        some = corners[first : first + batch]
        tiles = torch.stack([image_CHW[:, top : top + h, left : left + w] for (_, top), (_, left) in some])
        answers = at_least_float32(model_fn(tiles)).to(image_CHW.device)
        if answers.ndim != 4 or answers.shape[:1] + answers.shape[2:] != (len(some), h, w):
            raise ValueError(
                f"by_tiles: the model answered {tuple(tiles.shape)} with {tuple(answers.shape)}, "
                f"not with ({len(some)}, K, {h}, {w})"
            )
        if blended is None:
            blended = answers.new_zeros(answers.shape[1], H, W)
        for ((row, top), (column, left)), answer in zip(some, answers):
            weights = weights_H[row, top : top + h, None] * weights_W[column, left : left + w]
            blended[:, top : top + h, left : left + w] += answer * weights
    assert blended is not None  # there is at least one tile
    return blended


def _tiles_along(size: int, tile: int, margin: int, align: int) -> tuple[int, list[int]]:
    """How long tiles are along an axis, and where they begin: at multiples of align, evenly, the last at the end.

    Both can be had at once because every tile leaves the same rest as the image when divided by align.
    """
    if size <= tile:
        return size, [0]
    length = tile - (tile - size) % align
    steps = (size - length) // align
    gaps = -(-steps // ((length - 3 * margin) // align))  # neighbours share at least 3 margins
    return length, [index * steps // gaps * align for index in range(gaps + 1)]


def _weights_along(size: int, length: int, starts: list[int], margin: int) -> Tensor:
    """(tiles, size) how much each tile counts for each place on an axis; their sum is exactly 1 everywhere."""
    places = torch.arange(size) + 0.5
    starts_N1 = torch.tensor(starts)[:, None]
    ends_N1 = starts_N1 + length
    from_start = (places - starts_N1).masked_fill(starts_N1 == 0, torch.inf)  # the image's own borders are no cuts
    from_end = (ends_N1 - places).masked_fill(ends_N1 == size, torch.inf)
    weights = ((torch.minimum(from_start, from_end) - margin) / max(margin, 1)).clamp(0, 1)
    weights = (weights / weights.sum(0) * _PARTS).round()
    largest = weights.argmax(0, keepdim=True)
    weights.scatter_add_(0, largest, _PARTS - weights.sum(0, keepdim=True))
    return weights / _PARTS
