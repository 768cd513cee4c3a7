"""From a convolution's maps to the first capsules: bias, scale, squash and re-ordering in one pass.

`torchcaps::squash_maps` and its backward are PyTorch operators that run as Triton kernels on CUDA; elsewhere plain
PyTorch does the same.
"""

# No `from __future__ import annotations`: torch.library reads the schema off the annotations.
from typing import Any, Optional

import torch
from torch import Tensor

from torchcaps.ops.dispatch import triton_kernels
from torchcaps.ops.squash import squash


def squash_maps(maps: Tensor, bias: Optional[Tensor], dim: int, scale: float = 1.0) -> Tensor:
    """Read every `dim` neighbouring channels at a position as one capsule, and squash it.

    maps     (B, T·dim, H, W)  T types of capsules
    bias     (T·dim,)          added to scale · maps before squashing
    returns  (B, T·H·W, dim), ordered type first, then row, then column
    """
    if maps.ndim != 4 or maps.shape[1] % dim:
        raise ValueError(f"squash_maps: maps must be (B, T·{dim}, H, W), got {tuple(maps.shape)}")
    if triton_kernels(maps) and maps.numel() > 0:
        return _squash_maps(maps, bias, dim, scale)
    return reference(maps, bias, dim, scale)


def reference(maps: Tensor, bias: Optional[Tensor], dim: int, scale: float) -> Tensor:
    B, C, H, W = maps.shape
    # A capsule is `dim` neighbouring channels at one position: split the channels first, then move them last.
    # Reshaping (B, C, H, W) straight to (B, I, dim) would mix positions into the pose.
    sums_BTDX = maps.reshape(B, C // dim, dim, H * W)
    if scale != 1:
        sums_BTDX = sums_BTDX * scale
    if bias is not None:
        sums_BTDX = sums_BTDX + bias.view(-1, dim, 1)
    return squash(sums_BTDX, dim=2).transpose(2, 3).reshape(B, C // dim * H * W, dim).to(maps.dtype)


@torch.library.custom_op("torchcaps::squash_maps", mutates_args=())
def _squash_maps(maps: Tensor, bias: Optional[Tensor], dim: int, scale: float) -> Tensor:
    from torchcaps.ops import primary_kernels

    return primary_kernels.forward(maps, bias, dim, scale)


@torch.library.custom_op("torchcaps::squash_maps_backward", mutates_args=())
def _squash_maps_backward(
    grad: Tensor, maps: Tensor, bias: Optional[Tensor], dim: int, scale: float
) -> tuple[Tensor, Tensor]:
    from torchcaps.ops import primary_kernels

    return primary_kernels.backward(grad, maps, bias, dim, scale)


@_squash_maps.register_fake
def _(maps: Tensor, bias: Optional[Tensor], dim: int, scale: float) -> Tensor:
    B, C, H, W = maps.shape
    return maps.new_empty(B, C // dim * H * W, dim)


@_squash_maps_backward.register_fake
def _(grad: Tensor, maps: Tensor, bias: Optional[Tensor], dim: int, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(maps), maps.new_empty(0 if bias is None else maps.shape[1], dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    maps, bias, ctx.dim, ctx.scale = inputs
    ctx.save_for_backward(maps, bias)


def _backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
    maps, bias = ctx.saved_tensors
    dmaps, dbias = _squash_maps_backward(grad, maps, bias, ctx.dim, ctx.scale)
    return dmaps, None if bias is None else dbias.to(bias.dtype), None, None


_squash_maps.register_autograd(_backward, setup_context=_save)
