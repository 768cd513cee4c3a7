"""Test images and predictions of a classifier, and which of them a report shows."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps import explain
from torchcaps.models import ImageModel


class PreparedImages:
    """Images (N, C, H, W) in [0, 1] as a model takes them, on the CPU; only those that are indexed are prepared.

    Args:
        model: prepares them.
        images: (N, C, H', W') uint8 or float, a tensor or FileImages.
    """

    def __init__(self, model: ImageModel, images: Any) -> None:
        self.model, self.images = model, images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Tensor:
        chosen = self.images[index]
        return self.model.prepare(chosen).cpu() if chosen.ndim == 4 else self.model.prepare(chosen[None])[0].cpu()


class ReportData(NamedTuple):
    """Test images and predictions.

    Attributes:
        images: (N, C, H, W) in [0, 1], a tensor or PreparedImages.
        targets: (N,) class ids, or (N, J) multi-hot.
        lengths: (N, J) of the class capsules.
        names: of the classes.
        each: the number of classes in every image, if known.
    """

    images: Any
    targets: Tensor
    lengths: Tensor
    names: list[str]
    each: int | None

    @property
    def several(self) -> bool:
        """Whether an image can have several classes."""
        return self.targets.ndim == 2

    def errors(self, limit: int | None = None) -> Tensor:
        """Return the positions of the wrong predictions, the most confident first."""
        return explain.worst_mistakes(self.lengths, self.targets, limit, self.each)

    def examples(self, limit: int) -> Tensor:
        """Return the positions of `limit` examples of the classes, then of up to two mistakes, without repetition."""
        mistakes = self.errors(2).tolist()
        examples = [place for place in first_of_each_class(self.targets, limit).tolist() if place not in mistakes]
        return torch.tensor([*examples, *mistakes])


def first_of_each_class(targets: Tensor, limit: int) -> Tensor:
    """Return the positions of the first image of each class, then of further images up to `limit`."""
    classes = targets.argmax(-1) if targets.ndim == 2 else targets
    first: dict[int, int] = {}
    for position, index in enumerate(classes.tolist()):
        first.setdefault(index, position)
    chosen = [first[index] for index in sorted(first)][:limit]
    taken = set(chosen)
    rest = (position for position in range(len(targets)) if position not in taken)
    return torch.tensor(chosen + [position for position, _ in zip(rest, range(limit - len(chosen)))])


def most_confident(lengths: Tensor, limit: int) -> list[int]:
    """Return the positions of the most confident predictions, each of another class."""
    best: dict[int, int] = {}
    for position in lengths.amax(-1).argsort(descending=True, stable=True).tolist():
        best.setdefault(int(lengths[position].argmax()), position)
        if len(best) == limit:
            break
    return list(best.values())
