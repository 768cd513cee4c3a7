"""A saved model measured on a test set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchcaps.models import ImageModel
from torchcaps.train.recipe import LossSection
from torchcaps.train.tasks import TASKS, ClassificationTask
from torchcaps.train.tasks.test_sets import classification_test_set


def evaluate_model(
    model: ImageModel, data: str | None = None, *, views: bool = False, rejection: bool = False
) -> dict[str, Any]:
    """Evaluate a model on its own test set, or on other data.

    Args:
        model: a classifier or a segmentation model.
        data: an image folder, a CSV or a name; by default the model's own test set.
        views: classify by the mean over nine slightly moved views of each image.
        rejection: for a model with a rejection threshold, also return `none_of_these`: what `count_rejected`
            returns. It takes a second pass over the images, without views.

    Returns:
        data, n and loss; of classifiers accuracy and error; of segmentation models Dice, IoU, 95 % Hausdorff distance
        (pixels) and the share of wrong pixels, also per class and per image.
    """
    return TASKS[model.task].evaluate_saved(model, data, views, rejection)


def evaluate_ensemble(models: Sequence[ImageModel]) -> dict[str, Any]:
    """Evaluate classifiers of the same kind together, by the mean of their lengths."""
    dataset, name = classification_test_set(models[0])
    task = ClassificationTask.make(models[0], dataset, LossSection())
    lengths = torch.stack([task.evaluate(model, dataset).lengths for model in models]).mean(0)
    accuracy = task.correct(lengths, dataset.targets).mean().item()
    return {"data": name, "accuracy": accuracy, "error": 1 - accuracy, "n": len(dataset)}
