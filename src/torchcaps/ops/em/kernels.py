"""Triton kernels of EM routing: passes over votes that are made in registers and never written.

A tile is (P, P, TJ, TN): the votes of TN spots for TJ parents of one place of one example. Spots lie along the threads,
so a thread has whole votes to itself: the products that make one, v[p, r] = Σ_q pose[p, q] w[q, r], need nothing of
other threads, and what belongs to a parent is the same for all of them. In memory, too, spots are the last axis: poses
(B, P·P, I), matrices (J, P·P, N), pairs (B, L, J, N); parents are (B, L, J, P·P).
"""

from __future__ import annotations

import triton
import triton.language as tl

# `zero` is 0, which the compiler must not know: it would see that neighbours can be read several at once, and hand out
# spots so that threads no longer have whole votes.
PLAIN = ("L", "J", "zero")


@triton.jit
def _numbers(P: tl.constexpr):
    """(P, P)"""
    line = tl.arange(0, P)
    return line[:, None] * P + line[None, :]


@triton.jit
def _poses(pose, b, child, here, I, P: tl.constexpr):
    """(P, P, TN): [p, q] of the children at some spots."""
    places = _numbers(P)[:, :, None] * I + child[None, None, :]
    return tl.load(pose + b.to(tl.int64) * (P * P) * I + places, mask=here[None, None, :], other=0.0)


@triton.jit
def _matrices(weight, j, n, inside, N, P: tl.constexpr):
    """(P, P, TJ, TN): [q, r] between spots and parents."""
    places = (j[None, None, :, None] * (P * P) + _numbers(P)[:, :, None, None]) * N + n[None, None, None, :]
    return tl.load(weight + places, mask=inside[None, None, :, :], other=0.0)


@triton.jit
def _votes(poses, matrices, offset, n, N: tl.constexpr, zero, P: tl.constexpr, OFFSET: tl.constexpr):
    """(P, P, TJ, TN): [p, r]"""
    votes = tl.sum(poses[:, :, None, None, :] * matrices[None, :, :, :, :], axis=1)
    if OFFSET:
        places = _numbers(P)[:, :, None] * N + n[None, None, :]
        votes += tl.load(offset + zero + places, mask=(n < N)[None, None, :], other=0.0)[:, :, None, :]
    return votes


@triton.jit
def _parents(b, l, j, L, J):
    """(TJ,): where parents are in a (B, L, J) array."""
    return (b.to(tl.int64) * L + l) * J + j


@triton.jit
def _of_parents(values, parents, there, P: tl.constexpr):
    """(P, P, TJ, 1) of a (B, L, J, P·P) array."""
    places = parents[None, None, :] * (P * P) + _numbers(P)[:, :, None]
    return tl.load(values + places, mask=there[None, None, :], other=0.0)[:, :, :, None]


@triton.jit
def _store_parents(values, parents, there, numbers, P: tl.constexpr):
    """numbers (P, P, TJ)"""
    places = parents[None, None, :] * (P * P) + _numbers(P)[:, :, None]
    tl.store(values + places, numbers, mask=there[None, None, :])


