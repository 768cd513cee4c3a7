"""EM routing as an operation with a hand-written gradient."""

# No `from __future__ import annotations`: torch.library reads the schema from the annotations.
from collections.abc import Callable
from typing import Any, Optional

from torch import Tensor

from torchcaps.ops.em import chunked, reference
from torchcaps.ops.em.reference import Reach
from torchcaps.ops.operator import Gradients, Operator
from torchcaps.ops.squash import no_autocast


def _forward(
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


def _backward(
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
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the first five inputs of the forward; of poses and weights empty where none is needed."""
    reach = Reach(child, spots)
    if fused:
        from torchcaps.ops.em import fused as kernels

        inputs = grad_mean, grad_active, grad_shares, pose, activation, weight, reach, beta_u, temperature, offset
        return kernels.backward(*inputs, epsilon, floor, total, mean, variance, logit, shares, needs=needs)
    given = grad_mean, grad_active, grad_shares, pose, activation, weight, reach, beta_u, beta_a
    with no_autocast(pose):
        return chunked.backward(*given, iterations, temperature, offset, epsilon, floor, needs=needs)


def _fake(
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


def _fake_backward(
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
    needs = rest[-1]
    shapes = pose.shape if needs[0] else (0,), activation.shape, weight.shape if needs[2] else (0,)
    found = (x.new_empty(shape) for x, shape in zip((pose, activation, weight), shapes))
    return *found, beta_u.new_empty(beta_u.shape), beta_a.new_empty(beta_a.shape)


def _gradients(
    backward: Callable[..., Any], grads: Any, tensors: Any, kept: Any, constants: Any, needs: Any
) -> Gradients:
    """Gradients of results that were not used are zero; that of the couplings may be missing."""
    (mean, active, shares), (iterations, couplings, *rest) = grads, constants
    pose, weight, child = tensors[0], tensors[2], tensors[6]
    (B, _, D), L, J = pose.shape, len(child), weight.shape[1]
    mean = pose.new_zeros(B, L, J, D) if mean is None else mean.contiguous()
    active = pose.new_zeros(B, L, J) if active is None else active.contiguous()
    if not couplings or iterations == 1:  # the first couplings are constants
        shares = None
    return *backward(mean, active, shares, *tensors, *kept, iterations, *rest, list(needs[:5])), *[None] * 4


def _reference(
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
) -> tuple[Tensor, Tensor, Tensor]:
    votes = chunked.votes_of(pose[:, child].unflatten(-1, weight.shape[2:]), weight, offset)
    costs = beta_u, beta_a, iterations, temperature.detach(), epsilon, floor
    poses, active, shares = reference.route_votes(votes, activation, Reach(child, spots), *costs)
    return poses, active, shares if couplings else shares.new_empty(0)


def _flops(pose: Any, activation: Any, weight: Any, *rest: Any, out_shape: Any) -> int:
    """The products of matrices that make the votes."""
    (L, N), (_, J, P, _) = rest[3], weight
    return 2 * pose[0] * L * N * J * P**3


def _flops_backward(mean: Any, active: Any, shares: Any, *rest: Any, out_shape: Any) -> int:
    """The same for the gradient of the poses, and for that of the weights."""
    needs = rest[-1]
    return (needs[0] + needs[2]) * _flops(*rest, out_shape=None)


route = Operator(
    "torchcaps::em_routing",
    forward=_forward,
    fake=_fake,
    backward=_backward,
    fake_backward=_fake_backward,
    gradients=_gradients,
    reference=_reference,
    tensors=9,
    results=3,
    flops=_flops,
    flops_backward=_flops_backward,
)
