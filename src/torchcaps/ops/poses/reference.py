"""Routing by poses: parts find the wholes that they agree on. README.md derives each formula.

Further axes: M members of a whole, that is, the parts that it should have; S turns of a part onto itself; K hypotheses,
each a whole of some class with some pose. Poses are the four numbers of a `Similarity`, whose logarithm has four, too.
All sums are over probabilities, not their logarithms, so that a part with presence 0 adds exactly nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchcaps.ops.poses.values import Explained, Hypotheses, Layouts, Parts, log_volume
from torchcaps.similarity import Similarity

LEAST_TYPE = 1e-12  # probability of a type, for its logarithm; the ONNX exporter would drop it from a sum
LEAST_WEIGHT = 1e-6  # added to sums of weights: a hypothesis that found nothing stays where it is
SAME = 0.5  # a hypothesis that shares more of its parts with a better one of its class is that one
ANGLE = 2  # position of the angle in a logarithm


def votes(parts: Parts, layouts: Layouts, turns: int) -> tuple[Similarity, Tensor]:
    """Every part votes for every whole, as each of its members: P ∘ turn ∘ L⁻¹.

    Args:
        parts: I.
        layouts: of J wholes with M members.
        turns: S, at least as many as any part has.

    Returns:
        (B, I, J, M, S) poses, and whether they are votes: a part of fewer turns has fewer, and an absent part or one
        that looks the same at every angle has none.
    """
    turn_S = torch.arange(turns, device=parts.symmetry.device)
    radians_BIS = 2 * math.pi * turn_S / parts.symmetry.clamp_min(1)[..., None].to(parts.presence.dtype)
    turned = parts.pose[..., None].compose(Similarity.of(angle=radians_BIS.rad2deg()))
    valid_BIS = (turn_S < parts.symmetry[..., None]) & (parts.presence[..., None] > 0)
    valid = valid_BIS[:, :, None, None] & layouts.present[..., None]
    return turned[:, :, None, None].compose(layouts.pose.inverse()[..., None]), valid


def residuals(parts: Parts, layouts: Layouts, hypotheses: Hypotheses) -> Tensor:
    """How far votes are from hypotheses, in their own frames: log(M⁻¹ V), with the turn of the part that fits best.

    Returns:
        (B, K, I, M, 4).
    """
    member = layouts.pose[hypotheses.label][:, :, None]  # (B, K, 1, M)
    seen = hypotheses.pose.inverse()[:, :, None].compose(parts.pose[:, None])[..., None]  # (B, K, I, 1): M⁻¹ P
    symmetry = parts.symmetry[:, None, :, None]
    apart_BKIM = seen.radians - member.radians
    step = 2 * math.pi / symmetry.clamp_min(1).to(apart_BKIM.dtype)
    # A part that looks the same at every angle takes the one that is expected.
    fitting_BKIM = torch.where(symmetry > 0, step * (apart_BKIM.detach() / step).round(), apart_BKIM)
    return seen.compose(Similarity.of(angle=-fitting_BKIM.rad2deg())).compose(member.inverse()).log()


def log_likelihoods(parts: Parts, layouts: Layouts, hypotheses: Hypotheses, residual_BKIM4: Tensor) -> Tensor:
    """How much likelier each part is as a member of a hypothesis than as clutter: log(ρ N(residual; 0, σ²) / clutter).

    Returns:
        (B, K, I, M).
    """
    tolerance = layouts.tolerance[hypotheses.label][:, :, None]  # (B, K, 1, M, 4)
    types_BKMT = layouts.types[hypotheses.label]
    type_BKIM = torch.einsum("bit,bkmt->bkim", parts.types, types_BKMT)
    symmetry = parts.symmetry[:, None, :, None]
    # Of n equal turns any one is reported, so each has 1/n of the density. If all are equal, the angle says nothing.
    nothing = 0.5 * math.log(2 * math.pi) - tolerance[..., ANGLE].log()
    turns = torch.where(symmetry > 0, symmetry.clamp_min(1).to(nothing.dtype).log(), nothing)
    square = (residual_BKIM4 / tolerance).square().sum(-1)
    return type_BKIM.clamp_min(LEAST_TYPE).log() - 0.5 * square - log_volume(tolerance) - turns - layouts.clutter


def explain(
    parts: Parts, layouts: Layouts, hypotheses: Hypotheses, available_BKI: Tensor, residual_BKIM4: Tensor
) -> Explained:
    """E-step: every member of a hypothesis chooses its part among those available, or none.

    Args:
        parts: I.
        layouts: of J wholes with M members.
        hypotheses: K.
        available_BKI: share of each part that other hypotheses leave to each one.
        residual_BKIM4: as `residuals` returns them.
    """
    present_BKM = layouts.present[hypotheses.label]
    missing_BKM = layouts.missing[hypotheses.label]
    log_BKIM = log_likelihoods(parts, layouts, hypotheses, residual_BKIM4)
    # A part is at most one member of a hypothesis; a member is at most one part, or missing.
    role_BKIM = log_BKIM.masked_fill(~present_BKM[:, :, None], -torch.inf).softmax(-1)
    offered_BKIM = available_BKI[..., None] * role_BKIM
    largest_BKM = torch.maximum(log_BKIM.amax(2), missing_BKM).detach()
    weight_BKIM = offered_BKIM * (log_BKIM - largest_BKM[:, :, None]).exp()
    none_BKM = (missing_BKM - largest_BKM).exp()
    chosen_BKIM = weight_BKIM / (none_BKM + weight_BKIM.sum(2))[:, :, None]
    found_BKIM = offered_BKIM * chosen_BKIM
    gain_BKM = (found_BKIM * log_BKIM).sum(2) + (1 - found_BKIM.sum(2)) * missing_BKM
    bias_BK = (layouts.prior - layouts.exact)[hypotheses.label]
    log_odds_BK = bias_BK + (gain_BKM * present_BKM).sum(-1)
    log_odds_BK = log_odds_BK.masked_fill(~hypotheses.possible, -torch.inf)
    claims_BKI = log_odds_BK.sigmoid()[..., None] * (role_BKIM * chosen_BKIM).sum(-1)
    return Explained(log_odds_BK, found_BKIM, claims_BKI)


def move(
    parts: Parts, layouts: Layouts, hypotheses: Hypotheses, found_BKIM: Tensor, residual_BKIM4: Tensor
) -> Hypotheses:
    """M-step: move each hypothesis to the mean of its votes, in its own frame: M ∘ exp(Σ w log(M⁻¹ V) / Σ w)."""
    precision = layouts.tolerance[hypotheses.label].square().reciprocal()[:, :, None]
    weight_BKIM4 = found_BKIM[..., None] * precision
    # A part that looks the same at every angle says nothing about that of the whole.
    knows = torch.ones_like(parts.presence)[..., None].repeat(1, 1, 4)
    knows[..., ANGLE] = (parts.symmetry > 0).to(knows)
    weight_BKIM4 = weight_BKIM4 * knows[:, None, :, None]
    step_BK4 = (weight_BKIM4 * residual_BKIM4).sum((2, 3)) / (weight_BKIM4.sum((2, 3)) + LEAST_WEIGHT)
    return hypotheses._replace(pose=hypotheses.pose.compose(Similarity.exp(step_BK4)))


def best_first(values_BK: Tensor) -> Tensor:
    """Positions (B, K) of the values, the largest first, and equal ones in their order; ONNX has no such sort."""
    K = values_BK.shape[1]
    position_K = torch.arange(K, device=values_BK.device)
    one, other = values_BK[:, :, None], values_BK[:, None]
    rank_BK = ((other > one) | ((other == one) & (position_K < position_K[:, None]))).sum(-1)
    return torch.zeros_like(rank_BK).scatter(1, rank_BK, position_K.expand_as(rank_BK))


def best_votes(parts: Parts, layouts: Layouts, turns: int, count: int) -> Hypotheses:
    """The votes that the most other votes agree with, each moved to the middle of those; one for each whole.

    Args:
        parts: I.
        layouts: of J wholes with M members.
        turns: S, at least as many as any part has.
        count: K, at most; there are I·J·M·S votes.

    Returns:
        (B, K), best first.
    """
    poses, valid = votes(parts, layouts, turns)
    B, I, J, M, S = valid.shape
    label = torch.arange(J, device=valid.device)[:, None, None].expand(B, I, J, M, S)
    seeds = Hypotheses(Similarity(poses.numbers.flatten(1, 4)), label.flatten(1), valid.flatten(1))
    residual = residuals(parts, layouts, seeds)
    seen = explain(parts, layouts, seeds, parts.presence[:, None], residual)
    order = best_first(seen.log_odds)
    moved = move(parts, layouts, seeds, seen.found, residual).take(order)
    found = seen.found.flatten(2).take_along_dim(order[..., None], 1)
    shared_BKK = found @ found.mT / (found.sum(-1) + LEAST_WEIGHT)[..., None]
    alike_BKK = moved.label[:, :, None] == moved.label[:, None]
    repeats_BK = ((shared_BKK > SAME) & alike_BKK).tril(-1).any(-1)
    moved = moved._replace(possible=moved.possible & ~repeats_BK)
    kept = best_first(~repeats_BK)[:, :count]
    return moved.take(kept)


def left_by_better(claims_BKI: Tensor) -> Tensor:
    """Share (B, K, I) of each part that the hypotheses before each one leave: the product of 1 - claims."""
    # As a sum of logarithms, because ONNX has no such product; the least leaves a gradient.
    logs_BKI = (1 - claims_BKI).clamp_min(torch.finfo(claims_BKI.dtype).eps).log()
    return (logs_BKI.cumsum(1) - logs_BKI).exp()


def route(
    parts: Parts, layouts: Layouts, iterations: int, turns: int, count: int
) -> tuple[Hypotheses, Explained, Tensor]:
    """Route parts to the wholes that they agree on.

    Args:
        parts: I.
        layouts: of J wholes with M members.
        iterations: at least 1, which is the plain vote: hypotheses do not know of each other.
        turns: S, at least as many as any part has.
        count: K, at most.

    Returns:
        K hypotheses, best first; how they explain the parts; and couplings (B, K, I).
    """
    hypotheses = best_votes(parts, layouts, turns, count)
    left_BKI = torch.ones_like(hypotheses.label[..., None] * parts.presence[:, None])
    for _ in range(iterations):
        hypotheses, seen, _ = iterate(parts, layouts, hypotheses, left_BKI)
        left_BKI = left_by_better(seen.claims)
    return hypotheses, seen, seen.claims * left_BKI


def iterate(
    parts: Parts, layouts: Layouts, hypotheses: Hypotheses, left_BKI: Tensor
) -> tuple[Hypotheses, Explained, Tensor]:
    """One iteration: explain the parts, sort the hypotheses, and move each to the mean of its votes.

    Args:
        parts: I.
        layouts: of J wholes with M members.
        hypotheses: K.
        left_BKI: share of each part that better hypotheses leave to each one; 1 in the first iteration.

    Returns:
        The hypotheses, best first; how they explain the parts; and (B, K) where each one was among those given.
    """
    residual = residuals(parts, layouts, hypotheses)
    seen = explain(parts, layouts, hypotheses, parts.presence[:, None] * left_BKI, residual)
    order = best_first(seen.log_odds)
    moved = move(parts, layouts, hypotheses, seen.found, residual).take(order)
    # The better a hypothesis, the sooner it takes its parts: what one explains is not explained twice.
    return moved, seen.take(order), order
