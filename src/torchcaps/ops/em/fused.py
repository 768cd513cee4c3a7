"""EM routing on a GPU: reads poses and matrices, and never writes votes to memory.

kernels.py has the passes over the votes, routine.py the rest of the routing; here kernels are launched. Programs write
partial sums to slots, which are added in a fixed order: two runs agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from torchcaps.ops.em import kernels, routine
from torchcaps.ops.em.reference import Reach
from torchcaps.ops.em.routine import ALL, Fitted, Gradients, Step

TJ, TN = 2, 32  # parents and spots of a tile, where it has several parents
WARPS = 1  # one thread for each spot
PROGRAMS = 8448  # of `spread_to_weights`: enough to fill the card, few enough that their slots stay small


class Unwritten:
    """The passes of `routine.Votes` by kernels."""

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
        self.epsilon, self.floor = epsilon, floor
        self.B, self.I, self.D = pose_BID.shape
        (self.L, self.N), self.J, self.P = reach.child.shape, weight_NJPP.shape[1], weight_NJPP.shape[2]
        self.activation = activation_BI.contiguous()
        self.reach, self.child = reach, reach.child.int().contiguous()
        # Children and spots last, as kernels.py wants it.
        self.pose_BDI = pose_BID.transpose(1, 2).contiguous()
        self.weight_JDN = weight_NJPP.flatten(2).permute(1, 2, 0).contiguous()
        self.offset_DN = offset_ND if offset_ND is None else offset_ND.T.contiguous()
        self.made_of = self.weight_JDN, self.offset_DN, self.child
        self.tile = {"I": self.I, "N": self.N, "P": self.P, "TN": TN, "OFFSET": offset_ND is not None}
        self.tile |= {"num_warps": WARPS}

    def fit(self, shares_BLNJ: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, mean, variance = self._new(self.L, self.J), self._of_parents(), self._of_parents()
        kernels.fit[self._grid](
            self.pose_BDI, self.activation, *self.made_of, shares_BLNJ, total, mean, variance,
            self.L, self.J, 0, *shares_BLNJ.stride(), self.epsilon, self.floor, TJ=TJ, **self.tile,
        )  # fmt: skip
        return mean, variance, total

    def score(self, mean_BLJD: Tensor, linear_BLJD: Tensor | None, square_BLJD: Tensor, plus_BLJ: Tensor) -> Tensor:
        out_BLJN = self._new(self.L, self.J, self.N)
        linear = mean_BLJD if linear_BLJD is None else linear_BLJD
        kernels.score[self.L, self.B, triton.cdiv(self.N, TN)](
            self.pose_BDI, *self.made_of,
            mean_BLJD, linear.contiguous(), square_BLJD.contiguous(), plus_BLJ.contiguous(), out_BLJN,
            self.L, self.J, 0, LINEAR=linear_BLJD is not None, **self.tile,
        )  # fmt: skip
        return out_BLJN.transpose(2, 3)

    def sums(self, pairs_BLNJ: Tensor, mean_BLJD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_one, of_distance, of_square = self._new(self.L, self.J), self._of_parents(), self._of_parents()
        kernels.sums[self._grid](
            self.pose_BDI, *self.made_of, spots_last(pairs_BLNJ), mean_BLJD, of_one, of_distance, of_square,
            self.L, self.J, 0, TJ=TJ, **self.tile,
        )  # fmt: skip
        return of_one, of_distance, of_square

    def spread(self, steps: list[Step], needs: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
        first, *later = steps
        equal_LN = first.shares[0, :, :, 0].contiguous()
        centre = first.mean
        # Each iteration's part of the gradient as a line in v - centre.
        curves = stack([2 * step.square for step in steps])
        slopes = stack([step.linear + 2 * step.square * (centre - step.mean) for step in steps])
        # With a single iteration these are never read, but a kernel needs an address.
        bends, shifts, shares, pairs = centre, centre, equal_LN, equal_LN
        if later:
            bends = stack([step.inverse for step in steps[:-1]])  # type: ignore[misc]
            shifts = stack([step.inverse * (centre - step.mean) for step in steps[:-1]])  # type: ignore[operator]
            shares = stack([spots_last(step.shares) for step in later])
            pairs = stack([spots_last(step.pairs) for step in steps[:-1]])  # type: ignore[arg-type]
        known = self.pose_BDI, self.activation, *self.made_of, centre, slopes, curves, bends, shifts, equal_LN, shares
        sizes = self.L, self.J, 0, centre.numel(), self.B * self.L * self.N * self.J
        blocks = triton.cdiv(self.N, TN)

        d_pose, d_first = self._new(self.L, self.N, self.D), self._new(self.L, self.N)
        kernels.spread_to_poses[self.L, self.B, blocks](
            *known, pairs, d_pose, d_first, *sizes, T=len(steps), **self.tile
        )
        d_first = (d_first + first.plus.sum(2, keepdim=True)) * equal_LN
        found = self.reach.over_spots(d_pose) if needs[0] else d_pose.new_empty(0), self.reach.over_spots(d_first)
        if not needs[2]:
            return *found, d_pose.new_empty(0)

        work = self.B * self.L
        length = triton.cdiv(work, max(1, min(work, PROGRAMS // (blocks * self.J))))
        slots = self.pose_BDI.new_empty(triton.cdiv(work, length), self.J, self.D, self.N)
        kernels.spread_to_weights[blocks, self.J, len(slots)](
            *known, pairs, slots, *sizes, work, length, T=len(steps), **self.tile
        )
        d_weight = slots.sum(0).permute(2, 0, 1).contiguous().view(self.N, self.J, self.P, self.P)
        return *found, d_weight

    @property
    def _grid(self) -> tuple[int, int, int]:
        return self.L, self.B, triton.cdiv(self.J, TJ)

    def _new(self, *shape: int) -> Tensor:
        return self.pose_BDI.new_empty(self.B, *shape)

    def _of_parents(self) -> Tensor:
        return self._new(self.L, self.J, self.D)


def spots_last(pairs_BLNJ: Tensor) -> Tensor:
    """(B, L, J, N) contiguous; a copy only if necessary."""
    return pairs_BLNJ.transpose(2, 3).contiguous()


def stack(tensors: list[Tensor]) -> Tensor:
    """As torch.stack, without copying a single tensor."""
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
    epsilon: float,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `chunked.forward`; then the M-step's results of every iteration, and the couplings of each but the first."""
    votes = Unwritten(pose, activation, weight, reach, offset, epsilon, floor)
    found, shares = routine.forward(votes, reach, beta_u, beta_a, iterations, temperature, len(pose))
    total, mean, variance, logit = (torch.stack(list(each)) for each in zip(*found))
    rest = stack([spots_last(each) for each in shares[1:]]) if iterations > 1 else pose.new_empty(0)
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
    epsilon: float,
    floor: float,
    *kept: Tensor,
    needs: Sequence[bool] = ALL,
) -> Gradients:
    """kept: what the forward returned after its three results; needs: as in `Votes.spread`."""
    votes = Unwritten(pose, activation, weight, reach, offset, epsilon, floor)
    *each, rest = kept
    found = [Fitted(*one) for one in zip(*each)]
    equal_LN = reach.equal_shares(len(beta_u), beta_u.dtype)
    later = [each.transpose(2, 3) for each in rest]
    shares = [equal_LN[None, :, :, None].expand(len(pose), -1, -1, len(beta_u)), *later]
    grads = grad_mean, grad_active, grad_shares
    return routine.backward(votes, activation, reach, beta_u, temperature, found, shares, *grads, needs)
