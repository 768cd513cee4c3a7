"""Dynamic routing of a small batch: it makes the votes, where they are no larger than the weight, or small anyway.

With few examples, rearranging the weight as `chunked` does takes longer than routing. Here the votes are made once in
each pass, and everything else is a product of them: û·V for the logits, c·û for the sums. The gradient of the votes is
a sum of 2R−1 outer products (README.md), one more product:

    dû = Σ_t c_t ⊗ ds_t + dlogits_t ⊗ V_t

Pairs of an example and a parent are counted together, P = B·J, so that the votes of one pair are a matrix (I, D), whose
rows lie in memory at equal distances. They are copied together only where that makes products faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchcaps.ops import native
from torchcaps.ops.scratch import Scratch
from torchcaps.ops.squash import RANGE

MAX_VOTES = 2**17  # of a batch larger than K
FEW, MAX_VOTES_OF_FEW = 64, 2**20  # the same for few children, of which `chunked` would make narrow products
MAX_VOTES_OF_ONE_THREAD = 2**23  # the same for compiled code, while `chunked` has no further threads for its products
MAX_VALUES = 8  # of children, up to which compiled code makes the votes of one example faster than torch.bmm
SMALL_PRODUCT = 400  # multiplications; for fewer, torch.bmm has a plain loop, slow if its rows are not contiguous
CACHED = 2**18  # elements that stay in a CPU's cache
COPIED = 2**15  # votes from which on a copy that products read in order is worth its time
CHUNK = 2**18  # votes that are read twice in a row


def serves(u_BIK: Tensor, weight_IJDK: Tensor) -> bool:
    """Whether the votes are no larger than the weight, or small."""
    (I, J, D, K), B = weight_IJDK.shape, len(u_BIK)
    votes, most = B * I * J * D, MAX_VOTES_OF_FEW if I <= FEW else MAX_VOTES
    if B <= K or votes <= most:
        return True
    alone = torch.get_num_threads() == 1 and native.serves(u_BIK, weight_IJDK)
    return alone and votes <= MAX_VOTES_OF_ONE_THREAD


def forward(
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    bias_JD: Tensor,
    iterations: int,
    leaky: bool,
    inverse_temperature: float,
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `chunked.forward`."""
    with Scratch(u_BIK) as scratch:
        if native.serves(u_BIK, weight_IJDK, bias_JD):
            votes_IBX = _votes_in_rows(u_BIK, weight_IJDK, scratch)
            return native.route_votes(votes_IBX, bias_JD, iterations, leaky, inverse_temperature, couplings)
        return _forward(scratch, u_BIK, weight_IJDK, bias_JD, iterations, leaky, inverse_temperature, couplings)