@triton.jit(do_not_specialize=PLAIN)
def fit(
    pose, activation, weight, offset, child, shares, total, mean, variance,
    L, J, zero, stride_b, stride_l, stride_n, stride_j, least, floor,
    I: tl.constexpr, N: tl.constexpr, P: tl.constexpr, TJ: tl.constexpr, TN: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """How much counts for each parent, and the mean and variance of its votes.

    Each thread keeps those of its own votes up to date, vote by vote, so that no large numbers are subtracted from each
    other; in the end they are put together. Strides of the shares may be 0, where all examples or all parents have the
    same.
    """
    l, b = tl.program_id(0), tl.program_id(1)
    j = tl.program_id(2) * TJ + tl.arange(0, TJ)
    there = j < J
    parents = _parents(b, l, j, L, J)
    of_pairs = b.to(tl.int64) * stride_b + l * stride_l + j[:, None] * stride_j
    counted = tl.zeros([TJ, TN], tl.float32)
    centre = tl.zeros([P, P, TJ, TN], tl.float32)
    squares = tl.zeros([P, P, TJ, TN], tl.float32)
    for start in range(0, N, TN):
        n = start + tl.arange(0, TN)
        inside = there[:, None] & (n < N)[None, :]
        who = tl.load(child + zero + l * N + n, mask=n < N, other=0)
        poses, matrices = _poses(pose + zero, b, who, n < N, I, P), _matrices(weight + zero, j, n, inside, N, P)
        votes = _votes(poses, matrices, offset, n, N, zero, P, OFFSET)
        active = tl.load(activation + b.to(tl.int64) * I + who, mask=n < N, other=0.0)
        counts = tl.load(shares + of_pairs + zero + n[None, :] * stride_n, mask=inside, other=0.0) * active[None, :]
        counted += counts
        away = votes - centre
        moved = away * (counts / tl.maximum(counted, 1e-30))[None, None, :, :]
        centre += moved
        squares += (away - moved) * (counts[None, None, :, :] * away)
    of_each = counted[None, None, :, :]
    all_counted = tl.sum(counted, axis=1)
    known = (1 / (all_counted + least))[None, None, :]
    found = tl.sum(of_each * centre, axis=3) * known
    apart = centre - found[:, :, :, None]
    spread = tl.sum(squares + (of_each * apart) * apart, axis=3) * known + floor
    tl.store(total + parents, all_counted, mask=there)
    _store_parents(mean, parents, there, found, P)
    _store_parents(variance, parents, there, spread, P)


@triton.jit(do_not_specialize=PLAIN)
def score(
    pose, weight, offset, child, mean, linear, square, plus, out,
    L, J, zero,
    I: tl.constexpr, N: tl.constexpr, P: tl.constexpr, TN: tl.constexpr, OFFSET: tl.constexpr, LINEAR: tl.constexpr,
):  # fmt: skip
    """Σ_D (v - mean) linear + (v - mean)² square, plus what is given for the parent: one number a pair."""
    l, b = tl.program_id(0), tl.program_id(1)
    n = tl.program_id(2) * TN + tl.arange(0, TN)
    here = n < N
    who = tl.load(child + zero + l * N + n, mask=here, other=0)
    poses = _poses(pose + zero, b, who, here, I, P)
    one = tl.arange(0, 1)
    for parent in range(J):
        there = one < J - parent
        inside = there[:, None] & here[None, :]
        parents = _parents(b, l, parent + one, L, J)
        matrices = _matrices(weight + zero + parent * (P * P * N), one, n, inside, N, P)
        away = _votes(poses, matrices, offset, n, N, zero, P, OFFSET) - _of_parents(mean, parents, there, P)
        line = _of_parents(square, parents, there, P) * away
        if LINEAR:
            line += _of_parents(linear, parents, there, P)
        base = tl.load(plus + parents, mask=there, other=0.0)[:, None]
        value = tl.sum(tl.sum(away * line, axis=1), axis=0) + base
        tl.store(out + zero + parents[:, None] * N + n[None, :], value, mask=inside)


@triton.jit(do_not_specialize=PLAIN)
def sums(
    pose, weight, offset, child, pairs, mean, of_one, of_distance, of_square,
    L, J, zero,
    I: tl.constexpr, N: tl.constexpr, P: tl.constexpr, TJ: tl.constexpr, TN: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """Σ_N pairs, Σ_N pairs (v - mean) and Σ_N pairs (v - mean)²."""
    l, b = tl.program_id(0), tl.program_id(1)
    j = tl.program_id(2) * TJ + tl.arange(0, TJ)
    there = j < J
    parents = _parents(b, l, j, L, J)
    centre = _of_parents(mean, parents, there, P)
    one = tl.zeros([TJ, TN], tl.float32)
    distance = tl.zeros([P, P, TJ, TN], tl.float32)
    square = tl.zeros([P, P, TJ, TN], tl.float32)
    for start in range(0, N, TN):
        n = start + tl.arange(0, TN)
        inside = there[:, None] & (n < N)[None, :]
        who = tl.load(child + zero + l * N + n, mask=n < N, other=0)
        poses, matrices = _poses(pose + zero, b, who, n < N, I, P), _matrices(weight + zero, j, n, inside, N, P)
        away = _votes(poses, matrices, offset, n, N, zero, P, OFFSET) - centre
        pair = tl.load(pairs + zero + parents[:, None] * N + n[None, :], mask=inside, other=0.0)
        weighed = pair[None, None, :, :] * away
        one += pair
        distance += weighed
        square += weighed * away
    tl.store(of_one + parents, tl.sum(one, axis=1), mask=there)
    _store_parents(of_distance, parents, there, tl.sum(distance, axis=3), P)
    _store_parents(of_square, parents, there, tl.sum(square, axis=3), P)


@triton.jit
def _gradient(
    away, active, slopes, curves, bends, shifts, equal, shares, pairs, parents, there, n, inside,
    N, all_parents, all_pairs, T: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """(P, P, TJ, TN): the gradient of the votes, a sum over T iterations; and what the first M-step says of how much a
    child counts, (TJ, TN).

    away                    how far the votes are from what the first M-step found
    equal                   (TN,) the shares that it began with
    all_parents, all_pairs  numbers in the arrays of one iteration
    """
    slope, curve = _of_parents(slopes, parents, there, P), _of_parents(curves, parents, there, P)
    result = slope + curve * away
    first = 0.5 * tl.sum(tl.sum(away * (slope + result), axis=1), axis=0)
    result = (equal * active)[None, None, None, :] * result
    places = parents[:, None] * N + n[None, :]
    for t in tl.static_range(1, T):
        pair = tl.load(pairs + places, mask=inside, other=0.0)[None, None, :, :]
        result -= pair * (_of_parents(bends, parents, there, P) * away)
        if t > 1:
            result -= pair * _of_parents(shifts, parents, there, P)
        share = tl.load(shares + places, mask=inside, other=0.0) * active[None, :]
        slopes += all_parents
        curves += all_parents
        slope, curve = _of_parents(slopes, parents, there, P), _of_parents(curves, parents, there, P)
        result += share[None, None, :, :] * (slope + curve * away)
        bends += all_parents
        shifts += all_parents
        pairs += all_pairs
        shares += all_pairs
    return result, first


@triton.jit(do_not_specialize=PLAIN)
def spread_to_poses(
    pose, activation, weight, offset, child,
    centre, slopes, curves, bends, shifts, equal, shares, pairs, d_pose, d_first,
    L, J, zero, all_parents, all_pairs,
    I: tl.constexpr, N: tl.constexpr, T: tl.constexpr, P: tl.constexpr, TN: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """The gradient of the pose at each spot (B, L, N, P·P), and of its activation by the first M-step (B, L, N)."""
    l, b = tl.program_id(0), tl.program_id(1)
    n = tl.program_id(2) * TN + tl.arange(0, TN)
    here = n < N
    who = tl.load(child + zero + l * N + n, mask=here, other=0)
    poses = _poses(pose + zero, b, who, here, I, P)
    active = tl.load(activation + b.to(tl.int64) * I + who, mask=here, other=0.0)
    share = tl.load(equal + zero + l * N + n, mask=here, other=0.0)
    gathered, counted = tl.zeros([P, P, TN], tl.float32), tl.zeros([TN], tl.float32)
    one = tl.arange(0, 1)
    for parent in range(J):
        there = one < J - parent
        inside = there[:, None] & here[None, :]
        parents = _parents(b, l, parent + one, L, J)
        matrices = _matrices(weight + zero + parent * (P * P * N), one, n, inside, N, P)
        away = _votes(poses, matrices, offset, n, N, zero, P, OFFSET) - _of_parents(centre, parents, there, P)
        grad, first = _gradient(
            away, active, slopes, curves, bends, shifts, share, shares + zero, pairs + zero, parents, there, n, inside,
            N, all_parents, all_pairs, T, P,
        )  # fmt: skip
        counted += tl.sum(first, axis=0)
        gathered += tl.sum(tl.sum(grad[:, None, :, :, :] * matrices[None, :, :, :, :], axis=2), axis=2)
    spots = (b.to(tl.int64) * L + l) * N + n
    tl.store(d_first + zero + spots, counted, mask=here)
    places = spots[None, None, :] * (P * P) + _numbers(P)[:, :, None]
    tl.store(d_pose + zero + places, gathered, mask=here[None, None, :])


@triton.jit(do_not_specialize=PLAIN)
def spread_to_weights(
    pose, activation, weight, offset, child,
    centre, slopes, curves, bends, shifts, equal, shares, pairs, d_weight,
    L, J, zero, all_parents, all_pairs, work, length,
    I: tl.constexpr, N: tl.constexpr, T: tl.constexpr, P: tl.constexpr, TN: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """The gradient of each matrix, (S, J, P·P, N): a slot for each of S parts of all examples and places."""
    n = tl.program_id(0) * TN + tl.arange(0, TN)
    j = tl.program_id(1) + tl.arange(0, 1)
    part = tl.program_id(2)
    here, there = n < N, j < J
    inside = there[:, None] & here[None, :]
    matrices = _matrices(weight + zero, j, n, inside, N, P)
    gathered = tl.zeros([P, P, 1, TN], tl.float32)
    for step in range(part * length, tl.minimum(part * length + length, work)):
        b, l = step // L, step % L
        who = tl.load(child + zero + l * N + n, mask=here, other=0)
        poses = _poses(pose + zero, b, who, here, I, P)
        active = tl.load(activation + b.to(tl.int64) * I + who, mask=here, other=0.0)
        share = tl.load(equal + zero + l * N + n, mask=here, other=0.0)
        parents = _parents(b, l, j, L, J)
        away = _votes(poses, matrices, offset, n, N, zero, P, OFFSET) - _of_parents(centre, parents, there, P)
        grad, _ = _gradient(
            away, active, slopes, curves, bends, shifts, share, shares + zero, pairs + zero, parents, there, n, inside,
            N, all_parents, all_pairs, T, P,
        )  # fmt: skip
        gathered += tl.sum(poses[:, :, None, None, :] * grad[:, None, :, :, :], axis=0)
    places = (part.to(tl.int64) * J + j)[None, None, :, None] * (P * P) + _numbers(P)[:, :, None, None]
    tl.store(d_weight + zero + places * N + n[None, None, None, :], gathered, mask=inside[None, None, :, :])
