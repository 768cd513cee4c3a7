"""EM routing as one PyTorch operator with a hand-written backward; torch.compile, torch.export and CUDA graphs go
through it.

`torchcaps::em_routing` returns poses, activations and couplings, and then what its backward needs.
"""

# No `from __future__ import annotations`: torch.library reads the schema from the annotations.
from typing import Any, Optional

import torch
from torch import Tensor

from torchcaps.ops.em import chunked
from torchcaps.ops.em.reference import Reach
from torchcaps.ops.squash import no_autocast


@torch.library.custom_op("torchcaps::em_routing", mutates_args=())
def forward(
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
    fused: bool,
    epsilon: float,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Poses (B, L, J, D), activations (B, L, J), couplings (B, L, N, J) or empty; then of each iteration total, mean,
    variance, logit and shares, all empty if chunked, whose backward routes once more."""
    given = pose, activation, weight, Reach(child, spots), beta_u, beta_a
    inputs = *given, iterations, temperature, offset, couplings, epsilon, floor
    if fused:
        from torchcaps.ops.em import fused as kernels

        return kernels.forward(*inputs)
    with no_autocast(pose):
        poses, active, shares = chunked.forward(*inputs)
    total, mean, variance, logit, kept = (pose.new_empty(0) for _ in range(5))
    return poses, active, shares, total, mean, variance, logit, kept


@torch.library.custom_op("torchcaps::em_routing_backward", mutates_args=())
def backward(
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
    iterations: int,
    fused: bool,
    epsilon: float,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the first five inputs of the forward."""
    reach = Reach(child, spots)
    if fused:
        from torchcaps.ops.em import fused as kernels

        inputs = grad_mean, grad_active, grad_shares, pose, activation, weight, reach, beta_u, temperature, offset
        return kernels.backward(*inputs, epsilon, floor, total, mean, variance, logit, shares)
    given = grad_mean, grad_active, grad_shares, pose, activation, weight, reach, beta_u, beta_a
    with no_autocast(pose):
        return chunked.backward(*given, iterations, temperature, offset, epsilon, floor)


@forward.register_fake
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
    fused: bool,
    epsilon: float,
    floor: float,
) -> tuple[Tensor, ...]:
    (B, _, D), (L, N), J = pose.shape, child.shape, weight.shape[1]
    results = pose.new_empty(B, L, J, D), pose.new_empty(B, L, J), pose.new_empty((B, L, N, J) if couplings else (0,))
    if not fused:
        return *results, *(pose.new_empty(0) for _ in range(5))
    mean, variance = (pose.new_empty(iterations, B, L, J, D) for _ in range(2))
    total, logit = (pose.new_empty(iterations, B, L, J) for _ in range(2))
    shares = pose.new_empty((iterations - 1, B, L, J, N) if iterations > 1 else (0,))
    return *results, total, mean, variance, logit, shares


@backward.register_fake
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
    return tuple(x.new_empty(x.shape) for x in (pose, activation, weight, beta_u, beta_a))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:9], *output[3:])
    ctx.iterations, ctx.couplings, *ctx.rest = inputs[9:]
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, mean: Optional[Tensor], active: Optional[Tensor], shares: Optional[Tensor], *_: Any
) -> tuple[Optional[Tensor], ...]:
    """Gradients of results that were not used are zero; that of the couplings may be missing."""
    pose, _, weight, _, _, _, child = ctx.saved_tensors[:7]
    (B, _, D), L, J = pose.shape, len(child), weight.shape[1]
    mean = pose.new_zeros(B, L, J, D) if mean is None else mean.contiguous()
    active = pose.new_zeros(B, L, J) if active is None else active.contiguous()
    if not ctx.couplings or ctx.iterations == 1:  # the first couplings are constants
        shares = None
    return *backward(mean, active, shares, *ctx.saved_tensors, ctx.iterations, *ctx.rest), *[None] * 9


forward.register_autograd(_differentiate, setup_context=_save)
