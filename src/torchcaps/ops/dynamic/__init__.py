"""Dynamic routing: `reference` reads like the paper, `chunked` is fast on any device, `fused` runs Triton kernels;
`shared` is for weights that are shared over the places of a map.

README.md derives the fast paths.
"""

from __future__ import annotations

from torch import Tensor

from torchcaps.checks import check_floats, check_positive, check_whole
from torchcaps.ops.dispatch import choose
from torchcaps.ops.dynamic import operators, reference, shared
from torchcaps.ops.result import Routed


def dynamic_routing(
    u: Tensor,
    weight: Tensor,
    iterations: int = 3,
    *,
    bias: Tensor | None = None,
    leaky: bool = False,
    inverse_temperature: float = 1.0,
    places: int = 1,
    return_couplings: bool = False,
) -> Routed:
    """Route children to parents by agreement (Sabour et al. 2017, Procedure 1), without storing the votes.

    Args:
        u: (B, I, K) poses of the children.
        weight: (I, J, D, K); child i's vote for parent j is weight[i, j] @ u[b, i].
        iterations: number of routing iterations, at least 1.
        bias: (J, D) added to each parent's sum before it is squashed.
        leaky: adds a logit of zero to the softmax, so that a child that fits no parent can keep part of its coupling.
        inverse_temperature: factor of the agreement in the logits. With 1, as in the paper, the votes of many children
            are short, and couplings stay nearly equal.
        places: with more than one, weight is (I / places, J, D, K): child i uses weight[i // places].
        return_couplings: also return the couplings of the last iteration.

    Returns:
        poses (B, J, D), couplings (B, I, J).
    """
    check_floats("dynamic_routing", u=u, weight=weight, bias=bias)
    check_whole("dynamic_routing", places=places)
    if weight.ndim != 4 or u.ndim != 3:
        raise ValueError(
            "dynamic_routing: u must be (B, I, K) and weight (I, J, D, K), "
            f"got {tuple(u.shape)} and {tuple(weight.shape)}"
        )
    types, J, D, K = weight.shape
    I = types * places
    if u.shape[1:] != (I, K):
        raise ValueError(
            f"dynamic_routing: a weight of shape {tuple(weight.shape)} routes {I} children of {K} dimensions, "
            f"got u of shape {tuple(u.shape)}; it should be (B, {I}, {K})"
        )
    _check("dynamic_routing", iterations, inverse_temperature, bias, J, D)
    if places > 1:
        poses, couplings = shared.dynamic_routing(u, weight, iterations, bias, leaky, inverse_temperature)
        return Routed(poses, None, couplings if return_couplings else None)
    backend = choose("dynamic routing", u, weight, limit=_limit(K, D, iterations))
    if backend == "reference":
        poses, couplings = reference.dynamic_routing(u, weight, iterations, bias, leaky, inverse_temperature)
    else:
        route = operators.fused if backend == "fused" else operators.chunked
        poses, couplings = route(u, weight, bias, iterations, leaky, float(inverse_temperature), return_couplings)
    return Routed(poses, None, couplings if return_couplings else None)


def backend_for(u: Tensor, weight: Tensor, iterations: int) -> str:
    """Return the backend that `dynamic_routing` runs on for these arguments."""
    return choose("dynamic routing", u, weight, limit=_limit(u.shape[2], weight.shape[2], iterations))


def _limit(K: int, D: int, iterations: int) -> str | None:
    if K <= 64 and D <= 128 and iterations <= 8:
        return None
    return f"K={K}, D={D}, {iterations} iterations are beyond K=64, D=128, 8 iterations"


def route_votes(
    votes: Tensor,
    iterations: int = 3,
    *,
    bias: Tensor | None = None,
    leaky: bool = False,
    inverse_temperature: float = 1.0,
    return_couplings: bool = False,
) -> Routed:
    """Route given votes, for layers whose votes are not weight @ u.

    Args:
        votes: (B, I, J, D) vote of child i for parent j.
        iterations: number of routing iterations, at least 1.
        bias: (J, D) added to each parent's sum before it is squashed.
        leaky: as for `dynamic_routing`.
        inverse_temperature: as for `dynamic_routing`.
        return_couplings: also return the couplings of the last iteration.

    Returns:
        poses (B, J, D), couplings (B, I, J).
    """
    check_floats("route_votes", votes=votes, bias=bias)
    if votes.ndim != 4:
        raise ValueError(f"route_votes: votes must be (B, I, J, D), got {tuple(votes.shape)}")
    _check("route_votes", iterations, inverse_temperature, bias, *votes.shape[2:])
    poses, couplings = reference.route_votes(votes, iterations, bias, leaky, inverse_temperature)
    return Routed(poses, None, couplings if return_couplings else None)


def _check(name: str, iterations: int, inverse_temperature: float, bias: Tensor | None, J: int, D: int) -> None:
    check_whole(name, iterations=iterations)
    check_positive(name, inverse_temperature=inverse_temperature)
    if bias is not None and bias.shape != (J, D):
        raise ValueError(f"{name}: bias must be (J, D) = ({J}, {D}), got {tuple(bias.shape)}")
