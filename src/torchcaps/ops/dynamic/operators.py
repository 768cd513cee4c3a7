"""The fast paths as PyTorch operators: torch.compile, torch.export and CUDA graphs go through them.

`torchcaps::route_chunked` and `torchcaps::route_fused`, each with a backward operator of its own. Besides poses and
couplings they return what their backward needs; `route` hides that.
"""

# No `from __future__ import annotations`: torch.library reads the schema off the annotations.
from typing import Any, Optional

import torch
from torch import Tensor

from torchcaps.ops.dispatch import eager_inference, float32_precision
from torchcaps.ops.dynamic import chunked
from torchcaps.ops.squash import no_autocast

Gradients = tuple[Optional[Tensor], ...]


def route(
    backend: str,
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    iterations: int,
    bias_JD: Optional[Tensor],
    leaky: bool,
    couplings: bool,
) -> tuple[Tensor, Tensor]:
    """The same function as reference.dynamic_routing; without couplings=True the second result is empty."""
    dtype = torch.promote_types(u_BIK.dtype, weight_IJDK.dtype)
    if backend == "fused":
        return route_fused(u_BIK, weight_IJDK, bias_JD, iterations, leaky, couplings)[:2]
    wide = torch.promote_types(dtype, torch.float32)
    bias_JD = u_BIK.new_zeros(weight_IJDK.shape[1:3], dtype=wide) if bias_JD is None else bias_JD.to(wide)
    chosen = _chunked if eager_inference(u_BIK) else route_chunked
    poses, coupled, _ = chosen(u_BIK.to(wide), weight_IJDK.to(wide), bias_JD, iterations, leaky, couplings)
    return poses.to(dtype), coupled.to(dtype)


def _chunked(
    u: Tensor, weight: Tensor, bias: Tensor, iterations: int, leaky: bool, couplings: bool
) -> tuple[Tensor, Tensor, Tensor]:
    with no_autocast(u):
        return chunked.forward(u, weight, bias, iterations, leaky, couplings)


route_chunked = torch.library.custom_op("torchcaps::route_chunked", _chunked, mutates_args=())


@torch.library.custom_op("torchcaps::route_chunked_backward", mutates_args=())
def route_chunked_backward(
    grad: Tensor, grad_couplings: Optional[Tensor], u: Tensor, weight: Tensor, sums: Tensor, leaky: bool
) -> tuple[Tensor, Tensor, Tensor]:
    with no_autocast(u):
        return chunked.backward(grad, grad_couplings, u, weight, sums, leaky)


@route_chunked.register_fake
def _(u: Tensor, weight: Tensor, bias: Tensor, iterations: int, leaky: bool, couplings: bool) -> tuple[Tensor, ...]:
    B, I, _ = u.shape
    J, D = bias.shape
    return u.new_empty(B, J, D), u.new_empty((B, I, J) if couplings else (0,)), u.new_empty(iterations, J, B, D)


@route_chunked_backward.register_fake
def _(
    grad: Tensor, grad_couplings: Optional[Tensor], u: Tensor, weight: Tensor, sums: Tensor, leaky: bool
) -> tuple[Tensor, ...]:
    return torch.empty_like(u), torch.empty_like(weight), weight.new_empty(weight.shape[1:3])


def _save_chunked(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, weight, _, _, ctx.leaky, ctx.couplings = inputs
    ctx.save_for_backward(u, weight, output[2])
    ctx.set_materialize_grads(False)


def _backward_chunked(ctx: Any, grad: Optional[Tensor], grad_couplings: Optional[Tensor], _: Any) -> Gradients:
    u, weight, sums = ctx.saved_tensors
    if grad is None:  # only the couplings were used
        grad = torch.zeros_like(sums[0].transpose(0, 1))
    if not ctx.couplings:
        grad_couplings = None
    return *route_chunked_backward(grad, grad_couplings, u, weight, sums, ctx.leaky), None, None, None


route_chunked.register_autograd(_backward_chunked, setup_context=_save_chunked)
for device in ("cpu", "cuda"):
    torch.library.register_autocast("torchcaps::route_chunked", device, torch.float32)


@torch.library.custom_op("torchcaps::route_fused", mutates_args=())
def route_fused(
    u: Tensor, weight: Tensor, bias: Optional[Tensor], iterations: int, leaky: bool, couplings: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from torchcaps.ops.dynamic import fused

    return fused.forward(u, weight, bias, iterations, leaky, couplings)


@torch.library.custom_op("torchcaps::route_fused_backward", mutates_args=())
def route_fused_backward(
    grad: Tensor, u: Tensor, weight: Tensor, sums: Tensor, agreed: Tensor, logsums: Tensor, leaky: bool, bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from torchcaps.ops.dynamic import fused

    return fused.backward(grad, u, weight, sums, agreed, logsums, leaky, bias)


@route_fused.register_fake
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


@route_fused_backward.register_fake
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


def _backward_fused(ctx: Any, grad: Optional[Tensor], grad_couplings: Optional[Tensor], *_: Any) -> Gradients:
    u, weight, sums, agreed, logsums = ctx.saved_tensors
    if grad is None:
        grad = torch.zeros_like(sums[0])
    has_bias = ctx.bias_dtype is not None
    if grad_couplings is None or not ctx.couplings:
        du, dweight, dbias = route_fused_backward(grad, u, weight, sums, agreed, logsums, ctx.leaky, has_bias)
    else:  # rare: a loss on the couplings themselves
        du, dweight, dbias = route_chunked_backward(
            grad.float(),
            grad_couplings.float(),
            u.float(),
            weight.float(),
            sums.transpose(1, 2).contiguous(),
            ctx.leaky,
        )
    return du.to(u.dtype), dweight.to(weight.dtype), dbias.to(ctx.bias_dtype) if has_bias else None, None, None, None


route_fused.register_autograd(_backward_fused, setup_context=_save_fused)
