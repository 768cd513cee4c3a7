"""Small operations on a CPU by compiled code, _native.c, where the package was installed with a C compiler.

Without it the same is done in PyTorch's operations. For few capsules those take longer than the sums: a pass of routing
has some forty of them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

try:
    from torchcaps.ops import _native
except ImportError:  # installed without a C compiler, or used from a source tree that was never installed
    _native: Any = None  # type: ignore[no-redef]

TYPES = (torch.float32, torch.float64)
LEAST = 2**18  # votes for which threads are worth starting


def serves(*tensors: Tensor) -> bool:
    """Whether the compiled code is there and takes such tensors: of one type, on a CPU, not empty."""
    if _native is None:
        return False
    dtype = tensors[0].dtype
    return dtype in TYPES and all(x.is_cpu and x.dtype == dtype and x.numel() for x in tensors)


def make_votes(u_1IK: Tensor, weight_IJDK: Tensor, votes_I1X: Tensor) -> Tensor:
    """Write the votes of one example (I, 1, J·D) in their place, and return them."""
    I, J, D, K = weight_IJDK.shape
    given = (u_1IK.contiguous(), weight_IJDK.contiguous(), votes_I1X)
    _native.votes(*_read(*given), I, J * D, K)
    return votes_I1X


def route_votes(
    votes_IBX: Tensor, bias_JD: Tensor, iterations: int, leaky: bool, inverse_temperature: float, couplings: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Poses (B, J, D), couplings (B, I, J) or empty, and sums (R, B, J, D), from votes (I, B, J·D), contiguous."""
    (I, B, X), (J, D), bias_JD = votes_IBX.shape, bias_JD.shape, bias_JD.contiguous()
    poses_BJD, sums_RBJD = votes_IBX.new_empty(B, J, D), votes_IBX.new_empty(iterations, B, J, D)
    coupled_BIJ = votes_IBX.new_empty((B, I, J) if couplings else 0)
    parts = _split(votes_IBX)
    memory = votes_IBX.new_empty(len(parts), 2 * X + J)
    given = (votes_IBX, bias_JD, sums_RBJD, poses_BJD, coupled_BIJ)
    sizes = (B, I, J, D, iterations, leaky, inverse_temperature)
    _run(_native.forward, [(*_read(*given, own), *part, *sizes) for own, part in zip(memory, parts)])
    return poses_BJD, coupled_BIJ, sums_RBJD


def route_votes_backward(
    votes_IBX: Tensor,
    sums_RBJD: Tensor,
    grad_BJD: Tensor,
    grad_couplings_BIJ: Tensor | None,
    leaky: bool,
    inverse_temperature: float,
) -> Tensor:
    """Replace votes (I, B, J·D) by their gradients, and return that of the bias (J, D)."""
    (I, B, X), (R, _, J, D), grad_BJD = votes_IBX.shape, sums_RBJD.shape, grad_BJD.contiguous()
    dcouplings = votes_IBX.new_empty(0) if grad_couplings_BIJ is None else grad_couplings_BIJ.contiguous()
    parts = _split(votes_IBX)
    dbias_PJD = votes_IBX.new_zeros(len(parts), J, D)
    memory = votes_IBX.new_empty(len(parts), (2 * R + 2) * X + 2 * J * (R - 1) * I)
    given = (votes_IBX, sums_RBJD, grad_BJD, dcouplings)
    sizes = (B, I, J, D, R, leaky, inverse_temperature)
    calls = [(*_read(*given, *own), *part, *sizes) for *own, part in zip(dbias_PJD, memory, parts)]
    _run(_native.backward, calls)
    return dbias_PJD.sum(0)


def squash_maps(maps: Tensor, bias: Tensor | None, dim: int, scale: float) -> Tensor:
    """As `ops.squash_maps`, of contiguous maps."""
    B, C, H, W = maps.shape
    capsules = maps.new_empty(B, C // dim * H * W, dim)
    bias = maps.new_empty(0) if bias is None else bias.contiguous()
    _native.squash_maps(*_read(maps, bias, capsules), B, C // dim, dim, H * W, scale)
    return capsules


def _split(votes_IBX: Tensor) -> list[tuple[int, int]]:
    """Ranges of examples, one for each thread that is worth starting."""
    B = votes_IBX.shape[1]
    threads = min(B, torch.get_num_threads()) if votes_IBX.numel() >= LEAST else 1
    return [(B * n // threads, B * (n + 1) // threads) for n in range(threads)]


def _read(*tensors: Tensor) -> tuple[int, ...]:
    """Whether numbers are doubles, and where they are; an empty tensor is at 0."""
    return tensors[0].dtype == torch.float64, *[x.data_ptr() for x in tensors]


def _run(function: Callable[..., None], calls: list[tuple[float, ...]]) -> None:
    """Make all calls, the first in this thread."""
    others = [_threads().submit(function, *call) for call in calls[1:]]
    function(*calls[0])
    for each in others:
        each.result()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="torchcaps")


if hasattr(os, "register_at_fork"):  # the threads do not exist in the child
    os.register_at_fork(after_in_child=_threads.cache_clear)
