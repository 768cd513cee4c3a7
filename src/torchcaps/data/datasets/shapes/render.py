"""Draw parts: batched, on any device, differentiable with respect to positions, angles, scales and grey levels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from torchcaps.data.datasets.shapes.objects import Objects
from torchcaps.data.datasets.shapes.parts import PART_KINDS
from torchcaps.errors import UserError


def coverage(parts: Objects, size: tuple[int, int], softness: float = 1.0) -> Tensor:
    """Compute which share of each pixel each part covers.

    An edge through a pixel covers 0.5 - d of it, d being the signed distance of the pixel's centre from the edge,
    positive outside. This is exact for upright rectangles and bars, and off by up to a tenth of a pixel at an angle and
    at corners, but it blurs edges of all angles alike.

    Args:
        parts: N in each of B images, with names of `PARTS`.
        size: H and W of the images.
        softness: pixels over which an edge rises from 0 to 1.

    Returns:
        (B, N, H, W) in [0, 1]; 0 for padding.
    """
    _check(parts, size, softness)
    H, W = size
    y_H1 = torch.arange(H, dtype=parts.x.dtype, device=parts.x.device)[:, None]
    x_W = torch.arange(W, dtype=parts.x.dtype, device=parts.x.device)
    covered = parts.x.new_zeros(*parts.x.shape, H, W)
    for label, name in enumerate(parts.names):
        # Of each kind only the parts that occur: other kinds have other formulas.
        chosen = (parts.present & (parts.label == label)).nonzero(as_tuple=True)
        if not len(chosen[0]):
            continue
        x, y, angle, scale = (each[chosen][:, None, None] for each in (parts.x, parts.y, parts.angle, parts.scale))
        cos, sin = angle.deg2rad().cos(), angle.deg2rad().sin()
        right, down = x_W - x, y_H1 - y
        own_x, own_y = cos * right - sin * down, sin * right + cos * down
        covered = covered.index_put(chosen, PART_KINDS[name].cover(own_x, own_y, scale, softness))
    return covered


def composite(covered: Tensor, light: Tensor, *, ground: float = 0.0, blend: Literal["over", "max"] = "over") -> Tensor:
    """Combine the parts of each image.

    Args:
        covered: (B, N, H, W) as `coverage` returns them.
        light: (B, N) grey level of each part, in [0, 1].
        ground: grey level behind all parts.
        blend: "over" draws the parts in their order, and later ones cover earlier ones; "max" keeps the lightest.

    Returns:
        (B, 1, H, W).
    """
    if blend not in ("over", "max"):
        raise UserError(f"blend={blend!r}: give 'over' or 'max'")
    image = torch.full_like(covered[:, :0].sum(1), ground)
    for share, grey in zip(covered.unbind(1), light[:, :, None, None].unbind(1)):
        over = image + share * (grey - image)
        image = over if blend == "over" else torch.maximum(image, over)
    return image[:, None]


def render(
    parts: Objects,
    light: Tensor | float = 1.0,
    size: tuple[int, int] = (32, 32),
    *,
    ground: float = 0.0,
    blend: Literal["over", "max"] = "over",
    softness: float = 1.0,
) -> Tensor:
    """Draw parts with anti-aliased edges; see `coverage` and `composite`.

    Args:
        parts: N in each of B images, with names of `PARTS`.
        light: (B, N) grey level of each part, in [0, 1], or one for all.
        size: H and W of the images.
        ground: grey level behind all parts.
        blend: "over": later parts cover earlier ones; "max": the lightest is seen.
        softness: pixels over which an edge rises from 0 to 1.

    Returns:
        (B, 1, H, W) of the type and on the device of the parts' positions.
    """
    covered = coverage(parts, size, softness)
    if not isinstance(light, Tensor):
        light = covered.new_full(covered.shape[:2], light)
    return composite(covered, light, ground=ground, blend=blend)


def _check(parts: Objects, size: tuple[int, int], softness: float) -> None:
    unknown = [name for name in parts.names if name not in PART_KINDS]
    if unknown:
        raise UserError(f"{unknown[0]!r} is not a part that can be drawn: give the lowest level, scenes.levels[0]")
    if len(size) != 2 or min(size) < 1 or softness <= 0:
        raise UserError(f"size={tuple(size)}, softness={softness}: give (H, W) of at least 1 pixel, and more than 0")
