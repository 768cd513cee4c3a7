"""Triton kernels of routing at each position: a program has a stretch of positions and goes through the child types.

A tile is (JP, EP, TX): parent types and their dimensions, both padded to powers of 2, by positions. Votes are
(B, T, J, E, X), poses, sums and gradients (B, J, E, X). So they lie in memory, or, with LAST, as (B, T, X, J, E) and
(B, J, X, E), which is what a convolution with channels last gives and wants. Only the sums of an iteration ever leave
the program.
"""

from __future__ import annotations

import triton
import triton.language as tl

from torchcaps.ops.squash_kernels import squash_gradient, squashed


@triton.jit
def _tile(J, E, X, JP: tl.constexpr, EP: tl.constexpr, TX: tl.constexpr):
    """The parents, dimensions and positions of a tile, along its axes; and which of them exist."""
    j, e = tl.arange(0, JP)[:, None, None], tl.arange(0, EP)[None, :, None]
    x = tl.program_id(0) * TX + tl.arange(0, TX)[None, None, :]
    return j, e, x, (j < J) & (e < E) & (x < X)


@triton.jit
def _parents(b, j, e, x, J, E, X, LAST: tl.constexpr):
    """Where the numbers of a (B, J, E, X) array are, for one b."""
    if LAST:
        return (b.to(tl.int64) * J + j) * (X * E) + x * E + e
    return (b.to(tl.int64) * (J * E) + j * E + e) * X + x


@triton.jit
def _votes(bt, j, e, x, J, E, X, LAST: tl.constexpr):
    """Where the votes (B, T, J, E, X) of one child type in one example are."""
    first = bt.to(tl.int64) * (J * E * X)
    if LAST:
        return first + x * (J * E) + j * E + e
    return first + (j * E + e) * X + x


@triton.jit
def _couplings(vote, agreed, J, JP: tl.constexpr):
    """(JP, TX): the softmax over parents of vote · agreed, 0 for parents that do not exist."""
    there = (tl.arange(0, JP) < J)[:, None]
    logits = tl.where(there, tl.sum(vote * agreed, axis=1), -float("inf"))
    parts = tl.exp(logits - tl.max(logits, axis=0)[None, :])
    return parts / tl.sum(parts, axis=0)[None, :]


@triton.jit
def route(
    votes, bias, poses, couplings, sums,
    T, J, E, X, all_parents,
    R: tl.constexpr, JP: tl.constexpr, EP: tl.constexpr, TX: tl.constexpr, LAST: tl.constexpr,
    COUPLINGS: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Poses (B, J, E, X); with SAVE only the sums of every iteration (R, B, J, E, X); all_parents is B·J·E·X."""
    b = tl.program_id(1)
    j, e, x, inside = _tile(J, E, X, JP, EP, TX)
    places = _parents(b, j, e, x, J, E, X, LAST)
    added = tl.load(bias + j * E + e, mask=(j < J) & (e < E), other=0.0)
    agreed = tl.zeros([JP, EP, TX], tl.float32)
    pose = agreed
    for t in tl.static_range(R):
        total = tl.zeros([JP, EP, TX], tl.float32) + added
        for child in range(T):
            spots = _votes(b * T + child, j, e, x, J, E, X, LAST)
            vote = tl.load(votes + spots, mask=inside, other=0.0).to(tl.float32)
            if t == 0:
                total += vote / J
            else:
                total += _couplings(vote, agreed, J, JP)[:, None, :] * vote
            if COUPLINGS and t == R - 1:
                shares = _couplings(vote, agreed, J, JP)  # equal ones in the first iteration, where agreed is 0
                pairs = ((b * T + child).to(tl.int64) * J + j) * X + x
                tl.store(couplings + pairs, shares[:, None, :], mask=(j < J) & (x < X))
        if SAVE:
            tl.store(sums + t * all_parents + places, total, mask=inside)
        pose = squashed(total)
        agreed += pose
    if not SAVE:
        tl.store(poses + places, pose, mask=inside)


@triton.jit
def backtrack(
    votes, sums, grad, d_sums,
    T, J, E, X, all_parents,
    R: tl.constexpr, JP: tl.constexpr, EP: tl.constexpr, TX: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """The gradients of all sums (R, B, J, E, X), from the last to the first."""
    b = tl.program_id(1)
    j, e, x, inside = _tile(J, E, X, JP, EP, TX)
    places = _parents(b, j, e, x, J, E, X, LAST)
    d_agreed = tl.zeros([JP, EP, TX], tl.float32)
    for t in tl.static_range(R - 1, -1, -1):
        total = tl.load(sums + t * all_parents + places, mask=inside, other=0.0)
        d_pose = tl.load(grad + places, mask=inside, other=0.0) if t == R - 1 else d_agreed
        d_total = squash_gradient(total, d_pose)
        tl.store(d_sums + t * all_parents + places, d_total, mask=inside)
        if t > 0:
            agreed = _agreed(sums, places, inside, all_parents, t)
            for child in range(T):
                spots = _votes(b * T + child, j, e, x, J, E, X, LAST)
                vote = tl.load(votes + spots, mask=inside, other=0.0).to(tl.float32)
                d_agreed += _logit_gradient(vote, agreed, d_total, J, JP)[1][:, None, :] * vote


@triton.jit
def _agreed(sums, places, inside, all_parents, t: tl.constexpr):
    """The sum of the poses before iteration t."""
    agreed = squashed(tl.load(sums + places, mask=inside, other=0.0))
    for before in tl.static_range(1, t):
        agreed += squashed(tl.load(sums + before * all_parents + places, mask=inside, other=0.0))
    return agreed


@triton.jit
def _logit_gradient(vote, agreed, d_total, J, JP: tl.constexpr):
    """(JP, TX): a child's couplings, and the gradients of its logits."""
    coupled = _couplings(vote, agreed, J, JP)
    d_coupled = tl.sum(vote * d_total, axis=1)
    return coupled, coupled * (d_coupled - tl.sum(coupled * d_coupled, axis=0)[None, :])


@triton.jit
def spread(
    votes, sums, d_sums, d_votes,
    T, J, E, X, all_parents,
    R: tl.constexpr, JP: tl.constexpr, EP: tl.constexpr, TX: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """The gradients of the votes of one child type; they may be written over the votes."""
    b, child = tl.program_id(1), tl.program_id(2)
    j, e, x, inside = _tile(J, E, X, JP, EP, TX)
    places = _parents(b, j, e, x, J, E, X, LAST)
    spots = _votes(b * T + child, j, e, x, J, E, X, LAST)
    vote = tl.load(votes + spots, mask=inside, other=0.0).to(tl.float32)
    result = tl.load(d_sums + places, mask=inside, other=0.0) / J
    for t in tl.static_range(1, R):
        agreed = _agreed(sums, places, inside, all_parents, t)
        d_total = tl.load(d_sums + t * all_parents + places, mask=inside, other=0.0)
        coupled, d_logits = _logit_gradient(vote, agreed, d_total, J, JP)
        result += coupled[:, None, :] * d_total + d_logits[:, None, :] * agreed
    tl.store(d_votes + spots, result.to(d_votes.dtype.element_ty), mask=inside)
