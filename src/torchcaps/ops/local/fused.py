"""Local routing on a GPU: votes are read a few times; only a gradient of their size is written."""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

from torchcaps.ops.local import kernels

TILE = 2048  # numbers of parents times positions that a program has at a time


class Kernels:
    """`chunked.Router` by Triton kernels.

    Args:
        last: the memory layout of votes is (B, T, X, J, E), and that of poses (B, J, X, E).
    """

    def __init__(self, last: bool):
        self.last = last

    def forward(self, votes_BTJEX: Tensor, bias_JE: Tensor, iterations: int, couplings: bool) -> tuple[Tensor, Tensor]:
        votes, bias = self._votes(votes_BTJEX), bias_JE.contiguous()
        B, T, J, E, X = votes.shape
        poses = self._parents(bias.new_empty(B, J, E, X))
        coupled = bias.new_empty((B, T, J, X) if couplings else (0,))
        grid, sizes = self._tiles(votes)
        kernels.route[grid](
            votes, bias, poses, coupled, poses, T, J, E, X, poses.numel(),
            R=iterations, COUPLINGS=couplings, SAVE=False, **sizes,
        )  # fmt: skip
        return poses, coupled

    def backward(
        self, grad_BJEX: Tensor, votes_BTJEX: Tensor, bias_JE: Tensor, iterations: int
    ) -> tuple[Tensor, Tensor]:
        votes, bias, grad = self._votes(votes_BTJEX), bias_JE.contiguous(), self._parents(grad_BJEX)
        B, T, J, E, X = votes.shape
        sums, d_sums = (bias.new_empty(iterations, *(B, J, X, E) if self.last else (B, J, E, X)) for _ in range(2))
        grid, sizes = self._tiles(votes)
        shape = T, J, E, X, B * J * E * X
        kernels.route[grid](votes, bias, sums, sums, sums, *shape, R=iterations, COUPLINGS=False, SAVE=True, **sizes)
        kernels.backtrack[grid](votes, sums, grad, d_sums, *shape, R=iterations, **sizes)
        by_type = (*grid, T)
        kernels.spread[by_type](votes, sums, d_sums, votes, *shape, R=iterations, **sizes)
        return votes, d_sums.sum((0, 1, 3 if self.last else 4))

    def _votes(self, votes_BTJEX: Tensor) -> Tensor:
        if not self.last:
            return votes_BTJEX.contiguous()
        return votes_BTJEX.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)

    def _parents(self, x_BJEX: Tensor) -> Tensor:
        return x_BJEX.transpose(2, 3).contiguous().transpose(2, 3) if self.last else x_BJEX.contiguous()

    def _tiles(self, votes: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
        B, _, J, E, X = votes.shape
        JP, EP = triton.next_power_of_2(J), triton.next_power_of_2(E)
        TX = max(1, min(TILE // (JP * EP), triton.next_power_of_2(X)))
        return (triton.cdiv(X, TX), B), {"JP": JP, "EP": EP, "TX": TX, "LAST": self.last, "num_warps": 4}
