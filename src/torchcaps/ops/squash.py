"""The squashing function: direction kept, length brought into [0, 1)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torchcaps.checks import check_floats
from torchcaps.ops.dispatch import exporting

# Lengths are taken of x/256: the sum of up to 65,536 squares then never overflows where one square does not.
# A vector that underflows instead is so short that its squash rounds to zero anyway.
RANGE = 256.0


def squash(x: Tensor, dim: int = -1) -> Tensor:
    """Shrink each vector to length |x|²/(1+|x|²), keeping its direction (Eq. 1); zero stays zero, with zero gradient.

    Args:
        x: (..., D, ...) with D at dim.
        dim: the axis of a vector.

    Returns:
        The same shape and dtype; bf16 and fp16 are computed in float32.
    """
    check_floats("squash", x=x)
    wide = at_least_float32(x)
    near, far = _sine_cosine(wide, dim)[1:]
    return (wide * (near * far)).to(x.dtype)


def squash_backward(x: Tensor, grad: Tensor, dim: int = -1) -> Tensor:
    """Compute the gradient at x from the gradient at squash(x), both (..., D, ...) with D at dim.

    With |x| = tan φ the squash scales x by f = sin φ cos φ, and its Jacobian is f·(1 + cos 2φ · e eᵀ), e = x/|x|.
    """
    norm, near, far = _sine_cosine(x, dim)
    direction = x / torch.where(norm > 0, norm, 1)
    along = (direction * grad).sum(dim, keepdim=True)
    return (near * far) * (grad + (near * near - far * far) * along * direction)


def at_least_float32(x: Tensor) -> Tensor:
    """Convert to the type of sums and exponentials: float32, or float64 if x is float64 already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast inside the block: products keep the precision of their factors."""
    # Tensors on "meta" have no autocast. torch.amp.is_autocast_available would say so, but breaks graphs in torch 2.11.
    enabled = not x.is_meta and torch.is_autocast_enabled(x.device.type)
    return torch.autocast(x.device.type, enabled=False) if enabled else nullcontext()


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the type that autocast chooses for products on the device of x, or None where it is not enabled."""
    kind = x.device.type
    if x.is_meta or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def _sine_cosine(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """|x|, 1/√(1+|x|²) and |x|/√(1+|x|²), with D kept as 1: no square of |x| is ever formed."""
    norm = _norm(x / RANGE, dim) * RANGE
    hypotenuse = _hypotenuse(norm) if exporting() else torch.hypot(norm, norm.new_ones(()))
    return norm, 1 / hypotenuse, norm / hypotenuse


def _hypotenuse(norm: Tensor) -> Tensor:
    """√(1+|x|²) for ONNX, which has no hypot; it may differ from that in the last digit."""
    large = norm.clamp_min(1)
    return large * (1 + (norm.clamp_max(1) / large).square()).sqrt()


def _norm(x: Tensor, dim: int) -> Tensor:
    """|x| with D kept as 1; its gradient at zero is zero."""
    if dim in (-1, x.ndim - 1):
        return torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    squares = x.square().sum(dim, keepdim=True)  # over an axis within, vector_norm is not vectorised on a CPU
    there = squares > 0
    return torch.where(there, squares, 1).sqrt() * there
