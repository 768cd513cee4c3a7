"""How well a score tells two groups of images apart: AUROC, FPR95, ROC curves, accuracy over the images kept."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.metrics import rounded

KEPT = 0.95  # share of the familiar images that a threshold accepts
ROC_POINTS = 100


def roc_points(clean_N: Tensor, attacked_N: Tensor) -> dict[str, Any]:
    """Measure how well a larger error tells attacked images from clean ones.

    Args:
        clean_N, attacked_N: (N,) reconstruction errors.

    Returns:
        auc: area under the ROC curve.
        false_alarms, caught: at most `ROC_POINTS` shares each, the points of the ROC curve as the threshold falls.
    """
    from sklearn.metrics import roc_auc_score, roc_curve

    attacked = torch.cat([torch.zeros(len(clean_N)), torch.ones(len(attacked_N))]).numpy()
    errors = torch.cat([clean_N, attacked_N]).numpy()
    false_alarms, caught, _ = roc_curve(attacked, errors)
    kept = torch.linspace(0, len(caught) - 1, min(len(caught), ROC_POINTS)).round().long().numpy()
    return {
        "auc": rounded(roc_auc_score(attacked, errors)),
        "false_alarms": [rounded(share) for share in false_alarms[kept]],
        "caught": [rounded(share) for share in caught[kept]],
    }


def auroc_and_fpr95(familiar_N: Tensor, unfamiliar_M: Tensor) -> dict[str, float]:
    """Measure how well a score tells the familiar from the unfamiliar.

    Args:
        familiar_N: (N,) scores of images of known classes.
        unfamiliar_M: (M,) scores of images of unknown classes.

    Returns:
        auroc: the probability that a familiar image scores higher than an unfamiliar one; a tie counts half.
        fpr95: the share of unfamiliar images accepted by the threshold that accepts 95 % of the familiar ones.
    """
    from sklearn.metrics import roc_auc_score

    _check("familiar", familiar_N)
    _check("unfamiliar", unfamiliar_M)
    # Ranks instead of scores: scikit-learn refuses infinite ones.
    _, rank = torch.unique(torch.cat([familiar_N, unfamiliar_M]), return_inverse=True)
    is_familiar = torch.arange(len(rank)) < len(familiar_N)
    accepted_M = unfamiliar_M >= _threshold(familiar_N, KEPT)
    return {
        "auroc": rounded(roc_auc_score(is_familiar.numpy(), rank.cpu().numpy())),
        "fpr95": rounded(accepted_M.double().mean()),
    }


def accuracy_at_kept(scores_N: Tensor, correct_N: Tensor, share: float = KEPT) -> float:
    """Measure the accuracy over the images with the highest scores.

    Images that tie for the last places count in part, so that their order does not matter.

    Args:
        scores_N: (N,) scores.
        correct_N: (N,) whether the prediction was right.
        share: of the images to keep, above 0 and up to 1.

    Returns:
        The share of right predictions.
    """
    _check("scores", scores_N)
    if correct_N.shape != scores_N.shape:
        raise UserError(f"correct: expected {len(scores_N)} answers, one a score, got {tuple(correct_N.shape)}")
    threshold = _threshold(scores_N, share)
    above_N, tied_N = scores_N > threshold, scores_N == threshold
    right_N = correct_N.double()
    kept = _count(len(scores_N), share)
    right = right_N[above_N].sum() + (kept - above_N.sum()) * right_N[tied_N].mean()
    return rounded(right / kept)


def _check(name: str, scores_N: Tensor) -> None:
    if scores_N.ndim != 1 or not len(scores_N):
        raise UserError(f"{name}: expected a list of one or more scores, got shape {tuple(scores_N.shape)}")
    if scores_N.isnan().any():
        raise UserError(f"{name}: {int(scores_N.isnan().sum())} of {len(scores_N)} scores are NaN")


def _threshold(scores_N: Tensor, share: float) -> Tensor:
    """Return the lowest score of the given share with the highest scores."""
    return scores_N.sort(descending=True).values[_count(len(scores_N), share) - 1]


def _count(total: int, share: float) -> int:
    if not 0 < share <= 1:
        raise UserError(f"share={share}: give a number above 0 and up to 1")
    return max(1, math.ceil(total * share - 1e-9))  # 1e-9: 0.95 is a little more than 95 of 100
