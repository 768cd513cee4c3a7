"""Dynamic routing as PyTorch operators with hand-written backwards; torch.compile, torch.export and CUDA graphs go
through them.

There are two, `torchcaps::dynamic_routing_chunked` and `torchcaps::dynamic_routing_fused`. The kernels keep two more
tensors for the backward; as empty results of a single operator they would slow down training of one example on a CPU
by 3 %.
"""

# No `from __future__ import annotations`: torch.library reads the schema from the annotations.
from typing import Any, Optional

import torch
from torch import Tensor

from torchcaps.ops.dispatch import float32_precision
from torchcaps.ops.dynamic import chunked as by_products
from torchcaps.ops.squash import no_autocast

Gradients = tuple[Optional[Tensor], ...]


def plain_chunked(
    u: Tensor, weight: Tensor, bias: Optional[Tensor], iterations: int, leaky: bool, couplings: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Poses (B, J, D), couplings (B, I, J) or empty, and sums (R, J, B, D) for the backward."""
    dtype = torch.promote_types(u.dtype, weight.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    bias = u.new_zeros(weight.shape[1:3], dtype=wide) if bias is None else bias.to(wide)
    with no_autocast(u):
        poses, coupled, sums = by_products.forward(u.to(wide), weight.to(wide), bias, iterations, leaky, couplings)
    if dtype != wide:
        poses, coupled = poses.to(dtype), coupled.to(dtype)
    return poses, coupled, sums


chunked = torch.library.custom_op("torchcaps::dynamic_routing_chunked", plain_chunked, mutates_args=())


@torch.library.custom_op("torchcaps::dynamic_routing_chunked_backward", mutates_args=())
def chunked_backward(
    grad: Tensor, grad_couplings: Optional[Tensor], u: Tensor, weight: Tensor, sums: Tensor, leaky: bool
) -> tuple[Tensor, Tensor, Tensor]:
    wide = sums.dtype
    grad_couplings = None if grad_couplings is None else grad_couplings.to(wide)
    with no_autocast(u):
        du, dweight, dbias = by_products.backward(
            grad.to(wide), grad_couplings, u.to(wide), weight.to(wide), sums, leaky
        )
    return du.to(u.dtype), dweight.to(weight.dtype), dbias


@chunked.register_fake
def _(
    u: Tensor, weight: Tensor, bias: Optional[Tensor], iterations: int, leaky: bool, couplings: bool
) -> tuple[Tensor, ...]:
    (B, I, _), (J, D) = u.shape, weight.shape[1:3]
    dtype = torch.promote_types(u.dtype, weight.dtype)
    poses, coupled = u.new_empty(B, J, D, dtype=dtype), u.new_empty((B, I, J) if couplings else (0,), dtype=dtype)
    return poses, coupled, u.new_empty(iterations, J, B, D, dtype=torch.promote_types(dtype, torch.float32))


@chunked_backward.register_fake
def _(
    grad: Tensor, grad_couplings: Optional[Tensor], u: Tensor, weight: Tensor, sums: Tensor, leaky: bool
) -> tuple[Tensor, ...]:
    return torch.empty_like(u), torch.empty_like(weight), sums.new_empty(weight.shape[1:3])


def _save_chunked(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, weight, bias, _, ctx.leaky, ctx.couplings = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(u, weight, output[2])
    ctx.set_materialize_grads(False)


def _differentiate_chunked(ctx: Any, grad: Optional[Tensor], grad_couplings: Optional[Tensor], _: Any) -> Gradients:
    u, weight, sums = ctx.saved_tensors
    if grad is None:  # only the couplings were used
        grad = torch.zeros_like(sums[0].transpose(0, 1))
    if not ctx.couplings:
        grad_couplings = None
    du, dweight, dbias = chunked_backward(grad, grad_couplings, u, weight, sums, ctx.leaky)
    return du, dweight, None if ctx.bias_dtype is None else dbias.to(ctx.bias_dtype), None, None, None


chunked.register_autograd(_differentiate_chunked, setup_context=_save_chunked)


@torch.library.custom_op("torchcaps::dynamic_routing_fused", mutates_args=())
def fused(
    u: Tensor, weight: Tensor, bias: Optional[Tensor], iterations: int, leaky: bool, couplings: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Poses (B, J, D), couplings (B, I, J) or empty; sums (R, B, J, D), agreed and logsums for the backward."""
    from torchcaps.ops.dynamic import fused as kernels

    return kernels.forward(u, weight, bias, iterations, leaky, couplings)


@torch.library.custom_op("torchcaps::dynamic_routing_fused_backward", mutates_args=())
def fused_backward(
    grad: Tensor, u: Tensor, weight: Tensor, sums: Tensor, agreed: Tensor, logsums: Tensor, leaky: bool, bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from torchcaps.ops.dynamic import fused as kernels

    return kernels.backward(grad, u, weight, sums, agreed, logsums, leaky, bias)


@fused.register_fake
def _(
    u: Tensor, weight: Tensor, bias: Optional[Tensor], iterations: int, leaky: bool, couplings: bool
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


@fused_backward.register_fake
def _(
    grad: Tensor, u: Tensor, weight: Tensor, sums: Tensor, agreed: Tensor, logsums: Tensor, leaky: bool, bias: bool
) -> tuple[Tensor, ...]:
    dbias = sums.new_empty(weight.shape[1:3] if bias else (0,))
    return u.new_empty(u.shape), weight.new_empty(weight.shape), dbias


def _save_fused(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, weight, bias, _, ctx.leaky, ctx.couplings = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(u, weight, *output[2:])
    ctx.set_materialize_grads(False)


def _differentiate_fused(ctx: Any, grad: Optional[Tensor], grad_couplings: Optional[Tensor], *_: Any) -> Gradients:
    u, weight, sums, agreed, logsums = ctx.saved_tensors
    if grad is None:
        grad = torch.zeros_like(sums[0])
    has_bias = ctx.bias_dtype is not None
    if grad_couplings is None or not ctx.couplings:
        du, dweight, dbias = fused_backward(grad, u, weight, sums, agreed, logsums, ctx.leaky, has_bias)
    else:  # rare: a loss on the couplings themselves
        sums = sums.transpose(1, 2).contiguous()
        du, dweight, dbias = chunked_backward(grad, grad_couplings, u, weight, sums, ctx.leaky)
    return du, dweight, dbias.to(ctx.bias_dtype) if has_bias else None, None, None, None


fused.register_autograd(_differentiate_fused, setup_context=_save_fused)
