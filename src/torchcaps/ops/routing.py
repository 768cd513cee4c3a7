"""Routing as plain functions of tensors: arguments checked here, computed by the backend that `dispatch` picks."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from torchcaps.ops.dispatch import backend
from torchcaps.ops.dynamic import reference
from torchcaps.ops.dynamic.operators import route


@overload
def dynamic_routing(
    u: Tensor,
    weight: Tensor,
    iterations: int = ...,
    *,
    bias: Tensor | None = ...,
    leaky: bool = ...,
    return_couplings: Literal[False] = ...,
) -> Tensor: ...
@overload
def dynamic_routing(
    u: Tensor,
    weight: Tensor,
    iterations: int = ...,
    *,
    bias: Tensor | None = ...,
    leaky: bool = ...,
    return_couplings: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def dynamic_routing(
    u: Tensor,
    weight: Tensor,
    iterations: int = 3,
    *,
    bias: Tensor | None = None,
    leaky: bool = False,
    return_couplings: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Route children to parents by agreement (Sabour et al. 2017, Procedure 1), without ever storing votes.

    u        (B, I, K)     the children's poses
    weight   (I, J, D, K)  child i's vote for parent j is weight[i, j] @ u[b, i]
    bias     (J, D)        added to each parent's sum before it is squashed
    leaky    children that fit no parent may keep part of their coupling to themselves
    returns  (B, J, D) the parents' poses; with return_couplings also (B, I, J), those of the last iteration
    """
    if weight.ndim != 4 or u.ndim != 3:
        raise ValueError(
            "dynamic_routing: u must be (B, I, K) and weight (I, J, D, K), "
            f"got {tuple(u.shape)} and {tuple(weight.shape)}"
        )
    I, J, D, K = weight.shape
    if u.shape[1:] != (I, K):
        raise ValueError(
            f"dynamic_routing: a weight of shape {tuple(weight.shape)} routes {I} children of {K} dimensions, "
            f"got u of shape {tuple(u.shape)}; it should be (B, {I}, {K})"
        )
    _check("dynamic_routing", iterations, bias, J, D)
    chosen = backend(u, weight, iterations)
    if chosen == "reference":
        poses, couplings = reference.dynamic_routing(u, weight, iterations, bias, leaky)
    else:
        poses, couplings = route(chosen, u, weight, iterations, bias, leaky, return_couplings)
    return (poses, couplings) if return_couplings else poses


def route_votes(
    votes: Tensor,
    iterations: int = 3,
    *,
    bias: Tensor | None = None,
    leaky: bool = False,
    return_couplings: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Dynamic routing over ready-made votes, for layers whose votes are not weight @ u.

    votes    (B, I, J, D)  what child i predicts for parent j
    returns  (B, J, D) the parents' poses; with return_couplings also (B, I, J), those of the last iteration
    """
    if votes.ndim != 4:
        raise ValueError(f"route_votes: votes must be (B, I, J, D), got {tuple(votes.shape)}")
    _check("route_votes", iterations, bias, *votes.shape[2:])
    poses, couplings = reference.route_votes(votes, iterations, bias, leaky)
    return (poses, couplings) if return_couplings else poses


def _check(name: str, iterations: int, bias: Tensor | None, J: int, D: int) -> None:
    if iterations < 1:
        raise ValueError(f"{name}: iterations must be at least 1, got {iterations}")
    if bias is not None and bias.shape != (J, D):
        raise ValueError(f"{name}: bias must be (J, D) = ({J}, {D}), got {tuple(bias.shape)}")
