"""RandAugment (Cubuk et al. 2020): a few of fourteen operations for each image, drawn at random, all of one magnitude.

Every operation is computed for the whole batch and taken where it was drawn, so that no shape depends on data.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data.colours import blend, grey
from torchcaps.data.draws import Draws, grid_dtype, sample

MAX_MAGNITUDE = 10.0
# What the largest magnitude does, as in the authors' code.
MAX_DEGREES, MAX_SHEAR, MAX_SHIFT, MAX_ENHANCEMENT = 30.0, 0.3, 0.45, 0.9  # a shift is a share of the side
POSTERIZED_BITS = 4  # of 8 that the largest magnitude drops
SMOOTHING = ((1, 1, 1), (1, 5, 1), (1, 1, 1))  # /13, what Pillow sharpens against

GEOMETRY = ("rotate", "shear_x", "shear_y", "shift_x", "shift_y")
Operation = Callable[[Tensor, float, Tensor], Tensor]


def randaugment(layers: list[Tensor], draws: Draws, count: int, magnitude: float) -> list[Tensor]:
    """Apply `count` operations in turn; masks follow those that move pixels.

    Args:
        layers: images (B, C, H, W) in [0, 1], and encoded masks (B, 1, H, W).
        draws: of the operations and their signs.
        count: of operations for each image.
        magnitude: of all operations, 0 to 10.
    """
    if not len(layers[0]):
        return layers
    for _ in range(count):
        layers = _apply(layers, draws.integers(len(GEOMETRY) + len(VALUES)), draws, magnitude / MAX_MAGNITUDE)
    return layers


def _apply(layers: list[Tensor], chosen_B: Tensor, draws: Draws, strength: float) -> list[Tensor]:
    """Apply one operation to each image; the last number is the identity."""
    sign_B = 1 - 2 * draws.integers(1)
    images_BCHW = layers[0]
    changed = images_BCHW.to(grid_dtype(images_BCHW))
    wide = changed
    for number, operation in enumerate(VALUES.values(), start=len(GEOMETRY)):
        done = operation(wide, strength, sign_B)
        changed = torch.where((chosen_B == number)[:, None, None, None], done, changed)
    moved = sample(layers, _grid(images_BCHW, chosen_B, sign_B, strength))
    moves_B111 = (chosen_B < len(GEOMETRY))[:, None, None, None]
    unmoved = [changed.to(images_BCHW.dtype), *layers[1:]]
    return [torch.where(moves_B111, one, other) for one, other in zip(moved, unmoved)]


def _grid(images_BCHW: Tensor, chosen_B: Tensor, sign_B: Tensor, strength: float) -> Tensor:
    """Return (B, H, W, 2) where each pixel comes from, about the centre; the identity where nothing moves."""
    height, width = images_BCHW.shape[2:]
    amount = {name: (chosen_B == number) * sign_B * strength for number, name in enumerate(GEOMETRY)}
    angle_B = amount["rotate"] * math.radians(MAX_DEGREES)
    cos_B, sin_B = angle_B.cos(), angle_B.sin()
    across = [cos_B, (MAX_SHEAR * amount["shear_x"] - sin_B) * (height / width), 2 * MAX_SHIFT * amount["shift_x"]]
    down = [(MAX_SHEAR * amount["shear_y"] + sin_B) * (width / height), cos_B, 2 * MAX_SHIFT * amount["shift_y"]]
    inverse_B23 = torch.stack([torch.stack(across, -1), torch.stack(down, -1)], dim=1).to(grid_dtype(images_BCHW))
    return F.affine_grid(inverse_B23, list(images_BCHW.shape), align_corners=False)


def _factor(strength: float, sign_B: Tensor) -> Tensor:
    return 1 + MAX_ENHANCEMENT * strength * sign_B


def _brightness(images: Tensor, strength: float, sign_B: Tensor) -> Tensor:
    return blend(torch.zeros_like(images), images, _factor(strength, sign_B))


def _colour(images: Tensor, strength: float, sign_B: Tensor) -> Tensor:
    return blend(grey(images), images, _factor(strength, sign_B))


def _contrast(images: Tensor, strength: float, sign_B: Tensor) -> Tensor:
    return blend(grey(images).mean((2, 3), keepdim=True), images, _factor(strength, sign_B))


def _sharpness(images: Tensor, strength: float, sign_B: Tensor) -> Tensor:
    if min(images.shape[2:]) < 3:
        return images  # there are pixels of the border only, which Pillow leaves alone
    centre = images[:, :, 1:-1, 1:-1]
    smooth = torch.zeros_like(centre)
    for y, row in enumerate(SMOOTHING):
        for x, weight in enumerate(row):
            smooth = smooth + weight / 13 * images[:, :, y : y + centre.shape[2], x : x + centre.shape[3]]
    sharpened = images.clone()
    sharpened[:, :, 1:-1, 1:-1] = blend(smooth, centre, _factor(strength, sign_B))
    return sharpened


def _posterize(images: Tensor, strength: float, sign_B: Tensor) -> Tensor:
    step = 2 ** round(POSTERIZED_BITS * strength)
    return (_bytes(images) / step).floor() * step / 255


def _solarize(images: Tensor, strength: float, sign_B: Tensor) -> Tensor:
    return torch.where(images >= 1 - strength, 1 - images, images)


def _autocontrast(images: Tensor, strength: float, sign_B: Tensor) -> Tensor:
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    span = high - low
    return torch.where(span > 0, (images - low) / torch.where(span > 0, span, 1), images)


def _equalize(images: Tensor, strength: float, sign_B: Tensor) -> Tensor:
    """Spread the values of each channel evenly over 0…255, by the table that Pillow makes."""
    flat_NP = _bytes(images).long().flatten(2).flatten(0, 1)
    counts_NV = torch.zeros(len(flat_NP), 256, dtype=torch.long, device=images.device)
    counts_NV.scatter_add_(1, flat_NP, torch.ones_like(flat_NP))
    brightest_N1 = flat_NP.amax(1, keepdim=True)
    step_N1 = (flat_NP.shape[1] - counts_NV.gather(1, brightest_N1)) // 255
    below_NV = counts_NV.cumsum(1) - counts_NV
    table_NV = ((below_NV + step_N1 // 2) // step_N1.clamp_min(1)).clamp(0, 255)
    spread = table_NV.gather(1, flat_NP).where(step_N1 > 0, flat_NP)
    return (spread.to(images.dtype) / 255).view(images.shape)


def _bytes(images: Tensor) -> Tensor:
    """The whole numbers 0…255 that the values stand for."""
    return (images.clamp(0, 1) * 255).round()


VALUES: dict[str, Operation] = {
    "brightness": _brightness,
    "colour": _colour,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}
