"""Dynamic routing on a GPU: reads u and W, and never writes votes, logits or couplings to memory.

kernels.py has the kernels and README.md the derivation; here they are launched. Each program writes its part of a
parent's sum to its own slot, and slots are added in a fixed order: two runs agree bit for bit.

Kept for the backward: s of each iteration (R, B, J, D), the V before each (R-1, B, J, D), and the logarithms of the
softmax's denominators (R-1, B, I). V and ds are only ever factors, and kept in the type of the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from torchcaps.ops.dispatch import float32_precision
from torchcaps.ops.dynamic import kernels

# Rows, columns (children times K), warps and pipeline stages of a program, by kernel and kind of product: the fastest
# of those tried on an H200.
SUM = {"bf16": (64, 64, 4, 2), "tf32": (64, 64, 4, 3), "tf32x3": (16, 64, 1, 2)}
SUM_BACKWARD = {"bf16": (64, 64, 4, 3), "tf32": (32, 64, 2, 3), "tf32x3": (16, 64, 1, 2)}
GATHER_SHARES = {"bf16": (64, 64, 4, 3), "tf32": (64, 64, 4, 3), "tf32x3": (32, 64, 2, 2)}
GATHER = {"bf16": (64, 64, 4, 3), "tf32": (64, 64, 2, 2), "tf32x3": (32, 64, 2, 2)}
FINISH_U = {"bf16": (64, 64, 4, 2), "tf32": (32, 64, 2, 2), "tf32x3": (32, 64, 2, 2)}
GRADIENT_OF_W = {"bf16": (32, 64, 2, 2), "tf32": (32, 64, 2, 2), "tf32x3": (32, 64, 2, 2)}
GATHER_PAIRS, GRADIENT_OF_W_PAIRS = ("bf16", "tf32"), ("bf16",)
ROWS = 4  # parents that a program of `finish_*` sums
PROGRAMS = 528  # of `gather`: enough to fill the card, few enough that their slots stay small


class Tiles(NamedTuple):
    """How the work is cut: TB examples by TI children of KP (padded) dimensions a program, parents padded to DP."""

    TB: int
    TI: int
    KP: int
    DP: int
    warps: int
    stages: int

    @staticmethod
    def fit(B: int, K: int, D: int, rows: int, columns: int, warps: int, stages: int) -> Tiles:
        """Up to `rows` examples by `columns` values of the children a program."""
        KP = triton.next_power_of_2(K)
        TB = min(rows, max(16, triton.next_power_of_2(B)))
        DP = max(16, triton.next_power_of_2(D))
        return Tiles(TB, max(1, columns // KP), KP, DP, max(1, warps * TB // rows), stages)

    @property
    def block(self) -> dict[str, int]:
        sizes = {"TB": self.TB, "TI": self.TI, "KP": self.KP, "DP": self.DP}
        return {**sizes, "num_warps": self.warps, "num_stages": self.stages}

    def grid(self, B: int, I: int) -> tuple[int, int]:
        return triton.cdiv(I, self.TI), triton.cdiv(B, self.TB)

    def chunks(self, B: int, I: int, groups: int) -> tuple[int, int]:
        """Into how many chunks `gather` cuts the children for each group of parents, and how many tiles one has."""
        tiles, rows = self.grid(B, I)
        length = triton.cdiv(tiles, max(1, min(tiles, PROGRAMS // (rows * groups))))
        return triton.cdiv(tiles, length), length


def product(u_BIK: Tensor) -> str:
    """Choose the products by the type of the children: bf16 for bfloat16, TF32 for float16, which has as many digits.

    For float32 torch.set_float32_matmul_precision decides: highest, three TF32 products, which are within rounding of
    float32; high, TF32; medium, bf16.
    """
    if u_BIK.dtype != torch.float32:
        return "bf16" if u_BIK.dtype == torch.bfloat16 else "tf32"
    return {"highest": "tf32x3", "high": "tf32", "medium": "bf16"}[float32_precision()]


def _operands(u_BIK: Tensor, weight_IJDK: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """u and W as the kernels read them: contiguous, in the type of the products."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    return u_BIK.to(dtype).contiguous(), weight_IJDK.to(dtype).contiguous()


def _groups(J: int, kind: str, pairs_of: tuple[str, ...]) -> tuple[bool, int]:
    """Whether parents are taken in pairs, as they are for these products, and how many programs that makes. A pair
    reads the children half as often, where its registers suffice."""
    pair = J > 1 and kind in pairs_of
    return pair, triton.cdiv(J, 2) if pair else J


