"""The one value that flows between capsule layers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

PRESENT = 0.5  # with several classes in an image, a class counts as found from this length on


class Capsules:
    """The capsules of a layer.

    Args:
        pose: (B, I, K) dense, or (B, T, D, H, W) maps.
        activation: (B, I) or (B, T, H, W) how present each capsule is; omit it for vector capsules, where it is the
            length of the pose.
    """

    __slots__ = ("_activation", "pose")

    def __init__(self, pose: Tensor, activation: Tensor | None = None):
        self.pose = pose
        self._activation = activation

    @property
    def activation(self) -> Tensor:
        """(B, I) or (B, T, H, W) how present each capsule is."""
        # Computed on first use: dynamic routing does not need the lengths of the children.
        if self._activation is None:
            self._activation = length(self.pose, dim=2)
        return self._activation

    def __iter__(self) -> Iterator[Tensor]:
        yield self.pose
        yield self.activation

    def __repr__(self) -> str:
        return f"Capsules(pose={tuple(self.pose.shape)}, dtype={self.pose.dtype}, device={self.pose.device})"


def as_capsules(value: Capsules | Tensor) -> Capsules:
    """Accept a plain pose tensor wherever capsules are expected."""
    return value if isinstance(value, Capsules) else Capsules(value)


def length(pose: Tensor, dim: int = -1) -> Tensor:
    """Compute the length of each pose vector; its gradient at zero is zero.

    Args:
        pose: (..., D, ...) with D at dim.
        dim: the axis of a vector.

    Returns:
        (..., ...) at least float32.
    """
    return torch.linalg.vector_norm(pose, dim=dim, dtype=torch.promote_types(pose.dtype, torch.float32))
