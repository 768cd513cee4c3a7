"""Tensors of which each process has a piece, and whole ones: from one to the other.

Told apart by what they can do: importing what would tell their types takes as long as importing all of torchcaps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def in_pieces(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def whole(tensor: Any) -> Tensor:
    """All of it; if it is in pieces every process has to ask."""
    return tensor.full_tensor() if in_pieces(tensor) else tensor


def like(tensor: Tensor, other: Any) -> Tensor:
    """A whole tensor in pieces as another is, or laid out in memory as that is."""
    if in_pieces(other):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)
    return torch.empty_like(other).copy_(tensor)


def pieces(tensors: Iterable[Any]) -> list[Tensor]:
    """What this process has of each."""
    return [tensor.to_local() if in_pieces(tensor) else tensor for tensor in tensors]