def forward(
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    bias_JD: Tensor | None,
    iterations: int,
    leaky: bool,
    inverse_temperature: float,
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Poses (B, J, D) and couplings (B, I, J), empty unless couplings=True; then what the backward needs."""
    dtype = torch.promote_types(u_BIK.dtype, weight_IJDK.dtype)
    kind = product(u_BIK)
    u_BIK, weight_IJDK = _operands(u_BIK, weight_IJDK, kind)
    B, I, K = u_BIK.shape
    J, D = weight_IJDK.shape[1:3]
    share, pair, groups = 1 / (J + leaky), *_groups(J, kind, GATHER_PAIRS)
    bias_JD = None if bias_JD is None else bias_JD.contiguous()
    new: dict[str, Any] = {"dtype": torch.float32, "device": u_BIK.device}
    wide = Tiles.fit(B, K, D, *SUM[kind])
    cuts = [Tiles.fit(B, K, D, *table[kind]) for table in (GATHER_SHARES, GATHER)]
    slots = torch.empty(max(cut.chunks(B, I, groups)[0] for cut in cuts), B, J, D, **new)
    sums, agreed = torch.empty(iterations, B, J, D, **new), u_BIK.new_empty(iterations - 1, B, J, D)
    logsums = torch.empty(iterations - 1, B, I, **new)
    poses = torch.empty(B, J, D, dtype=dtype, device=u_BIK.device)
    coupled = torch.full((B, I, J) if couplings else (0,), share, **new)
    for t in range(iterations):
        before, last = max(0, t - 1), t == iterations - 1
        cut = cuts[t > 0]
        chunks, length = cut.chunks(B, I, groups)
        if t > 0:
            kernels.sum_couplings[wide.grid(B, I)](
                u_BIK, weight_IJDK, agreed[before:], logsums[before:],
                B, I, J, D, K, LEAKY=leaky, PRODUCT=kind, **wide.block,
            )  # fmt: skip
        kernels.gather[chunks, groups, triton.cdiv(B, cut.TB)](
            u_BIK, weight_IJDK, agreed[before:], slots, logsums[before:], slots, coupled, slots,
            B, I, length, share, J, D, K,
            OF="couplings" if t > 0 else "shares", COUPLINGS=couplings and last and t > 0,
            PAIR=pair, PRODUCT=kind, **cut.block,
        )  # fmt: skip
        kernels.finish_forward[(triton.cdiv(B * J, ROWS),)](
            slots, bias_JD, agreed[t:], sums, poses,
            B * J, J, D, chunks, inverse_temperature,
            BIAS=bias_JD is not None, T=t, LAST=last, TN=ROWS, DP=cut.DP, num_warps=4,
        )  # fmt: skip
    return poses, coupled.to(dtype), sums, agreed, logsums


def backward(
    grad_BJD: Tensor,
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    sums: Tensor,
    agreed: Tensor,
    logsums: Tensor,
    leaky: bool,
    inverse_temperature: float,
    needs: Sequence[bool] = (True, True, True),
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of u (B, I, K), weight (I, J, D, K) and bias (J, D), empty where none is needed."""
    # As in the forward, whose logits the saved sums belong to, even if the setting has changed in between.
    kind = "bf16" if agreed.dtype == torch.bfloat16 else "tf32" if product(u_BIK) == "tf32" else "tf32x3"
    du_BIK = torch.empty_like(u_BIK, memory_format=torch.contiguous_format)
    weight = weight_IJDK
    u_BIK, weight_IJDK = _operands(u_BIK, weight_IJDK, kind)
    B, I, K = u_BIK.shape
    R, _, J, D = sums.shape
    share, pair, groups = 1 / (J + leaky), *_groups(J, kind, GATHER_PAIRS)
    cut, wide = Tiles.fit(B, K, D, *GATHER[kind]), Tiles.fit(B, K, D, *SUM_BACKWARD[kind])
    chunks, length = cut.chunks(B, I, groups)
    slots = sums.new_empty(chunks, B, J, D)
    ds, means, carried = u_BIK.new_empty(R, B, J, D), torch.empty_like(logsums), torch.empty_like(sums[0])
    du_sum = du_BIK if du_BIK.dtype == torch.float32 else du_BIK.new_empty(du_BIK.shape, dtype=torch.float32)
    grad_BJD = grad_BJD.contiguous()
    for t in range(R - 1, -1, -1):
        kernels.finish_backward[(triton.cdiv(B * J, ROWS),)](
            slots, carried, grad_BJD, sums[t], ds[t],
            B * J, D, chunks, inverse_temperature,
            STAGE=min(2, R - 1 - t), TN=ROWS, DP=cut.DP, num_warps=4,
        )  # fmt: skip
        if t > 0:
            known = (agreed[t - 1], ds[t], logsums[t - 1], means[t - 1])
            kernels.sum_couplings_backward[wide.grid(B, I)](
                u_BIK, weight_IJDK, *known, du_sum,
                B, I, J, D, K, ADD=t < R - 1, PRODUCT=kind, **wide.block,
            )  # fmt: skip
            kernels.gather[chunks, groups, triton.cdiv(B, cut.TB)](
                u_BIK, weight_IJDK, *known, slots, slots,
                B, I, length, share, J, D, K,
                OF="gradients", COUPLINGS=False, PAIR=pair, PRODUCT=kind, **cut.block,
            )  # fmt: skip
    if needs[0]:
        cut = Tiles.fit(B, K, D, *FINISH_U[kind])
        kernels.finish_u[cut.grid(B, I)](
            weight_IJDK, ds[0], du_sum, du_BIK, B, I, share, J, D, K, ADD=R > 1, PRODUCT=kind, **cut.block
        )
    else:
        du_BIK = du_BIK.new_empty(0)
    del slots, carried, du_sum  # their memory serves dW
    dweight_IJDK = torch.empty_like(weight, memory_format=torch.contiguous_format) if needs[1] else weight.new_empty(0)
    if needs[1]:
        pair, groups = _groups(J, kind, GRADIENT_OF_W_PAIRS)
        cut = Tiles.fit(B, K, D, *GRADIENT_OF_W[kind])
        kernels.gradient_of_w[cut.grid(B, I)[0], groups](
            u_BIK, weight_IJDK, agreed, ds, logsums, means, dweight_IJDK,
            B, I, share, J, D, K, R=R, PAIR=pair, PRODUCT=kind, **cut.block,
        )  # fmt: skip
    return du_BIK, dweight_IJDK, ds.sum((0, 1), dtype=torch.float32) if needs[2] else sums.new_empty(0)
