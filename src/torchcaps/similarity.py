"""Similarities: poses of four numbers, that move, turn and scale, as values that compose.

Places are in pixels, x to the right and y down; a turn is counter-clockwise as an image is seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.geometry import Affine


@dataclass(frozen=True, eq=False)
class Similarity:
    """Similarities of the plane that keep its orientation: place ↦ scale · turn · place + shift.

    `a @ b` does b first, as matrices do.

    Attributes:
        numbers: (..., 4) x and y of the shift, then scale · cos and scale · sin of the turn.
    """

    numbers: Tensor

    @staticmethod
    def of(
        *,
        x: Tensor | float = 0.0,
        y: Tensor | float = 0.0,
        angle: Tensor | float = 0.0,
        scale: Tensor | float = 1.0,
    ) -> Similarity:
        """Scale, turn by an angle in degrees, and move; the arguments (...) are broadcast against each other."""
        given = [value for value in (x, y, angle, scale) if isinstance(value, Tensor)]
        like = given[0] if given else torch.zeros(())
        like = like if like.is_floating_point() else like.to(torch.get_default_dtype())
        values = [
            value.to(like) if isinstance(value, Tensor) else torch.full_like(like, value)
            for value in (x, y, angle, scale)
        ]
        shared: tuple[Tensor, ...] = torch.broadcast_tensors(*values)
        x, y, angle, scale = shared
        radians = angle.deg2rad()
        return Similarity(torch.stack([x, y, scale * radians.cos(), scale * radians.sin()], dim=-1))

    @staticmethod
    def of_affine(poses: Affine) -> Similarity:
        """The similarities (...) with the shift, the angle and the scale of affine maps."""
        parts = poses.parts()
        return Similarity.of(x=parts.x, y=parts.y, angle=parts.angle, scale=parts.scale)

    @staticmethod
    def exp(steps: Tensor) -> Similarity:
        """The similarities with the coordinates (..., 4) that `log` returns."""
        x, y, radians, log_scale = steps.unbind(-1)
        scale = log_scale.exp()
        return Similarity(torch.stack([x, y, scale * radians.cos(), scale * radians.sin()], dim=-1))

    def log(self) -> Tensor:
        """Coordinates around the identity, which is zero.

        x and y are the shift itself. In the group's own logarithm they would be the velocity of the motion that turns
        while it moves; the two are equal to first order, and only these are distances in pixels.

        Returns:
            (..., 4) x and y in pixels, the turn in [-π, π] radians, and the natural logarithm of the scale.
        """
        x, y, cos, sin = self.numbers.unbind(-1)
        return torch.stack([x, y, torch.atan2(sin, cos), 0.5 * (cos * cos + sin * sin).log()], dim=-1)

    def affine(self) -> Affine:
        """The same maps as matrices."""
        x, y, cos, sin = self.numbers.unbind(-1)
        rows = torch.stack([cos, sin], dim=-1), torch.stack([-sin, cos], dim=-1)
        return Affine(torch.stack(rows, dim=-2), torch.stack([x, y], dim=-1))

    @property
    def x(self) -> Tensor:
        """(...) where the origin goes, in pixels to the right."""
        return self.numbers[..., 0]

    @property
    def y(self) -> Tensor:
        """(...) where the origin goes, in pixels down."""
        return self.numbers[..., 1]

    @property
    def radians(self) -> Tensor:
        """(...) the turn, in [-π, π]."""
        return torch.atan2(self.numbers[..., 3], self.numbers[..., 2])

    @property
    def angle(self) -> Tensor:
        """(...) the turn, in [-180, 180] degrees."""
        return self.radians * (180 / math.pi)

    @property
    def scale(self) -> Tensor:
        """(...) the factor by which lengths grow."""
        return (self.numbers[..., 2] ** 2 + self.numbers[..., 3] ** 2).sqrt()  # hypot has no ONNX operator

    def __call__(self, places: Tensor) -> Tensor:
        """Map places (..., 2)."""
        x, y, cos, sin = self.numbers.unbind(-1)
        right, down = places.unbind(-1)
        return torch.stack([cos * right + sin * down + x, cos * down - sin * right + y], dim=-1)

    def __matmul__(self, inner: Similarity) -> Similarity:
        return self.compose(inner)

    def compose(self, inner: Similarity) -> Similarity:
        """`self @ inner`, which torch.compile cannot trace as an operator: first inner, then this map."""
        _, _, cos, sin = self.numbers.unbind(-1)
        _, _, inner_cos, inner_sin = inner.numbers.unbind(-1)
        turns = [cos * inner_cos - sin * inner_sin, cos * inner_sin + sin * inner_cos]
        moved = self(inner.numbers[..., :2])
        return Similarity(torch.cat([moved, torch.stack(turns, dim=-1)], dim=-1))

    def inverse(self) -> Similarity:
        """The map that takes every place back."""
        x, y, cos, sin = self.numbers.unbind(-1)
        square = cos * cos + sin * sin
        cos, sin = cos / square, -sin / square
        return Similarity(torch.stack([-(cos * x + sin * y), sin * x - cos * y, cos, sin], dim=-1))

    def __getitem__(self, index: object) -> Similarity:
        """Some of the maps, by an index of (...)."""
        first = index if isinstance(index, tuple) else (index,)
        chosen = (*first, ..., slice(None))
        return Similarity(self.numbers[chosen])
