"""Routing by agreement as in Procedure 1 of Sabour, Frosst & Hinton (2017): every faster path is tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.ops.squash import at_least_float32, no_autocast, squash


def dynamic_routing(
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    iterations: int,
    bias_JD: Tensor | None,
    leaky: bool,
    inverse_temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Children vote for parents and route themselves to those that agree.

    Args:
        u_BIK: (B, I, K) poses of the children.
        weight_IJDK: (I, J, D, K) one D×K matrix for each child and parent.
        iterations: number of routing iterations.
        bias_JD: (J, D) added to each parent's sum before it is squashed.
        leaky: see `couple`.
        inverse_temperature: factor of the agreement; 1 in the paper.

    Returns:
        (B, J, D) poses of the parents, (B, I, J) couplings of the last iteration.
    """
    with no_autocast(u_BIK):
        votes_BIJD = torch.einsum("ijdk,bik->bijd", at_least_float32(weight_IJDK), at_least_float32(u_BIK))
    poses_BJD, couplings_BIJ = route_votes(votes_BIJD, iterations, bias_JD, leaky, inverse_temperature)
    dtype = torch.promote_types(u_BIK.dtype, weight_IJDK.dtype)
    return poses_BJD.to(dtype), couplings_BIJ.to(dtype)


def route_votes(
    votes_BIJD: Tensor, iterations: int, bias_JD: Tensor | None, leaky: bool, inverse_temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Run Procedure 1 on given votes (B, I, J, D); gradients flow through every iteration.

    Returns:
        (B, J, D) poses of the parents, (B, I, J) couplings of the last iteration.
    """
    dtype = votes_BIJD.dtype
    votes_BIJD = at_least_float32(votes_BIJD)
    bias_JD = votes_BIJD.new_zeros(()) if bias_JD is None else at_least_float32(bias_JD)
    logits_BIJ = torch.zeros_like(votes_BIJD[..., 0])
    with no_autocast(votes_BIJD):
        for iteration in range(iterations):
            couplings_BIJ = couple(logits_BIJ, leaky)
            poses_BJD = squash(torch.einsum("bij,bijd->bjd", couplings_BIJ, votes_BIJD) + bias_JD)
            if iteration < iterations - 1:
                agreement_BIJ = torch.einsum("bijd,bjd->bij", votes_BIJD, poses_BJD)
                logits_BIJ = logits_BIJ + inverse_temperature * agreement_BIJ
    return poses_BJD.to(dtype), couplings_BIJ.to(dtype)


def couple(logits_BIJ: Tensor, leaky: bool) -> Tensor:
    """Softmax over parents (Eq. 3). Leaky: one more logit, fixed at zero, takes the coupling of children that fit no
    parent."""
    if not leaky:
        return logits_BIJ.softmax(dim=-1)
    return torch.nn.functional.pad(logits_BIJ, (1, 0)).softmax(dim=-1)[..., 1:]
