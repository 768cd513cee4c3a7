"""Apply a segmentation model to an image of any size, tile by tile."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.models.segmentation import SegmentationModel
from torchcaps.ops.squash import at_least_float32

# Weights along an axis are multiples of 1/4096, and their products of 1/2²⁴: float32 represents them and their sums
# exactly. So blended values stay in [0, 1].
WEIGHT_STEPS = 4096

TILE = 512  # pixels per side of a tile


def predict_map(model: SegmentationModel, image_CHW: Tensor) -> Tensor:
    """Predict the maps of one image, in tiles if it is larger than TILE.

    Args:
        model: the segmentation model.
        image_CHW: (C, H, W) uint8, or float in [0, 1].

    Returns:
        (K, H, W) on the model's device.
    """
    tile = max(TILE, 3 * model.margin + 2 * model.multiple)

    def predict(tiles: Tensor) -> Tensor:
        pixels = tiles.to(model.device)
        return model(pixels if pixels.is_floating_point() else pixels.float() / 255).probabilities

    return predict_tiled(predict, image_CHW.to(model.device), tile=tile, margin=model.margin, align=model.multiple)


@torch.no_grad()
def predict_tiled(
    model_fn: Callable[[Tensor], Tensor],
    image_CHW: Tensor,
    *,
    tile: int = 512,
    margin: int = 64,
    batch: int = 1,
    align: int = 8,
) -> Tensor:
    """Predict the maps of one image from overlapping tiles, and blend them.

    At a cut, a tile's outer margin has weight 0, and the weight rises linearly to 1 over the next margin. So the result
    equals that for the whole image if the model's receptive field extends at most `margin` around a pixel, and `align`
    is a multiple of its strides. At the border of the image a tile ends with the image, and the model pads it.

    Args:
        model_fn: maps (b, C, h, w) to (b, K, h, w), on any device.
        image_CHW: (C, H, W); an image no larger than a tile is predicted in one call.
        tile: largest height and width of a tile.
        margin: pixels that the receptive field extends around a pixel.
        batch: number of tiles per call.
        align: product of the model's strides; tiles start at its multiples.

    Returns:
        (K, H, W) on the image's device.
    """
    _check_tiles(image_CHW, tile, margin, batch, align)
    H, W = image_CHW.shape[1:]
    h, rows = _tile_starts(H, tile, margin, align)
    w, columns = _tile_starts(W, tile, margin, align)
    weights_H, weights_W = (
        _blend_weights(size, length, starts, margin).to(image_CHW.device)
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
                f"predict_tiled: the model returned {tuple(answers.shape)} for {tuple(tiles.shape)}, "
                f"not ({len(some)}, K, {h}, {w})"
            )
        if blended is None:
            blended = answers.new_zeros(answers.shape[1], H, W)
        for ((row, top), (column, left)), answer in zip(some, answers):
            weights = weights_H[row, top : top + h, None] * weights_W[column, left : left + w]
            blended[:, top : top + h, left : left + w] += answer * weights
    assert blended is not None  # there is at least one tile
    return blended


def _check_tiles(image_CHW: Tensor, tile: int, margin: int, batch: int, align: int) -> None:
    if image_CHW.ndim != 3 or 0 in image_CHW.shape:
        raise ValueError(f"predict_tiled: expected an image of shape (C, H, W), got {tuple(image_CHW.shape)}")
    if min(batch, align) < 1 or margin < 0:
        raise UserError(
            f"predict_tiled: batch and align must be at least 1 and margin at least 0, got {batch}, {align}, {margin}"
        )
    if tile < 3 * margin + 2 * align:
        raise UserError(
            f"predict_tiled: tiles of {tile} are too small for a margin of {margin}: use at least 3 margins plus twice "
            f"align, {3 * margin + 2 * align}, or a smaller margin"
        )


def _tile_starts(size: int, tile: int, margin: int, align: int) -> tuple[int, list[int]]:
    """The length of the tiles along an axis and where they start: evenly, at multiples of align, the last at the end.

    Both are possible at once because the length of a tile and of the image have the same remainder modulo align.
    """
    if size <= tile:
        return size, [0]
    length = tile - (tile - size) % align
    steps = (size - length) // align
    gaps = -(-steps // ((length - 3 * margin) // align))  # neighbours share at least 3 margins
    return length, [index * steps // gaps * align for index in range(gaps + 1)]


def _blend_weights(size: int, length: int, starts: list[int], margin: int) -> Tensor:
    """(tiles, size) weight of each tile at each position along an axis; the weights of a position sum to exactly 1."""
    positions = torch.arange(size) + 0.5
    starts_N1 = torch.tensor(starts)[:, None]
    ends_N1 = starts_N1 + length
    from_start = (positions - starts_N1).masked_fill(starts_N1 == 0, torch.inf)  # no margin at the border of the image
    from_end = (ends_N1 - positions).masked_fill(ends_N1 == size, torch.inf)
    weights = ((torch.minimum(from_start, from_end) - margin) / max(margin, 1)).clamp(0, 1)
    weights = (weights / weights.sum(0) * WEIGHT_STEPS).round()
    largest = weights.argmax(0, keepdim=True)
    weights.scatter_add_(0, largest, WEIGHT_STEPS - weights.sum(0, keepdim=True))
    return weights / WEIGHT_STEPS
