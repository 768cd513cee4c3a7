"""Predictions of several models for the same images, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.losses import reconstruction_loss
from torchcaps.models import ImageModel
from torchcaps.models.evaluating import evaluating

BATCH = 256

Models = Mapping[str, ImageModel]
Transform = Callable[[Tensor, torch.Generator], Tensor]  # images (B, C, H, W) → images


class Predictions(NamedTuple):
    """What a model predicts for N images, on the CPU.

    Attributes:
        lengths: (N, J) length of each class capsule.
        poses: (N, J, D) class capsules; None for models without capsules.
        errors: (N,) squared error between image and reconstruction; None for models without a decoder.
    """

    lengths: Tensor
    poses: Tensor | None
    errors: Tensor | None


def predict_batches(
    models: Models, images: Tensor, transform: Transform | None = None, seed: int = 0
) -> dict[str, Predictions]:
    """Run several models on the same images.

    Args:
        models: by name.
        images: (N, C, H, W) in [0, 1].
        transform: applied to each batch once, for all models.
        seed: of the generator that the transform receives.
    """
    generator = torch.Generator().manual_seed(seed)
    parts: dict[str, list[Predictions]] = {name: [] for name in models}
    for batch in images.split(BATCH):
        transformed = batch if transform is None else transform(batch, generator)
        for name, model in models.items():
            parts[name].append(_predict(model, transformed.to(model.device)))
    return {name: Predictions(*map(_concatenate, zip(*found))) for name, found in parts.items()}  # type: ignore[arg-type]


def _predict(model: ImageModel, images: Tensor) -> Predictions:
    with evaluating(model):
        output = model(images)
        drawn = output.reconstruction
        errors = None if drawn is None else reconstruction_loss(drawn, images).float().cpu()
    poses = None if output.poses is None else output.poses.float().cpu()
    return Predictions(output.lengths.float().cpu(), poses, errors)


def _concatenate(parts: Iterable[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None
