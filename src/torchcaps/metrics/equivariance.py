"""How a pose moves when its image is transformed: by which angle, and how linearly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchcaps.metrics import rounded


def angles(poses_SND: Tensor, origin: int) -> list[float]:
    """Return the mean angle in degrees between each pose and the same example's pose at the origin.

    Args:
        poses_SND: (S, N, D) pose of N examples at each of S strengths.
        origin: index of the strength to compare with.

    Returns:
        S angles, means over the examples.
    """
    cosines_SN = torch.cosine_similarity(poses_SND, poses_SND[origin], dim=-1)
    return cosines_SN.clamp(-1, 1).acos().rad2deg().mean(1).tolist()


def linearity(poses_SND: Tensor, strengths: Sequence[float]) -> float | None:
    """Measure how much of a pose's movement is linear in the strength of the transform: R², 1 for all of it.

    The pose of each example is fitted by a + b · strength (least squares, a and b of D numbers each). With the squares
    summed over the S strengths and the D dimensions, so that a dimension that hardly moves hardly counts,

        R² = 1 − Σ (pose − fit)² / Σ (pose − mean pose)²

    The mean over examples is returned. Random poses would get 1 / (S − 1).

    Args:
        poses_SND: (S, N, D) pose of N examples at each of S strengths.
        strengths: S numbers.

    Returns:
        The mean R² over the examples whose pose moves; None if no pose moves.
    """
    x_S = torch.tensor(strengths, dtype=torch.float64)
    x_S = x_S - x_S.mean()
    poses_SND = poses_SND.double()
    moved_SND = poses_SND - poses_SND.mean(0)
    slope_ND = torch.einsum("s,snd->nd", x_S, moved_SND) / x_S.square().sum()
    left_N = (moved_SND - x_S[:, None, None] * slope_ND).square().sum((0, 2))
    total_N = moved_SND.square().sum((0, 2))
    moves = total_N > 1e-12 * poses_SND.square().sum((0, 2))  # less is rounding
    return rounded((1 - left_N[moves] / total_N[moves]).mean()) if moves.any() else None
