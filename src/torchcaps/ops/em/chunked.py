"""EM routing that keeps no votes: examples are routed a few at a time, and once more in the backward pass.

Examples are independent, so routing a part of the batch gives the same results. The votes of a part exist only while
that part is routed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchcaps.ops.em import reference, routine
from torchcaps.ops.em.reference import FLOOR, LEAST, Reach
from torchcaps.ops.em.routine import ALL, Gradients, Step

SCRATCH = 2**20  # values of the votes of a part, unless one example has more; there are about four such arrays


class Made:
    """The passes of `routine.Votes` over votes in memory."""

    def __init__(
        self,
        pose_BID: Tensor,
        activation_BI: Tensor,
        weight_NJPP: Tensor,
        reach: Reach,
        offset_ND: Tensor | None,
        epsilon: float,
        floor: float,
    ):
        self.weight, self.reach = weight_NJPP, reach
        self.epsilon, self.floor = epsilon, floor
        self.pose_BLNPP = pose_BID[:, reach.child].unflatten(-1, weight_NJPP.shape[2:])
        self.activation_BLN1 = activation_BI[:, reach.child][..., None]
        self.votes = votes_of(self.pose_BLNPP, weight_NJPP, offset_ND)

    def fit(self, shares_BLNJ: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return reference.fit(self.votes, shares_BLNJ * self.activation_BLN1, self.epsilon, self.floor)

    def score(self, mean_BLJD: Tensor, linear_BLJD: Tensor | None, square_BLJD: Tensor, plus_BLJ: Tensor) -> Tensor:
        away = self._away(mean_BLJD)
        slope = away * square_BLJD[:, :, None]
        if linear_BLJD is not None:
            slope += linear_BLJD[:, :, None]
        return (slope.mul_(away)).sum(-1) + plus_BLJ[:, :, None]

    def sums(self, pairs_BLNJ: Tensor, mean_BLJD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        away = self._away(mean_BLJD)
        first = away * pairs_BLNJ[..., None]
        return pairs_BLNJ.sum(2), first.sum(2), first.mul_(away).sum(2)

    def spread(self, steps: list[Step], needs: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
        d_pose = d_weight = self.votes.new_empty(0)
        if needs[0] or needs[2]:
            d_votes = self._gradient(steps).unflatten(-1, self.weight.shape[2:])
            if needs[0]:
                d_pose_BLNPP = torch.einsum("blnjpr,njqr->blnpq", d_votes, self.weight)
                d_pose = self.reach.over_spots(d_pose_BLNPP.flatten(3))
            if needs[2]:
                d_weight = torch.einsum("blnpq,blnjpr->njqr", self.pose_BLNPP, d_votes)
        first = steps[0]
        d_first = (self.score(first.mean, first.linear, first.square, first.plus) * first.shares).sum(3)
        return d_pose, self.reach.over_spots(d_first), d_weight

    def _gradient(self, steps: list[Step]) -> Tensor:
        """Of the votes."""
        d_votes = torch.zeros_like(self.votes)
        for step in steps:
            weight = (step.shares * self.activation_BLN1)[..., None]
            slope = 2 * weight * step.square[:, :, None]
            if step.pairs is not None and step.inverse is not None:
                slope -= step.pairs[..., None] * step.inverse[:, :, None]
            d_votes += slope.mul_(self._away(step.mean)).add_(weight * step.linear[:, :, None])
        return d_votes

    def _away(self, mean_BLJD: Tensor) -> Tensor:
        return self.votes - mean_BLJD[:, :, None]


def forward(
    pose_BID: Tensor,
    activation_BI: Tensor,
    weight_NJPP: Tensor,
    reach: Reach,
    beta_u_J: Tensor,
    beta_a_J: Tensor,
    iterations: int,
    temperature: Tensor,
    offset_ND: Tensor | None,
    couplings: bool = True,
    epsilon: float = LEAST,
    floor: float = FLOOR,
    scratch: int = SCRATCH,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.route_votes`, with votes made from poses and weights; couplings are empty unless couplings=True.

    Args:
        pose_BID: (B, I, P·P).
        weight_NJPP: (N, J, P, P) for each spot, the same at all positions.
        offset_ND: (N, P·P) added to the votes of each spot.
        scratch: maximum values of votes at a time, unless a single example has more.
    """
    parts = []
    for part in _parts(pose_BID, weight_NJPP, reach, scratch):
        votes = Made(pose_BID[part], activation_BI[part], weight_NJPP, reach, offset_ND, epsilon, floor)
        found, shares = routine.forward(votes, reach, beta_u_J, beta_a_J, iterations, temperature, len(votes.votes))
        last = shares[-1] if couplings else activation_BI.new_empty(0)
        parts.append((found[-1].mean, found[-1].logit.sigmoid(), last))
    mean, active, last = (torch.cat(each) for each in zip(*parts))
    return mean, active, last


def backward(
    grad_mean: Tensor,
    grad_active: Tensor,
    grad_shares: Tensor | None,
    pose_BID: Tensor,
    activation_BI: Tensor,
    weight_NJPP: Tensor,
    reach: Reach,
    beta_u_J: Tensor,
    beta_a_J: Tensor,
    iterations: int,
    temperature: Tensor,
    offset_ND: Tensor | None,
    epsilon: float = LEAST,
    floor: float = FLOOR,
    scratch: int = SCRATCH,
    needs: Sequence[bool] = ALL,
) -> Gradients:
    """As `routine.backward`."""
    parts = []
    for part in _parts(pose_BID, weight_NJPP, reach, scratch):
        votes = Made(pose_BID[part], activation_BI[part], weight_NJPP, reach, offset_ND, epsilon, floor)
        found, shares = routine.forward(votes, reach, beta_u_J, beta_a_J, iterations, temperature, len(votes.votes))
        grads = grad_mean[part], grad_active[part], None if grad_shares is None else grad_shares[part]
        parts.append(
            routine.backward(votes, activation_BI[part], reach, beta_u_J, temperature, found, shares, *grads, needs)
        )
    poses, activations, *rest = zip(*parts)
    return Gradients(torch.cat(poses), torch.cat(activations), *(torch.stack(each).sum(0) for each in rest))


def votes_of(pose_BLNPP: Tensor, weight_NJPP: Tensor, offset_ND: Tensor | None) -> Tensor:
    """(B, L, N, J, P·P): the pose at each spot times its matrices."""
    votes = torch.einsum("blnpq,njqr->blnjpr", pose_BLNPP, weight_NJPP).flatten(4)
    return votes if offset_ND is None else votes + offset_ND[:, None]


def _parts(pose_BID: Tensor, weight_NJPP: Tensor, reach: Reach, scratch: int) -> Iterator[slice]:
    """The batch, a few examples at a time; one empty part of an empty batch."""
    B, votes = len(pose_BID), reach.child.numel() * weight_NJPP.shape[1] * pose_BID.shape[2]
    size = max(1, min(max(B, 1), scratch // max(1, votes)))
    return (slice(start, start + size) for start in range(0, max(B, 1), size))
