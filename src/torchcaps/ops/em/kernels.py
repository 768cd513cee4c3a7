"""Triton kernels of EM routing: passes over votes that are made in registers and never written.

A tile is (TB, TJ, P, P): the votes of TB examples for TJ parents, P×P numbers each. A child's vote is its pose times a
matrix, v[p, r] = Σ_q pose[p, q] w[q, r]: a sum of P products of a (TB, P) column of poses and a (TJ, P) row of
matrices. Those, and what there is one of for a pair, are so few that every thread reads the ones it needs itself.

Arrays are contiguous, but for the shares: their strides may be 0, where all examples or all parents have the same.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _wide(pair):
    """(TB, TJ) → (TB, TJ, 1, 1)."""
    return pair[:, :, None, None]


@triton.jit
def _pose(pose, rows, live, child, q: tl.constexpr, I, P: tl.constexpr):
    """(TB, 1, P, 1): the q-th column of the child's pose."""
    places = (rows.to(tl.int64) * I + child)[:, None] * (P * P) + (tl.arange(0, P) * P + q)[None, :]
    return tl.load(pose + places, mask=live[:, None], other=0.0)[:, None, :, None]


@triton.jit
def _matrix(weight, n, j, there, q: tl.constexpr, J, P: tl.constexpr):
    """(1, TJ, 1, P): the q-th row of the matrices between a spot and its parents."""
    places = (n * J + j)[:, None] * (P * P) + (q * P + tl.arange(0, P))[None, :]
    return tl.load(weight + places, mask=there[:, None], other=0.0)[None, :, None, :]


@triton.jit
def _vote(
    pose, weight, offset, rows, live, child, n, j, there, I, J, P: tl.constexpr, OFFSET: tl.constexpr
):  # fmt: skip
    """(TB, TJ, P, P): what one spot's children say."""
    vote = _pose(pose, rows, live, child, 0, I, P) * _matrix(weight, n, j, there, 0, J, P)
    for q in tl.static_range(1, P):
        vote += _pose(pose, rows, live, child, q, I, P) * _matrix(weight, n, j, there, q, J, P)
    if OFFSET:
        line = tl.arange(0, P)
        vote += tl.load(offset + n * (P * P) + line[:, None] * P + line[None, :])[None, None, :, :]
    return vote


@triton.jit
def _of_children(values, rows, live, child, I):
    """(TB, 1) of a (B, I) array."""
    return tl.load(values + rows.to(tl.int64) * I + child, mask=live, other=0.0)[:, None]


@triton.jit
def _parents(rows, l, j, L, J):
    """(TB, TJ): where parents are in a (B, L, J) array."""
    return (rows.to(tl.int64) * L + l)[:, None] * J + j[None, :]


@triton.jit
def _pairs(rows, l, n, j, L, N, J):
    """(TB, TJ): where pairs are in a (B, L, N, J) array."""
    return ((rows.to(tl.int64) * L + l) * N + n)[:, None] * J + j[None, :]


@triton.jit
def _numbers(parents, P: tl.constexpr):
    """(TB, TJ, P, P): where the numbers of parents are in a (B, L, J, P·P) array."""
    line = tl.arange(0, P)
    return _wide(parents) * (P * P) + (line[:, None] * P + line[None, :])[None, None, :, :]


