"""EM routing on a GPU: reads poses and matrices, and never writes votes to memory.

kernels.py has the passes over the votes, routine.py what is done with them; here they are launched. What is summed over
several programs is written to slots and added in a fixed order: two runs agree bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from torchcaps.ops.em import kernels, routine
from torchcaps.ops.em.reference import FLOOR, LEAST, Reach
from torchcaps.ops.em.routine import Fitted, Gradients, Step

COLUMNS = 128  # numbers of parents, TJ·D, that a program has side by side
ROWS = 8  # examples of a program
WARPS = 4
PROGRAMS = 1056  # of `spread_to_weights`: enough to fill the card, few enough that their slots stay small


class Unwritten:
    """The passes of `routine.Votes` by kernels."""

    def __init__(
        self, pose_BID: Tensor, activation_BI: Tensor, weight_NJPP: Tensor, reach: Reach, offset_ND: Tensor | None
    ):
        self.pose, self.activation, self.weight = (x.contiguous() for x in (pose_BID, activation_BI, weight_NJPP))
        self.reach, self.child = reach, reach.child.int().contiguous()
        self.offset = offset_ND if offset_ND is None else offset_ND.contiguous()
        self.B, self.I, self.D = pose_BID.shape
        (self.L, self.N), self.J, self.P = reach.child.shape, weight_NJPP.shape[1], weight_NJPP.shape[2]

    def fit(self, shares_BLNJ: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, mean = self._new(self.L, self.J), self._new(self.L, self.J, self.D)
        variance = torch.empty_like(mean)
        grid, sizes = self._tiles()
        kernels.fit[grid](
            self.pose, self.activation, self.weight, self.offset, self.child, shares_BLNJ, total, mean, variance,
            *self._shape, *shares_BLNJ.stride(), LEAST, FLOOR, **sizes,
        )  # fmt: skip
        return mean, variance, total

    def score(self, mean_BLJD: Tensor, linear_BLJD: Tensor | None, square_BLJD: Tensor, plus_BLJ: Tensor) -> Tensor:
        out = self._new(self.L, self.N, self.J)
        grid, sizes = self._tiles()
        linear = mean_BLJD if linear_BLJD is None else linear_BLJD
        kernels.score[grid](
            self.pose, self.weight, self.offset, self.child,
            mean_BLJD, linear.contiguous(), square_BLJD.contiguous(), plus_BLJ.contiguous(), out,
            *self._shape, LINEAR=linear_BLJD is not None, **sizes,
        )  # fmt: skip
        return out

    def sums(self, pairs_BLNJ: Tensor, mean_BLJD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_one, of_distance = self._new(self.L, self.J), self._new(self.L, self.J, self.D)
        of_square = torch.empty_like(of_distance)
        grid, sizes = self._tiles()
        kernels.sums[grid](
            self.pose, self.weight, self.offset, self.child, pairs_BLNJ, mean_BLJD, of_one, of_distance, of_square,
            *self._shape, **sizes,
        )  # fmt: skip
        return of_one, of_distance, of_square

    def spread(self, steps: list[Step]) -> tuple[Tensor, Tensor, Tensor]:
        first, *later = steps
        equal = first.shares[0, :, :, 0].contiguous()
        parents = [stack([getattr(step, name) for step in steps]) for name in ("mean", "linear", "square")]
        # Of a single iteration there are none of these, and none will be read; a kernel wants an address nevertheless.
        shares = stack([step.shares for step in later]) if later else equal
        inverses, pairs = (
            stack([getattr(step, name) for step in steps[:-1]]) if later else equal for name in ("inverse", "pairs")
        )
        known = *parents, inverses, equal, shares, pairs
        sizes_of = *self._shape, first.mean.numel(), self.B * self.L * self.N * self.J
        made_of = (self.pose, self.activation, self.weight, self.offset, self.child)

        d_pose, d_first = self._new(self.L, self.N, self.D), self._new(self.L, self.N)
        (_, blocks, groups), sizes = self._tiles()
        kernels.spread_to_poses[self.L, blocks](*made_of, *known, d_pose, d_first, *sizes_of, T=len(steps), **sizes)
        d_first = (d_first + first.plus.sum(2, keepdim=True)) * equal

        work = self.L * blocks
        length = triton.cdiv(work, max(1, min(work, PROGRAMS // (self.N * groups))))
        slots = self.pose.new_empty(triton.cdiv(work, length), *self.weight.shape)
        kernels.spread_to_weights[self.N, groups, len(slots)](
            *made_of, *known, slots, *sizes_of, length, T=len(steps), **sizes
        )
        return self.reach.over_spots(d_pose), self.reach.over_spots(d_first), slots.sum(0)

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.B, self.I, self.L, self.N, self.J

    def _new(self, *shape: int) -> Tensor:
        return self.pose.new_empty(self.B, *shape)

    def _tiles(self) -> tuple[tuple[int, int, int], dict[str, Any]]:
        TJ = min(max(1, COLUMNS // self.D), triton.next_power_of_2(self.J))
        sizes = {"P": self.P, "TB": ROWS, "TJ": TJ, "OFFSET": self.offset is not None, "num_warps": WARPS}
        return (self.L, triton.cdiv(self.B, ROWS), triton.cdiv(self.J, TJ)), sizes


def stack(tensors: list[Tensor]) -> Tensor:
    """As torch.stack, without a copy of a single one."""
    return torch.stack(tensors) if len(tensors) > 1 else tensors[0][None]


def forward(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    reach: Reach,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int,
    temperature: Tensor,
    offset: Tensor | None,
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `chunked.forward`; then, of every iteration, what its M-step found, and of each but the first its shares."""
    votes = Unwritten(pose, activation, weight, reach, offset)
    found, shares = routine.forward(votes, reach, beta_u, beta_a, iterations, temperature, len(pose))
    total, mean, variance, logit = (torch.stack(list(each)) for each in zip(*found))
    rest = stack(shares[1:]) if iterations > 1 else pose.new_empty(0)
    last = shares[-1].clone(memory_format=torch.contiguous_format) if couplings else pose.new_empty(0)
    return found[-1].mean, found[-1].logit.sigmoid(), last, total, mean, variance, logit, rest


def backward(
    grad_mean: Tensor,
    grad_active: Tensor,
    grad_shares: Tensor | None,
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    reach: Reach,
    beta_u: Tensor,
    temperature: Tensor,
    offset: Tensor | None,
    *kept: Tensor,
) -> Gradients:
    """kept: what the forward gave after its three results."""
    votes = Unwritten(pose, activation, weight, reach, offset)
    *each, rest = kept
    found = [Fitted(*one) for one in zip(*each)]
    equal_LN = reach.equal_shares(len(beta_u), beta_u.dtype)
    shares = [equal_LN[None, :, :, None].expand(len(pose), -1, -1, len(beta_u)), *rest]
    grads = grad_mean, grad_active, grad_shares
    return routine.backward(votes, activation, reach, beta_u, temperature, found, shares, *grads)
