"""What lets layers of different kinds be stacked: maps become a list of capsules, activations become lengths."""

from __future__ import annotations

from torchcaps.capsules import Capsules, length

SHORTEST = 1e-4  # a shorter pose has no direction that counts; bounds the gradient


def flatten_maps(capsules: Capsules) -> Capsules:
    """Turn maps (B, T, D, H, W) into a list (B, T·H·W, D), ordered by type, then row, then column.

    Args:
        capsules: maps, with or without an activation (B, T, H, W); a list is returned as it is.
    """
    if capsules.pose.ndim != 5:
        return capsules
    pose = capsules.pose.movedim(2, 4).flatten(1, 3)
    return Capsules(pose, *(each.flatten(1) for each in capsules[1:]))


def as_vectors(capsules: Capsules) -> Capsules:
    """Turn capsules with an activation of their own into vectors of that length, in the direction of the pose.

    Routings whose capsules are vectors read presence from the length; poses of EM and inverted attention routing have
    other lengths.

    Args:
        capsules: (B, I, K) or maps (B, T, D, H, W); vector capsules are returned as they are.
    """
    if len(capsules) == 1:
        return capsules
    pose, activation = capsules
    lengths = length(pose, dim=2).clamp_min(SHORTEST)
    return Capsules(pose * (activation / lengths).unsqueeze(2).to(pose.dtype))
