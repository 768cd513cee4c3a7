"""Dynamic routing of a small batch: it makes the votes, where they are no larger than the weight, or small anyway.

With few examples, rearranging the weight as `chunked` does takes longer than routing. Here the votes are made once in
each pass, and everything else is a product of them: û·V for the logits, c·û for the sums. The gradient of the votes is
a sum of 2R−1 outer products (README.md), one more product:

    dû = Σ_t c_t ⊗ ds_t + dlogits_t ⊗ V_t

Votes are ordered J B I D, so that those of one example for one parent are a matrix (I, D) that products read in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchcaps.ops.squash import RANGE

MAX_VOTES = 2**17  # of a batch larger than K
SMALL_PRODUCT = 400  # multiplications; for fewer, torch.bmm has a plain loop, slow if its rows are not contiguous
CACHED = 2**20  # elements that stay in a CPU's cache
CHUNK = 2**18  # votes that are read twice in a row


def serves(u_BIK: Tensor, weight_IJDK: Tensor) -> bool:
    """Whether the votes are no larger than the weight, or small."""
    (I, J, D, K), B = weight_IJDK.shape, len(u_BIK)
    return B <= K or B * I * J * D <= MAX_VOTES


def forward(
    u_BIK: Tensor, weight_IJDK: Tensor, bias_JD: Tensor, iterations: int, leaky: bool, couplings: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As `chunked.forward`."""
    (B, I, _), (J, D) = u_BIK.shape, bias_JD.shape
    chunks = _chunks(B, I, J, D)
    votes = [_votes(u_BIK[:, chunk], weight_IJDK[chunk])[0] for chunk in chunks]
    coupled_BIJ = u_BIK.new_full((B, I, J) if couplings else (0,), 1 / (J + leaky))
    sums_RJBD = bias_JD[:, None].expand(iterations, J, B, D).clone()
    for votes_JBID in votes:
        sums_RJBD[0].add_(votes_JBID.sum(2), alpha=1 / (J + leaky))
    poses_JBD = agreed_JBD = _squash(sums_RJBD[0])
    for t in range(1, iterations):
        for chunk, votes_JBID in zip(chunks, votes):
            c_JBI = couple(_dot(agreed_JBD[:, :, None], votes_JBID)[:, :, 0], leaky)
            sums_RJBD[t] += _gather(c_JBI, votes_JBID)
            if couplings and t == iterations - 1:
                coupled_BIJ[:, chunk] = c_JBI.permute(1, 2, 0)
        poses_JBD = _squash(sums_RJBD[t])
        if t < iterations - 1:
            agreed_JBD = agreed_JBD + poses_JBD
    return poses_JBD.transpose(0, 1).contiguous(), coupled_BIJ, sums_RJBD


