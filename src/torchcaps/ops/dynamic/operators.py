"""Dynamic routing as operations with a hand-written gradient: `chunked` and `fused`.

There are two because the kernels keep two more tensors for the backward.
"""

# No `from __future__ import annotations`: torch.library reads the schema from the annotations.
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from torchcaps.ops.dispatch import float32_precision
from torchcaps.ops.dynamic import chunked as by_products
from torchcaps.ops.dynamic import reference
from torchcaps.ops.operator import Gradients, Operator
from torchcaps.ops.squash import no_autocast


def _forward_chunked(
    u: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    iterations: int,
    leaky: bool,
    inverse_temperature: float,
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Poses (B, J, D), couplings (B, I, J) or empty, and sums (R, B, J, D) for the backward."""
    dtype = torch.promote_types(u.dtype, weight.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    bias = u.new_zeros(weight.shape[1:3], dtype=wide) if bias is None else bias.to(wide)
    with no_autocast(u):
        constants = (iterations, leaky, inverse_temperature, couplings)
        poses, coupled, sums = by_products.forward(u.to(wide), weight.to(wide), bias, *constants)
    if dtype != wide:
        poses, coupled = poses.to(dtype), coupled.to(dtype)
    return poses, coupled, sums


def _backward_chunked(
    grad: Tensor,
    grad_couplings: Optional[Tensor],
    u: Tensor,
    weight: Tensor,
    sums: Tensor,
    leaky: bool,
    inverse_temperature: float,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of u, weight and bias, empty where none is needed."""
    wide = sums.dtype
    grad_couplings = None if grad_couplings is None else grad_couplings.to(wide)
    with no_autocast(u):
        given = grad.to(wide), grad_couplings, u.to(wide), weight.to(wide), sums
        du, dweight, dbias = by_products.backward(*given, leaky, inverse_temperature, needs)
    return du.to(u.dtype), dweight.to(weight.dtype), dbias


def _fake_chunked(
    u: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    iterations: int,
    leaky: bool,
    inverse_temperature: float,
    couplings: bool,
) -> tuple[Tensor, ...]:
    (B, I, _), (J, D) = u.shape, weight.shape[1:3]
    dtype = torch.promote_types(u.dtype, weight.dtype)
    poses, coupled = u.new_empty(B, J, D, dtype=dtype), u.new_empty((B, I, J) if couplings else (0,), dtype=dtype)
    return poses, coupled, u.new_empty(iterations, B, J, D, dtype=torch.promote_types(dtype, torch.float32))


def _fake_backward_chunked(
    grad: Tensor,
    grad_couplings: Optional[Tensor],
    u: Tensor,
    weight: Tensor,
    sums: Tensor,
    leaky: bool,
    inverse_temperature: float,
    needs: list[bool],
) -> tuple[Tensor, ...]:
    du, dweight, dbias = torch.empty_like(u), torch.empty_like(weight), sums.new_empty(weight.shape[1:3])
    return tuple(x if need else x.new_empty(0) for x, need in zip((du, dweight, dbias), needs))


def _gradients_chunked(
    backward: Callable[..., Any], grads: Any, tensors: Any, kept: Any, constants: Any, needs: Any
) -> Gradients:
    (grad, grad_couplings), (u, weight, bias), (sums,) = grads, tensors, kept
    if grad is None:  # only the couplings were used
        grad = torch.zeros_like(sums[0])
    _, leaky, inverse_temperature, couplings = constants
    grad_couplings = grad_couplings if couplings else None
    du, dweight, dbias = backward(grad, grad_couplings, u, weight, sums, leaky, inverse_temperature, list(needs))
    return du, dweight, None if bias is None else dbias.to(bias.dtype)


def _forward_fused(
    u: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    iterations: int,
    leaky: bool,
    inverse_temperature: float,
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Poses (B, J, D), couplings (B, I, J) or empty; sums (R, B, J, D), agreed and logsums for the backward."""
    from torchcaps.ops.dynamic import fused as kernels

    return kernels.forward(u, weight, bias, iterations, leaky, inverse_temperature, couplings)


def _backward_fused(
    grad: Tensor,
    u: Tensor,
    weight: Tensor,
    sums: Tensor,
    agreed: Tensor,
    logsums: Tensor,
    leaky: bool,
    inverse_temperature: float,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of u, weight and bias, empty where none is needed."""
    from torchcaps.ops.dynamic import fused as kernels

    return kernels.backward(grad, u, weight, sums, agreed, logsums, leaky, inverse_temperature, needs)


def _fake_fused(
    u: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    iterations: int,
    leaky: bool,
    inverse_temperature: float,
    couplings: bool,
) -> tuple[Tensor, ...]:
    B, I, _ = u.shape
    J, D = weight.shape[1:3]
    dtype = torch.promote_types(u.dtype, weight.dtype)
    poses, coupled = u.new_empty(B, J, D, dtype=dtype), u.new_empty((B, I, J) if couplings else (0,), dtype=dtype)
    medium = u.dtype == torch.float32 and float32_precision() == "medium"
    factors = torch.bfloat16 if medium or u.dtype == torch.bfloat16 else torch.float32
    agreed = u.new_empty(iterations - 1, B, J, D, dtype=factors)
    sums = u.new_empty(iterations, B, J, D, dtype=torch.float32)
    return poses, coupled, sums, agreed, sums.new_empty(iterations - 1, B, I)


def _fake_backward_fused(
    grad: Tensor,
    u: Tensor,
    weight: Tensor,
    sums: Tensor,
    agreed: Tensor,
    logsums: Tensor,
    leaky: bool,
    inverse_temperature: float,
    needs: list[bool],
) -> tuple[Tensor, ...]:
    shapes = u.shape, weight.shape, weight.shape[1:3]
    return tuple(x.new_empty(shape if need else (0,)) for x, shape, need in zip((u, weight, sums), shapes, needs))


def _gradients_fused(
    backward: Callable[..., Any], grads: Any, tensors: Any, kept: Any, constants: Any, needs: Any
) -> Gradients:
    (grad, grad_couplings), (u, weight, bias), (sums, *_) = grads, tensors, kept
    (_, *constants, couplings), needs = constants, list(needs)
    if grad is None:
        grad = torch.zeros_like(sums[0])
    if grad_couplings is None or not couplings:
        du, dweight, dbias = backward(grad, u, weight, *kept, *constants, needs)
    else:  # rare: a loss on the couplings themselves
        du, dweight, dbias = chunked.backward_operator(grad, grad_couplings, u, weight, sums, *constants, needs)
    return du, dweight, None if bias is None else dbias.to(bias.dtype)


def _reference(
    u: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    iterations: int,
    leaky: bool,
    inverse_temperature: float,
    couplings: bool,
) -> tuple[Tensor, Tensor]:
    poses, coupled = reference.dynamic_routing(u, weight, iterations, bias, leaky, inverse_temperature)
    return poses, coupled if couplings else coupled.new_empty(0)


def _flops(u: Any, weight: Any, bias: Any, iterations: int, *_: Any, out_shape: Any) -> int:
    """Votes once, a weighted sum in each iteration, agreement in all but the last."""
    I, J, D, K = weight
    return 2 * u[0] * I * J * D * (K + 2 * iterations - 1)


def _flops_backward(u: Any, weight: Any, sums: Any, *rest: Any) -> int:
    """Gradients of couplings and of parents by agreement, in all iterations but the first; of votes by every sum and
    agreement; of poses and weights."""
    (I, J, D, K), R, needs = weight, sums[0], rest[-1]
    votes = K * sum(needs[:2]) + (2 * R - 1) * any(needs[:2])
    return 2 * u[0] * I * J * D * (votes + 2 * (R - 1))


chunked = Operator(
    "torchcaps::dynamic_routing_chunked",
    forward=_forward_chunked,
    fake=_fake_chunked,
    backward=_backward_chunked,
    fake_backward=_fake_backward_chunked,
    gradients=_gradients_chunked,
    reference=_reference,
    tensors=3,
    results=2,
    flops=_flops,
    flops_backward=lambda grad, grad_couplings, *rest, out_shape: _flops_backward(*rest),
)
fused = Operator(
    "torchcaps::dynamic_routing_fused",
    forward=_forward_fused,
    fake=_fake_fused,
    backward=_backward_fused,
    fake_backward=_fake_backward_fused,
    gradients=_gradients_fused,
    reference=_reference,
    tensors=3,
    results=2,
    flops=_flops,
    flops_backward=lambda grad, *rest, out_shape: _flops_backward(*rest),
)
