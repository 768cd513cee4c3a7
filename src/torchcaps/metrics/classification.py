"""Predicted classes, accuracy, confusion, precision and recall, and the worst mistakes."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.capsules import PRESENT
from torchcaps.losses import multi_hot


def predicted_classes(lengths_BJ: Tensor, several: bool = False, each: int | None = None) -> Tensor:
    """Predict the class of the longest capsule, or several classes.

    Args:
        lengths_BJ: (B, J) length of each class capsule.
        several: predict every class whose capsule has a length of at least 0.5.
        each: the number of classes in every image, if known; that many longest capsules are predicted.

    Returns:
        (B, J) bool.
    """
    if each is not None:
        return torch.zeros_like(lengths_BJ).scatter_(1, lengths_BJ.topk(each).indices, 1.0).bool()
    if several:
        return lengths_BJ >= PRESENT
    return multi_hot(lengths_BJ.argmax(-1), lengths_BJ.shape[-1]).bool()


def accuracy(lengths_NJ: Tensor, targets_N: Tensor) -> float:
    """Return the share of images whose longest capsule is that of the true class."""
    return float((lengths_NJ.argmax(-1) == targets_N.cpu()).float().mean())


def mean_true_length(lengths_NJ: Tensor, targets_N: Tensor) -> float:
    """Return the mean length (or probability) of the true class."""
    return float(lengths_NJ.gather(1, targets_N.cpu()[:, None]).mean())


def confusion_matrix(true_B: Tensor, predicted_B: Tensor, classes: int) -> Tensor:
    """Count how often class t (row) was predicted as class p (column): (J, J)."""
    cells = true_B.long() * classes + predicted_B.long()
    return torch.bincount(cells, minlength=classes * classes).view(classes, classes)


def precision_recall(lengths_BJ: Tensor, targets_BJ: Tensor, each: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return precision, recall and support of each class for multi-hot targets.

    Args:
        lengths_BJ: (B, J) length of each class capsule.
        targets_BJ: (B, J) multi-hot.
        each: the number of classes in every image, if known.

    Returns:
        Precision (J,) and recall (J,), NaN where a class was never predicted or never occurs; support (J,), the number
        of images that contain the class.
    """
    predicted, true = predicted_classes(lengths_BJ, several=True, each=each), targets_BJ > 0
    right = (predicted & true).sum(0).float()
    return right / predicted.sum(0), right / true.sum(0), true.sum(0)


def worst_mistakes(lengths_BJ: Tensor, targets: Tensor, limit: int | None = None, each: int | None = None) -> Tensor:
    """Find the wrong predictions, the most confident first.

    Args:
        lengths_BJ: (B, J) length of each class capsule.
        targets: (B,) class ids, or (B, J) multi-hot.
        limit: the maximum number of mistakes to return.
        each: the number of classes in every image, if known.

    Returns:
        (M,) positions in the batch.
    """
    true = multi_hot(targets, lengths_BJ.shape[-1]) > 0
    several = targets.ndim == 2
    wrong = predicted_classes(lengths_BJ, several, each) != true
    # Of several classes, a missed one counts by how short its capsule is.
    errors = torch.where(wrong, (true.float() - lengths_BJ).abs(), 0.0) if several else lengths_BJ
    confidence = errors.amax(-1)
    positions = wrong.any(-1).nonzero().flatten()
    return positions[confidence[positions].argsort(descending=True, stable=True)][:limit]