def backward(
    grad_BJD: Tensor,
    grad_couplings_BIJ: Tensor | None,
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    sums_RJBD: Tensor,
    leaky: bool,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """As `chunked.backward`."""
    (R, J, B, D), I = sums_RJBD.shape, u_BIK.shape[1]
    chunks = _chunks(B, I, J, D)
    votes = [_votes(u_BIK[:, chunk], weight_IJDK[chunk]) for chunk in chunks]
    factor, along, direction_RJBD = _squash_factors(sums_RJBD)
    # The two factors of dû, T = 2R−1: rows ds_1, V_1, ds_2, V_2, ds_3 …; columns c_1, dlogits_2, c_2, dlogits_3, c_3 …
    rows_JBTD = u_BIK.new_empty(J, B, 2 * R - 1, D)
    columns = [u_BIK.new_full((J, B, 2 * R - 1, each.shape[2]), 1 / (J + leaky)) for each, _ in votes]
    rows_JBTD[:, :, 1::2] = (sums_RJBD[:-1] * factor[:-1]).cumsum(0).permute(1, 2, 0, 3)
    d_parents_JBD = grad_BJD.transpose(0, 1)
    d_agreed_JBD = torch.zeros_like(sums_RJBD[0])
    for t in range(R - 1, -1, -1):
        e_JBD = direction_RJBD[t]
        parallel = (e_JBD * d_parents_JBD).sum(-1, keepdim=True).mul_(along[t])
        torch.addcmul(d_parents_JBD * factor[t], parallel, e_JBD, out=rows_JBTD[:, :, 2 * t])
        if t == 0:
            break
        pair = slice(2 * t - 1, 2 * t + 1)  # of V and ds, and of dlogits and c
        for chunk, (votes_JBID, _), columns_JBTI in zip(chunks, votes, columns):
            logits_JBI, dc_JBI = _dot(rows_JBTD[:, :, pair], votes_JBID).unbind(2)
            if grad_couplings_BIJ is not None and t == R - 1:
                dc_JBI = dc_JBI + grad_couplings_BIJ[:, chunk].permute(2, 0, 1)
            dlogits_JBI, c_JBI = columns_JBTI[:, :, pair].unbind(2)
            c_JBI.copy_(couple(logits_JBI, leaky))
            weighted_JBI = c_JBI * dc_JBI
            torch.addcmul(weighted_JBI, c_JBI, weighted_JBI.sum(0), value=-1, out=dlogits_JBI)
            d_agreed_JBD += _gather(dlogits_JBI, votes_JBID)
        d_parents_JBD = d_agreed_JBD  # V is the sum of the parents found so far: each of them gets its gradient
    du_BIK = torch.empty_like(u_BIK) if needs[0] else u_BIK.new_empty(0)
    dweight_IJDK = weight_IJDK.new_empty(weight_IJDK.shape if needs[1] else (0,))
    for chunk, (votes_JBID, memory_IBX), columns_JBTI in zip(chunks, votes, columns):
        if not (needs[0] or needs[1]):
            break
        # Fresh memory costs page faults: dû takes the place of the votes.
        dvotes_PID = votes_JBID.flatten(0, 1)
        torch.bmm(columns_JBTI.flatten(0, 1).mT, rows_JBTD.flatten(0, 1), out=dvotes_PID)
        dvotes_IBJD = votes_JBID.permute(2, 1, 0, 3)
        memory_IBX.view(dvotes_IBJD.shape).copy_(dvotes_IBJD)
        if needs[0]:
            _differentiate_children(memory_IBX, weight_IJDK[chunk], du_BIK[:, chunk])
        if needs[1]:
            _differentiate_weight(memory_IBX, u_BIK[:, chunk], dweight_IJDK[chunk])
    if needs[1] and not weight_IJDK.is_contiguous():
        dweight_IJDK = torch.empty_like(weight_IJDK).copy_(dweight_IJDK)
    return du_BIK, dweight_IJDK, rows_JBTD[:, :, ::2].sum((1, 2)) if needs[2] else u_BIK.new_empty(0)


def couple(logits_JB: Tensor, leaky: bool) -> Tensor:
    """Softmax over parents, the first axis; leaky: with one more logit, zero, that is dropped afterwards."""
    if not leaky:
        return logits_JB.softmax(0)
    orphans = logits_JB.new_zeros(1, *logits_JB.shape[1:])
    return torch.cat([logits_JB, orphans]).softmax(0)[:-1]


def _votes(u_BIK: Tensor, weight_IJDK: Tensor) -> tuple[Tensor, Tensor]:
    """The votes as (J, B, I, D), contiguous, and memory of their size as (I, B, J·D)."""
    (I, J, D, K), B = weight_IJDK.shape, len(u_BIK)
    votes_IBX = torch.bmm(u_BIK.transpose(0, 1), weight_IJDK.reshape(I, J * D, K).mT)
    return votes_IBX.view(I, B, J, D).permute(2, 1, 0, 3).contiguous(), votes_IBX


def _dot(rows_JBTD: Tensor, votes_JBID: Tensor) -> Tensor:
    """The dot products (J, B, T, I) of T rows for each parent with the votes for it."""
    (J, B, I, D), T = votes_JBID.shape, rows_JBTD.shape[2]
    return torch.bmm(rows_JBTD.reshape(J * B, T, D), votes_JBID.view(J * B, I, D).mT).view(J, B, T, I)


def _gather(c_JBI: Tensor, votes_JBID: Tensor) -> Tensor:
    """Σ_i c û, (J, B, D)."""
    J, B, I, D = votes_JBID.shape
    if I * D < SMALL_PRODUCT:
        return (votes_JBID * c_JBI[..., None]).sum(2)
    return torch.bmm(c_JBI.reshape(J * B, 1, I), votes_JBID.view(J * B, I, D)).view(J, B, D)


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
    dweight_IXK = dweight_IJDK.view(I, J * D, K)
    if len(u_BIK) == 1 or dweight_IJDK.numel() > CACHED:
        torch.bmm(dvotes_IBX.mT, u_BIK.transpose(0, 1), out=dweight_IXK)
    else:
        dweight_IXK.copy_(torch.bmm(u_BIK.permute(1, 2, 0), dvotes_IBX).mT)


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
