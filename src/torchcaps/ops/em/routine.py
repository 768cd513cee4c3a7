"""EM routing and its gradient as a few passes over the votes.

A pass reduces over the children of a position or the values of a vote, or takes gradients back to poses and weights.
`Votes` names the passes; chunked.py has them in PyTorch, fused.py as kernels that never write a vote to memory. What
concerns parents, or pairs of a spot and a parent, is here. README.md derives the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.ops.em.reference import STEP, Reach, share_out

ALL = (True,) * 5  # every gradient is needed


class Votes(Protocol):
    """The votes v (B, L, N, J, D) of the children, weighted by their activations.

    Attributes:
        epsilon: added to the sum of weights.
        floor: added to variances.
    """

    epsilon: float
    floor: float

    def fit(self, shares_BLNJ: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance (B, L, J, D) of the votes and the sum of weights (B, L, J): `reference.fit`."""
        ...

    def score(self, mean_BLJD: Tensor, linear_BLJD: Tensor | None, square_BLJD: Tensor, plus_BLJ: Tensor) -> Tensor:
        """(B, L, N, J): Σ_D (v - mean) linear + (v - mean)² square, plus a term for each parent."""
        ...

    def sums(self, pairs_BLNJ: Tensor, mean_BLJD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Σ_N pairs (B, L, J), Σ_N pairs (v - mean) and Σ_N pairs (v - mean)² (B, L, J, D)."""
        ...

    def spread(self, steps: list[Step], needs: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the poses (B, I, D), of the activations (B, I) by the first step, of the weights (N, J, P, P).
        Those of the poses and of the weights are empty where needs[0] or needs[2] is false.

        The gradient of a vote is the sum over steps of share · activation · (linear + 2 square (v - mean))
        - pairs · inverse · (v - mean), and that of an activation by the first step the sum over parents of
        share · (Σ_D (v - mean) linear + (v - mean)² square + plus).
        """
        ...


class Fitted(NamedTuple):
    """Result of an M-step: (B, L, J), (B, L, J, D), (B, L, J, D) and the activations' logits (B, L, J)."""

    total: Tensor
    mean: Tensor
    variance: Tensor
    logit: Tensor


class Step(NamedTuple):
    """One iteration as `Votes.spread` needs it. pairs and inverse, of the E-step that follows, are None in the last."""

    shares: Tensor
    mean: Tensor
    linear: Tensor
    square: Tensor
    plus: Tensor
    pairs: Tensor | None
    inverse: Tensor | None


class Gradients(NamedTuple):
    pose: Tensor
    activation: Tensor
    weight: Tensor
    beta_u: Tensor
    beta_a: Tensor


def forward(
    votes: Votes, reach: Reach, beta_u_J: Tensor, beta_a_J: Tensor, iterations: int, temperature: Tensor, batch: int
) -> tuple[list[Fitted], list[Tensor]]:
    """Results of each iteration, and the couplings it started with; the first are the same for all examples."""
    equal_LN = reach.equal_shares(len(beta_u_J), beta_u_J.dtype)
    shares, found = [equal_LN[None, :, :, None].expand(batch, -1, -1, len(beta_u_J))], list[Fitted]()
    for iteration in range(1, iterations + 1):
        mean, variance, total = votes.fit(shares[-1])
        cost = (beta_u_J[:, None] + 0.5 * variance.log()).sum(-1) * total
        logit = temperature * (1 - STEP**iteration) * (beta_a_J - cost)
        found.append(Fitted(total, mean, variance, logit))
        if iteration < iterations:
            plus = functional.logsigmoid(logit) - 0.5 * (2 * math.pi * variance).log().sum(-1)
            shares.append(share_out(votes.score(mean, None, -0.5 / variance, plus), reach))
    return found, shares


def backward(
    votes: Votes,
    activation_BI: Tensor,
    reach: Reach,
    beta_u_J: Tensor,
    temperature: Tensor,
    found: list[Fitted],
    shares: list[Tensor],
    grad_mean: Tensor,
    grad_active: Tensor,
    grad_shares: Tensor | None,
    needs: Sequence[bool] = ALL,
) -> Gradients:
    """From the gradients of the last mean, of the activations, and perhaps of the last shares; `needs` as in
    `Votes.spread`."""
    D = grad_mean.shape[-1]
    d_mean, d_variance = grad_mean, torch.zeros_like(grad_mean)
    d_logit = grad_active * found[-1].logit.sigmoid() * (-found[-1].logit).sigmoid()
    d_beta_u, d_beta_a = torch.zeros_like(beta_u_J), torch.zeros_like(beta_u_J)
    d_activation = activation_BI.new_zeros(activation_BI.shape)
    steps: list[Step] = []
    pairs = inverse = None
    for iteration in range(len(found), 0, -1):
        total, mean, variance, _ = found[iteration - 1]
        # The activation's logit, λ (β_a - cost).
        d_active = temperature * (1 - STEP**iteration) * d_logit
        d_beta_a += d_active.sum((0, 1))
        d_beta_u -= D * (d_active * total).sum((0, 1))
        d_total = -d_active * (D * beta_u_J + 0.5 * variance.log().sum(-1))
        d_variance = d_variance - (d_active * total)[..., None] / (2 * variance)
        # The M-step, by what is summed over children: v, (v - mean)² and 1, each times share · activation.
        counted = (total + votes.epsilon)[..., None]
        d_mean = d_mean - 2 * votes.epsilon * d_variance * mean / counted
        linear, square = d_mean / counted, d_variance / counted
        plus = d_total - ((variance - votes.floor) * square).sum(-1)
        steps.append(Step(shares[iteration - 1], mean, linear, square, plus, pairs, inverse))
        if iteration == 1:
            break
        d_weight = votes.score(mean, linear, square, plus)  # of share · activation
        d_activation += reach.over_spots((d_weight * shares[iteration - 1]).sum(3))
        d_shares = d_weight.mul_(activation_BI[:, reach.child][..., None])
        if iteration == len(found) and grad_shares is not None:
            d_shares += grad_shares
        # The E-step before it: a softmax over all parents in a child's reach, of log-densities.
        weighed = reach.over_spots((d_shares * shares[iteration - 1]).sum(3))[:, reach.child][..., None]
        pairs = d_shares.sub_(weighed).mul_(shares[iteration - 1])
        before = found[iteration - 2]
        inverse = 1 / before.variance
        of_one, of_distance, of_square = votes.sums(pairs, before.mean)
        d_logit = of_one * (-before.logit).sigmoid()
        d_mean = of_distance * inverse
        d_variance = 0.5 * inverse * (of_square * inverse - of_one[..., None])
    d_pose, d_first, d_weight = votes.spread(steps[::-1], needs)
    return Gradients(d_pose, d_activation + d_first, d_weight, d_beta_u, d_beta_a)
