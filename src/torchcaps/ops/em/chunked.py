"""EM routing that keeps no votes: examples are routed a few at a time, and once more in the backward pass.

Routing never mixes examples, so a part of the batch gives what the whole would. All that autograd keeps of a part is
its poses and activations; its votes, and what the iterations make of them, exist while that part is at work.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchcaps.ops.em import reference
from torchcaps.ops.em.reference import Reach

SCRATCH = 8 * 2**20  # votes of a part at most, in numbers; the backward pass holds some ten arrays of that size


def route(
    pose_BID: Tensor,
    activation_BI: Tensor,
    weight_NJPP: Tensor,
    reach: Reach,
    beta_u_J: Tensor,
    beta_a_J: Tensor,
    iterations: int,
    inverse_temperature: float | Tensor,
    offset_ND: Tensor | None = None,
    scratch: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.route_votes`, of votes that are made of the children's poses.

    pose_BID     (B, I, P·P)
    weight_NJPP  (N, J, P, P)  for each spot, the same at all places
    offset_ND    (N, P·P)      added to the votes of each spot
    scratch      at most so many votes at a time
    """
    B, D = len(pose_BID), pose_BID.shape[2]
    votes = reach.child.numel() * weight_NJPP.shape[1] * D
    size = max(1, min(max(B, 1), (scratch or SCRATCH) // max(1, votes)))

    def part(pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = votes_of(pose, weight_NJPP, reach, offset_ND)
        return reference.route_votes(made, activation, reach, beta_u_J, beta_a_J, iterations, inverse_temperature)

    if not torch.is_grad_enabled():
        parts = [part(*each) for each in zip(pose_BID.split(size), activation_BI.split(size))]
    else:
        parts = [
            checkpoint(part, *each, use_reentrant=False, preserve_rng_state=False)
            for each in zip(pose_BID.split(size), activation_BI.split(size))
        ]
    mean, activation, shares = (torch.cat(each) for each in zip(*parts))
    return mean, activation, shares


def votes_of(pose_BID: Tensor, weight_NJPP: Tensor, reach: Reach, offset_ND: Tensor | None) -> Tensor:
    """(B, L, N, J, P·P): the pose at each spot times its matrices."""
    P = weight_NJPP.shape[-1]
    pose_BLNPP = pose_BID[:, reach.child].unflatten(-1, (P, P))
    votes = torch.einsum("blnpq,njqr->blnjpr", pose_BLNPP, weight_NJPP).flatten(4)
    return votes if offset_ND is None else votes + offset_ND[:, None]
