"""EM routing as in the paper (Hinton, Sabour & Frosst 2018, Procedure 1), written to be read.

A parent is a Gaussian: the M-step fits it to the weighted votes, the E-step computes the weight of each vote. Further
axes: L positions of parents, N children in reach of a position.

Windows overlap, so a child is in reach of several positions, and divides its coupling among the parents of all of them:
`reach` holds the child at the n-th spot of each position.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

LEAST = 1e-4  # added to the sum of weights, so that a parent without votes is zero
FLOOR = 1e-4  # added to variances, which would be zero where all votes agree
STEP = 0.95  # of the inverse temperature: 1 - 0.95^t of it are reached in iteration t


class Reach(NamedTuple):
    """Which children vote for the parents of each position.

    Attributes:
        child: (L, N) the child at each spot of a position.
        spots: (I, S) the spots of each child, numbered over all positions; padded with -1.
    """

    child: Tensor
    spots: Tensor

    def equal_shares(self, parents: int, dtype: torch.dtype) -> Tensor:
        """Equal couplings (L, N) of a spot's child to all parents in its reach."""
        return 1 / ((self.spots >= 0).sum(1)[self.child] * parents).to(dtype)

    def over_spots(self, values: Tensor, reduce: Literal["sum", "amax"] = "sum") -> Tensor:
        """Reduce (B, L, N, …) to (B, I, …) over all spots of a child, in a fixed order."""
        missing = (self.spots < 0).view(*self.spots.shape, *[1] * (values.ndim - 3))
        found = values.flatten(1, 2)[:, self.spots.clamp_min(0)]
        return (
            found.masked_fill(missing, 0).sum(2) if reduce == "sum" else found.masked_fill(missing, -torch.inf).amax(2)
        )

    @staticmethod
    def everything(children: int, device: torch.device) -> Reach:
        """A single position with all children in reach: a dense layer."""
        each = torch.arange(children, device=device)
        return Reach(each[None], each[:, None])

    @staticmethod
    def windows(height: int, width: int, types: int, kernel: int, stride: int, device: torch.device) -> Reach:
        """A position for each window of a map; spots count rows, columns, then types; so do children."""
        each = torch.arange(types, device=device)
        (row_YK, up_HS, at_HS), (column_XK, left_WS, from_WS) = (
            _windows(side, kernel, stride, device) for side in (height, width)
        )
        place_YXKK = row_YK[:, None, :, None] * width + column_XK[None, :, None, :]
        child = place_YXKK.reshape(-1, kernel * kernel, 1) * types + each
        window_HWSS = up_HS[:, None, :, None] * len(column_XK) + left_WS[None, :, None, :]
        spot_HWSS = window_HWSS * (kernel * kernel) + at_HS[:, None, :, None] * kernel + from_WS[None, :, None, :]
        missing_HWSS = (up_HS < 0)[:, None, :, None] | (left_WS < 0)[None, :, None, :]
        spots_HWTS = (spot_HWSS.flatten(2) * types)[:, :, None] + each[:, None]
        spots_HWTS = spots_HWTS.masked_fill(missing_HWSS.flatten(2)[:, :, None], -1)
        return Reach(child.flatten(1), spots_HWTS.flatten(0, 2))


def _windows(side: int, kernel: int, stride: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Along one side: the rows of each window (Y, k); for each row (H, S) the windows that contain it, padded with -1,
    and its offset in them."""
    start_Y = torch.arange((side - kernel) // stride + 1, device=device) * stride
    row_H = torch.arange(side, device=device)
    most = (kernel + stride - 1) // stride
    window_HS = row_H[:, None] // stride - torch.arange(most, device=device)
    within_HS = row_H[:, None] - window_HS * stride
    inside = (window_HS >= 0) & (window_HS < len(start_Y)) & (within_HS < kernel)
    return start_Y[:, None] + torch.arange(kernel, device=device), window_HS.where(inside, -1), within_HS


def route_votes(
    votes_BLNJD: Tensor,
    activation_BI: Tensor,
    reach: Reach,
    beta_u_J: Tensor,
    beta_a_J: Tensor,
    iterations: int,
    inverse_temperature: float | Tensor,
    epsilon: float = LEAST,
    floor: float = FLOOR,
) -> tuple[Tensor, Tensor, Tensor]:
    """Route given votes: poses (B, L, J, D), activations (B, L, J) and couplings (B, L, N, J) of the last iteration,
    which sum to 1 over all positions and parents of a child."""
    activation_BLN1 = activation_BI[:, reach.child][..., None]
    equal_LN = reach.equal_shares(votes_BLNJD.shape[3], votes_BLNJD.dtype)
    shares_BLNJ = equal_LN[..., None].expand(votes_BLNJD.shape[:-1])
    for iteration in range(1, iterations + 1):
        mean, variance, total_BLJ = fit(votes_BLNJD, shares_BLNJ * activation_BLN1, epsilon, floor)
        cost_BLJ = (beta_u_J[:, None] + 0.5 * variance.log()).sum(-1) * total_BLJ
        logit_BLJ = inverse_temperature * (1 - STEP**iteration) * (beta_a_J - cost_BLJ)
        if iteration < iterations:
            active_BL1J = functional.logsigmoid(logit_BLJ)[:, :, None]
            shares_BLNJ = share_out(active_BL1J + log_density(votes_BLNJD, mean, variance), reach)
    return mean, logit_BLJ.sigmoid(), shares_BLNJ


def fit(
    votes_BLNJD: Tensor, weight_BLNJ: Tensor, epsilon: float = LEAST, floor: float = FLOOR
) -> tuple[Tensor, Tensor, Tensor]:
    """M-step: weighted mean and variance (B, L, J, D) of the votes, and the sum of the weights (B, L, J)."""
    total_BLJ = weight_BLNJ.sum(2)
    share_BLNJ1 = (weight_BLNJ / (total_BLJ + epsilon)[:, :, None])[..., None]
    mean_BLJD = (share_BLNJ1 * votes_BLNJD).sum(2)
    variance_BLJD = (share_BLNJ1 * (votes_BLNJD - mean_BLJD[:, :, None]).square()).sum(2) + floor
    return mean_BLJD, variance_BLJD, total_BLJ


def log_density(votes_BLNJD: Tensor, mean_BLJD: Tensor, variance_BLJD: Tensor) -> Tensor:
    """Log-density (B, L, N, J) of each vote under its parent."""
    scaled = (votes_BLNJD - mean_BLJD[:, :, None]).square() / variance_BLJD[:, :, None]
    return -0.5 * (scaled + (2 * math.pi * variance_BLJD).log()[:, :, None]).sum(-1)


def share_out(logits_BLNJ: Tensor, reach: Reach) -> Tensor:
    """E-step: a softmax over all parents, at all positions, in reach of a child."""
    largest_BI = reach.over_spots(logits_BLNJ.amax(3).detach(), "amax")
    parts_BLNJ = (logits_BLNJ - largest_BI[:, reach.child][..., None]).exp()
    return parts_BLNJ / reach.over_spots(parts_BLNJ.sum(3))[:, reach.child][..., None]
