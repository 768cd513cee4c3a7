"""Routing at each position on a GPU: votes are read a few times; only a gradient of their size is written."""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

from torchcaps.ops.local import kernels

TILE = 2048  # numbers of parents times positions that a program has at a time


class Kernels:
    """`chunked.Router` by Triton kernels."""

    def forward(self, votes_BTJEX: Tensor, bias_JE: Tensor, iterations: int, couplings: bool) -> tuple[Tensor, Tensor]:
        votes, bias = votes_BTJEX.contiguous(), bias_JE.contiguous()
        B, T, J, E, X = votes.shape
        poses = bias.new_empty(B, J, E, X)
        coupled = bias.new_empty((B, T, J, X) if couplings else (0,))
        grid, sizes = _tiles(votes)
        kernels.route[grid](
            votes, bias, poses, coupled, poses, T, J, E, X, poses.numel(),
            R=iterations, COUPLINGS=couplings, SAVE=False, **sizes,
        )  # fmt: skip
        return poses, coupled

    def backward(
        self, grad_BJEX: Tensor, votes_BTJEX: Tensor, bias_JE: Tensor, iterations: int
    ) -> tuple[Tensor, Tensor]:
        votes, bias, grad = votes_BTJEX.contiguous(), bias_JE.contiguous(), grad_BJEX.contiguous()
        B, T, J, E, X = votes.shape
        sums = bias.new_empty(iterations, B, J, E, X)
        d_sums = bias.new_empty(iterations, B, J, E, X)
        grid, sizes = _tiles(votes)
        shape = T, J, E, X, B * J * E * X
        kernels.route[grid](votes, bias, sums, sums, sums, *shape, R=iterations, COUPLINGS=False, SAVE=True, **sizes)
        kernels.backtrack[grid](votes, sums, grad, d_sums, *shape, R=iterations, **sizes)
        by_type = (*grid, T)
        kernels.spread[by_type](votes, sums, d_sums, votes, *shape, R=iterations, **sizes)
        return votes, d_sums.sum((0, 1, 4))


def _tiles(votes: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
    B, _, J, E, X = votes.shape
    JP, EP = triton.next_power_of_2(J), triton.next_power_of_2(E)
    TX = max(1, min(TILE // (JP * EP), triton.next_power_of_2(X)))
    return (triton.cdiv(X, TX), B), {"JP": JP, "EP": EP, "TX": TX, "num_warps": 4}
