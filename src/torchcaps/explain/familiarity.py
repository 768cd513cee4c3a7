"""Familiarity scores: how much an image looks like the known classes. Larger always means more familiar."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.metrics import rounded
from torchcaps.metrics.detection import accuracy_at_kept
from torchcaps.metrics.predictions import BATCH
from torchcaps.models import ImageModel, Output
from torchcaps.models.evaluating import evaluating


class Scored(NamedTuple):
    """Predictions and scores of N images, on the CPU.

    Attributes:
        classes: (N,) predicted class.
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
    """Compute every familiarity score that the model allows.

    Args:
        model: may have a method `familiarity(images, output)` that returns (B,).
        images: (B, C, H, W) in [0, 1].
        output: of the model for these images.

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
    """Predict the classes and compute all scores of images (N, C, H, W), uint8 or in [0, 1], batch by batch."""
    classes, parts = [], []
    for batch in images.split(BATCH):
        batch = model.prepare(batch)
        with evaluating(model):
            output = model(batch)
            parts.append({name: score.double().cpu() for name, score in scores(model, batch, output).items()})
        classes.append(output.lengths.argmax(-1).cpu())
    return Scored(torch.cat(classes), {name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def familiarity_threshold(model: nn.Module) -> float | None:
    """Return the familiarity below which the model answers "none of these"; None if it has no score or threshold."""
    return getattr(model, "none_below", None) if callable(getattr(model, "familiarity", None)) else None


def count_rejected(scores_N: Tensor, correct_N: Tensor, none_below: float) -> dict[str, Any]:
    """Count the images that a threshold answers with "none of these", and measure the accuracy over the others.

    Args:
        scores_N: (N,) familiarity of images of known classes.
        correct_N: (N,) whether the predicted class is right.
        none_below: the threshold; an image that reaches it is kept.

    Returns:
        none_below: as given.
        rejected, rejected_share: how many images fall below it.
        kept_accuracy: accuracy over the others; None if there are none.
        accuracy_at_95: over the 95 % with the highest familiarity, independent of the threshold.
    """
    at_95 = accuracy_at_kept(scores_N, correct_N)
    kept_N = scores_N >= none_below
    rejected = int((~kept_N).sum())
    return {
        "none_below": none_below,
        "rejected": rejected,
        "rejected_share": rounded(rejected / len(scores_N)),
        "kept_accuracy": rounded(correct_N[kept_N].double().mean()) if kept_N.any() else None,
        "accuracy_at_95": at_95,
    }
