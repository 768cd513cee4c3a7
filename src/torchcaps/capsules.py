"""The one value that flows between capsule layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchcaps.checks import check_floats

PRESENT = 0.5  # with several classes in an image, a class counts as found from this length on


class Capsules(tuple):
    """The capsules of a layer.

    It is an immutable tuple of the tensors that it holds, so that hooks, DDP, FSDP2, `torch.compile`, `torch.export`
    and `torch.func` find them: `(pose,)` of vector capsules, else `(pose, activation)`. Read them by name.

    Attributes:
        pose: (B, I, K) dense, or (B, T, D, H, W) maps.
        activation: (B, I) or (B, T, H, W) how present each capsule is; omit it for vector capsules, where it is the
            length of the pose.
    """

    __slots__ = ()

    def __new__(cls, pose: Tensor, activation: Tensor | None = None) -> Capsules:
        if isinstance(pose, (list, tuple, Iterator)):  # FSDP2 and others rebuild tuples from a list of what they hold
            return tuple.__new__(cls, pose)
        return tuple.__new__(cls, (pose,) if activation is None else (pose, activation))

    @property
    def pose(self) -> Tensor:
        """(B, I, K) or (B, T, D, H, W) the poses."""
        return self[0]

    @property
    def activation(self) -> Tensor:
        """(B, I) or (B, T, H, W) how present each capsule is."""
        # Lengths are computed on each request: dynamic routing never asks for those of the children.
        return self[1] if len(self) > 1 else length(self[0], dim=2)

    def __getnewargs__(self) -> tuple[Tensor, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"Capsules(pose={tuple(self.pose.shape)}, dtype={self.pose.dtype}, device={self.pose.device})"


def _flatten_with_keys(capsules: Capsules) -> tuple[list[tuple[Any, Tensor]], None]:
    return [(pytree.GetAttrKey(name), x) for name, x in zip(("pose", "activation"), capsules)], None


pytree.register_pytree_node(
    Capsules,
    lambda capsules: (list(capsules), None),
    lambda tensors, _: Capsules(*tensors),
    serialized_type_name="torchcaps.Capsules",
    flatten_with_keys_fn=_flatten_with_keys,
)


def as_capsules(value: Capsules | Tensor | tuple[Tensor, Tensor | None], name: str = "capsules") -> Capsules:
    """Accept a plain pose tensor, or a pair of pose and activation, wherever capsules are expected.

    Args:
        value: raises a TypeError if it is something else, or holds integers.
        name: of the layer, for the message.
    """
    if isinstance(value, tuple):  # checkpointing with use_reentrant=True turns capsules into a plain one
        capsules = value if isinstance(value, Capsules) else Capsules(*value)
    elif isinstance(value, Tensor):
        capsules = Capsules(value)
    else:
        raise TypeError(
            f"{name}: expected Capsules or a tensor of poses, got {type(value).__name__}; convert arrays with "
            "torch.as_tensor"
        )
    pose, activation = capsules[0], capsules[1] if len(capsules) > 1 else None
    check_floats(name, poses=pose, activation=activation)
    if activation is not None and activation.shape != (expected := (*pose.shape[:2], *pose.shape[3:])):
        raise ValueError(
            f"{name}: expected one activation for each capsule, {tuple(expected)} for poses of shape "
            f"{tuple(pose.shape)}, got {tuple(activation.shape)}"
        )
    return capsules


def length(pose: Tensor, dim: int = -1) -> Tensor:
    """Compute the length of each pose vector; its gradient at zero is zero.

    Args:
        pose: (..., D, ...) with D at dim.
        dim: the axis of a vector.

    Returns:
        (..., ...) at least float32.
    """
    return torch.linalg.vector_norm(pose, dim=dim, dtype=torch.promote_types(pose.dtype, torch.float32))
