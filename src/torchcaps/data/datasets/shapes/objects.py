"""What is in an image: objects of one level, each with class, position, angle, scale and the object it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from torchcaps.data.datasets.shapes.parts import PART_KINDS
from torchcaps.geometry import Affine


@dataclass(frozen=True, eq=False)
class Objects:
    """Parts or wholes in B images, N in each, of which some are only padding.

    Positions, angles and scales mean the same as in `torchcaps.models.base.Placement`. Padding has label 0, position 0,
    angle 0, scale 1 and owner -1.

    Attributes:
        names: of the classes.
        label: (B, N) int64, position of the class in `names`.
        x: (B, N) centroid in pixels; 0 is the middle of the leftmost pixel.
        y: (B, N) centroid in pixels, downwards; 0 is the middle of the topmost pixel.
        angle: (B, N) degrees, counter-clockwise as the image is seen, in (-180, 180].
        scale: (B, N) size relative to that in the tables, in `parts` and `wholes`.
        owner: (B, N) int64, position of the whole that it is a part of, among the objects of the next level; -1 if it
            belongs to none.
        present: (B, N) bool, False for padding.
    """

    names: tuple[str, ...]
    label: Tensor
    x: Tensor
    y: Tensor
    angle: Tensor
    scale: Tensor
    owner: Tensor
    present: Tensor

    @staticmethod
    def of(names: Sequence[str], label: Tensor, poses: Affine, owner: Tensor, present: Tensor) -> Objects:
        """Make objects whose poses (B, N) map their frames to places from the middle of the upper left pixel."""
        x, y, angle, scale, *_ = (part.where(present, 0.0) for part in poses.parts())
        scale = scale.where(present, 1.0)
        return Objects(
            tuple(names), label.where(present, 0), x, y, angle, scale, owner.where(present, -1), present.clone()
        )

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "names"}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Objects:
        """Objects of the same classes with other tensors, by name."""
        return Objects(self.names, **tensors)

    def __getitem__(self, images: Any) -> Objects:
        """The objects of some images, given by a slice, positions or a mask."""
        return self.with_tensors({name: tensor[images] for name, tensor in self.tensors().items()})

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Objects:
        """The same on a device; positions, angles and scales of a floating point type."""
        return self.with_tensors(
            {
                name: tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)
                for name, tensor in self.tensors().items()
            }
        )

    def poses(self, size: tuple[int, int] | None = None) -> Affine:
        """The maps (B, N) from the objects' frames to the image.

        Args:
            size: H and W of the image: places are from its centre, as everywhere in `torchcaps.geometry`. Without it
                they are from the middle of the upper left pixel, as `x` and `y`.
        """
        down, right = (0.0, 0.0) if size is None else ((side - 1) / 2 for side in size)
        return Affine.of(x=self.x - right, y=self.y - down, angle=self.angle, scale=self.scale)

    @property
    def symmetry(self) -> Tensor:
        """(B, N) how many turns within a full circle map an object onto itself: angles are equal modulo 360 / symmetry.

        0 stands for every turn, so the angle means nothing.
        """
        known = [PART_KINDS[name].symmetry if name in PART_KINDS else 1 for name in self.names]
        return torch.tensor(known, device=self.label.device)[self.label]


def join(parts: Sequence[Objects], dim: int = 0) -> Objects:
    """Concatenate objects of the same classes: along the images (0), or those of each image (1)."""
    columns = [part.tensors() for part in parts]
    return parts[0].with_tensors({name: torch.cat([each[name] for each in columns], dim) for name in columns[0]})
