"""EM routing as PyTorch operators: torch.compile, torch.export and CUDA graphs go through them.

`torchcaps::em_chunked` and `torchcaps::em_fused`, each with a backward operator of its own. The fused one also returns
what its backward needs; `route` hides that.
"""

# No `from __future__ import annotations`: torch.library reads the schema off the annotations.
from typing import Any, Optional

import torch
from torch import Tensor

from torchcaps.ops.em import chunked
from torchcaps.ops.em.reference import Reach
from torchcaps.ops.squash import no_autocast


def route(
    backend: str,
    pose_BID: Tensor,
    activation_BI: Tensor,
    weight_NJPP: Tensor,
    reach: Reach,
    beta_u_J: Tensor,
    beta_a_J: Tensor,
    iterations: int,
    temperature: Tensor,
    offset_ND: Optional[Tensor],
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Poses (B, L, J, D), activations (B, L, J), and shares (B, L, N, J), empty unless couplings=True."""
    chosen = em_fused if backend == "fused" else em_chunked
    inputs = pose_BID, activation_BI, weight_NJPP, beta_u_J, beta_a_J, temperature, *reach, offset_ND
    mean, active, shares = chosen(*inputs, iterations, couplings)[:3]
    return mean, active, shares


@torch.library.custom_op("torchcaps::em_chunked", mutates_args=())
def em_chunked(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    temperature: Tensor,
    child: Tensor,
    spots: Tensor,
    offset: Optional[Tensor],
    iterations: int,
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    with no_autocast(pose):
        reach = Reach(child, spots)
        rest = beta_u, beta_a, iterations, temperature, offset, couplings
        return chunked.forward(pose, activation, weight, reach, *rest)


@torch.library.custom_op("torchcaps::em_chunked_backward", mutates_args=())
def em_chunked_backward(
    grad_mean: Tensor,
    grad_active: Tensor,
    grad_shares: Optional[Tensor],
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    temperature: Tensor,
    child: Tensor,
    spots: Tensor,
    offset: Optional[Tensor],
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    with no_autocast(pose):
        inputs = pose, activation, weight, Reach(child, spots), beta_u, beta_a, iterations, temperature, offset
        return chunked.backward(grad_mean, grad_active, grad_shares, *inputs)


@em_chunked.register_fake
def _(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    temperature: Tensor,
    child: Tensor,
    spots: Tensor,
    offset: Optional[Tensor],
    iterations: int,
    couplings: bool,
) -> tuple[Tensor, ...]:
    return _outputs(pose, weight, child, couplings)


def _outputs(pose: Tensor, weight: Tensor, child: Tensor, couplings: bool) -> tuple[Tensor, Tensor, Tensor]:
    (B, _, D), (L, N), J = pose.shape, child.shape, weight.shape[1]
    shares = pose.new_empty((B, L, N, J) if couplings else (0,))
    return pose.new_empty(B, L, J, D), pose.new_empty(B, L, J), shares


def _like_inputs(*inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in inputs)


@em_chunked_backward.register_fake
def _(
    grad_mean: Tensor,
    grad_active: Tensor,
    grad_shares: Optional[Tensor],
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *rest: Any,
) -> tuple[Tensor, ...]:
    return _like_inputs(pose, activation, weight, beta_u, beta_a)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:9], *output[3:])
    ctx.iterations, ctx.couplings = inputs[9:]
    ctx.set_materialize_grads(False)


def _given(ctx: Any, grads: tuple[Optional[Tensor], ...]) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """The gradients of the results, zero where a result was not used; that of the shares may be missing."""
    pose, _, weight, _, _, _, child = ctx.saved_tensors[:7]
    (B, _, D), L, J = pose.shape, len(child), weight.shape[1]
    mean, active, shares = grads[:3]
    mean = pose.new_zeros(B, L, J, D) if mean is None else mean.contiguous()
    active = pose.new_zeros(B, L, J) if active is None else active.contiguous()
    if not ctx.couplings or ctx.iterations == 1:  # the first shares are constants
        shares = None
    return mean, active, shares


def _backward_chunked(ctx: Any, *grads: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    return *em_chunked_backward(*_given(ctx, grads), *ctx.saved_tensors, ctx.iterations), *[None] * 6


em_chunked.register_autograd(_backward_chunked, setup_context=_save)


@torch.library.custom_op("torchcaps::em_fused", mutates_args=())
def em_fused(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    temperature: Tensor,
    child: Tensor,
    spots: Tensor,
    offset: Optional[Tensor],
    iterations: int,
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from torchcaps.ops.em import fused

    rest = beta_u, beta_a, iterations, temperature, offset, couplings
    return fused.forward(pose, activation, weight, Reach(child, spots), *rest)


@torch.library.custom_op("torchcaps::em_fused_backward", mutates_args=())
def em_fused_backward(
    grad_mean: Tensor,
    grad_active: Tensor,
    grad_shares: Optional[Tensor],
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    temperature: Tensor,
    child: Tensor,
    spots: Tensor,
    offset: Optional[Tensor],
    total: Tensor,
    mean: Tensor,
    variance: Tensor,
    logit: Tensor,
    shares: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from torchcaps.ops.em import fused

    inputs = pose, activation, weight, Reach(child, spots), beta_u, temperature, offset
    return fused.backward(grad_mean, grad_active, grad_shares, *inputs, total, mean, variance, logit, shares)


@em_fused.register_fake
def _(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    temperature: Tensor,
    child: Tensor,
    spots: Tensor,
    offset: Optional[Tensor],
    iterations: int,
    couplings: bool,
) -> tuple[Tensor, ...]:
    mean, active, shares = _outputs(pose, weight, child, couplings)
    of_all, of_each = pose.new_empty(iterations, *mean.shape), pose.new_empty(iterations, *active.shape)
    (L, N), J = child.shape, weight.shape[1]
    kept = pose.new_empty((iterations - 1, len(pose), L, J, N) if iterations > 1 else (0,))
    return mean, active, shares, of_each, of_all, of_all.clone(), of_each.clone(), kept


@em_fused_backward.register_fake
def _(
    grad_mean: Tensor,
    grad_active: Tensor,
    grad_shares: Optional[Tensor],
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *rest: Any,
) -> tuple[Tensor, ...]:
    return _like_inputs(pose, activation, weight, beta_u, beta_a)


def _backward_fused(ctx: Any, *grads: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    return *em_fused_backward(*_given(ctx, grads), *ctx.saved_tensors), *[None] * 6


em_fused.register_autograd(_backward_fused, setup_context=_save)
