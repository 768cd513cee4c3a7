"""Local routing that keeps no votes: a few examples at a time, and once more in the backward pass.

There are as many votes as activations of a layer times child types, and only one layer needs them at a time. The
gradient is written by hand; README.md derives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from torchcaps.ops.local.reference import Window, votes_of
from torchcaps.ops.squash import at_least_float32, squash, squash_backward

SCRATCH = 2**22  # values of the votes of a part, unless a single example has more


class Router(Protocol):
    """Routing of votes in memory."""

    def forward(self, votes_BTJEX: Tensor, bias_JE: Tensor, iterations: int, couplings: bool) -> tuple[Tensor, Tensor]:
        """Poses (B, J, E, X), and couplings (B, T, J, X) or empty."""
        ...

    def backward(
        self, grad_BJEX: Tensor, votes_BTJEX: Tensor, bias_JE: Tensor, iterations: int
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the votes, which may overwrite the votes, and of the bias."""
        ...


class Plain:
    """Routing in PyTorch. A child's logit is its vote times the sum A of the poses so far, so no logits are kept."""

    def forward(self, votes_BTJEX: Tensor, bias_JE: Tensor, iterations: int, couplings: bool) -> tuple[Tensor, Tensor]:
        *_, (sums, _, coupled) = self._iterations(at_least_float32(votes_BTJEX), bias_JE, iterations)
        return squash(sums, dim=2), coupled.contiguous() if couplings else sums.new_empty(0)

    def backward(
        self, grad_BJEX: Tensor, votes_BTJEX: Tensor, bias_JE: Tensor, iterations: int
    ) -> tuple[Tensor, Tensor]:
        votes_BTJEX = at_least_float32(votes_BTJEX)
        found = list(self._iterations(votes_BTJEX, bias_JE, iterations))
        d_votes, d_bias = torch.zeros_like(votes_BTJEX), torch.zeros_like(bias_JE)
        d_agreed = torch.zeros_like(grad_BJEX)  # of A, from all later iterations
        for iteration in range(iterations - 1, -1, -1):
            sums, agreed, coupled = found[iteration]
            d_sums = squash_backward(sums, grad_BJEX if iteration == iterations - 1 else d_agreed, dim=2)
            d_bias += d_sums.sum((0, 3))
            d_votes.addcmul_(coupled[:, :, :, None], d_sums[:, None])
            if iteration == 0:
                break  # the first couplings are constants
            d_coupled = (votes_BTJEX * d_sums[:, None]).sum(3)
            d_logits = coupled * (d_coupled - (coupled * d_coupled).sum(2, keepdim=True))
            d_votes.addcmul_(d_logits[:, :, :, None], agreed[:, None])
            d_agreed += _over_children(d_logits, votes_BTJEX)
        return d_votes, d_bias

    def _iterations(
        self, votes_BTJEX: Tensor, bias_JE: Tensor, iterations: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each iteration: the sums s and A before it (B, J, E, X), and its couplings (B, T, J, X)."""
        equal = votes_BTJEX.new_full((1, 1, 1, 1), 1 / votes_BTJEX.shape[2])
        agreed, coupled = torch.zeros_like(votes_BTJEX[:, 0]), equal.expand_as(votes_BTJEX[:, :, :, 0])
        sums = votes_BTJEX.sum(1) * equal + bias_JE[..., None]
        yield sums, agreed, coupled
        for _ in range(1, iterations):
            agreed = agreed + squash(sums, dim=2)
            coupled = (votes_BTJEX * agreed[:, None]).sum(3).softmax(2)
            sums = _over_children(coupled, votes_BTJEX) + bias_JE[..., None]
            yield sums, agreed, coupled


def _over_children(weights_BTJX: Tensor, votes_BTJEX: Tensor) -> Tensor:
    """(B, J, E, X): the weighted votes of all children, added one by one, so that no second copy of them is written."""
    total = weights_BTJX[:, 0, :, None] * votes_BTJEX[:, 0]
    for child in range(1, votes_BTJEX.shape[1]):
        total.addcmul_(weights_BTJX[:, child, :, None], votes_BTJEX[:, child])
    return total


def forward(
    pose_BTDHW: Tensor,
    weight: Tensor,
    bias_JE: Tensor,
    iterations: int,
    window: Window,
    couplings: bool,
    router: Router,
    scratch: int = SCRATCH,
) -> tuple[Tensor, Tensor]:
    """As `reference.local_routing`; without couplings=True the second result is empty."""
    parts, size = [], window.size(pose_BTDHW, weight)
    for part in _parts(pose_BTDHW, bias_JE, size, scratch):
        votes = votes_of(pose_BTDHW[part], weight, bias_JE.shape, window)
        parts.append(router.forward(votes.flatten(4), bias_JE, iterations, couplings))
    poses, coupled = (torch.cat(each) if len(parts) > 1 else each[0] for each in zip(*parts))
    return poses.unflatten(3, size), coupled.unflatten(3, size) if couplings else coupled


def backward(
    grad_BJEYX: Tensor,
    pose_BTDHW: Tensor,
    weight: Tensor,
    bias_JE: Tensor,
    iterations: int,
    window: Window,
    router: Router,
    scratch: int = SCRATCH,
    needs: Sequence[bool] = (True, True),
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the poses, the weight and the bias; the first two empty where none is needed."""
    parts, size = [], window.size(pose_BTDHW, weight)
    for part in _parts(pose_BTDHW, bias_JE, size, scratch):
        votes = votes_of(pose_BTDHW[part], weight, bias_JE.shape, window)
        d_votes, d_bias = router.backward(grad_BJEYX[part].flatten(3), votes.flatten(4), bias_JE, iterations)
        d_votes = d_votes.view_as(votes).to(votes.dtype)
        d_pose, d_weight = window.gradients(d_votes, pose_BTDHW[part], weight, needs)
        parts.append((d_pose, d_weight, d_bias))
    if len(parts) == 1:
        return parts[0]
    poses, weights, biases = zip(*parts)
    return torch.cat(poses), torch.stack(weights).sum(0), torch.stack(biases).sum(0)


def _parts(pose_BTDHW: Tensor, bias_JE: Tensor, size: tuple[int, int], scratch: int) -> Iterator[slice]:
    """The batch, a few examples at a time; one empty part of an empty batch."""
    B, T = pose_BTDHW.shape[:2]
    votes = T * bias_JE.numel() * size[0] * size[1]
    step = max(1, min(max(B, 1), scratch // max(1, votes)))
    return (slice(start, start + step) for start in range(0, max(B, 1), step))
