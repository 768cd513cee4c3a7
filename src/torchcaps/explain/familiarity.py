"""How familiar an image is to a model, as one number, and how well that number tells the unfamiliar apart.

Of every score, larger means more familiar.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.metrics.measure import BATCH, tidy
from torchcaps.models import ImageModel, Output
from torchcaps.models.evaluating import evaluating

KEPT = 0.95  # share of the familiar images that a threshold lets through


class Scored(NamedTuple):
    """What a model makes of N images, on the CPU.

    Attributes:
        classes: (N,) the class that it names.
        scores: (N,) by the name of the score; see `scores`.
    """

    classes: Tensor
    scores: dict[str, Tensor]


def max_length(output: Output) -> Tensor:
    """Take the length of the longest capsule, or the largest probability: (B,)."""
    return output.lengths.amax(-1)


def energy(output: Output) -> Tensor:
    """Take logsumexp of the logits, the negative free energy of Liu et al. 2020: (B,)."""
    if output.logits is None:
        raise UserError("energy: this model has no logits; use max_length")
    return output.logits.logsumexp(-1)


def scores(model: ImageModel, images: Tensor, output: Output) -> dict[str, Tensor]:
    """Score a batch in every way that the model allows.

    Args:
        model: may have a method `familiarity(images, output)` that returns (B,).
        images: (B, C, H, W) in [0, 1].
        output: what the model answered to them.

    Returns:
        (B,) for "max length"; for "energy" if there are logits; for "familiarity" if the model has that method.
    """
    found = {"max length": max_length(output)}
    if output.logits is not None:
        found["energy"] = energy(output)
    own = getattr(model, "familiarity", None)
    if callable(own):
        found["familiarity"] = own(images, output)
    for name, score in found.items():
        if score.shape != (len(images),):
            raise ValueError(f"{name}: expected one score an image, ({len(images)},), got {tuple(score.shape)}")
    return found


def score_images(model: ImageModel, images: Tensor) -> Scored:
    """Ask a model about images (N, C, H, W), uint8 or in [0, 1], batch by batch: its classes and all its scores."""
    classes, parts = [], []
    for batch in images.split(BATCH):
        batch = model.prepare(batch)
        with evaluating(model):
            output = model(batch)
            parts.append({name: score.double().cpu() for name, score in scores(model, batch, output).items()})
        classes.append(output.lengths.argmax(-1).cpu())
    return Scored(torch.cat(classes), {name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def own_threshold(model: nn.Module) -> float | None:
    """The familiarity below which a model answers "none of these"; None if it has no threshold, or no such score."""
    return getattr(model, "none_below", None) if callable(getattr(model, "familiarity", None)) else None


def separation(familiar_N: Tensor, unfamiliar_M: Tensor) -> dict[str, float]:
    """Measure how well a score tells the familiar from the unfamiliar.

    Args:
        familiar_N: (N,) scores of images of known classes.
        unfamiliar_M: (M,) scores of images of none of them.

    Returns:
        auroc: the probability that a familiar image scores higher than an unfamiliar one, a tie counting half.
        kept95: the share of unfamiliar images still accepted by a threshold that keeps 95 % of the familiar (FPR95).
    """
    from sklearn.metrics import roc_auc_score

    _check("familiar", familiar_N)
    _check("unfamiliar", unfamiliar_M)
    # Ranks instead of scores: scikit-learn refuses infinite ones.
    _, rank = torch.unique(torch.cat([familiar_N, unfamiliar_M]), return_inverse=True)
    is_familiar = torch.arange(len(rank)) < len(familiar_N)
    accepted_M = unfamiliar_M >= _threshold(familiar_N, KEPT)
    return {
        "auroc": tidy(roc_auc_score(is_familiar.numpy(), rank.cpu().numpy())),
        "kept95": tidy(accepted_M.double().mean()),
    }


def accuracy_at_kept(scores_N: Tensor, correct_N: Tensor, share: float = KEPT) -> float:
    """Measure the accuracy over the images with the highest scores.

    Of images that tie for the last places, each counts in part, so that their order does not matter.

    Args:
        scores_N: (N,) scores.
        correct_N: (N,) whether the answer was right.
        share: of the images that are kept, above 0 and up to 1.

    Returns:
        The share of right answers.
    """
    _check("scores", scores_N)
    if correct_N.shape != scores_N.shape:
        raise UserError(f"correct: expected {len(scores_N)} answers, one a score, got {tuple(correct_N.shape)}")
    threshold = _threshold(scores_N, share)
    above_N, tied_N = scores_N > threshold, scores_N == threshold
    right_N = correct_N.double()
    kept = _number(len(scores_N), share)
    right = right_N[above_N].sum() + (kept - above_N.sum()) * right_N[tied_N].mean()
    return tidy(right / kept)


def count_rejected(scores_N: Tensor, correct_N: Tensor, none_below: float) -> dict[str, Any]:
    """Count the images that a threshold answers with "none of these", and measure the accuracy over the others.

    Args:
        scores_N: (N,) familiarity of images of known classes.
        correct_N: (N,) whether the class named is right.
        none_below: the threshold; an image that reaches it is kept.

    Returns:
        none_below: as given.
        rejected, rejected_share: how many images fall below it.
        kept_accuracy: over the others; None if there are none.
        accuracy_at_95: over the 95 % with the highest familiarity, whatever the threshold.
    """
    at_95 = accuracy_at_kept(scores_N, correct_N)
    kept_N = scores_N >= none_below
    rejected = int((~kept_N).sum())
    return {
        "none_below": none_below,
        "rejected": rejected,
        "rejected_share": tidy(rejected / len(scores_N)),
        "kept_accuracy": tidy(correct_N[kept_N].double().mean()) if kept_N.any() else None,
        "accuracy_at_95": at_95,
    }


def _check(name: str, scores_N: Tensor) -> None:
    if scores_N.ndim != 1 or not len(scores_N):
        raise UserError(f"{name}: expected a list of one or more scores, got shape {tuple(scores_N.shape)}")
    if scores_N.isnan().any():
        raise UserError(f"{name}: {int(scores_N.isnan().sum())} of {len(scores_N)} scores are NaN")


def _threshold(scores_N: Tensor, share: float) -> Tensor:
    """The lowest score among so large a share of the highest."""
    return scores_N.sort(descending=True).values[_number(len(scores_N), share) - 1]


def _number(count: int, share: float) -> int:
    if not 0 < share <= 1:
        raise UserError(f"share={share}: give more than 0 and at most 1")
    return max(1, math.ceil(count * share - 1e-9))  # 1e-9: 0.95 is a little more than 95 of 100
