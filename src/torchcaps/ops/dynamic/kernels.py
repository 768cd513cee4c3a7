"""Dynamic routing's passes as Triton kernels; README.md beside this file derives them, fused.py launches them.

A program holds a tile of the batch and a tile of the children. Votes, logits and couplings live in its registers only.
Every pass is made of these steps, of which tensor cores do all but `spread` as matrix products:

    project   Wᵀ V                 (TB, D) (D, X)   what a parent looks like to a child
    agree     u · Wᵀ V             (TB, X) (X, TI)  the sum over K, as a product with a matrix of ones and zeros
    spread    c for every k        (TB, TI) → (TB, X)
    gather    (c∘u) W              (TB, X) (X, D)   the weighted sum of votes

X stands for the tile's children and K taken together, K innermost, as they lie in memory.

products.py has the products themselves. Sums, exponentials and squashing are float32 always.
"""

from __future__ import annotations

import triton
import triton.language as tl

from torchcaps.ops.dynamic.products import cut, multiply, times, turn, turned, upper
from torchcaps.ops.squash_kernels import squash_gradient, squashed

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tile_of_u(u, rows, children, dims, B, I, K: tl.constexpr):
    """(TB, X) of the children's poses, zero outside."""
    inside = (rows < B)[:, None] & ((children < I) & (dims < K))[None, :]
    places = rows.to(tl.int64)[:, None] * (I * K) + (children * K + dims)[None, :]
    return tl.load(u + places, mask=inside, other=0.0)


@triton.jit
def _tile_of_w(w, j, columns, children, dims, I, J, D: tl.constexpr, K: tl.constexpr):
    """(D, X) of parent j's matrices, zero outside."""
    inside = (columns < D)[:, None] & ((children < I) & (dims < K))[None, :]
    places = ((children.to(tl.int64) * J + j) * (D * K) + dims)[None, :] + (columns * K)[:, None]
    return tl.load(w + places, mask=inside, other=0.0)


