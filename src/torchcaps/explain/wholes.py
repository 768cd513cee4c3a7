"""Routing by poses of one image, step by step: which wholes are considered, and which parts each of them takes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.layers import WholeCaps
from torchcaps.ops.poses import parts_of
from torchcaps.ops.poses.reference import best_votes, explain, iterate, left_by_better, move, residuals
from torchcaps.ops.poses.values import Hypotheses
from torchcaps.similarity import Similarity


class WholeTrace(NamedTuple):
    """Routing of the I parts of one image over R iterations. K hypotheses keep their places in all of them.

    Attributes:
        label: (K,) class of each hypothesis.
        pose: (R, K).
        presence: (R, K) in [0, 1].
        couplings: (R, I, K + 1) share of each part that each hypothesis takes, and last, that none takes.
    """

    label: Tensor
    pose: Similarity
    presence: Tensor
    couplings: Tensor


@torch.no_grad()
def whole_trace(layer: WholeCaps, pose: Tensor, presence: Tensor, types: Tensor, iterations: int) -> WholeTrace:
    """Record every hypothesis in every iteration.

    Args:
        layer: knows or learned how parts stand in their wholes.
        pose: (I, 4) of the parts, as the numbers of a `Similarity`.
        presence: (I,) in [0, 1].
        types: (I, T) probabilities.
        iterations: R.
    """
    parts, known = parts_of(pose[None], presence[None], types[None], layer.symmetry), layer.layouts(pose)
    (I,), (J, M), turns = presence.shape, known.missing.shape, max(1, *layer.symmetry)
    count = min(I if layer.hypotheses is None else layer.hypotheses, I * J * M * turns)
    if count == 0:
        none = Similarity(pose.new_zeros(iterations, 0, 4))
        couplings = pose.new_ones(iterations, I, 1)
        return WholeTrace(torch.zeros(0, dtype=torch.long), none, pose.new_zeros(iterations, 0), couplings)
    hypotheses = best_votes(parts, known, turns, count)
    label, possible = hypotheses.label[0], hypotheses.possible[0]
    left = torch.ones_like(label[None, :, None] * presence)
    places = torch.arange(count)  # of the hypotheses, best first, among the seeds
    poses, presences, couplings_RKI = [], [], []
    for _ in range(iterations):
        hypotheses, seen, order = iterate(parts, known, hypotheses, left)
        left = left_by_better(seen.claims)
        places = places[order[0]]
        back = places.argsort()[possible]
        poses.append(hypotheses.pose.numbers[0, back])
        presences.append(seen.log_odds.sigmoid()[0, back])
        couplings_RKI.append((seen.claims * left)[0, back])
    taken = torch.stack(couplings_RKI)
    couplings = torch.cat([taken, 1 - taken.sum(1, keepdim=True)], dim=1).mT
    return WholeTrace(label[possible], Similarity(torch.stack(poses)), torch.stack(presences), couplings)


@torch.no_grad()
def presence_near(
    layer: WholeCaps, pose: Tensor, presence: Tensor, types: Tensor, whole: Similarity, label: Tensor
) -> Tensor:
    """How present wholes are near given poses, if each is the only one: it first moves to the mean of its votes.

    Args:
        layer: knows or learned how parts stand in their wholes.
        pose: (B, I, 4) of the parts.
        presence: (B, I).
        types: (B, I, T).
        whole: (B, K) poses.
        label: (B, K) classes.

    Returns:
        (B, K).
    """
    parts, known = parts_of(pose, presence, types, layer.symmetry), layer.layouts(pose)
    first = Hypotheses(whole, label, torch.ones_like(label, dtype=torch.bool))
    residual = residuals(parts, known, first)
    seen = explain(parts, known, first, presence[:, None], residual)
    moved = move(parts, known, first, seen.found, residual)
    return explain(parts, known, moved, presence[:, None], residuals(parts, known, moved)).log_odds.sigmoid()
