"""Poses: affine maps as values that compose, and lattices of them.

Places are in pixels from the centre of an image, x to the right and y down. Angles are in degrees, counter-clockwise as
an image is seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.errors import UserError

KNOTS = 5  # on each side of a random bend
MAX_POSES = 1000  # of a lattice: a file that describes more is not followed


class Parts(NamedTuple):
    """An affine map in the units that a person would use, each (...).

    Attributes:
        x, y: where it takes the origin, in pixels.
        angle: of the image of the x axis, in (-180, 180] degrees.
        scale: the square root of the area that a unit square takes.
        stretch: how much wider than high a square becomes, before it is sheared.
        shear: how far a place moves to the right for each pixel that it lies higher.
    """

    x: Tensor
    y: Tensor
    angle: Tensor
    scale: Tensor
    stretch: Tensor
    shear: Tensor


@dataclass(frozen=True)
class Affine:
    """Affine maps of the plane that keep its orientation: place ↦ linear · place + shift.

    `a @ b` does b first, as matrices do.

    Attributes:
        linear: (..., 2, 2) with a positive determinant.
        shift: (..., 2) x and y, in pixels.
    """

    linear: Tensor
    shift: Tensor

    @staticmethod
    def of(
        *,
        x: Tensor | float = 0.0,
        y: Tensor | float = 0.0,
        angle: Tensor | float = 0.0,
        scale: Tensor | float = 1.0,
        stretch: Tensor | float = 1.0,
        shear: Tensor | float = 0.0,
    ) -> Affine:
        """Stretch, scale, shear, turn and move, in this order; the arguments (...) are broadcast against each other."""
        given = [value for value in (x, y, angle, scale, stretch, shear) if isinstance(value, Tensor)]
        like = given[0] if given else torch.zeros(())
        like = like if like.is_floating_point() else like.to(torch.get_default_dtype())
        # Filled, not copied from the host: a CUDA graph can record it.
        values = [
            value.to(like) if isinstance(value, Tensor) else torch.full_like(like, value)
            for value in (x, y, angle, scale, stretch, shear)
        ]
        shared: tuple[Tensor, ...] = torch.broadcast_tensors(*values)
        x, y, angle, scale, stretch, shear = shared
        cos, sin = angle.deg2rad().cos(), angle.deg2rad().sin()
        across, down = scale * stretch.sqrt(), scale / stretch.sqrt()
        slant = -shear * down
        first = torch.stack([across * cos, -across * sin], dim=-1)
        second = torch.stack([slant * cos + down * sin, down * cos - slant * sin], dim=-1)
        return Affine(torch.stack([first, second], dim=-1), torch.stack([x, y], dim=-1))

    def parts(self) -> Parts:
        """What `of` would have to be given. Differentiable where the map can be inverted."""
        (a, b), (c, d) = (row.unbind(-1) for row in self.linear.unbind(-2))
        across = torch.hypot(a, c)
        angle = torch.atan2(-c, a)
        down = (a * d - b * c) / across
        slant = (a * b + c * d) / across
        scale = (across * down).sqrt()
        return Parts(self.shift[..., 0], self.shift[..., 1], angle.rad2deg(), scale, across / down, -slant / down)

    def __matmul__(self, inner: Affine) -> Affine:
        return Affine(self.linear @ inner.linear, self(inner.shift))

    def __call__(self, places: Tensor) -> Tensor:
        """Map places (..., 2)."""
        return _times(self.linear, places) + self.shift

    def inverse(self) -> Affine:
        """The map that takes every place back."""
        (a, b), (c, d) = (row.unbind(-1) for row in self.linear.unbind(-2))
        adjugate = torch.stack([torch.stack([d, -b], dim=-1), torch.stack([-c, a], dim=-1)], dim=-2)
        linear = adjugate / (a * d - b * c)[..., None, None]
        return Affine(linear, -_times(linear, self.shift))

    def interpolate(self, other: Affine, share: Tensor | float) -> Affine:
        """Go from this map (share 0) to another (share 1), turning the shorter way and scaling by equal factors.

        The way depends only on how the two stand to each other: `(c @ a).interpolate(c @ b, t)` is
        `c @ a.interpolate(b, t)`.
        """
        step = (self.inverse() @ other).parts()
        return self @ Affine.of(
            x=step.x * share,
            y=step.y * share,
            angle=step.angle * share,
            scale=step.scale**share,
            stretch=step.stretch**share,
            shear=step.shear * share,
        )

    def __getitem__(self, index: object) -> Affine:
        return Affine(self.linear[index], self.shift[index])  # type: ignore[index]

    def to(self, like: Tensor) -> Affine:
        """The same maps with the type and on the device of a tensor."""
        return Affine(self.linear.to(like), self.shift.to(like))


def sampling_grid(poses: Affine, view_size: tuple[int, int], image_size: tuple[int, int]) -> Tensor:
    """Where in an image each pixel of a view lies, as `torch.nn.functional.grid_sample` wants it.

    Args:
        poses: (...) from a place in the view to one in the image, each in pixels from its centre.
        view_size: rows and columns of the view.
        image_size: rows and columns of the image.

    Returns:
        (..., h, w, 2) with align_corners=False.
    """
    # In these coordinates an image reaches from -1 to 1.
    halves = torch.stack([poses.shift.new_full((), 2 / image_size[1]), poses.shift.new_full((), 2 / image_size[0])])
    linear, shift = poses.linear * halves[:, None], poses.shift * halves
    return _times(linear[..., None, None, :, :], pixel_places(view_size, linear)) + shift[..., None, None, :]


def _times(linear: Tensor, places: Tensor) -> Tensor:
    """Matrices (..., 2, 2) times places (..., 2), in float32 under autocast; far faster than many small products."""
    return linear[..., 0] * places[..., :1] + linear[..., 1] * places[..., 1:]


def pixel_places(size: tuple[int, int], like: Tensor) -> Tensor:
    """(h, w, 2) x and y of every pixel, from the centre of an image of this size; of the type and device of `like`."""
    y = torch.arange(size[0], dtype=like.dtype, device=like.device) - (size[0] - 1) / 2
    x = torch.arange(size[1], dtype=like.dtype, device=like.device) - (size[1] - 1) / 2
    return torch.stack([x.expand(size[0], -1), y[:, None].expand(-1, size[1])], dim=-1)


def view(images: Tensor, poses: Affine, size: tuple[int, int], bend: Tensor | None = None) -> Tensor:
    """See images (B, C, H, W) through poses, by bilinear interpolation; outside the image everything is 0.

    Args:
        images: (B, C, H, W).
        poses: (G) the same for every image, or (B, G).
        size: rows and columns of a view.
        bend: (B, G, h, w, 2) pixels of the image, right and down, that each place of a view is moved by; for poses
            (B, G) only.

    Returns:
        (B, G, C, h, w). What stands in the image by a pose stands upright, in the centre, in its view.
    """
    B, C, H, W = images.shape
    grid = sampling_grid(poses.to(images), size, (H, W))
    if bend is not None:
        grid = grid + torch.stack([bend[..., 0] * (2 / W), bend[..., 1] * (2 / H)], dim=-1)
    if grid.ndim == 4:  # one grid for all: images are taken for channels, so each place is computed once
        G = grid.shape[0]
        stacked = images.reshape(1, B * C, H, W).expand(G, -1, -1, -1)
        seen = F.grid_sample(stacked, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        return seen.view(G, B, C, *size).transpose(0, 1)
    G = grid.shape[1]
    repeated = images[:, None].expand(-1, G, -1, -1, -1).reshape(B * G, C, H, W)
    seen = F.grid_sample(repeated, grid.flatten(0, 1), mode="bilinear", padding_mode="zeros", align_corners=False)
    return seen.view(B, G, C, *size)


def mean_angle(angles: Tensor, weights: Tensor) -> Tensor:
    """Take the direction of the weighted sum of unit vectors.

    Args:
        angles: (B, G, …) degrees.
        weights: of the same shape, or one that expands to it.

    Returns:
        (B, …) degrees in [-180, 180].
    """
    radians = angles.deg2rad()
    return torch.atan2((weights * radians.sin()).sum(1), (weights * radians.cos()).sum(1)).rad2deg()


def half_turn(angle: Tensor) -> Tensor:
    """The same angle in [-180, 180) degrees."""
    return (angle + 180) % 360 - 180


def random_bend(shape: tuple[int, int], size: tuple[int, int], pixels: float, device: torch.device) -> Tensor:
    """Draw smooth random displacements: normal at the knots of a 5×5 grid, by bicubic interpolation between them.

    Args:
        shape: B and G.
        size: rows h and columns w.
        pixels: the standard deviation at a knot.

    Returns:
        (B, G, h, w, 2).
    """
    knots = pixels * torch.randn(math.prod(shape), 2, KNOTS, KNOTS, device=device)
    smooth = F.interpolate(knots, size=size, mode="bicubic", align_corners=True)
    return smooth.permute(0, 2, 3, 1).unflatten(0, shape)


@dataclass(frozen=True)
class Lattice:
    """A regular set of poses without a shift: every angle with every scale, stretch and shear.

    Attributes:
        angles: degrees, evenly spaced and increasing.
        scales, stretches: factors, increasing by equal factors.
        shears: pixels to the right for each pixel up, evenly spaced and increasing.
    """

    angles: tuple[float, ...] = (0.0,)
    scales: tuple[float, ...] = (1.0,)
    stretches: tuple[float, ...] = (1.0,)
    shears: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        for name, values in zip(("angles", "scales", "stretches", "shears"), self._axes()):
            if not values or list(values) != sorted(set(values)) or not all(map(math.isfinite, values)):
                raise UserError(f"lattice {name}: give one or more increasing numbers, got {values}")
            if name in ("scales", "stretches") and values[0] <= 0:
                raise UserError(f"lattice {name}: factors must be greater than 0, got {values[0]}")
        if len(self) > MAX_POSES:
            raise UserError(f"lattice: {len(self)} poses are more than {MAX_POSES}; give fewer angles or factors")
        if self.angles[-1] - self.angles[0] >= 360:
            raise UserError(f"lattice angles: {self.angles[0]} and {self.angles[-1]} are a full circle or more apart")

    @staticmethod
    def regular(
        turn: float = 60.0,
        turn_step: float = 15.0,
        scales: Sequence[float] = (0.8, 1.0, 1.25),
        stretches: Sequence[float] = (1.0,),
        shears: Sequence[float] = (0.0,),
    ) -> Lattice:
        """Angles from -turn to turn in equal steps; 180 is the full circle, which must be a whole number of steps."""
        if not 0 <= turn <= 180 or not 0 < turn_step < math.inf:
            raise UserError(f"lattice: turn must lie in 0 to 180 and turn_step above 0, got {turn} and {turn_step}")
        steps = turn / turn_step
        if 2 * steps > MAX_POSES:
            raise UserError(
                f"lattice: steps of {turn_step} degrees make more than {MAX_POSES} poses; give a larger turn_step"
            )
        if abs(steps - round(steps)) > 1e-9:
            raise UserError(f"lattice: {turn} degrees are not a whole number of steps of {turn_step}")
        count = round(steps)
        angles = [index * turn_step for index in range(-count, count + 1)]
        return Lattice(tuple(angles[1:] if turn == 180 else angles), tuple(scales), tuple(stretches), tuple(shears))

    def _axes(self) -> tuple[tuple[float, ...], ...]:
        return self.angles, self.scales, self.stretches, self.shears

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """How many angles, scales, stretches and shears there are."""
        return tuple(len(axis) for axis in self._axes())  # type: ignore[return-value]

    def __len__(self) -> int:
        return math.prod(self.shape)

    @property
    def full_circle(self) -> bool:
        """Whether the step after the last angle is the first."""
        if len(self.angles) < 2:
            return False
        step = self.angles[1] - self.angles[0]
        return math.isclose(self.angles[-1] - self.angles[0] + step, 360.0)

    @property
    def identity(self) -> int:
        """The number of the pose nearest to no change at all."""
        nearest = [min(range(len(axis)), key=lambda i: abs(axis[i])) for axis in (self.angles, self.shears)]
        factors = [
            min(range(len(axis)), key=lambda i: abs(math.log(axis[i]))) for axis in (self.scales, self.stretches)
        ]
        _, S, R, K = self.shape
        return ((nearest[0] * S + factors[0]) * R + factors[1]) * K + nearest[1]

    def coarse(self, degrees: float) -> Lattice:
        """A lattice of angles alone: the centres of equal parts of the range, each at most `degrees` wide.

        Their number is odd unless the range is the full circle.
        """
        if self.full_circle:
            parts = math.ceil(360 / degrees)
            return Lattice(tuple(360 / parts * index for index in range(1 - math.ceil(parts / 2), parts // 2 + 1)))
        reach = max(-self.angles[0], self.angles[-1])
        half = math.ceil((2 * reach / degrees - 1) / 2)  # parts on each side of the middle one
        step = 2 * reach / (2 * half + 1)
        return Lattice(tuple(step * index for index in range(-half, half + 1))) if half > 0 else Lattice()

    def poses(self) -> Affine:
        """(G) in float64: shears change fastest, then stretches, scales and angles."""
        grids = torch.meshgrid(*(torch.tensor(axis, dtype=torch.float64) for axis in self._axes()), indexing="ij")
        angle, scale, stretch, shear = (grid.flatten() for grid in grids)
        return Affine.of(angle=angle, scale=scale, stretch=stretch, shear=shear)
