"""Convolutional capsules, routed at each position by itself (LaLonde & Bagci 2018).

`reference` reads like the paper; `chunked` and `fused` make the votes of a few examples at a time. README.md has the
formulas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.checks import check_floats, check_whole
from torchcaps.ops.dispatch import choose
from torchcaps.ops.local import operators
from torchcaps.ops.local.reference import Window
from torchcaps.ops.result import Routed
from torchcaps.ops.squash import at_least_float32, autocast_dtype, no_autocast

__all__ = ["Window", "local_routing"]
PLAIN = Window()


def local_routing(
    pose: Tensor,
    weight: Tensor,
    bias: Tensor,
    iterations: int = 3,
    window: Window = PLAIN,
    *,
    return_couplings: bool = False,
) -> Routed:
    """Route a map of capsules to another: a convolution makes the votes, and each position is routed by itself.

    The convolution runs in the type that autocast chooses, routing in at least float32.

    Args:
        pose: (B, T, D, H, W) of T child types.
        weight: (J·E, D, k, k) shared by all child types, or (T, J·E, D, k, k); D and J·E change places if transposed.
        bias: (J, E) added to each parent's sum before it is squashed; zeros for none.
        iterations: number of routing iterations, at least 1.
        window: stride, padding and dilation of the convolution, and whether it is transposed.
        return_couplings: also return the couplings of the last iteration.

    Returns:
        poses (B, J, E, Y, X), couplings (B, T, J, Y, X), which sum to 1 over J and get no gradient.
    """
    _check(pose, weight, bias, iterations, window)
    if len(bias) == 1:
        iterations = 1  # the coupling to a single parent is always 1
    dtype = torch.promote_types(pose.dtype, weight.dtype)
    if dtype != torch.float64:  # autocast does not change float64
        dtype = autocast_dtype(pose) or dtype
    pose, weight = pose.to(dtype), weight.to(dtype)
    wide = at_least_float32(bias.to(torch.promote_types(dtype, bias.dtype)))
    with no_autocast(pose):
        backend = choose("local routing", pose, wide)
        route = operators.route.reference if backend == "reference" else operators.route
        numbers = [int(each) for each in window]
        poses, couplings = route(pose, weight, wide, numbers, iterations, return_couplings, backend == "fused")
    return Routed(poses.to(dtype), None, couplings.detach() if return_couplings else None)


def _check(pose: Tensor, weight: Tensor, bias: Tensor, iterations: int, window: Window) -> None:
    check_floats("local_routing", pose=pose, weight=weight, bias=bias)
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
    check_whole("local_routing", iterations=iterations)
    if min(window.size(pose, weight)) < 1:
        raise ValueError(f"local_routing: a window of {weight.shape[-1]} does not fit on {tuple(pose.shape[3:])}")
