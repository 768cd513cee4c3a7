"""Losses, each returning one value per example; `combine` weighs them into the number that is minimised."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def margin_loss(
    lengths: Tensor, targets: Tensor, *, present: float = 0.9, absent: float = 0.1, down_weight: float = 0.5
) -> Tensor:
    """Each class's capsule should be long if the class is there and short if not (Eq. 4), summed over classes.

    lengths  (B, J)  the class capsules' lengths, as they are: no softmax
    targets  (B,) class ids, or (B, J) multi-hot for several classes at once
    returns  (B,)
    """
    check_batch("margin_loss", lengths, targets)
    there = multi_hot(targets, lengths.shape[-1]).to(lengths.dtype)
    too_short = functional.relu(present - lengths).square()
    too_long = functional.relu(lengths - absent).square()
    return (there * too_short + down_weight * (1 - there) * too_long).sum(-1)


def spread_loss(activations: Tensor, targets: Tensor, margin: float | Tensor = 0.9) -> Tensor:
    """The right class should be more active than each other one by a margin (Hinton et al. 2018), summed over those.

    activations  (B, J)
    targets      (B,) class ids
    margin       0.2 at first, then up to 0.9: so that few capsules die early
    returns      (B,)
    """
    check_batch("spread_loss", activations, targets)
    right = activations.gather(1, targets[:, None])
    short = functional.relu(margin - (right - activations)).square()
    return short.sum(-1) - short.gather(1, targets[:, None])[:, 0]


def reconstruction_loss(reconstruction: Tensor, images: Tensor) -> Tensor:
    """The squared error, summed over all pixels and channels of an image (not averaged).

    reconstruction, images  (B, C, H, W), or (B, M, C, H, W) for several images each
    returns                 (B,)
    """
    if reconstruction.shape != images.shape:
        raise ValueError(f"reconstruction_loss: shapes differ, {tuple(reconstruction.shape)} and {tuple(images.shape)}")
    return (reconstruction - images).square().flatten(1).sum(-1)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy for class ids, binary cross-entropy summed over classes for multi-hot targets.

    logits   (B, J)
    targets  (B,) class ids, or (B, J) multi-hot
    returns  (B,)
    """
    if targets.ndim == 1:
        return functional.cross_entropy(logits, targets, reduction="none")
    return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none").sum(-1)


def combine(terms: dict[str, Tensor], weights: dict[str, float], example_weights: Tensor | None = None) -> Tensor:
    """Σ weight · term, averaged over the batch; a term without a weight does not count.

    terms            name → (B,)
    example_weights  (B,)  for imbalanced classes
    returns          ()
    """
    total = sum(weight * terms[name] for name, weight in weights.items() if weight)
    if not isinstance(total, Tensor):
        raise ValueError(f"every loss weight is zero: {weights}")
    return (total if example_weights is None else total * example_weights).mean()


def check_batch(name: str, values: Tensor, targets: Tensor) -> None:
    if len(values) != len(targets):  # one target would silently be taken for every example
        raise ValueError(f"{name}: {len(values)} examples, but {len(targets)} targets")


def multi_hot(targets: Tensor, classes: int) -> Tensor:
    """(B,) class ids or (B, J) multi-hot → (B, J) multi-hot, float."""
    if targets.ndim == 1:
        return functional.one_hot(targets.long(), classes).to(torch.get_default_dtype())
    if targets.shape[-1] != classes:
        raise ValueError(f"targets are for {targets.shape[-1]} classes, the model has {classes}")
    return targets
