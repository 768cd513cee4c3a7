"""From a convolution's maps to the first capsules: bias, scale, squash and re-ordering in one pass.

Triton kernels on CUDA, a few tensor operations elsewhere.
"""

# No `from __future__ import annotations`: torch.library reads the schema from the annotations.
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from torchcaps.checks import check_floats
from torchcaps.ops import native
from torchcaps.ops.dispatch import choose
from torchcaps.ops.operator import Gradients, Operator
from torchcaps.ops.squash import at_least_float32, squash, squash_backward

FEW = 2**13  # values of maps for which ten operations take longer than their sums


def squash_maps(maps: Tensor, bias: Optional[Tensor], dim: int, scale: float = 1.0) -> Tensor:
    """Read every `dim` neighbouring channels at a position as one capsule, and squash it.

    Args:
        maps: (B, T·dim, H, W) of T types of capsules.
        bias: (T·dim,) added to scale · maps before squashing.
        dim: dimensions of a capsule.
        scale: factor of the maps.

    Returns:
        (B, T·H·W, dim) ordered type first, then row, then column.
    """
    check_floats("squash_maps", maps=maps, bias=bias)
    if maps.ndim != 4 or maps.shape[1] % dim:
        raise ValueError(f"squash_maps: maps must be (B, T·{dim}, H, W), got {tuple(maps.shape)}")
    if bias is not None and bias.shape != maps.shape[1:2]:
        raise ValueError(f"squash_maps: bias must be ({maps.shape[1]},), got {tuple(bias.shape)}")
    limit = f"capsules of {dim} dimensions are beyond 256" if dim > 256 else None  # a program holds 128 capsules
    backend = choose("squash_maps", maps, limit=limit)
    if backend == "reference":
        return reference(maps, bias, dim, scale)
    return _squash_maps(maps, bias, dim, scale, backend == "fused")[0]


def reference(maps: Tensor, bias: Optional[Tensor], dim: int, scale: float) -> Tensor:
    """As `squash_maps`, in plain tensor operations."""
    return squash(_sums(maps, bias, dim, scale)).flatten(1, 2).to(maps.dtype)


def _sums(maps: Tensor, bias: Optional[Tensor], dim: int, scale: float) -> Tensor:
    """The vectors to squash (B, T, H·W, dim), contiguous: norms along the innermost axis are many times faster."""
    B, C, H, W = maps.shape
    # A capsule is `dim` neighbouring channels at one position: split the channels first, then move them last.
    # Reshaping (B, C, H, W) straight to (B, I, dim) would mix positions into the pose.
    sums_BTXD = at_least_float32(maps.reshape(B, C // dim, dim, H * W).transpose(2, 3).contiguous())
    if scale != 1:
        sums_BTXD = sums_BTXD * scale
    return sums_BTXD if bias is None else sums_BTXD + bias.view(-1, 1, dim)


def _forward(maps: Tensor, bias: Optional[Tensor], dim: int, scale: float, fused: bool) -> Tensor:
    if not fused:
        given = (maps,) if bias is None else (maps, bias)
        if maps.numel() <= FEW and maps.is_contiguous() and native.serves(*given):
            return native.squash_maps(maps, bias, dim, scale)
        return reference(maps, bias, dim, scale)
    from torchcaps.ops import primary_kernels

    return primary_kernels.forward(maps, bias, dim, scale)


def _backward(
    grad: Tensor, maps: Tensor, bias: Optional[Tensor], dim: int, scale: float, fused: bool, needs: list[bool]
) -> tuple[Tensor, Tensor]:
    """Gradients of maps and bias, empty where none is needed."""
    if fused:
        from torchcaps.ops import primary_kernels

        return primary_kernels.backward(grad, maps, bias, dim, scale, needs)
    sums_BTXD = _sums(maps, bias, dim, scale)
    ds_BTXD = squash_backward(sums_BTXD, grad.reshape(sums_BTXD.shape).to(sums_BTXD.dtype))
    dbias = ds_BTXD.sum((0, 2)).flatten() if needs[1] else ds_BTXD.new_empty(0)
    dbias = dbias.to(torch.promote_types(maps.dtype, torch.float32))
    if not needs[0]:
        return maps.new_empty(0), dbias
    if scale != 1:
        ds_BTXD *= scale
    return torch.empty_like(maps).copy_(ds_BTXD.transpose(2, 3).reshape(maps.shape)), dbias


def _fake(maps: Tensor, bias: Optional[Tensor], dim: int, scale: float, fused: bool) -> Tensor:
    B, C, H, W = maps.shape
    return maps.new_empty(B, C // dim * H * W, dim)


def _fake_backward(
    grad: Tensor, maps: Tensor, bias: Optional[Tensor], dim: int, scale: float, fused: bool, needs: list[bool]
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(maps.dtype, torch.float32)
    dmaps = torch.empty_like(maps) if needs[0] else maps.new_empty(0)
    return dmaps, maps.new_empty(maps.shape[1] if needs[1] else 0, dtype=wide)


def _gradients(
    backward: Callable[..., Any], grads: Any, tensors: Any, kept: Any, constants: Any, needs: Any
) -> Gradients:
    bias = tensors[1]
    dmaps, dbias = backward(*grads, *tensors, *constants, list(needs))
    return dmaps, None if bias is None else dbias.to(bias.dtype)


def _no_products(*inputs: Any, out_shape: Any) -> int:
    return 0


_squash_maps = Operator(
    "torchcaps::squash_maps",
    forward=_forward,
    fake=_fake,
    backward=_backward,
    fake_backward=_fake_backward,
    gradients=_gradients,
    reference=lambda maps, bias, dim, scale, fused: (reference(maps, bias, dim, scale),),
    tensors=2,
    results=1,
    flops=_no_products,
    flops_backward=_no_products,
)