@triton.jit
def _tile_of_parents(parents, rows, j, columns, B, J, D: tl.constexpr):
    """(TB, D) of a (B, J, D) array, for parent j, zero outside."""
    inside = (rows < B)[:, None] & (columns < D)[None, :]
    return tl.load(parents + (rows * J + j)[:, None] * D + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _tile_of_children(values, rows, child, B, I):
    """(TB, TI) of a (B, I) array, zero outside."""
    known = (rows < B)[:, None] & (child < I)[None, :]
    return tl.load(values + rows.to(tl.int64)[:, None] * I + child[None, :], mask=known, other=0.0)


@triton.jit
def _sum_over_k(x_BX, TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, PRODUCT: tl.constexpr):
    """(TB, X) → (TB, TI)."""
    x, child = tl.arange(0, TI * KP), tl.arange(0, TI)
    if TI < 8:
        total = tl.sum(tl.reshape(x_BX.to(tl.float32), [TB, TI, KP]), axis=2)
    elif PRODUCT == "bf16":
        total = multiply(x_BX, tl.where((x // KP)[:, None] == child[None, :], 1.0, 0.0), PRODUCT)
    else:
        x_BX = turn(x_BX, TB, TI * KP)
        ones_XI = tl.where((turned(x) // KP)[:, None] == child[None, :], 1.0, 0.0)
        # Not rounded: that would take an instruction for each product, and these errors hardly count.
        total = tl.dot(upper(x_BX) if PRODUCT == "tf32x3" else cut(x_BX), ones_XI, input_precision="tf32")
        if PRODUCT == "tf32x3":
            total = tl.dot(x_BX - upper(x_BX), ones_XI, total, input_precision="tf32")
    return total


@triton.jit
def _spread(c_BI, TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr):
    """(TB, TI) → (TB, X): the same for every k."""
    return tl.reshape(tl.broadcast_to(c_BI[:, :, None], [TB, TI, KP]), [TB, TI * KP])


@triton.jit
def _spread_rows(c_IB, TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr):
    """(TI, TB) → (X, TB)."""
    return tl.reshape(tl.broadcast_to(c_IB[:, None, :], [TI, KP, TB]), [TI * KP, TB])


@triton.jit
def _agree(parents_BD, w_DX, u_BX, TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, PRODUCT: tl.constexpr):
    """Wᵀ V (TB, X), and u · Wᵀ V (TB, TI)."""
    wide_BX = multiply(parents_BD, w_DX, PRODUCT)
    return wide_BX, _sum_over_k(times(wide_BX, u_BX), TB, TI, KP, PRODUCT)


@triton.jit
def sum_couplings(
    u, w, agreed, logsums,
    B, I, J, D: tl.constexpr, K: tl.constexpr,
    LEAKY: tl.constexpr, PRODUCT: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """The softmax's denominator of each child, as its logarithm to base 2."""
    tile = tl.program_id(0)
    rows = tl.program_id(1) * TB + tl.arange(0, TB)
    x = tl.arange(0, TI * KP)
    children, dims, columns = tile * TI + x // KP, x % KP, tl.arange(0, DP)
    u_BX = _tile_of_u(u, rows, children, dims, B, I, K)
    # `largest` is the largest logit so far, `total` the sum of 2^(logit - largest). Leaky routing starts with the extra
    # logit, which is zero.
    largest = tl.full([TB, TI], 0.0 if LEAKY else float("-inf"), tl.float32)
    total = tl.full([TB, TI], 1.0 if LEAKY else 0.0, tl.float32)
    for j in range(J):
        w_DX = _tile_of_w(w, j, columns, children, dims, I, J, D, K)
        v_BD = _tile_of_parents(agreed, rows, j, columns, B, J, D)
        logit = _agree(v_BD, w_DX, u_BX, TB, TI, KP, PRODUCT)[1] * LOG2E
        change = tl.exp2(-tl.abs(logit - largest))
        total = tl.where(logit > largest, total * change + 1, total + change)
        largest = tl.maximum(largest, logit)
    child = tile * TI + tl.arange(0, TI)
    spots = rows.to(tl.int64)[:, None] * I + child[None, :]
    tl.store(logsums + spots, largest + tl.log2(total), mask=(rows < B)[:, None] & (child < I)[None, :])


@triton.jit
def sum_couplings_backward(
    u, w, agreed, ds, logsums, means, du,
    B, I, J, D: tl.constexpr, K: tl.constexpr,
    ADD: tl.constexpr, PRODUCT: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """mean = Σ_J c dc of each child, and this iteration's part of du: Σ_J c (Wᵀ ds) + c (dc - mean) (Wᵀ V)."""
    tile = tl.program_id(0)
    rows = tl.program_id(1) * TB + tl.arange(0, TB)
    x = tl.arange(0, TI * KP)
    children, dims, columns = tile * TI + x // KP, x % KP, tl.arange(0, DP)
    child = tile * TI + tl.arange(0, TI)
    u_BX = _tile_of_u(u, rows, children, dims, B, I, K)
    logsum_BI = _tile_of_children(logsums, rows, child, B, I)
    # dc is taken relative to that of the first parent: what they have in common would only cancel out in the end.
    mean_BI, first_BI = tl.zeros([TB, TI], tl.float32), tl.zeros([TB, TI], tl.float32)
    du_BX, per_mean_BX = tl.zeros([TB, TI * KP], tl.float32), tl.zeros([TB, TI * KP], tl.float32)
    for j in range(J):
        w_DX = _tile_of_w(w, j, columns, children, dims, I, J, D, K)
        v_BD = _tile_of_parents(agreed, rows, j, columns, B, J, D)
        ds_BD = _tile_of_parents(ds, rows, j, columns, B, J, D)
        from_v, logit = _agree(v_BD, w_DX, u_BX, TB, TI, KP, PRODUCT)
        from_ds, dc_BI = _agree(ds_BD, w_DX, u_BX, TB, TI, KP, PRODUCT)
        c_BI = tl.exp2(logit * LOG2E - logsum_BI)
        mean_BI += c_BI * dc_BI
        c_BX = _spread(c_BI, TB, TI, KP)
        per_mean_BX += c_BX * from_v
        first_BI = tl.where(j == 0, dc_BI, first_BI)
        du_BX += c_BX * (from_ds + _spread(dc_BI - first_BI, TB, TI, KP) * from_v)
    spots = rows.to(tl.int64)[:, None] * I + child[None, :]
    tl.store(means + spots, mean_BI, mask=(rows < B)[:, None] & (child < I)[None, :])
    du_BX -= _spread(mean_BI - first_BI, TB, TI, KP) * per_mean_BX
    inside = (rows < B)[:, None] & ((children < I) & (dims < K))[None, :]
    places = rows.to(tl.int64)[:, None] * (I * K) + (children * K + dims)[None, :]
    if ADD:
        du_BX += tl.load(du + places, mask=inside, other=0.0)
    tl.store(du + places, du_BX, mask=inside)


@triton.jit
def _weighted_votes(
    u_BX, w, v_BD, ds_BD, logsum_BI, mean_BI, couplings, tile, rows, j, columns,
    B, I, J, D: tl.constexpr, K: tl.constexpr,
    OF: tl.constexpr, COUPLINGS: tl.constexpr, PRODUCT: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """One tile of children's part of Σ coefficient · û, for one parent (TB, D)."""
    x, child = tl.arange(0, TI * KP), tile * TI + tl.arange(0, TI)
    w_DX = _tile_of_w(w, j, columns, tile * TI + x // KP, x % KP, I, J, D, K)
    if OF == "shares":
        s_BD = multiply(u_BX, tl.trans(w_DX), PRODUCT)
    else:
        of_BI = tl.exp2(_agree(v_BD, w_DX, u_BX, TB, TI, KP, PRODUCT)[1] * LOG2E - logsum_BI)
        if OF == "gradients":
            of_BI *= _agree(ds_BD, w_DX, u_BX, TB, TI, KP, PRODUCT)[1] - mean_BI
        if COUPLINGS:
            spots = rows.to(tl.int64)[:, None] * I + child[None, :]
            tl.store(couplings + spots * J + j, of_BI, mask=(rows < B)[:, None] & (child < I)[None, :])
        weighted_BX = times(_spread(of_BI.to(u_BX.dtype), TB, TI, KP), u_BX)
        if PRODUCT != "bf16" and TI * KP >= 8:
            weighted_BX, w_DX = turn(weighted_BX, TB, TI * KP), turn(w_DX, DP, TI * KP)
        s_BD = multiply(weighted_BX, tl.trans(w_DX), PRODUCT)
    return s_BD


@triton.jit
def gather(
    u, w, agreed, ds, logsums, means, couplings, slots,
    B, I, tiles, share, J, D: tl.constexpr, K: tl.constexpr,
    OF: tl.constexpr, COUPLINGS: tl.constexpr, PAIR: tl.constexpr, PRODUCT: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Σ coefficient · û over `tiles` tiles of children, for one parent, or a pair, which reads the children half as
    often; an odd last parent is then taken twice.

    OF says of what: "shares", the first iteration's equal couplings; "couplings"; or "gradients", those of the logits.
    """
    chunk, one = tl.program_id(0), tl.program_id(1) * (2 if PAIR else 1)
    two = tl.minimum(one + 1, J - 1)
    rows = tl.program_id(2) * TB + tl.arange(0, TB)
    x, columns = tl.arange(0, TI * KP), tl.arange(0, DP)
    v_one, v_two, ds_one, ds_two = None, None, None, None
    if OF != "shares":
        v_one = _tile_of_parents(agreed, rows, one, columns, B, J, D)
        v_two = _tile_of_parents(agreed, rows, two, columns, B, J, D)
    if OF == "gradients":
        ds_one = _tile_of_parents(ds, rows, one, columns, B, J, D)
        ds_two = _tile_of_parents(ds, rows, two, columns, B, J, D)
    s_one, s_two = tl.zeros([TB, DP], tl.float32), tl.zeros([TB, DP], tl.float32)
    for tile in range(chunk * tiles, chunk * tiles + tiles):
        u_BX = _tile_of_u(u, rows, tile * TI + x // KP, x % KP, B, I, K)
        child = tile * TI + tl.arange(0, TI)
        logsum_BI, mean_BI = None, None
        if OF != "shares":
            logsum_BI = _tile_of_children(logsums, rows, child, B, I)
        if OF == "gradients":
            mean_BI = _tile_of_children(means, rows, child, B, I)
        s_one += _weighted_votes(
            u_BX, w, v_one, ds_one, logsum_BI, mean_BI, couplings, tile, rows, one, columns,
            B, I, J, D, K, OF, COUPLINGS, PRODUCT, TB, TI, KP, DP,
        )  # fmt: skip
        if PAIR:
            s_two += _weighted_votes(
                u_BX, w, v_two, ds_two, logsum_BI, mean_BI, couplings, tile, rows, two, columns,
                B, I, J, D, K, OF, COUPLINGS, PRODUCT, TB, TI, KP, DP,
            )  # fmt: skip
    if OF == "shares":
        s_one, s_two = s_one * share, s_two * share
    places = (chunk.to(tl.int64) * B + rows)[:, None] * (J * D) + columns[None, :]
    inside = (rows < B)[:, None] & (columns < D)[None, :]
    tl.store(slots + places + one * D, s_one, mask=inside)
    if PAIR:
        tl.store(slots + places + two * D, s_two, mask=inside)


@triton.jit
def finish_u(
    w, ds, du_sum, du,
    B, I, share, J, D: tl.constexpr, K: tl.constexpr,
    ADD: tl.constexpr, PRODUCT: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """The first iteration's part of du, share · Σ_J Wᵀ ds, added to the others'."""
    tile = tl.program_id(0)
    rows = tl.program_id(1) * TB + tl.arange(0, TB)
    x = tl.arange(0, TI * KP)
    children, dims, columns = tile * TI + x // KP, x % KP, tl.arange(0, DP)
    du_BX = tl.zeros([TB, TI * KP], tl.float32)
    for j in range(J):
        w_DX = _tile_of_w(w, j, columns, children, dims, I, J, D, K)
        du_BX += multiply(_tile_of_parents(ds, rows, j, columns, B, J, D), w_DX, PRODUCT)
    du_BX *= share
    inside = (rows < B)[:, None] & ((children < I) & (dims < K))[None, :]
    places = rows.to(tl.int64)[:, None] * (I * K) + (children * K + dims)[None, :]
    if ADD:
        du_BX += tl.load(du_sum + places, mask=inside, other=0.0)
    tl.store(du + places, du_BX.to(du.dtype.element_ty), mask=inside)


@triton.jit
def _gradient_of_one(
    u_BX, u_XB, w_DX, agreed, ds, logsum_BI, mean_BI, rows, j, columns,
    B, J, D: tl.constexpr, PRODUCT: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr,
):  # fmt: skip
    """One iteration's part of dW, for one tile of examples and one parent (X, D)."""
    v_BD = _tile_of_parents(agreed, rows, j, columns, B, J, D)
    ds_BD = _tile_of_parents(ds, rows, j, columns, B, J, D)
    c_BI = tl.exp2(_agree(v_BD, w_DX, u_BX, TB, TI, KP, PRODUCT)[1] * LOG2E - logsum_BI)
    dlogit_BI = c_BI * (_agree(ds_BD, w_DX, u_BX, TB, TI, KP, PRODUCT)[1] - mean_BI)
    c_XB = _spread_rows(tl.trans(c_BI.to(u_BX.dtype)), TB, TI, KP)
    dlogit_XB = _spread_rows(tl.trans(dlogit_BI.to(u_BX.dtype)), TB, TI, KP)
    return multiply(times(c_XB, u_XB), ds_BD, PRODUCT) + multiply(times(dlogit_XB, u_XB), v_BD, PRODUCT)


@triton.jit
def gradient_of_w(
    u, w, agreed, ds, logsums, means, dw,
    B, I, share, J, D: tl.constexpr, K: tl.constexpr,
    R: tl.constexpr, PAIR: tl.constexpr, PRODUCT: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """dW = Σ_B Σ_t ds_t (c_t∘u)ᵀ + V_t (dlogit_t∘u)ᵀ, for one tile of children and one parent or a pair."""
    tile, one = tl.program_id(0), tl.program_id(1) * (2 if PAIR else 1)
    two = tl.minimum(one + 1, J - 1)
    x = tl.arange(0, TI * KP)
    children, dims, columns = tile * TI + x // KP, x % KP, tl.arange(0, DP)
    child = tile * TI + tl.arange(0, TI)
    w_one = _tile_of_w(w, one, columns, children, dims, I, J, D, K)
    w_two = _tile_of_w(w, two, columns, children, dims, I, J, D, K)
    dw_one, dw_two = tl.zeros([TI * KP, DP], tl.float32), tl.zeros([TI * KP, DP], tl.float32)
    for start in range(0, B, TB):
        rows = start + tl.arange(0, TB)
        u_BX = _tile_of_u(u, rows, children, dims, B, I, K)
        u_XB = tl.trans(u_BX)
        dw_one += share * multiply(u_XB, _tile_of_parents(ds, rows, one, columns, B, J, D), PRODUCT)
        if PAIR:
            dw_two += share * multiply(u_XB, _tile_of_parents(ds, rows, two, columns, B, J, D), PRODUCT)
        for t in tl.static_range(1, R):
            logsum_BI = _tile_of_children(logsums + (t - 1) * B * I, rows, child, B, I)
            mean_BI = _tile_of_children(means + (t - 1) * B * I, rows, child, B, I)
            v_t, ds_t = agreed + (t - 1) * B * J * D, ds + t * B * J * D
            dw_one += _gradient_of_one(
                u_BX, u_XB, w_one, v_t, ds_t, logsum_BI, mean_BI, rows, one, columns, B, J, D, PRODUCT, TB, TI, KP
            )
            if PAIR:
                dw_two += _gradient_of_one(
                    u_BX, u_XB, w_two, v_t, ds_t, logsum_BI, mean_BI, rows, two, columns, B, J, D, PRODUCT, TB, TI, KP
                )
    inside = (columns < D)[None, :] & ((children < I) & (dims < K))[:, None]
    places = (children.to(tl.int64) * (J * D * K) + dims)[:, None] + (columns * K)[None, :]
    tl.store(dw + places + one * (D * K), dw_one.to(dw.dtype.element_ty), mask=inside)
    if PAIR:
        tl.store(dw + places + two * (D * K), dw_two.to(dw.dtype.element_ty), mask=inside)


@triton.jit
def _sum_slots(slots, places, inside, stride, chunks, TN: tl.constexpr, DP: tl.constexpr):
    """What all chunks of children gave to these parents, added in an order that depends on nothing but their number."""
    many = tl.arange(0, 16)
    total = tl.zeros([16, TN, DP], tl.float32)
    for first in range(0, chunks, 16):
        chunk = first + many
        source = slots + chunk.to(tl.int64)[:, None, None] * stride + places[None, :, :]
        total += tl.load(source, mask=(chunk < chunks)[:, None, None] & inside[None, :, :], other=0.0)
    return tl.sum(total, axis=0)


@triton.jit
def finish_forward(
    slots, bias, agreed, sums, poses,
    N, J, D, chunks, inverse_temperature,
    BIAS: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr, TN: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """s = Σ of the slots + bias; v = squash(s); V = v + those before it, times the inverse temperature.

    A row is a parent of an example: N = B·J.
    """
    rows, columns = tl.program_id(0) * TN + tl.arange(0, TN), tl.arange(0, DP)
    places = rows[:, None] * D + columns[None, :]
    inside = (rows < N)[:, None] & (columns < D)[None, :]
    s_ND = _sum_slots(slots, places, inside, N * D, chunks, TN, DP)
    if BIAS:
        s_ND += tl.load(bias + (rows % J)[:, None] * D + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    v_ND = squashed(s_ND)
    tl.store(sums + T * N * D + places, s_ND, mask=inside)
    if LAST:
        tl.store(poses + places, v_ND.to(poses.dtype.element_ty), mask=inside)
    else:
        for t in tl.static_range(T):
            v_ND += squashed(tl.load(sums + t * N * D + places, mask=inside, other=0.0))
        tl.store(agreed + places, (inverse_temperature * v_ND).to(agreed.dtype.element_ty), mask=inside)


@triton.jit
def finish_backward(
    slots, carried, grad, sums, ds,
    N, D, chunks, inverse_temperature,
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
        dv_ND = inverse_temperature * _sum_slots(slots, places, inside, N * D, chunks, TN, DP)
        if STAGE == 2:
            dv_ND += tl.load(carried + places, mask=inside, other=0.0)
        tl.store(carried + places, dv_ND, mask=inside)
    ds_ND = squash_gradient(tl.load(sums + places, mask=inside, other=0.0), dv_ND)
    tl.store(ds + places, ds_ND.to(ds.dtype.element_ty), mask=inside)
