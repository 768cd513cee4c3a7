"""EM routing of matrix capsules (Hinton, Sabour & Frosst 2018): `reference` reads like the paper, `chunked` and `fused`
keep no votes; README.md has the formulas and derives the gradient.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from torchcaps.checks import check_floats, check_whole
from torchcaps.ops.dispatch import choose, eager
from torchcaps.ops.em import operators
from torchcaps.ops.em.reference import FLOOR, LEAST, Reach
from torchcaps.ops.result import Routed
from torchcaps.ops.squash import no_autocast

ROUNDING = 1e-3  # how far an activation may be below 0: 1 − p of rounded numbers, or a finite difference at 0
TINIEST = 1e-20  # of epsilon and floor: float32 can still hold what is divided by them


def em_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int = 3,
    *,
    inverse_temperature: float | Tensor | None = None,
    epsilon: float = LEAST,
    floor: float = FLOOR,
    offset: Tensor | None = None,
    return_couplings: bool = False,
) -> Routed:
    """Route matrix capsules by expectation maximisation (Hinton et al. 2018); every child votes for every parent.

    Args:
        pose: (B, I, P·P) matrices of the children, row by row.
        activation: (B, I) of the children: how much their votes count, 0 to 1. Not negative; lengths of poses may be
            above 1.
        weight: (I, J, P, P); child i's vote for parent j is pose @ weight[i, j].
        beta_u: (J,) cost of explaining a child badly.
        beta_a: (J,) gain of being active.
        iterations: number of EM iterations, at least 1.
        inverse_temperature: how sharp activations are; gets no gradient. By default J/I, and at most 1: the cost of a
            parent grows with the number of its children, and activations must not saturate.
        epsilon: added to the sum of a parent's weights. It draws parents of little weight to zero: make it smaller
            where few children share many parents.
        floor: added to variances, in the squared unit of poses.
        offset: (I, P·P) added to each child's votes, such as its position; gets no gradient.
        return_couplings: also return the couplings of the last iteration.

    Returns:
        poses (B, J, P·P), activation (B, J), couplings (B, I, J), which sum to 1 over J.
    """
    _check("em_routing", pose, activation, weight, beta_u, beta_a, iterations, epsilon, floor)
    if weight.shape[0] != pose.shape[1]:
        raise ValueError(f"em_routing: weight is for {weight.shape[0]} children, but pose has {pose.shape[1]}")
    if offset is not None and offset.shape != pose.shape[1:]:
        raise ValueError(f"em_routing: offset must be (I, P·P) = {tuple(pose.shape[1:])}, got {tuple(offset.shape)}")
    if offset is not None and offset.requires_grad:
        raise ValueError("em_routing: offset is a constant and gets no gradient: pass offset.detach()")
    reach = Reach.everything(pose.shape[1], pose.device)
    betas = beta_u, beta_a, iterations, inverse_temperature, epsilon, floor
    poses, activations, shares = _route(pose, activation, weight, reach, *betas, offset, return_couplings)
    return Routed(poses[:, 0], activations[:, 0], shares[:, 0] if return_couplings else None)


def em_routing_conv(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int = 3,
    *,
    stride: int = 1,
    inverse_temperature: float | Tensor | None = None,
    epsilon: float = LEAST,
    floor: float = FLOOR,
) -> Routed:
    """Route maps of matrix capsules: a parent gets votes from a window of children.

    Windows overlap. A child divides its coupling among the parents of all windows that contain it.

    Args:
        pose: (B, T, P·P, H, W) matrices of the children.
        activation: (B, T, H, W) of the children, see `em_routing`.
        weight: (k·k·T, J, P, P) for each child of a window: rows, columns, then types; shared by all windows.
        beta_u: (J,) cost of explaining a child badly.
        beta_a: (J,) gain of being active.
        iterations: number of EM iterations, at least 1.
        stride: of the windows; there is no padding.
        inverse_temperature: how sharp activations are; gets no gradient. By default as for `em_routing`, with I
            children and J parents at all positions together.
        epsilon: added to the sum of a parent's weights, see `em_routing`.
        floor: added to variances.

    Returns:
        poses (B, J, P·P, H', W'), activation (B, J, H', W').
    """
    check_floats("em_routing_conv", pose=pose, activation=activation, weight=weight)
    if pose.ndim != 5 or activation.shape != (*pose.shape[:2], *pose.shape[3:]):
        raise ValueError(
            "em_routing_conv: pose must be (B, T, P·P, H, W) and activation (B, T, H, W), "
            f"got {tuple(pose.shape)} and {tuple(activation.shape)}"
        )
    _, T, _, H, W = pose.shape
    kernel = math.isqrt(weight.shape[0] // T)
    if kernel * kernel * T != weight.shape[0] or not 1 <= kernel <= min(H, W) or stride < 1:
        raise ValueError(
            f"em_routing_conv: a weight for {weight.shape[0]} spots fits no window on maps of {T} types, {H}×{W}"
        )
    flat_pose = pose.permute(0, 3, 4, 1, 2).flatten(1, 3)
    flat_activation = activation.permute(0, 2, 3, 1).flatten(1)
    _check("em_routing_conv", flat_pose, flat_activation, weight, beta_u, beta_a, iterations, epsilon, floor)
    reach = Reach.windows(H, W, T, kernel, stride, pose.device)
    betas = beta_u, beta_a, iterations, inverse_temperature, epsilon, floor
    poses, activations, _ = _route(flat_pose, flat_activation, weight, reach, *betas, offset=None, couplings=False)
    size = [(side - kernel) // stride + 1 for side in (H, W)]
    poses = poses.unflatten(1, size).permute(0, 3, 4, 1, 2)
    return Routed(poses, activations.unflatten(1, size).permute(0, 3, 1, 2))


def _route(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    reach: Reach,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int,
    inverse_temperature: float | Tensor | None,
    epsilon: float,
    floor: float,
    offset: Tensor | None,
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Route in at least float32; poses are returned in the type of poses and weights, the rest stays wide.

    Returns:
        poses (B, L, J, P·P), activations (B, L, J), and couplings (B, L, N, J), empty unless couplings=True.
    """
    with no_autocast(pose):
        wide = functools.reduce(torch.promote_types, (x.dtype for x in (pose, activation, weight, beta_u, beta_a)))
        wide = torch.promote_types(wide, torch.float32)
        pose_, activation_, weight_, u_, a_ = (x.to(wide) for x in (pose, activation, weight, beta_u, beta_a))
        offset_ = None if offset is None else offset.to(wide)
        size = weight.shape[-1]
        limit = None if size in (1, 2, 4) else f"poses are {size}×{size}, not 1×1, 2×2 or 4×4"
        backend = choose("EM routing", pose_, weight_, limit=limit)
        if inverse_temperature is None:
            inverse_temperature = usual_inverse_temperature(pose.shape[1], len(reach.child) * weight.shape[1])
        if isinstance(inverse_temperature, Tensor):
            temperature = inverse_temperature.to(pose.device, wide)
        else:  # filled on the device: nothing is copied to it while a CUDA graph is recorded
            temperature = torch.full((), inverse_temperature, dtype=wide, device=pose.device)
        route = operators.route.reference if backend == "reference" else operators.route
        inputs = pose_, activation_, weight_, u_, a_, temperature, *reach, offset_
        poses, activations, shares = route(*inputs, iterations, couplings, backend == "fused", epsilon, floor)
    return poses.to(torch.promote_types(pose.dtype, weight.dtype)), activations, shares


