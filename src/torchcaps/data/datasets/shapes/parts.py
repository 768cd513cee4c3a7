"""The parts that shapes are made of: rectangle, triangle, disc, bar and arc, with anti-aliased edges.

Sizes are in pixels at scale 1. The origin of a part's frame is the centroid of its area; x points right and y down.
Every part is the mirror image of itself about its y axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

EPS = 1e-12  # px²; keeps the gradient of a distance finite at its centre

RECTANGLE = (14.0, 6.0)
BAR = (14.0, 2.0)
BASE, HEIGHT = 14.0, 7.0  # of the triangle, whose upper corner is a right angle
DISC_RADIUS = 4.0
ARC_RADIUS, ARC_HALF_ANGLE, ARC_WIDTH = 6.0, math.radians(60), 2.0  # an arch, with round ends

Cover = Callable[[Tensor, Tensor, Tensor, float], Tensor]


@dataclass(frozen=True)
class Part:
    """A kind of part.

    Attributes:
        cover: (x, y, scale, softness) → share of each pixel that the part covers. x and y are the pixels' places in the
            part's frame, turned and moved but not scaled.
        symmetry: how many turns within a full circle map it onto itself; 0 for every turn.
        area: in square pixels.
        radius: distance of its farthest point from the origin.
        corners: (x, y) of a convex polygon, in order; empty for round parts.
    """

    cover: Cover
    symmetry: int
    area: float
    radius: float
    corners: tuple[tuple[float, float], ...] = ()


def _edge(distance: Tensor, softness: float) -> Tensor:
    """The share of a pixel within a half-plane, whose edge is this far inside (negative) or outside of its centre."""
    return (0.5 - distance / softness).clamp(0, 1)


def _strip(offset: Tensor, half: Tensor | float, softness: float) -> Tensor:
    """The share of a pixel within a strip, this far from its middle line; it may be thinner than a pixel."""
    return _edge(offset - half, softness) + _edge(-offset - half, softness) - 1


def _distance(x: Tensor, y: Tensor) -> Tensor:
    return (x * x + y * y + EPS).sqrt()


def _box(width: float, height: float) -> Part:
    def cover(x: Tensor, y: Tensor, scale: Tensor, softness: float) -> Tensor:
        return _strip(x, width / 2 * scale, softness) * _strip(y, height / 2 * scale, softness)

    right, below = width / 2, height / 2
    corners = ((-right, -below), (right, -below), (right, below), (-right, below))
    return Part(cover, 2, width * height, math.hypot(right, below), corners)


def _triangle() -> Part:
    right, below, above = BASE / 2, HEIGHT / 3, 2 * HEIGHT / 3
    slope = math.hypot(right, HEIGHT)
    normal_x, normal_y = HEIGHT / slope, -right / slope  # of the right edge
    reach = -above * normal_y

    def cover(x: Tensor, y: Tensor, scale: Tensor, softness: float) -> Tensor:
        base = _edge(y - below * scale, softness)
        left, right = (_edge(sign * normal_x * x + normal_y * y - reach * scale, softness) for sign in (-1, 1))
        return base * left * right

    corners = ((0.0, -above), (right, below), (-right, below))
    return Part(cover, 1, BASE * HEIGHT / 2, math.hypot(right, below), corners)


def _disc() -> Part:
    def cover(x: Tensor, y: Tensor, scale: Tensor, softness: float) -> Tensor:
        return _strip(_distance(x, y), DISC_RADIUS * scale, softness)

    return Part(cover, 0, math.pi * DISC_RADIUS**2, DISC_RADIUS)


def _arc() -> Part:
    radius, half, thin = ARC_RADIUS, ARC_HALF_ANGLE, ARC_WIDTH / 2
    sin, cos = math.sin(half), math.cos(half)
    # The centroid, seen from the centre of the circle: that of the sector of a ring and of two half discs.
    outer, inner = radius + thin, radius - thin
    ring, caps = half * (outer**2 - inner**2), math.pi * thin**2
    ring_height = 2 * sin / (3 * half) * (outer**3 - inner**3) / (outer**2 - inner**2)
    caps_height = radius * cos - 4 * thin / (3 * math.pi) * sin
    height = (ring * ring_height + caps * caps_height) / (ring + caps)

    def cover(x: Tensor, y: Tensor, scale: Tensor, softness: float) -> Tensor:
        up, across = height * scale - y, x.abs()  # from the centre of the circle
        beyond = across * cos > up * sin  # the half angle
        to_end = _distance(across - radius * sin * scale, up - radius * cos * scale)
        to_line = (_distance(across, up) - radius * scale).abs()
        return _strip(to_end.where(beyond, to_line), thin * scale, softness)

    farthest = math.hypot(radius * sin, height - radius * cos) + thin
    return Part(cover, 1, ring + caps, farthest)


PART_KINDS: dict[str, Part] = {
    "rectangle": _box(*RECTANGLE),
    "triangle": _triangle(),
    "disc": _disc(),
    "bar": _box(*BAR),
    "arc": _arc(),
}
PARTS = tuple(PART_KINDS)
