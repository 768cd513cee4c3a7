"""Routing by poses: parts vote for wholes with poses that compose; agreement is measured in the frame of the whole.

`reference` has the formulas, README.md derives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.ops.poses import reference
from torchcaps.ops.poses.values import Hypotheses, Layouts, Parts
from torchcaps.ops.squash import at_least_float32, no_autocast
from torchcaps.similarity import Similarity

LEAST_LOG, LEAST_PRESENCE = -100.0, 1e-30
CLUTTER = -8.0  # one part that belongs to no whole in every 3000 pixel² · radian · unit of log scale


class Wholes(NamedTuple):
    """The wholes that were found in images, the most present first. They can be the parts of larger wholes.

    Attributes:
        pose: (B, K, 4) as the numbers of a `Similarity`.
        presence: (B, K) in [0, 1].
        types: (B, K, J) 1 at the class of each whole, else 0.
        couplings: (B, I, K + 1) share of each part that each whole takes, and last, that none takes; they sum to 1.
        found: (B, K, M) how much of each member is there, in [0, 1].
        log_odds: (B, K) of presence, which they show where it rounds to 0 or 1; -inf for what only fills the tensor.
    """

    pose: Tensor
    presence: Tensor
    types: Tensor
    couplings: Tensor
    found: Tensor
    log_odds: Tensor

    @property
    def label(self) -> Tensor:
        """(B, K) the class of each whole."""
        return self.types.argmax(-1)


def pose_routing(
    pose: Tensor,
    presence: Tensor,
    types: Tensor,
    layouts: Tensor,
    tolerance: Tensor,
    member_types: Tensor,
    prior: Tensor,
    missing: Tensor,
    iterations: int = 3,
    *,
    symmetry: Sequence[int] | None = None,
    clutter: float = CLUTTER,
    hypotheses: int | None = None,
) -> Wholes:
    """Route the parts of an image to the wholes that they agree on; of each class there may be many.

    Poses are the numbers (x, y, s · cos θ, s · sin θ) of a `Similarity`. A part that a turn maps
    onto itself votes as if it stood in each of its equal ways.

    Args:
        pose: (B, I, 4) poses of the parts.
        presence: (B, I) in [0, 1]; a part with presence 0 has no influence.
        types: (B, I, T) probabilities of the types of each part.
        layouts: (J, M, 4) pose of each member in the frame of its whole.
        tolerance: (J, M, 4) standard deviation of a vote, in the frame of the whole: in pixels right and down, in
            radians, and of the logarithm of the scale.
        member_types: (J, M, T) probability that a part of each type can be this member; zero where a whole has fewer
            than M members.
        prior: (J,) log-odds of each class; 0 if wholes are as frequent as parts that belong to none.
        missing: (J, M) log-odds that a member of a whole is not there.
        iterations: at least 1, which is the plain vote; with more, better wholes take their parts from others.
        symmetry: T numbers of turns within a full circle that map a part onto itself; 0 for every turn. By default 1.
        clutter: log-density of parts that belong to no whole, per pixel², radian and unit of log scale.
        hypotheses: K, at most; by default I, one for each part.

    Returns:
        `Wholes`, K of them, or as many as there are votes.
    """
    symmetry = [1] * types.shape[-1] if symmetry is None else list(symmetry)
    _check(pose, presence, types, layouts, tolerance, member_types, prior, missing, iterations, symmetry)
    turns = max([1, *symmetry])
    with no_autocast(pose):
        wide = at_least_float32(pose)
        parts = parts_of(wide, presence, types, symmetry)
        wholes = layouts_of(layouts, tolerance, member_types, prior, missing, clutter, wide)
        (B, I), (J, M) = presence.shape, missing.shape
        count = min(I if hypotheses is None else hypotheses, I * J * M * turns)
        if count == 0:
            pose_0, presence_0, types_0, found_0 = (pose.new_zeros(B, 0, *rest) for rest in ((4,), (), (J,), (M,)))
            return Wholes(pose_0, presence_0, types_0, pose.new_ones(B, I, 1), found_0, presence_0)
        best, seen, couplings_BKI = reference.route(parts, wholes, iterations, turns, count)
        couplings = torch.cat([couplings_BKI, 1 - couplings_BKI.sum(1, keepdim=True)], dim=1).mT
        label = functional.one_hot(best.label, J)
        found = (best.pose.numbers, seen.log_odds.sigmoid(), label, couplings, seen.found.sum(2), seen.log_odds)
    return Wholes(*(each.to(pose.dtype) for each in found))


def member_log_likelihood(parts: Parts, layouts: Layouts, whole: Tensor, label: Tensor) -> Tensor:
    """Log-likelihood of the members of wholes whose poses are known, to be maximised in training.

    Args:
        parts: I.
        layouts: of J wholes with M members.
        whole: (B, K, 4) poses.
        label: (B, K) classes.

    Returns:
        (B, K, M) log of the sum of the odds that the member is missing, and that it is each part, relative to clutter
        and with the two possibilities, missing and there, summing to 1; 0 for padding.
    """
    known = Hypotheses(Similarity(whole), label, torch.ones_like(label, dtype=torch.bool))
    residual = reference.residuals(parts, layouts, known)
    log_BKIM = reference.log_likelihoods(parts, layouts, known, residual)
    missing_BKM = layouts.missing[label]
    padding_BKM = ~layouts.present[label]
    roles_BKIM = log_BKIM.masked_fill(padding_BKM[:, :, None], -torch.inf).log_softmax(-1).clamp_min(LEAST_LOG)
    odds_BKIM = log_BKIM + roles_BKIM + parts.presence.clamp_min(LEAST_PRESENCE).log()[:, None, :, None]
    total_BKM = torch.cat([odds_BKIM, missing_BKM[:, :, None]], dim=2).logsumexp(2)
    return (total_BKM + functional.logsigmoid(-missing_BKM)) * layouts.present[label]


def parts_of(pose: Tensor, presence: Tensor, types: Tensor, symmetry: Sequence[int]) -> Parts:
    """Parts in the type of `pose`; the poses of absent ones, which may be anything, become the identity."""
    identity = torch.zeros_like(pose)
    identity[..., 2] = 1
    here = Similarity(torch.where((presence > 0)[..., None], pose, identity))
    label = types.argmax(-1)
    turns = torch.zeros_like(label)
    for type, count in enumerate(symmetry):  # nothing is copied from the host: a CUDA graph can record it
        turns = turns.masked_fill(label == type, count)
    return Parts(here, presence.to(pose), types.to(pose), turns)


def layouts_of(
    layouts: Tensor,
    tolerance: Tensor,
    member_types: Tensor,
    prior: Tensor,
    missing: Tensor,
    clutter: float,
    like: Tensor,
) -> Layouts:
    """Layouts in the type of a tensor."""
    tensors = (each.to(like) for each in (layouts, tolerance, member_types, prior, missing))
    poses, tolerance, member_types, prior, missing = tensors
    return Layouts(Similarity(poses), tolerance, member_types, prior, missing, clutter)


def _check(
    pose: Tensor,
    presence: Tensor,
    types: Tensor,
    layouts: Tensor,
    tolerance: Tensor,
    member_types: Tensor,
    prior: Tensor,
    missing: Tensor,
    iterations: int,
    symmetry: Sequence[int],
) -> None:
    B, I, T = types.shape if types.ndim == 3 else (-1, -1, -1)
    J, M = missing.shape if missing.ndim == 2 else (-1, -1)
    expected = {
        "types": (types, (B, I, T)),
        "missing": (missing, (J, M)),
        "pose": (pose, (B, I, 4)),
        "presence": (presence, (B, I)),
        "layouts": (layouts, (J, M, 4)),
        "tolerance": (tolerance, (J, M, 4)),
        "member_types": (member_types, (J, M, T)),
        "prior": (prior, (J,)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape:
            raise ValueError(f"pose_routing: {name} must be {shape}, got {tuple(tensor.shape)}")
    if len(symmetry) != T:
        raise ValueError(f"pose_routing: give symmetry for each of the {T} types, got {len(symmetry)} numbers")
    if iterations < 1:
        raise ValueError(f"pose_routing: iterations must be at least 1, got {iterations}")