def _forward(
    scratch: Scratch,
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    bias_JD: Tensor,
    iterations: int,
    leaky: bool,
    inverse_temperature: float,
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    (B, I, _), (J, D), share = u_BIK.shape, bias_JD.shape, 1 / (bias_JD.shape[0] + leaky)
    chunks = _chunks(B, I, J, D)
    votes = [_votes(u_BIK[:, chunk], weight_IJDK[chunk], scratch)[0] for chunk in chunks]
    coupled_BIJ = u_BIK.new_full((B, I, J), share) if couplings else u_BIK.new_empty(0)
    sums_RBJD = bias_JD.expand(iterations, B, J, D).clone()
    sums = sums_RBJD.unbind()
    for votes_PID in votes:
        sums[0].add_(votes_PID.sum(1).view(B, J, D), alpha=share)
    poses_BJD = _squash(sums[0])
    agreed_BJD = _times(poses_BJD, inverse_temperature)
    for t in range(1, iterations):
        agreed_P1D = agreed_BJD.view(B * J, 1, D)
        for chunk, votes_PID in zip(chunks, votes):
            I = votes_PID.shape[1]
            c_BJI = couple(torch.bmm(agreed_P1D, votes_PID.mT).view(B, J, I), leaky)
            sums[t].add_(_gather(c_BJI.reshape(B * J, 1, I), votes_PID).view(B, J, D))
            if couplings and t == iterations - 1:
                coupled_BIJ[:, chunk] = c_BJI.mT
        poses_BJD = _squash(sums[t])
        if t < iterations - 1:
            agreed_BJD = torch.add(agreed_BJD, poses_BJD, alpha=inverse_temperature)
    return poses_BJD, coupled_BIJ, sums_RBJD


def backward(
    grad_BJD: Tensor,
    grad_couplings_BIJ: Tensor | None,
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    sums_RBJD: Tensor,
    leaky: bool,
    inverse_temperature: float,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """As `chunked.backward`."""
    with Scratch(u_BIK) as scratch:
        differentiate = _backward_native if native.serves(u_BIK, weight_IJDK, sums_RBJD) else _backward
        given = (grad_BJD, grad_couplings_BIJ, u_BIK, weight_IJDK, sums_RBJD)
        return differentiate(scratch, *given, leaky, inverse_temperature, needs)


def _backward_native(
    scratch: Scratch,
    grad_BJD: Tensor,
    grad_couplings_BIJ: Tensor | None,
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    sums_RBJD: Tensor,
    leaky: bool,
    inverse_temperature: float,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    dvotes_IBX = _votes_in_rows(u_BIK, weight_IJDK, scratch)
    grads = (grad_BJD, grad_couplings_BIJ)
    dbias_JD = native.route_votes_backward(dvotes_IBX, sums_RBJD, *grads, leaky, inverse_temperature)
    du_BIK = torch.empty_like(u_BIK) if needs[0] else u_BIK.new_empty(0)
    dweight_IJDK = weight_IJDK.new_empty(weight_IJDK.shape if needs[1] else (0,))
    if needs[0]:
        _differentiate_children(dvotes_IBX, weight_IJDK, du_BIK)
    if needs[1]:
        _differentiate_weight(dvotes_IBX, u_BIK, dweight_IJDK)
    return du_BIK, dweight_IJDK, dbias_JD if needs[2] else u_BIK.new_empty(0)


def _backward(
    scratch: Scratch,
    grad_BJD: Tensor,
    grad_couplings_BIJ: Tensor | None,
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    sums_RBJD: Tensor,
    leaky: bool,
    inverse_temperature: float,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    (R, B, J, D), I = sums_RBJD.shape, u_BIK.shape[1]
    chunks = _chunks(B, I, J, D)
    votes = [_votes(u_BIK[:, chunk], weight_IJDK[chunk], scratch) for chunk in chunks]
    sums = sums_RBJD.unbind()
    factor, along, direction = (each.unbind() for each in _squash_factors(sums_RBJD))
    # The two factors of dû, T = 2R−1: rows ds_1, V_1, ds_2, V_2, ds_3 …; columns c_1, dlogits_2, c_2, dlogits_3, c_3 …
    rows_PTD = u_BIK.new_empty(B * J, 2 * R - 1, D)
    rows = rows_PTD.view(B, J, 2 * R - 1, D).unbind(2)
    columns = [u_BIK.new_full((B * J, 2 * R - 1, each.shape[1]), 1 / (J + leaky)) for each, _ in votes]
    if R > 1:
        torch.mul(sums[0], _times(factor[0], inverse_temperature), out=rows[1])
    for t in range(1, R - 1):
        torch.addcmul(rows[2 * t - 1], sums[t], factor[t], value=inverse_temperature, out=rows[2 * t + 1])
    d_parents_BJD, d_agreed_BJD = grad_BJD, torch.zeros_like(grad_BJD)
    for t in range(R - 1, -1, -1):
        parallel = (direction[t] * d_parents_BJD).sum(-1, keepdim=True).mul_(along[t])
        torch.addcmul(d_parents_BJD * factor[t], parallel, direction[t], out=rows[2 * t])
        if t == 0:
            break
        pair = slice(2 * t - 1, 2 * t + 1)  # of V and ds, and of dlogits and c
        for chunk, (votes_PID, _), columns_PTI in zip(chunks, votes, columns):
            I = votes_PID.shape[1]
            logits_BJI, dc_BJI = torch.bmm(rows_PTD[:, pair], votes_PID.mT).view(B, J, 2, I).unbind(2)
            if grad_couplings_BIJ is not None and t == R - 1:
                dc_BJI = dc_BJI + grad_couplings_BIJ[:, chunk].mT
            dlogits_BJI, c_BJI = columns_PTI.view(B, J, 2 * R - 1, I)[:, :, pair].unbind(2)
            c_BJI.copy_(couple(logits_BJI, leaky))
            weighted_BJI = c_BJI * dc_BJI
            torch.addcmul(weighted_BJI, c_BJI, weighted_BJI.sum(1, keepdim=True), value=-1, out=dlogits_BJI)
            d_agreed_BJD += _gather(columns_PTI[:, pair.start : pair.start + 1], votes_PID).view(B, J, D)
        # V is the sum of the parents found so far, so each of them gets its gradient.
        d_parents_BJD = _times(d_agreed_BJD, inverse_temperature)
    du_BIK = torch.empty_like(u_BIK) if needs[0] else u_BIK.new_empty(0)
    dweight_IJDK = weight_IJDK.new_empty(weight_IJDK.shape if needs[1] else (0,))
    for chunk, (votes_PID, memory_IBX), columns_PTI in zip(chunks, votes, columns):
        if not (needs[0] or needs[1]):
            break
        dvotes_PID = votes_PID if votes_PID.is_contiguous() else scratch.take(*votes_PID.shape)
        torch.bmm(columns_PTI.mT, rows_PTD, out=dvotes_PID)
        memory_IBX.view(len(memory_IBX), B * J, D).copy_(dvotes_PID.transpose(0, 1))
        if needs[0]:
            _differentiate_children(memory_IBX, weight_IJDK[chunk], du_BIK[:, chunk])
        if needs[1]:
            _differentiate_weight(memory_IBX, u_BIK[:, chunk], dweight_IJDK[chunk])
    if needs[1] and not weight_IJDK.is_contiguous():
        dweight_IJDK = torch.empty_like(weight_IJDK).copy_(dweight_IJDK)
    dbias_JD = torch.stack(rows[::2]).sum((0, 1)) if needs[2] else u_BIK.new_empty(0)
    return du_BIK, dweight_IJDK, dbias_JD


def _times(x: Tensor, factor: float) -> Tensor:
    """x times a factor, which is usually 1."""
    return x if factor == 1 else factor * x


def couple(logits_BJI: Tensor, leaky: bool, dim: int = 1) -> Tensor:
    """Softmax over parents, the axis dim; leaky: with one more logit, zero, that is dropped afterwards."""
    if not leaky:
        return logits_BJI.softmax(dim)
    orphans = torch.zeros_like(logits_BJI.narrow(dim, 0, 1))
    return torch.cat([logits_BJI, orphans], dim).softmax(dim).narrow(dim, 0, logits_BJI.shape[dim])


def _votes(u_BIK: Tensor, weight_IJDK: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """The votes as (P, I, D), and as (I, B, J·D), contiguous; small ones are two views of the same memory."""
    (I, J, D, _), B = weight_IJDK.shape, len(u_BIK)
    votes_IBX = _votes_in_rows(u_BIK, weight_IJDK, scratch)
    votes_PID = votes_IBX.view(I, B * J, D).transpose(0, 1)
    if votes_IBX.numel() >= COPIED and I * D >= SMALL_PRODUCT:
        votes_PID = scratch.take(*votes_PID.shape).copy_(votes_PID)
    return votes_PID, votes_IBX


def _votes_in_rows(u_BIK: Tensor, weight_IJDK: Tensor, scratch: Scratch) -> Tensor:
    """The votes as (I, B, J·D), contiguous."""
    (I, J, D, K), B = weight_IJDK.shape, len(u_BIK)
    votes_IBX = scratch.take(I, B, J * D)
    if B == 1 and K <= MAX_VALUES and native.serves(u_BIK, weight_IJDK):
        return native.make_votes(u_BIK, weight_IJDK, votes_IBX)
    return torch.bmm(u_BIK.transpose(0, 1), weight_IJDK.reshape(I, J * D, K).mT, out=votes_IBX)


def _gather(c_P1I: Tensor, votes_PID: Tensor) -> Tensor:
    """Σ_i c û, of P·D elements."""
    P, I, D = votes_PID.shape
    if I * D >= SMALL_PRODUCT:
        return torch.bmm(c_P1I, votes_PID)
    with Scratch(votes_PID) as scratch:
        weighted_IPD = scratch.take(I, P, D)
        return torch.mul(votes_PID.transpose(0, 1), c_P1I.permute(2, 0, 1), out=weighted_IPD).sum(0)


# Which operand comes first decides how fast torch.bmm is, up to three times.
def _differentiate_children(dvotes_IBX: Tensor, weight_IJDK: Tensor, du_BIK: Tensor) -> None:
    """Write the gradient of the children from that of the votes."""
    weight_IXK = weight_IJDK.reshape(len(weight_IJDK), -1, weight_IJDK.shape[3])
    if len(du_BIK) <= du_BIK.shape[2]:
        du_BIK.copy_(torch.bmm(dvotes_IBX, weight_IXK).transpose(0, 1))
    else:
        du_BIK.copy_(torch.bmm(weight_IXK.mT, dvotes_IBX.mT).permute(2, 0, 1))


def _differentiate_weight(dvotes_IBX: Tensor, u_BIK: Tensor, dweight_IJDK: Tensor) -> None:
    """Write the gradient of the weight, contiguous, from that of the votes."""
    I, J, D, K = dweight_IJDK.shape
    dweight_IXK, u_IKB = dweight_IJDK.view(I, J * D, K), u_BIK.permute(1, 2, 0)
    if len(u_BIK) == 1:
        torch.bmm(dvotes_IBX.mT, u_IKB.mT, out=dweight_IXK)
        return
    size = max(1, CACHED // max(1, J * D * K))
    for start in range(0, I, size):
        chunk = slice(start, start + size)
        dweight_IXK[chunk] = torch.bmm(u_IKB[chunk], dvotes_IBX[chunk]).mT


def _squash(x: Tensor) -> Tensor:
    """As `ops.squash` along the last axis, in half as many operations: a small tensor's take longer than its sums."""
    norm = _norm(x)
    return x / norm.reciprocal().add_(norm)  # |x| + 1/|x| is (1 + |x|²)/|x|, infinite at zero


def _squash_factors(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What squash_backward makes of x (..., D): its factors f and f·cos 2φ, (..., 1), and the direction of x."""
    norm = _norm(x)
    factor = norm.reciprocal().add_(norm).reciprocal_()
    along = torch.addcmul(factor, norm * factor, factor, value=-2)
    return factor, along, x / norm.clamp_min_(torch.finfo(x.dtype).tiny)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x / RANGE, dim=-1, keepdim=True).mul_(RANGE)


def _chunks(B: int, I: int, J: int, D: int) -> list[slice]:
    """Slices of the children whose votes stay in the cache."""
    size = max(16, CHUNK // max(1, B * J * D))
    return [slice(start, min(start + size, I)) for start in range(0, I, size)]
