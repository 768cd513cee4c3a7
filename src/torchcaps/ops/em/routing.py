"""EM routing as plain functions of tensors: arguments checked here."""

from __future__ import annotations

import functools
import math
from typing import Literal, overload

import torch
from torch import Tensor

from torchcaps.ops.dispatch import em_backend
from torchcaps.ops.em import chunked, operators, reference
from torchcaps.ops.em.reference import Reach
from torchcaps.ops.squash import no_autocast


@overload
def em_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int = ...,
    *,
    inverse_temperature: float | Tensor = ...,
    offset: Tensor | None = ...,
    return_couplings: Literal[False] = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def em_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int = ...,
    *,
    inverse_temperature: float | Tensor = ...,
    offset: Tensor | None = ...,
    return_couplings: Literal[True],
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def em_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int = ...,
    *,
    inverse_temperature: float | Tensor = ...,
    offset: Tensor | None = ...,
    return_couplings: bool,
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]: ...
def em_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int = 3,
    *,
    inverse_temperature: float | Tensor = 0.01,
    offset: Tensor | None = None,
    return_couplings: bool = False,
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """Route matrix capsules by expectation maximisation (Hinton et al. 2018), every child in reach of every parent.

    pose        (B, I, P·P)   the children's matrices, row by row
    activation  (B, I)        how much each child counts, 0 to 1
    weight      (I, J, P, P)  child i's vote for parent j is pose @ weight[i, j]
    beta_u      (J,)          what it costs a parent to explain a child badly
    beta_a      (J,)          what it gains by being active
    offset      (I, P·P)      added to each child's votes: its place, for instance. It gets no gradient, nor does
                inverse_temperature
    returns     poses (B, J, P·P) and activations (B, J); with return_couplings also (B, I, J), those of the last
                iteration, which sum to 1 over J
    """
    _check("em_routing", pose, activation, weight, beta_u, beta_a, iterations)
    if weight.shape[0] != pose.shape[1]:
        raise ValueError(f"em_routing: a weight for {weight.shape[0]} children, but {pose.shape[1]} children")
    if offset is not None and offset.shape != pose.shape[1:]:
        raise ValueError(f"em_routing: offset must be (I, P·P) = {tuple(pose.shape[1:])}, got {tuple(offset.shape)}")
    if offset is not None and offset.requires_grad:
        raise ValueError("em_routing: offset is a constant and gets no gradient: give offset.detach()")
    reach = Reach.everything(pose.shape[1], pose.device)
    poses, activations, shares = _route(
        pose, activation, weight, reach, beta_u, beta_a, iterations, inverse_temperature, offset, return_couplings
    )
    poses, activations = poses[:, 0], activations[:, 0]
    return (poses, activations, shares[:, 0]) if return_couplings else (poses, activations)


def em_routing_conv(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int = 3,
    *,
    stride: int = 1,
    inverse_temperature: float | Tensor = 0.01,
) -> tuple[Tensor, Tensor]:
    """The same for maps of capsules: a parent hears from a window of children, and a child shares what it gives among
    the parents of all windows it is in.

    pose        (B, T, P·P, H, W)
    activation  (B, T, H, W)
    weight      (k·k·T, J, P, P)  for each spot of a window: rows, columns, then types; the same everywhere
    returns     (B, J, P·P, H', W') and (B, J, H', W')
    """
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
    _check("em_routing_conv", flat_pose, flat_activation, weight, beta_u, beta_a, iterations)
    reach = Reach.windows(H, W, T, kernel, stride, pose.device)
    high, wide = ((side - kernel) // stride + 1 for side in (H, W))
    poses, activations, _ = _route(
        flat_pose,
        flat_activation,
        weight,
        reach,
        beta_u,
        beta_a,
        iterations,
        inverse_temperature,
        None,
        couplings=False,
    )
    poses = poses.unflatten(1, (high, wide)).permute(0, 3, 4, 1, 2)
    return poses, activations.unflatten(1, (high, wide)).permute(0, 3, 1, 2)


def _route(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    reach: Reach,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int,
    inverse_temperature: float | Tensor,
    offset: Tensor | None,
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """In at least float32, whatever the inputs; poses come out as poses and weights went in, the rest stays so."""
    with no_autocast(pose):
        wide = functools.reduce(torch.promote_types, (x.dtype for x in (pose, activation, weight, beta_u, beta_a)))
        wide = torch.promote_types(wide, torch.float32)
        pose_, activation_, weight_, u_, a_ = (x.to(wide) for x in (pose, activation, weight, beta_u, beta_a))
        offset_ = None if offset is None else offset.to(wide)
        backend = em_backend(pose_, weight_)
        if isinstance(inverse_temperature, Tensor):
            temperature = inverse_temperature.to(pose.device, wide)
        else:  # filled on the device: nothing is copied to it while a CUDA graph is recorded
            temperature = torch.full((), inverse_temperature, dtype=wide, device=pose.device)
        if backend == "reference":
            votes = chunked.votes_of(pose_[:, reach.child].unflatten(-1, weight.shape[2:]), weight_, offset_)
            found = reference.route_votes(votes, activation_, reach, u_, a_, iterations, temperature)
        else:
            found = operators.route(
                backend, pose_, activation_, weight_, reach, u_, a_, iterations, temperature, offset_, couplings
            )
    poses, activations, shares = found
    return poses.to(torch.promote_types(pose.dtype, weight.dtype)), activations, shares


def _check(
    name: str, pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, iterations: int
) -> None:
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
    if iterations < 1:
        raise ValueError(f"{name}: iterations must be at least 1, got {iterations}")
