"""Dynamic routing as matrix products in which votes never exist; any device, hand-written backward.

README.md derives it from two facts. Votes do not change between iterations, so the logits before
an iteration are û·V with V the sum of the parents found so far; and û = Wu is linear, so

    û·V   = u · (Wᵀ V)       `project`: one matrix product per parent, then a dot product over K
    Σ c û = (c∘u) W          `gather`:  one matrix product per parent

Children are taken in chunks (of 16 at least) and the batch in blocks, so scratch memory does not grow with B or I.
Inside, parents are ordered J B D and children B K I: with I innermost the sums over K and the softmax over J run along
contiguous memory, with J outermost every product is a batched one. X stands for K and I taken together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchcaps.ops.dynamic import by_votes
from torchcaps.ops.dynamic.by_votes import couple
from torchcaps.ops.scratch import Scratch
from torchcaps.ops.squash import squash, squash_backward

BLOCK = 64  # examples routed together
SCRATCH = {"cpu": 2**20}  # elements of one J·B·K·I chunk: few enough for the cache, enough to make few calls
SCRATCH_ELSEWHERE = 2**24  # what fills an accelerator


def forward(
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    bias_JD: Tensor,
    iterations: int,
    leaky: bool,
    inverse_temperature: float,
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Poses (B, J, D), couplings of the last iteration (B, I, J); for the backward, each iteration's s (R, B, J, D)."""
    if by_votes.serves(u_BIK, weight_IJDK):
        return by_votes.forward(u_BIK, weight_IJDK, bias_JD, iterations, leaky, inverse_temperature, couplings)
    with Scratch(u_BIK) as scratch:
        constants = (iterations, leaky, inverse_temperature, couplings)
        return _forward_by_products(scratch, u_BIK, weight_IJDK, bias_JD, *constants)


