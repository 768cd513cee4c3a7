"""What was answered, and where it was wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.capsules import PRESENT
from torchcaps.losses import multi_hot


def predicted_classes(lengths_BJ: Tensor, several: bool = False, each: int | None = None) -> Tensor:
    """(B, J) bool: the longest capsule, or, when there may be several classes, all from a length of 0.5 on.

    each  where every image is known to have so many classes: that many longest capsules
    """
    if each is not None:
        return torch.zeros_like(lengths_BJ).scatter_(1, lengths_BJ.topk(each).indices, 1.0).bool()
    if several:
        return lengths_BJ >= PRESENT
    return multi_hot(lengths_BJ.argmax(-1), lengths_BJ.shape[-1]).bool()


def confusion_matrix(true_B: Tensor, predicted_B: Tensor, classes: int) -> Tensor:
    """(J, J) counts: row t, column p tells how often class t was taken for class p."""
    cells = true_B.long() * classes + predicted_B.long()
    return torch.bincount(cells, minlength=classes * classes).view(classes, classes)


def precision_recall(lengths_BJ: Tensor, targets_BJ: Tensor, each: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """How much of what was found is right, and how much of what is there was found, for multi-hot targets.

    returns  precision (J,), recall (J,), NaN where nothing was found or is there; images that carry the label (J,)
    """
    found, there = predicted_classes(lengths_BJ, several=True, each=each), targets_BJ > 0
    right = (found & there).sum(0).float()
    return right / found.sum(0), right / there.sum(0), there.sum(0)


def worst_mistakes(lengths_BJ: Tensor, targets: Tensor, limit: int | None = None, each: int | None = None) -> Tensor:
    """Where the answer is wrong, most confidently wrong first.

    lengths_BJ  (B, J)
    targets     (B,) class ids, or (B, J) multi-hot
    returns     (M,) positions in the batch, M at most `limit`
    """
    there = multi_hot(targets, lengths_BJ.shape[-1]) > 0
    several = targets.ndim == 2
    wrong = predicted_classes(lengths_BJ, several, each) != there
    if several:  # a class that was missed counts by how short its capsule is
        confidence = torch.where(wrong, (there.float() - lengths_BJ).abs(), 0.0).amax(-1)
    else:
        confidence = lengths_BJ.amax(-1)
    positions = wrong.any(-1).nonzero().flatten()
    return positions[confidence[positions].argsort(descending=True, stable=True)][:limit]