@triton.jit
def fit(
    pose, activation, weight, offset, child, shares, total, mean, variance,
    B, I, L, N, J, stride_b, stride_l, stride_n, stride_j, least, floor,
    P: tl.constexpr, TB: tl.constexpr, TJ: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """How much counts for each parent, and the mean and variance of its votes, all kept up to date vote by vote.

    The running mean is that of the votes so far, so that no large numbers are subtracted from each other.
    """
    l, rows = tl.program_id(0), tl.program_id(1) * TB + tl.arange(0, TB)
    j = tl.program_id(2) * TJ + tl.arange(0, TJ)
    live, there = rows < B, j < J
    inside = live[:, None] & there[None, :]
    of_pairs = rows.to(tl.int64)[:, None] * stride_b + l * stride_l + j[None, :] * stride_j
    counted = tl.zeros([TB, TJ], tl.float32)
    parents = _parents(rows, l, j, L, J)
    # Nothing is read here: zeros by way of a load make the compiler lay tiles out as they will be written, the numbers
    # of a pair in one thread.
    centre = tl.load(mean + _numbers(parents, P), mask=_wide(inside & (rows < 0)[:, None]), other=0.0)
    squares = tl.zeros_like(centre)
    for n in range(N):
        who = tl.load(child + l * N + n)
        vote = _vote(pose, weight, offset, rows, live, who, n, j, there, I, J, P, OFFSET)
        share = tl.load(shares + of_pairs + n * stride_n, mask=inside, other=0.0)
        counts = share * _of_children(activation, rows, live, who, I)
        counted += counts
        away = vote - centre
        centre += away * _wide(counts / tl.maximum(counted, 1e-30))
        squares += _wide(counts) * away * (vote - centre)
    known = 1 / (counted + least)
    found = centre * _wide(counted * known)
    spread = (squares + _wide(counted) * (centre - found) * (centre - found)) * _wide(known) + floor
    tl.store(total + parents, counted, mask=inside)
    tl.store(mean + _numbers(parents, P), found, mask=_wide(inside))
    tl.store(variance + _numbers(parents, P), spread, mask=_wide(inside))


@triton.jit
def score(
    pose, weight, offset, child, mean, linear, square, plus, out,
    B, I, L, N, J,
    P: tl.constexpr, TB: tl.constexpr, TJ: tl.constexpr, OFFSET: tl.constexpr, LINEAR: tl.constexpr,
):  # fmt: skip
    """Σ_D (v - mean) linear + (v - mean)² square, plus what is given for the parent: one number a pair."""
    l, rows = tl.program_id(0), tl.program_id(1) * TB + tl.arange(0, TB)
    j = tl.program_id(2) * TJ + tl.arange(0, TJ)
    live, there = rows < B, j < J
    inside = live[:, None] & there[None, :]
    parents = _parents(rows, l, j, L, J)
    numbers = _numbers(parents, P)
    centre = tl.load(mean + numbers, mask=_wide(inside), other=0.0)
    curve = tl.load(square + numbers, mask=_wide(inside), other=0.0)
    slope = tl.load(linear + numbers, mask=_wide(inside), other=0.0) if LINEAR else tl.zeros_like(curve)
    base = tl.load(plus + parents, mask=inside, other=0.0)
    for n in range(N):
        who = tl.load(child + l * N + n)
        away = _vote(pose, weight, offset, rows, live, who, n, j, there, I, J, P, OFFSET) - centre
        value = tl.sum(tl.sum(away * (slope + curve * away), axis=3), axis=2) + base
        tl.store(out + _pairs(rows, l, n, j, L, N, J), value, mask=inside)


@triton.jit
def sums(
    pose, weight, offset, child, pairs, mean, of_one, of_distance, of_square,
    B, I, L, N, J,
    P: tl.constexpr, TB: tl.constexpr, TJ: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """Σ_N pairs, Σ_N pairs (v - mean) and Σ_N pairs (v - mean)²."""
    l, rows = tl.program_id(0), tl.program_id(1) * TB + tl.arange(0, TB)
    j = tl.program_id(2) * TJ + tl.arange(0, TJ)
    live, there = rows < B, j < J
    inside = live[:, None] & there[None, :]
    parents = _parents(rows, l, j, L, J)
    numbers = _numbers(parents, P)
    centre = tl.load(mean + numbers, mask=_wide(inside), other=0.0)
    one, distance, square = tl.zeros([TB, TJ], tl.float32), tl.zeros_like(centre), tl.zeros_like(centre)
    for n in range(N):
        who = tl.load(child + l * N + n)
        away = _vote(pose, weight, offset, rows, live, who, n, j, there, I, J, P, OFFSET) - centre
        pair = tl.load(pairs + _pairs(rows, l, n, j, L, N, J), mask=inside, other=0.0)
        one += pair
        distance += _wide(pair) * away
        square += _wide(pair) * away * away
    tl.store(of_one + parents, one, mask=inside)
    tl.store(of_distance + numbers, distance, mask=_wide(inside))
    tl.store(of_square + numbers, square, mask=_wide(inside))


@triton.jit
def _gradient(
    vote, means, linears, squares, inverses, equal, shares, pairs, active, rows, l, n, j, inside,
    L, N, J, all_parents, all_pairs, T: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The gradient of the votes, a sum over T iterations; and what the first M-step says of how a child counts.

    all_parents, all_pairs  numbers in the arrays of one iteration
    """
    result, first = tl.zeros_like(vote), tl.zeros_like(vote)
    numbers, places = _numbers(_parents(rows, l, j, L, J), P), _pairs(rows, l, n, j, L, N, J)
    for t in tl.static_range(T):
        away = vote - tl.load(means + numbers, mask=_wide(inside), other=0.0)
        slope = tl.load(linears + numbers, mask=_wide(inside), other=0.0)
        curve = tl.load(squares + numbers, mask=_wide(inside), other=0.0)
        if t == 0:
            share = tl.load(equal + l * N + n)
            first = away * (slope + curve * away)
        else:
            share = tl.load(shares + places, mask=inside, other=0.0)
            shares += all_pairs
        result += _wide(share * active) * (slope + 2 * curve * away)
        if t < T - 1:
            pair = tl.load(pairs + places, mask=inside, other=0.0)
            inverse = tl.load(inverses + numbers, mask=_wide(inside), other=0.0)
            result -= _wide(pair) * inverse * away
            pairs += all_pairs
            inverses += all_parents
        means += all_parents
        linears += all_parents
        squares += all_parents
    return result, first


@triton.jit
def spread_to_poses(
    pose, activation, weight, offset, child, means, linears, squares, inverses, equal, shares, pairs, d_pose, d_first,
    B, I, L, N, J, all_parents, all_pairs,
    T: tl.constexpr, P: tl.constexpr, TB: tl.constexpr, TJ: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """The gradient of the pose at each spot (B, L, N, D), and of its activation by the first M-step (B, L, N)."""
    l, rows = tl.program_id(0), tl.program_id(1) * TB + tl.arange(0, TB)
    live = rows < B
    line = tl.arange(0, P)
    for first_parent in range(0, J, TJ):
        tl.debug_barrier()  # what one round has stored, the next adds to
        j = first_parent + tl.arange(0, TJ)
        there = j < J
        inside = live[:, None] & there[None, :]
        for n in range(N):
            who = tl.load(child + l * N + n)
            vote = _vote(pose, weight, offset, rows, live, who, n, j, there, I, J, P, OFFSET)
            active = _of_children(activation, rows, live, who, I)
            grad, first = _gradient(
                vote, means, linears, squares, inverses, equal, shares, pairs, active, rows, l, n, j, inside,
                L, N, J, all_parents, all_pairs, T, P,
            )  # fmt: skip
            spot = (rows.to(tl.int64) * L + l) * N + n
            again = live & (first_parent > 0)
            added = tl.sum(tl.sum(tl.sum(tl.where(_wide(inside), first, 0.0), axis=3), axis=2), axis=1)
            tl.store(d_first + spot, added + tl.load(d_first + spot, mask=again, other=0.0), mask=live)
            for q in tl.static_range(P):
                parts = tl.sum(tl.sum(grad * _matrix(weight, n, j, there, q, J, P), axis=3), axis=1)
                places = d_pose + spot[:, None] * (P * P) + (line * P + q)[None, :]
                tl.store(places, parts + tl.load(places, mask=again[:, None], other=0.0), mask=live[:, None])


@triton.jit
def spread_to_weights(
    pose, activation, weight, offset, child, means, linears, squares, inverses, equal, shares, pairs, d_weight,
    B, I, L, N, J, all_parents, all_pairs, length,
    T: tl.constexpr, P: tl.constexpr, TB: tl.constexpr, TJ: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """The gradient of each matrix, (S, N, J, D): a slot for each of S parts of all places and examples."""
    n, part = tl.program_id(0), tl.program_id(2)
    j = tl.program_id(1) * TJ + tl.arange(0, TJ)
    there = j < J
    blocks = tl.cdiv(B, TB)
    sum0 = tl.zeros([TB, TJ, P, P], tl.float32)
    sum1, sum2, sum3 = sum0, sum0, sum0
    for step in range(part * length, tl.minimum(part * length + length, L * blocks)):
        l = step // blocks
        rows = (step % blocks) * TB + tl.arange(0, TB)
        live = rows < B
        inside = live[:, None] & there[None, :]
        who = tl.load(child + l * N + n)
        vote = _vote(pose, weight, offset, rows, live, who, n, j, there, I, J, P, OFFSET)
        active = _of_children(activation, rows, live, who, I)
        grad, _ = _gradient(
            vote, means, linears, squares, inverses, equal, shares, pairs, active, rows, l, n, j, inside,
            L, N, J, all_parents, all_pairs, T, P,
        )  # fmt: skip
        sum0 += _pose(pose, rows, live, who, 0, I, P) * grad
        if P > 1:
            sum1 += _pose(pose, rows, live, who, 1, I, P) * grad
        if P > 2:
            sum2 += _pose(pose, rows, live, who, 2, I, P) * grad
            sum3 += _pose(pose, rows, live, who, 3, I, P) * grad
    base = d_weight + (part * N + n) * J * (P * P)
    _store_matrix(base, sum0, j, there, 0, P)
    if P > 1:
        _store_matrix(base, sum1, j, there, 1, P)
    if P > 2:
        _store_matrix(base, sum2, j, there, 2, P)
        _store_matrix(base, sum3, j, there, 3, P)


@triton.jit
def _store_matrix(base, parts, j, there, q: tl.constexpr, P: tl.constexpr):
    """The q-th row of each parent's matrix, from parts (TB, TJ, P, P) that are still to be added up."""
    places = j[:, None] * (P * P) + (q * P + tl.arange(0, P))[None, :]
    tl.store(base + places, tl.sum(tl.sum(parts, axis=2), axis=0), mask=there[:, None])
