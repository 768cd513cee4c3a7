"""Dynamic routing in Triton: reads u and W, keeps votes, logits and couplings in registers.

README.md beside this file derives the passes. A program takes a tile of the batch and a tile of the children; for one
parent j after the other it forms `Wᵀ V` and `(c∘u) W` as products on tensor cores, with the dot product over K and the
softmax over J between them in registers. Logits are formed twice rather than kept: once for the softmax's denominator,
once to be used. What a tile of children contributes to the parents is written to a slot of its own and the slots are
added in a fixed order by `_finish_*`, so two runs agree bit for bit.

Stored for the backward: s of each iteration (R, B, J, D), and the softmax's denominators total · 2^largest as the pair
(largest, 1/total) for each child, which keeps every digit that one number would round away.
X stands for K and I taken together, K innermost, as they lie in memory.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def _tile_of_u(u, rows, children, dims, B, I, K: tl.constexpr):
    """(TB, X) of the children's poses in float32, zero outside."""
    inside = (rows < B)[:, None] & ((children < I) & (dims < K))[None, :]
    places = rows.to(tl.int64)[:, None] * (I * K) + (children * K + dims)[None, :]
    return tl.load(u + places, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _tile_of_w(w, j, columns, children, dims, I, J: tl.constexpr, D: tl.constexpr, K: tl.constexpr):
    """(D, X) of parent j's matrices in float32, zero outside."""
    inside = (columns < D)[:, None] & ((children < I) & (dims < K))[None, :]
    places = ((children.to(tl.int64) * J + j) * (D * K) + dims)[None, :] + (columns * K)[:, None]
    return tl.load(w + places, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _tile_of_parents(parents, rows, j, columns, B, J: tl.constexpr, D: tl.constexpr):
    """(TB, D) of a (B, J, D) array, for parent j, zero outside."""
    inside = (rows < B)[:, None] & (columns < D)[None, :]
    return tl.load(parents + (rows * J + j)[:, None] * D + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _agreement(parents_BD, w_DX, u_BX, TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, PRECISION: tl.constexpr):
    """Wᵀ V (TB, X), and u · Wᵀ V (TB, TI)."""
    wide_BX = tl.dot(parents_BD, w_DX, input_precision=PRECISION)
    return wide_BX, tl.sum(tl.reshape(wide_BX * u_BX, [TB, TI, KP]), axis=2)


@triton.jit
def _scale(u_BX, c_BI, TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr):
    """c∘u (TB, X)."""
    return tl.reshape(tl.reshape(u_BX, [TB, TI, KP]) * c_BI[:, :, None], [TB, TI * KP])


@triton.jit
def _forward_pass(
    u, w, agreed, slots, largests, inverses, couplings,
    B, I, share, J: tl.constexpr, D: tl.constexpr, K: tl.constexpr,
    FIRST: tl.constexpr, LEAKY: tl.constexpr, COUPLINGS: tl.constexpr, PRECISION: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """One iteration's Σ c û of one tile of children, for every parent."""
    tile = tl.program_id(0)
    rows = tl.program_id(1) * TB + tl.arange(0, TB)
    x = tl.arange(0, TI * KP)
    children, dims, columns = tile * TI + x // KP, x % KP, tl.arange(0, DP)
    u_BX = _tile_of_u(u, rows, children, dims, B, I, K)
    places = (tile.to(tl.int64) * B + rows)[:, None] * (J * D) + columns[None, :]
    inside = (rows < B)[:, None] & (columns < D)[None, :]
    if FIRST:
        for j in range(J):
            w_DX = _tile_of_w(w, j, columns, children, dims, I, J, D, K)
            s_BD = tl.dot(u_BX, tl.trans(w_DX), input_precision=PRECISION) * share
            tl.store(slots + places + j * D, s_BD, mask=inside)
        return
    # The denominator, built up as logits come: `largest` is the largest so far, `total` the sum of 2^(logit - largest).
    # Leaky routing starts with the extra logit, which is zero.
    largest = tl.full([TB, TI], 0.0 if LEAKY else float("-inf"), tl.float32)
    total = tl.full([TB, TI], 1.0 if LEAKY else 0.0, tl.float32)
    for j in range(J):
        w_DX = _tile_of_w(w, j, columns, children, dims, I, J, D, K)
        v_BD = _tile_of_parents(agreed, rows, j, columns, B, J, D)
        logit = _agreement(v_BD, w_DX, u_BX, TB, TI, KP, PRECISION)[1] * LOG2E
        change = tl.exp2(-tl.abs(logit - largest))
        total = tl.where(logit > largest, total * change + 1, total + change)
        largest = tl.maximum(largest, logit)
    child = tile * TI + tl.arange(0, TI)
    spots = rows.to(tl.int64)[:, None] * I + child[None, :]
    known = (rows < B)[:, None] & (child < I)[None, :]
    tl.store(largests + spots, largest, mask=known)
    inverse = 1.0 / total
    tl.store(inverses + spots, inverse, mask=known)
    for j in range(J):
        w_DX = _tile_of_w(w, j, columns, children, dims, I, J, D, K)
        v_BD = _tile_of_parents(agreed, rows, j, columns, B, J, D)
        c_BI = tl.exp2(_agreement(v_BD, w_DX, u_BX, TB, TI, KP, PRECISION)[1] * LOG2E - largest) * inverse
        if COUPLINGS:
            tl.store(couplings + spots * J + j, c_BI, mask=known)
        s_BD = tl.dot(_scale(u_BX, c_BI, TB, TI, KP), tl.trans(w_DX), input_precision=PRECISION)
        tl.store(slots + places + j * D, s_BD, mask=inside)


@triton.jit
def _share_of(
    v_BD, ds_BD, w_DX, u_BX, largest_BI, inverse_BI,
    TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For one parent: Wᵀ V and Wᵀ ds (TB, X), the coupling c and its gradient dc (TB, TI)."""
    from_v, logit = _agreement(v_BD, w_DX, u_BX, TB, TI, KP, PRECISION)
    from_ds, dc_BI = _agreement(ds_BD, w_DX, u_BX, TB, TI, KP, PRECISION)
    return from_v, from_ds, tl.exp2(logit * LOG2E - largest_BI) * inverse_BI, dc_BI


@triton.jit
def _backward_pass(
    u, w, agreed, ds, largests, inverses, mean, slots,
    B, I, J: tl.constexpr, D: tl.constexpr, K: tl.constexpr,
    PRECISION: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """One iteration's gradient of V from one tile of children: Σ dlogit û. Also keeps Σ_J c dc for the last pass."""
    tile = tl.program_id(0)
    rows = tl.program_id(1) * TB + tl.arange(0, TB)
    x = tl.arange(0, TI * KP)
    children, dims, columns = tile * TI + x // KP, x % KP, tl.arange(0, DP)
    u_BX = _tile_of_u(u, rows, children, dims, B, I, K)
    child = tile * TI + tl.arange(0, TI)
    spots = rows.to(tl.int64)[:, None] * I + child[None, :]
    known = (rows < B)[:, None] & (child < I)[None, :]
    largest_BI = tl.load(largests + spots, mask=known, other=0.0)
    inverse_BI = tl.load(inverses + spots, mask=known, other=1.0)
    mean_BI = tl.zeros([TB, TI], tl.float32)
    for j in range(J):
        w_DX = _tile_of_w(w, j, columns, children, dims, I, J, D, K)
        v_BD = _tile_of_parents(agreed, rows, j, columns, B, J, D)
        ds_BD = _tile_of_parents(ds, rows, j, columns, B, J, D)
        _, _, c_BI, dc_BI = _share_of(v_BD, ds_BD, w_DX, u_BX, largest_BI, inverse_BI, TB, TI, KP, PRECISION)
        mean_BI += c_BI * dc_BI
    tl.store(mean + spots, mean_BI, mask=known)
    places = (tile.to(tl.int64) * B + rows)[:, None] * (J * D) + columns[None, :]
    inside = (rows < B)[:, None] & (columns < D)[None, :]
    for j in range(J):
        w_DX = _tile_of_w(w, j, columns, children, dims, I, J, D, K)
        v_BD = _tile_of_parents(agreed, rows, j, columns, B, J, D)
        ds_BD = _tile_of_parents(ds, rows, j, columns, B, J, D)
        _, _, c_BI, dc_BI = _share_of(v_BD, ds_BD, w_DX, u_BX, largest_BI, inverse_BI, TB, TI, KP, PRECISION)
        dlogit_BI = c_BI * (dc_BI - mean_BI)
        dv_BD = tl.dot(_scale(u_BX, dlogit_BI, TB, TI, KP), tl.trans(w_DX), input_precision=PRECISION)
        tl.store(slots + places + j * D, dv_BD, mask=inside)


@triton.jit
def _gradient_of_u(
    u, w, agreed, ds, largests, inverses, mean, du,
    B, I, share, J: tl.constexpr, D: tl.constexpr, K: tl.constexpr,
    R: tl.constexpr, PRECISION: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """du = Σ_J Σ_t c_t (Wᵀ ds_t) + dlogit_t (Wᵀ V_t), for one tile of children and of the batch."""
    tile = tl.program_id(0)
    rows = tl.program_id(1) * TB + tl.arange(0, TB)
    x = tl.arange(0, TI * KP)
    children, dims, columns = tile * TI + x // KP, x % KP, tl.arange(0, DP)
    u_BX = _tile_of_u(u, rows, children, dims, B, I, K)
    child = tile * TI + tl.arange(0, TI)
    spots = rows.to(tl.int64)[:, None] * I + child[None, :]
    known = (rows < B)[:, None] & (child < I)[None, :]
    du_BX = tl.zeros([TB, TI * KP], tl.float32)
    for j in range(J):
        w_DX = _tile_of_w(w, j, columns, children, dims, I, J, D, K)
        ds_BD = _tile_of_parents(ds, rows, j, columns, B, J, D) * share
        du_BX += tl.dot(ds_BD, w_DX, input_precision=PRECISION)
        for t in tl.static_range(1, R):
            largest_BI = tl.load(largests + (t - 1) * B * I + spots, mask=known, other=0.0)
            inverse_BI = tl.load(inverses + (t - 1) * B * I + spots, mask=known, other=1.0)
            mean_BI = tl.load(mean + (t - 1) * B * I + spots, mask=known, other=0.0)
            v_BD = _tile_of_parents(agreed + (t - 1) * B * J * D, rows, j, columns, B, J, D)
            ds_BD = _tile_of_parents(ds + t * B * J * D, rows, j, columns, B, J, D)
            from_v, from_ds, c_BI, dc_BI = _share_of(
                v_BD, ds_BD, w_DX, u_BX, largest_BI, inverse_BI, TB, TI, KP, PRECISION
            )
            du_BX += _scale(from_ds, c_BI, TB, TI, KP) + _scale(from_v, c_BI * (dc_BI - mean_BI), TB, TI, KP)
    inside = (rows < B)[:, None] & ((children < I) & (dims < K))[None, :]
    places = rows.to(tl.int64)[:, None] * (I * K) + (children * K + dims)[None, :]
    tl.store(du + places, du_BX.to(du.dtype.element_ty), mask=inside)


@triton.jit
def _gradient_of_w(
    u, w, agreed, ds, largests, inverses, mean, dw,
    B, I, share, J: tl.constexpr, D: tl.constexpr, K: tl.constexpr,
    R: tl.constexpr, PRECISION: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """dW = Σ_B Σ_t ds_t (c_t∘u)ᵀ + V_t (dlogit_t∘u)ᵀ, for one tile of children and one parent."""
    tile, j = tl.program_id(0), tl.program_id(1)
    x = tl.arange(0, TI * KP)
    children, dims, columns = tile * TI + x // KP, x % KP, tl.arange(0, DP)
    child = tile * TI + tl.arange(0, TI)
    w_DX = _tile_of_w(w, j, columns, children, dims, I, J, D, K)
    dw_DX = tl.zeros([DP, TI * KP], tl.float32)
    for start in range(0, B, TB):
        rows = start + tl.arange(0, TB)
        spots = rows.to(tl.int64)[:, None] * I + child[None, :]
        known = (rows < B)[:, None] & (child < I)[None, :]
        u_BX = _tile_of_u(u, rows, children, dims, B, I, K)
        ds_BD = _tile_of_parents(ds, rows, j, columns, B, J, D) * share
        dw_DX += tl.dot(tl.trans(ds_BD), u_BX, input_precision=PRECISION)
        for t in tl.static_range(1, R):
            largest_BI = tl.load(largests + (t - 1) * B * I + spots, mask=known, other=0.0)
            inverse_BI = tl.load(inverses + (t - 1) * B * I + spots, mask=known, other=1.0)
            mean_BI = tl.load(mean + (t - 1) * B * I + spots, mask=known, other=0.0)
            v_BD = _tile_of_parents(agreed + (t - 1) * B * J * D, rows, j, columns, B, J, D)
            ds_BD = _tile_of_parents(ds + t * B * J * D, rows, j, columns, B, J, D)
            _, _, c_BI, dc_BI = _share_of(v_BD, ds_BD, w_DX, u_BX, largest_BI, inverse_BI, TB, TI, KP, PRECISION)
            dw_DX += tl.dot(tl.trans(ds_BD), _scale(u_BX, c_BI, TB, TI, KP), input_precision=PRECISION)
            dlogit_BI = c_BI * (dc_BI - mean_BI)
            dw_DX += tl.dot(tl.trans(v_BD), _scale(u_BX, dlogit_BI, TB, TI, KP), input_precision=PRECISION)
    inside = (columns < D)[:, None] & ((children < I) & (dims < K))[None, :]
    places = ((children.to(tl.int64) * J + j) * (D * K) + dims)[None, :] + (columns * K)[:, None]
    tl.store(dw + places, dw_DX.to(dw.dtype.element_ty), mask=inside)


@triton.jit
def _squash_parts(s_ND):
    """1/√(1+|s|²) and |s|/√(1+|s|²) as columns, and s/|s|; see ops/squash.py."""
    near = tl.sqrt(tl.sum((s_ND / 256.0) * (s_ND / 256.0), axis=1))[:, None] * 256.0
    unit = tl.where(near > 0, s_ND / tl.where(near > 0, near, 1.0), 0.0)
    # √(1+|s|²) without the square of a large |s|
    larger, smaller = tl.maximum(near, 1.0), tl.minimum(near, 1.0)
    hypotenuse = larger * tl.sqrt(1.0 + (smaller / larger) * (smaller / larger))
    return 1.0 / hypotenuse, near / hypotenuse, unit


@triton.jit
def _sum_slots(slots, places, inside, stride, tiles, TN: tl.constexpr, DP: tl.constexpr):
    """What all tiles of children gave to these parents, added in an order that depends on nothing but their number."""
    many = tl.arange(0, 16)
    total = tl.zeros([16, TN, DP], tl.float32)
    for first in range(0, tiles, 16):
        tile = first + many
        source = slots + tile.to(tl.int64)[:, None, None] * stride + places[None, :, :]
        total += tl.load(source, mask=(tile < tiles)[:, None, None] & inside[None, :, :], other=0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _finish_forward(
    slots, bias, agreed, sums, poses,
    N, J, D, tiles,
    BIAS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, TN: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """s = Σ of the slots + bias; v = squash(s); V += v. A row is one parent of one example: N = B·J."""
    rows, columns = tl.program_id(0) * TN + tl.arange(0, TN), tl.arange(0, DP)
    places = rows[:, None] * D + columns[None, :]
    inside = (rows < N)[:, None] & (columns < D)[None, :]
    s_ND = _sum_slots(slots, places, inside, N * D, tiles, TN, DP)
    if BIAS:
        s_ND += tl.load(bias + (rows % J)[:, None] * D + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    near, far, _ = _squash_parts(s_ND)
    v_ND = s_ND * (near * far)
    tl.store(sums + places, s_ND, mask=inside)
    if LAST:
        tl.store(poses + places, v_ND.to(poses.dtype.element_ty), mask=inside)
    else:
        if not FIRST:
            v_ND += tl.load(agreed - N * D + places, mask=inside, other=0.0)
        tl.store(agreed + places, v_ND, mask=inside)


@triton.jit
def _finish_backward(
    slots, carried, grad, sums, ds,
    N, D, tiles,
    STAGE: tl.constexpr, TN: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """The gradient dv of an iteration's parents, and ds, that of their sums.

    STAGE 0: the last iteration, dv is the output's gradient; 1: the one before it, dv is the slots' sum; 2: any earlier
    one, the slots are added to what was carried, since each v is part of every later V.
    """
    rows, columns = tl.program_id(0) * TN + tl.arange(0, TN), tl.arange(0, DP)
    places = rows[:, None] * D + columns[None, :]
    inside = (rows < N)[:, None] & (columns < D)[None, :]
    if STAGE == 0:
        dv_ND = tl.load(grad + places, mask=inside, other=0.0).to(tl.float32)
    else:
        dv_ND = _sum_slots(slots, places, inside, N * D, tiles, TN, DP)
        if STAGE == 2:
            dv_ND += tl.load(carried + places, mask=inside, other=0.0)
        tl.store(carried + places, dv_ND, mask=inside)
    near, far, unit = _squash_parts(tl.load(sums + places, mask=inside, other=0.0))
    along = tl.sum(unit * dv_ND, axis=1)[:, None]
    tl.store(ds + places, (near * far) * (dv_ND + (near * near - far * far) * along * unit), mask=inside)


class Tiles(NamedTuple):
    """How the work is cut: TB examples by TI children of KP (padded) dimensions a program, parents padded to DP."""

    TB: int
    TI: int
    KP: int
    DP: int
    warps: int

    @staticmethod
    def fit(B: int, K: int, D: int, rows: int, columns: int, warps: int) -> Tiles:
        """Up to `rows` examples by `columns` values of the children a program."""
        KP = triton.next_power_of_2(K)
        TB = min(rows, max(16, triton.next_power_of_2(B)))
        return Tiles(TB, max(1, columns // KP), KP, max(16, triton.next_power_of_2(D)), warps)

    @property
    def block(self) -> dict[str, int]:
        return {"TB": self.TB, "TI": self.TI, "KP": self.KP, "DP": self.DP, "num_warps": self.warps}


# Rows, columns and warps of a program, by kernel and precision: the fastest of those tried on an H200.
# The passes' tiles also set the size of the slots, one for every 64 values of the children.
PASS = {"tf32": (64, 64, 4), "tf32x3": (32, 64, 2)}
GRADIENT_OF_U = {"tf32": (16, 32, 1), "tf32x3": (16, 32, 1)}
GRADIENT_OF_W = {"tf32": (16, 64, 1), "tf32x3": (64, 64, 4)}
ROWS = 4  # parents a program of `_finish_*` adds up


def reason_not(u_BIK: Tensor, weight_IJDK: Tensor, iterations: int) -> str | None:
    """Why the kernels cannot serve these arguments, or None."""
    B, I, K = u_BIK.shape
    D = weight_IJDK.shape[2]
    if not (u_BIK.is_cuda or INTERPRETED):
        return f"tensors are on {u_BIK.device.type}"
    if not {u_BIK.dtype, weight_IJDK.dtype} <= {torch.float32, torch.bfloat16, torch.float16}:
        return f"{u_BIK.dtype} and {weight_IJDK.dtype} are not float32, bfloat16 or float16"
    if B == 0 or I == 0:
        return "there is nothing to route"
    if K > 64 or D > 128 or iterations > 8:
        return f"K={K}, D={D}, {iterations} iterations are beyond K=64, D=128, 8 iterations"
    return None


def forward(
    u_BIK: Tensor, weight_IJDK: Tensor, bias_JD: Tensor | None, iterations: int, leaky: bool, couplings: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Poses (B, J, D) and couplings (B, I, J), empty unless asked for; for the backward: the sums (R, B, J, D), the V
    before each iteration but the first (R-1, B, J, D), and the denominators (2, R-1, B, I)."""
    u_BIK, weight_IJDK = u_BIK.contiguous(), weight_IJDK.contiguous()
    B, I, K = u_BIK.shape
    J, D = weight_IJDK.shape[1:3]
    products = precision(u_BIK)
    cut = Tiles.fit(B, K, D, *PASS[products])
    tiles, share = triton.cdiv(I, cut.TI), 1 / (J + leaky)
    grid = (tiles, triton.cdiv(B, cut.TB))
    new: dict[str, Any] = {"dtype": torch.float32, "device": u_BIK.device}
    dtype = torch.promote_types(u_BIK.dtype, weight_IJDK.dtype)
    slots = torch.empty(tiles, B, J, D, **new)
    sums, agreed = torch.empty(iterations, B, J, D, **new), torch.empty(iterations - 1, B, J, D, **new)
    denominators = torch.empty(2, iterations - 1, B, I, **new)
    poses = torch.empty(B, J, D, dtype=dtype, device=u_BIK.device)
    coupled = torch.full((B, I, J) if couplings else (0,), share, **new)
    for t in range(iterations):
        before = max(0, t - 1)
        last = t == iterations - 1
        _forward_pass[grid](
            u_BIK, weight_IJDK, agreed[before:], slots, denominators[0, before:], denominators[1, before:], coupled,
            B, I, share, J, D, K,
            FIRST=t == 0, LEAKY=leaky, COUPLINGS=couplings and last, PRECISION=products, **cut.block,
        )  # fmt: skip
        _finish_forward[(triton.cdiv(B * J, ROWS),)](
            slots, bias_JD, agreed[t:], sums[t], poses,
            B * J, J, D, tiles,
            BIAS=bias_JD is not None, FIRST=t == 0, LAST=last, TN=ROWS, DP=cut.DP, num_warps=4,
        )  # fmt: skip
    return poses, coupled.to(dtype), sums, agreed, denominators


def backward(
    grad_BJD: Tensor,
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    sums: Tensor,
    agreed: Tensor,
    denominators: Tensor,
    leaky: bool,
    bias: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of u (B, I, K), weight (I, J, D, K) and bias (J, D), the last empty if there was none."""
    grad_BJD, u_BIK, weight_IJDK = grad_BJD.contiguous(), u_BIK.contiguous(), weight_IJDK.contiguous()
    B, I, K = u_BIK.shape
    R, _, J, D = sums.shape
    products, share = precision(u_BIK), 1 / (J + leaky)
    cut = Tiles.fit(B, K, D, *PASS[products])
    tiles = triton.cdiv(I, cut.TI)
    grid = (tiles, triton.cdiv(B, cut.TB))
    slots = sums.new_empty(tiles, B, J, D)
    ds, mean, carried = torch.empty_like(sums), torch.empty_like(denominators[0]), torch.empty_like(sums[0])
    for t in range(R - 1, -1, -1):
        _finish_backward[(triton.cdiv(B * J, ROWS),)](
            slots, carried, grad_BJD, sums[t], ds[t],
            B * J, D, tiles,
            STAGE=min(2, R - 1 - t), TN=ROWS, DP=cut.DP, num_warps=4,
        )  # fmt: skip
        if t > 0:
            _backward_pass[grid](
                u_BIK, weight_IJDK, agreed[t - 1], ds[t], *denominators[:, t - 1], mean[t - 1], slots,
                B, I, J, D, K, PRECISION=products, **cut.block,
            )  # fmt: skip
    del slots, carried  # their memory is what the gradients are written to
    du_BIK, dweight_IJDK = torch.empty_like(u_BIK), torch.empty_like(weight_IJDK)
    known = (u_BIK, weight_IJDK, agreed, ds, *denominators, mean)
    common: dict[str, Any] = {"R": R, "PRECISION": products}
    cut = Tiles.fit(B, K, D, *GRADIENT_OF_U[products])
    grid = (triton.cdiv(I, cut.TI), triton.cdiv(B, cut.TB))
    _gradient_of_u[grid](*known, du_BIK, B, I, share, J, D, K, **common, **cut.block)
    cut = Tiles.fit(B, K, D, *GRADIENT_OF_W[products])
    _gradient_of_w[(triton.cdiv(I, cut.TI), J)](*known, dweight_IJDK, B, I, share, J, D, K, **common, **cut.block)
    return du_BIK, dweight_IJDK, ds.sum((0, 1)) if bias else ds.new_empty(0)


def precision(u_BIK: Tensor) -> str:
    """How products are taken: TF32 where the caller allows it for matrix products, or gave bfloat16, which is coarser;
    else three TF32 products, which come within rounding of float32."""
    allowed = u_BIK.dtype == torch.bfloat16 or torch.get_float32_matmul_precision() != "highest"
    return "tf32" if allowed else "tf32x3"