def _forward_by_products(
    scratch: Scratch,
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    bias_JD: Tensor,
    iterations: int,
    leaky: bool,
    inverse_temperature: float,
    couplings: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    (B, I, _), (J, D) = u_BIK.shape, bias_JD.shape
    chunks = _chunks(u_BIK, J, BLOCK)
    weights_JDX = [_lay_out(weight_IJDK[chunk]) for chunk in chunks]
    poses_BJD = u_BIK.new_empty(B, J, D)
    couplings_BIJ = u_BIK.new_full((B, I, J) if couplings else (0,), 1 / (J + leaky))
    sums_RJBD = u_BIK.new_empty(iterations, J, B, D)
    memory = _memory(scratch, u_BIK, J, chunks)
    for block in _blocks(B):
        children_BKI = [u_BIK[block, chunk].transpose(1, 2).contiguous() for chunk in chunks]
        for t in range(iterations):
            s_JBD = sums_RJBD[t, :, block]
            s_JBD.copy_(bias_JD[:, None])
            if t == 0:
                # Every logit is zero, every coupling the same: one plain matrix product.
                for u_BKI, w_JDX in zip(children_BKI, weights_JDX):
                    s_JBD.add_(_sum_all(u_BKI, w_JDX), alpha=1 / (J + leaky))
                agreed_JBD = squash(s_JBD).mul_(inverse_temperature)
                continue
            for chunk, u_BKI, w_JDX in zip(chunks, children_BKI, weights_JDX):
                c_JBI = couple(_dot(_project(agreed_JBD, w_JDX, memory), u_BKI), leaky, 0)
                _gather(c_JBI, u_BKI, w_JDX, s_JBD, memory)
                if couplings and t == iterations - 1:
                    couplings_BIJ[block, chunk] = c_JBI.permute(1, 2, 0)
            agreed_JBD.add_(squash(s_JBD), alpha=inverse_temperature)
        poses_BJD[block] = squash(sums_RJBD[-1, :, block]).transpose(0, 1)
    return poses_BJD, couplings_BIJ, sums_RJBD.transpose(1, 2).contiguous()


def backward(
    grad_BJD: Tensor,
    grad_couplings_BIJ: Tensor | None,
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    sums_RBJD: Tensor,
    leaky: bool,
    inverse_temperature: float,
    needs: Sequence[bool] = (True, True, True),
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of u (B, I, K), weight (I, J, D, K) and bias (J, D), empty where none is needed."""
    if by_votes.serves(u_BIK, weight_IJDK):
        given = (grad_BJD, grad_couplings_BIJ, u_BIK, weight_IJDK, sums_RBJD)
        return by_votes.backward(*given, leaky, inverse_temperature, needs)
    given = (grad_BJD, grad_couplings_BIJ, u_BIK, weight_IJDK, sums_RBJD.transpose(1, 2).contiguous())
    with Scratch(u_BIK) as scratch:
        return _backward_by_products(scratch, *given, leaky, inverse_temperature, needs)


def _backward_by_products(
    scratch: Scratch,
    grad_BJD: Tensor,
    grad_couplings_BIJ: Tensor | None,
    u_BIK: Tensor,
    weight_IJDK: Tensor,
    sums_RJBD: Tensor,
    leaky: bool,
    inverse_temperature: float,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Without votes. Iteration t contributes to their gradient twice: c_t ⊗ ds_t through the sum, and dlogits_t ⊗ V_t
    through the logits. A pass for each t from R down to 2 finds c_t and dlogits_t chunk by chunk from (V_t, ds_t),
    contracts them with u and W at once, and adds up what the next needs. The first is two plain products.
    """
    (R, J, _, D), (B, _, K) = sums_RJBD.shape, u_BIK.shape
    uniform = 1 / (J + leaky)
    chunks = _chunks(u_BIK, J, BLOCK)
    weights_JDX = [_lay_out(weight_IJDK[chunk]) for chunk in chunks]
    dweights_JDX = [torch.zeros_like(w_JDX) for w_JDX in weights_JDX if needs[1]]
    du_BIK = torch.empty_like(u_BIK) if needs[0] else u_BIK.new_empty(0)
    dweight_IJDK = torch.empty_like(weight_IJDK) if needs[1] else u_BIK.new_empty(0)
    dbias_JD = weight_IJDK.new_zeros(J, D)
    memory = _memory(scratch, u_BIK, 2 * J, chunks)
    for block in _blocks(B):
        children_BKI = [u_BIK[block, chunk].transpose(1, 2).contiguous() for chunk in chunks]
        du_BKI = [torch.zeros_like(u) for u in children_BKI]
        sums = sums_RJBD[:, :, block]
        agreed = squash(sums).cumsum(0).mul_(inverse_temperature)  # agreed[t-1] is V before iteration t
        grad_JBD = grad_BJD[block].transpose(0, 1).contiguous()
        grad_agreed = torch.zeros_like(grad_JBD)
        for t in range(R - 1, 0, -1):
            pair = torch.stack([agreed[t - 1], squash_backward(sums[t], grad_JBD)], dim=1)
            dbias_JD += pair[:, 1].sum(1)
            for n, (chunk, u, w_JDX) in enumerate(zip(chunks, children_BKI, weights_JDX)):
                wide_J2BX = _project(pair, w_JDX, memory)
                dots = _dot(wide_J2BX, u)
                if grad_couplings_BIJ is not None and t == R - 1:
                    dots[:, 1] += grad_couplings_BIJ[block, chunk].permute(2, 0, 1)
                shares = _couple_backward(dots, leaky)[:, :, :, None]
                wide = wide_J2BX.view(J, 2, *u.shape)
                if needs[0]:
                    du_BKI[n] += wide.mul_(shares).sum((0, 1))
                scaled_J2BX = torch.mul(shares, u, out=wide).flatten(3)
                grad_agreed.baddbmm_(scaled_J2BX[:, 0], w_JDX.transpose(1, 2))
                if needs[1]:
                    dweights_JDX[n].baddbmm_(pair.flatten(1, 2).transpose(1, 2), scaled_J2BX.flatten(1, 2))
            grad_JBD = inverse_temperature * grad_agreed  # V is a sum of parents: each of them gets its gradient
        ds1_JBD = squash_backward(sums[0], grad_JBD)
        dbias_JD += ds1_JBD.sum(1)
        ds1_BJD = ds1_JBD.transpose(0, 1).flatten(1)
        for n, (chunk, u, w_JDX) in enumerate(zip(chunks, children_BKI, weights_JDX)):
            if needs[0]:
                du_BKI[n].flatten(1).addmm_(ds1_BJD, w_JDX.flatten(0, 1), alpha=uniform)
                du_BIK[block, chunk] = du_BKI[n].transpose(1, 2)
            if needs[1]:
                dweights_JDX[n].flatten(0, 1).addmm_(ds1_BJD.T, u.flatten(1), alpha=uniform)
    for chunk, dw_JDX in zip(chunks, dweights_JDX):  # none if not needed
        dweight_IJDK[chunk] = dw_JDX.view(J, D, K, -1).permute(3, 0, 1, 2)
    return du_BIK, dweight_IJDK, dbias_JD if needs[2] else dbias_JD.new_empty(0)


def _project(parents_JBD: Tensor, w_JDX: Tensor, memory: Tensor) -> Tensor:
    """Wᵀ V, each parent seen from each child: (J, B, D) or (J, 2, B, D) → (J, B, X) or (J, 2, B, X)."""
    flat = parents_JBD.flatten(1, -2)
    wide = torch.bmm(flat, w_JDX, out=_take(memory, (*flat.shape[:2], w_JDX.shape[2])))
    return wide.view(*parents_JBD.shape[:-1], -1)


def _dot(wide_JBX: Tensor, u_BKI: Tensor) -> Tensor:
    """The agreement of each child with each parent: sum over K of Wᵀ V times u, (J, B, X) → (J, B, I)."""
    wide = wide_JBX.view(*wide_JBX.shape[:-1], *u_BKI.shape[1:])
    agreement = wide.select(-2, 0) * u_BKI[:, 0]
    for k in range(1, u_BKI.shape[1]):
        agreement.addcmul_(wide.select(-2, k), u_BKI[:, k])
    return agreement


def _couple_backward(dots: Tensor, leaky: bool) -> Tensor:
    """From û·V and û·ds (J, 2, B, I): the gradient of the logits, and the couplings again."""
    c_JBI = couple(dots[:, 0], leaky, 0)
    weighted = c_JBI * dots[:, 1]
    return torch.stack([weighted.addcmul_(c_JBI, weighted.sum(0), value=-1), c_JBI], dim=1)


def _gather(c_JBI: Tensor, u_BKI: Tensor, w_JDX: Tensor, into_JBD: Tensor, memory: Tensor) -> None:
    """Add Σ_i c û to each parent."""
    scaled = torch.mul(c_JBI[:, :, None], u_BKI, out=_take(memory, (len(c_JBI), *u_BKI.shape)))
    into_JBD.baddbmm_(scaled.flatten(2), w_JDX.transpose(1, 2))


def _sum_all(u_BKI: Tensor, w_JDX: Tensor) -> Tensor:
    """Σ_i û, every coupling one: (J, B, D)."""
    J, D, X = w_JDX.shape
    return (u_BKI.flatten(1) @ w_JDX.view(J * D, X).T).view(-1, J, D).transpose(0, 1)


def _take(memory: Tensor, shape: Sequence[int]) -> Tensor:
    """The beginning of the scratch memory, in a shape."""
    return memory[: math.prod(shape)].view(shape)


def _lay_out(weight_IJDK: Tensor) -> Tensor:
    """(I, J, D, K) → (J, D, X) with I innermost in X."""
    I, J, D, K = weight_IJDK.shape
    return weight_IJDK.permute(1, 2, 3, 0).reshape(J, D, K * I).contiguous()


def _memory(scratch: Scratch, u_BIK: Tensor, J: int, chunks: list[slice]) -> Tensor:
    """Memory for J·B·K·I of one chunk and block, for all products."""
    largest = max((chunk.stop - chunk.start for chunk in chunks), default=0)
    return scratch.take(J * min(len(u_BIK), BLOCK) * u_BIK.shape[2] * largest)


def _blocks(B: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, B)) for start in range(0, B, BLOCK))


def _chunks(u_BIK: Tensor, J: int, block: int) -> list[slice]:
    """Slices of the children whose J·B·K·I fits the scratch memory."""
    B, I, K = u_BIK.shape
    room = SCRATCH.get(u_BIK.device.type, SCRATCH_ELSEWHERE)
    size = max(16, room // max(1, J * min(B, block) * K))
    return [slice(start, min(start + size, I)) for start in range(0, I, size)]
