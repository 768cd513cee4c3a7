"""The parameters of drawn shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from torchcaps.data.datasets.shapes.layouts import check_scrambled
from torchcaps.data.datasets.shapes.parts import PART_KINDS, PARTS
from torchcaps.data.datasets.shapes.wholes import whole_of
from torchcaps.errors import UserError, did_you_mean

Range = tuple[float, float]


@dataclass(frozen=True)
class ShapeParameters:
    """Parameters of `draw_shapes`; a pair is (least, most), and everything is drawn uniformly between them.

    Args:
        wholes: their classes, in `WHOLES`. With one whole in each image, they take turns.
        size: pixels a side, or (H, W).
        number: of wholes in an image.
        turn: angles lie within this many degrees of upright; 180 for all orientations.
        scale: of the wholes; a boat of scale 1 is 16 pixels high. The logarithm is uniform.
        shift: the largest distance of a whole from the centre, to the right or left and up or down, in pixels; None for
            any place where the whole is inside the image.
        overlap: in an image with two or more wholes, the mean share of the area of a whole that other wholes overlap.
        visible: in such an image, the least share of each part of a whole that is not covered by later ones.
        twin: if not 0, each whole has an identical one beside it, at this distance in pixels, in any direction.
        distractors: number of single parts, behind all wholes, that belong to none.
        distractor_parts: their classes.
        scrambled: whether the parts stand wrongly to each other, by at least the margins of `layouts`; the parts then
            belong to no whole, and no whole is present. Parts that have parts exchange their places (a Picasso); of
            two polygons, the second touches the first elsewhere and at another angle.
        light: grey level of each part.
        ground: grey level behind them.
        noise: standard deviation of Gaussian noise, added to each pixel; the image is clipped to [0, 1].
    """

    wholes: tuple[str, ...] = ("boat", "house")
    size: int | tuple[int, int] = 32
    number: tuple[int, int] = (1, 1)
    turn: float = 15.0
    scale: Range = (0.87, 1.15)
    shift: float | None = 3.0
    overlap: Range = (0.0, 1.0)
    visible: float = 0.0
    twin: float = 0.0
    distractors: tuple[int, int] = (0, 0)
    distractor_parts: tuple[str, ...] = ("disc", "bar")
    scrambled: bool = False
    light: Range = (0.6, 1.0)
    ground: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("wholes", "distractor_parts"):
            if isinstance(getattr(self, name), str) or not getattr(self, name):
                raise UserError(f"{name}={getattr(self, name)!r}: give a tuple of names, such as ('boat', 'house')")
        for name, least, most in (
            *(("number", 0, math.inf), ("scale", 1e-3, math.inf), ("overlap", 0, 1)),
            *(("distractors", 0, math.inf), ("light", 0, 1)),
        ):
            low, high = _pair(name, getattr(self, name))
            if not (least <= low <= high <= most and math.isfinite(high)):
                raise UserError(f"{name}={(low, high)}: give (least, most) within {least:g} to {most:g}")
        for name, least, most in (
            *(("turn", 0, 180), ("visible", 0, 1), ("twin", 0, math.inf), ("ground", 0, 1), ("noise", 0, math.inf)),
        ):
            if not (least <= getattr(self, name) <= most and math.isfinite(getattr(self, name))):
                raise UserError(f"{name}={getattr(self, name)}: give a number within {least:g} to {most:g}")
        if self.shift is not None and not 0 <= self.shift < math.inf:
            raise UserError(f"shift={self.shift}: give 0 or more pixels, or None for anywhere inside the image")
        if min(self.height_width) < 1:
            raise UserError(f"size={self.size}: give at least 1 pixel a side")
        unknown = [name for name in self.distractor_parts if name not in PART_KINDS]
        if unknown:
            raise UserError(f"there is no part called {unknown[0]!r}: {did_you_mean(unknown[0], PARTS)}")
        if len({whole_of(name).depth for name in self.wholes}) > 1:
            raise UserError(f"wholes={self.wholes}: some have parts of parts and some do not; draw them separately")
        for name in self.wholes if self.scrambled else ():
            check_scrambled(name)
        if self.scrambled and self.twin:
            raise UserError(f"scrambled={self.scrambled}, twin={self.twin}: give one of them")

    @staticmethod
    def of(**parameters: Any) -> ShapeParameters:
        """Check the names of parameters, and take lists for tuples: YAML has none."""
        known = {field.name for field in fields(ShapeParameters)}
        if unknown := sorted(parameters.keys() - known):
            raise UserError(f"shapes have no parameter {unknown[0]!r}: {did_you_mean(unknown[0], known)}")
        tuples = {name: tuple(value) for name, value in parameters.items() if isinstance(value, list)}
        return ShapeParameters(**parameters | tuples)

    @property
    def height_width(self) -> tuple[int, int]:
        """H and W of the images."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size


def _pair(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise UserError(f"{name}={value!r}: give a pair (least, most)")
    return value
