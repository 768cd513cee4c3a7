"""Conversions between whole tensors and DTensors, of which each rank has a shard.

DTensors are recognised by their methods: importing their type takes as long as importing all of torchcaps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor."""
    return hasattr(tensor, "full_tensor")


def gather(tensor: Any) -> Tensor:
    """The whole tensor. For a DTensor this is a collective: every rank must call it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def shard_like(tensor: Tensor, other: Any) -> Tensor:
    """A whole tensor, sharded as `other` is, or with its memory layout if that is not sharded."""
    if is_sharded(other):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)
    return torch.empty_like(other).copy_(tensor)


def local_shards(tensors: Iterable[Any]) -> list[Tensor]:
    """This rank's shard of each tensor; whole tensors as they are."""
    return [tensor.to_local() if is_sharded(tensor) else tensor for tensor in tensors]
