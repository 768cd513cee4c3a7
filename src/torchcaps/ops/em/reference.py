"""EM routing as in the paper (Hinton, Sabour & Frosst 2018, Procedure 1): the version that reads like it.

A parent is a Gaussian that children fit their votes to: the M-step fits it to the votes that count for it, the E-step
asks how much each vote counts. Letters beyond the usual: L places of parents, N children in reach of a place.

A child near others is in reach of several places (windows overlap), so what it gives away is shared among the parents
of all of them: `reach` says which child stands at each place's n-th spot.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

FLOOR = 1e-4  # added to variances: votes that all agree would make a Gaussian of no width
LEAST = 1e-4  # added to what counts for a parent: where nothing does, nothing follows from it
STEP = 0.95  # of the inverse temperature: 1 - 0.95^t of it are reached in iteration t


class Reach(NamedTuple):
    """Which children a place's parents hear from.

    child     (L, N)  the child at each spot
    children  I, how many there are in all
    """

    child: Tensor
    children: int

    @property
    def places_I(self) -> Tensor:
        """(I,) how many places each child is in reach of"""
        flat = self.child.flatten()
        return torch.zeros(self.children, device=flat.device).scatter_add_(
            0, flat, torch.ones_like(flat, dtype=torch.float)
        )

    @staticmethod
    def everything(children: int, device: torch.device) -> Reach:
        """One place that all children are in reach of: a dense layer."""
        return Reach(torch.arange(children, device=device)[None], children)

    @staticmethod
    def windows(height: int, width: int, types: int, kernel: int, stride: int, device: torch.device) -> Reach:
        """A place for each window of a map; spots count rows and columns of the window, then types; so do children."""
        rows, columns = (
            torch.arange((side - kernel) // stride + 1, device=device) * stride for side in (height, width)
        )
        inside = torch.arange(kernel, device=device)
        row_YK, column_XK = rows[:, None] + inside, columns[:, None] + inside
        place_YXKK = row_YK[:, None, :, None] * width + column_XK[None, :, None, :]
        child = place_YXKK.reshape(-1, kernel * kernel, 1) * types + torch.arange(types, device=device)
        return Reach(child.flatten(1), height * width * types)


def route_votes(
    votes_BLNJD: Tensor,
    activation_BI: Tensor,
    reach: Reach,
    beta_u_J: Tensor,
    beta_a_J: Tensor,
    iterations: int,
    inverse_temperature: float | Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Poses (B, L, J, D), activations (B, L, J), and what each spot gave to each parent (B, L, N, J), in the last
    iteration: over all places a child's shares sum to 1."""
    activation_BLN1 = activation_BI[:, reach.child][..., None]
    equal_LN1 = 1 / (reach.places_I[reach.child] * votes_BLNJD.shape[3]).to(votes_BLNJD)[..., None]
    shares_BLNJ = equal_LN1.expand(votes_BLNJD.shape[:-1])
    for iteration in range(1, iterations + 1):
        mean, variance, total_BLJ = fit(votes_BLNJD, shares_BLNJ * activation_BLN1)
        cost_BLJ = (beta_u_J[:, None] + 0.5 * variance.log()).sum(-1) * total_BLJ
        logit_BLJ = inverse_temperature * (1 - STEP**iteration) * (beta_a_J - cost_BLJ)
        if iteration < iterations:
            active_BL1J = functional.logsigmoid(logit_BLJ)[:, :, None]
            shares_BLNJ = share_out(active_BL1J + log_density(votes_BLNJD, mean, variance), reach)
    return mean, logit_BLJ.sigmoid(), shares_BLNJ


def fit(votes_BLNJD: Tensor, weight_BLNJ: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """M-step: the mean and variance (B, L, J, D) of the votes, each counting as much as its weight; and the weights'
    sum (B, L, J)."""
    total_BLJ = weight_BLNJ.sum(2)
    share_BLNJ1 = (weight_BLNJ / (total_BLJ + LEAST)[:, :, None])[..., None]
    mean_BLJD = (share_BLNJ1 * votes_BLNJD).sum(2)
    variance_BLJD = (share_BLNJ1 * (votes_BLNJD - mean_BLJD[:, :, None]).square()).sum(2) + FLOOR
    return mean_BLJD, variance_BLJD, total_BLJ


def log_density(votes_BLNJD: Tensor, mean_BLJD: Tensor, variance_BLJD: Tensor) -> Tensor:
    """(B, L, N, J): how likely each vote is for its parent."""
    scaled = (votes_BLNJD - mean_BLJD[:, :, None]).square() / variance_BLJD[:, :, None]
    return -0.5 * (scaled + (2 * math.pi * variance_BLJD).log()[:, :, None]).sum(-1)


def share_out(logits_BLNJ: Tensor, reach: Reach) -> Tensor:
    """E-step: a softmax over all parents, of all places, that a child is in reach of."""
    child_BX = reach.child.flatten().expand(len(logits_BLNJ), -1)
    none_BI = logits_BLNJ.new_full((len(logits_BLNJ), reach.children), -torch.inf)
    largest_BI = none_BI.scatter_reduce(1, child_BX, logits_BLNJ.amax(3).flatten(1).detach(), "amax")
    parts_BLNJ = (logits_BLNJ - largest_BI[:, reach.child][..., None]).exp()
    sum_BI = torch.zeros_like(none_BI).scatter_add(1, child_BX, parts_BLNJ.sum(3).flatten(1))
    return parts_BLNJ / sum_BI[:, reach.child][..., None]