def usual_inverse_temperature(children: int, parents: int) -> float:
    """The default of `em_routing`: the logit of a parent is then the mean cost of a child, not a sum over its share.

    With one value for all layers those of many children start saturated, and those of few hardly react. Where parents
    outnumber the children, each child chooses a parent, which then has a share of about one.
    """
    return min(1.0, parents / max(children, 1))


def _check(
    name: str,
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int,
    epsilon: float,
    floor: float,
) -> None:
    check_floats(name, pose=pose, activation=activation, weight=weight, beta_u=beta_u, beta_a=beta_a)
    if pose.ndim != 3 or activation.shape != pose.shape[:2]:
        raise ValueError(
            f"{name}: pose must be (B, I, P·P) and activation (B, I), "
            f"got {tuple(pose.shape)} and {tuple(activation.shape)}"
        )
    P = weight.shape[-1] if weight.ndim == 4 else 0
    if weight.ndim != 4 or weight.shape[2] != P or pose.shape[2] != P * P:
        raise ValueError(
            f"{name}: weight must be (…, J, P, P) with P·P = {pose.shape[2]}, as poses have, got {tuple(weight.shape)}"
        )
    for label, beta in (("beta_u", beta_u), ("beta_a", beta_a)):
        if beta.shape != weight.shape[1:2]:
            raise ValueError(f"{name}: {label} must be (J,) = ({weight.shape[1]},), got {tuple(beta.shape)}")
    check_whole(name, iterations=iterations)
    for label, value in (("epsilon", epsilon), ("floor", floor)):
        if not value >= TINIEST:
            raise ValueError(f"{name}: {label} must be at least {TINIEST:g}, got {value}")
    _check_values(name, activation)


def _check_values(name: str, activation: Tensor) -> None:
    """Refuse negative activations, whose variances are negative: poses would be NaN, or far from all votes.

    A GPU would have to be waited for, and traced tensors have no values. NaN is passed on: in training, the layer that
    made it is looked for.
    """
    if not activation.is_cpu or not activation.numel() or not eager((activation,)):
        return
    least = activation.detach().amin().item()
    if least < -ROUNDING:
        raise ValueError(
            f"{name}: activation must be in [0, 1], got {least:g}; use activation.sigmoid(), or Capsules(pose), where "
            "it is the length"
        )
