"""Routing at each position of a map as a plain function of tensors: arguments checked here."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from torchcaps.ops.dispatch import local_backend
from torchcaps.ops.local import reference
from torchcaps.ops.local.operators import route_local
from torchcaps.ops.local.reference import Window
from torchcaps.ops.squash import at_least_float32, no_autocast

PLAIN = Window()


@overload
def local_routing(
    pose: Tensor,
    weight: Tensor,
    bias: Tensor,
    iterations: int = ...,
    window: Window = ...,
    *,
    return_couplings: Literal[False] = ...,
) -> Tensor: ...
@overload
def local_routing(
    pose: Tensor,
    weight: Tensor,
    bias: Tensor,
    iterations: int = ...,
    window: Window = ...,
    *,
    return_couplings: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def local_routing(
    pose: Tensor,
    weight: Tensor,
    bias: Tensor,
    iterations: int = 3,
    window: Window = PLAIN,
    *,
    return_couplings: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Capsules of a map vote for those of another by a convolution, and routing decides at each position by itself.

    pose     (B, T, D, H, W)   T types of D dimensions
    weight   (J·E, D, k, k)    one for all child types, or (T, J·E, D, k, k); transposed: D and J·E change places
    bias     (J, E)            added to each parent's sum before it is squashed; zeros for none
    window   stride, padding and dilation of the convolution, and whether it is transposed
    returns  (B, J, E, Y, X); with return_couplings also (B, T, J, Y, X), those of the last iteration, which sum to 1
             over J and get no gradient

    Products are taken in the type that autocast asks for, routing in at least float32.
    """
    _check(pose, weight, bias, iterations, window)
    if len(bias) == 1:
        iterations = 1  # a single parent gets all of every child, however they agree
    dtype = torch.promote_types(pose.dtype, weight.dtype)
    if torch.is_autocast_enabled(pose.device.type) and dtype != torch.float64:  # which autocast leaves alone
        dtype = torch.get_autocast_dtype(pose.device.type)
    pose, weight = pose.to(dtype), weight.to(dtype)
    wide = at_least_float32(bias.to(torch.promote_types(dtype, bias.dtype)))
    with no_autocast(pose):
        if (backend := local_backend(pose, wide)) == "reference":
            votes = at_least_float32(reference.votes_of(pose, weight, bias.shape, window))
            poses, couplings = reference.route_votes(votes, iterations, wide)
        else:
            poses, couplings = route_local(
                pose, weight, wide, [int(each) for each in window], iterations, return_couplings, backend == "fused"
            )
    poses = poses.to(dtype)
    return (poses, couplings) if return_couplings else poses


def _check(pose: Tensor, weight: Tensor, bias: Tensor, iterations: int, window: Window) -> None:
    if pose.ndim != 5:
        raise ValueError(f"local_routing: pose must be (B, T, D, H, W), got {tuple(pose.shape)}")
    if weight.ndim not in (4, 5) or bias.ndim != 2:
        raise ValueError(
            "local_routing: weight must have 4 axes, or 5 with one for each child type, and bias must be (J, E), "
            f"got {tuple(weight.shape)} and {tuple(bias.shape)}"
        )
    votes, dims = weight.shape[-4:-2][:: -1 if window.transposed else 1]
    if (votes, dims) != (bias.numel(), pose.shape[2]):
        raise ValueError(
            f"local_routing: the weight makes {votes} numbers of {dims}, but children have {pose.shape[2]} dimensions "
            f"and the parents {bias.shape[0]}×{bias.shape[1]} = {bias.numel()}"
        )
    if weight.ndim == 5 and weight.shape[0] != pose.shape[1]:
        raise ValueError(f"local_routing: weights for {weight.shape[0]} child types, but {pose.shape[1]} types")
    if iterations < 1:
        raise ValueError(f"local_routing: iterations must be at least 1, got {iterations}")
    if min(window.size(pose, weight)) < 1:
        raise ValueError(f"local_routing: a window of {weight.shape[-1]} does not fit on {tuple(pose.shape[3:])}")
