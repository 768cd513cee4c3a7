"""The images a classifier was tested on, what it answered, and which of them a report shows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps import explain


class Tested(NamedTuple):
    """The images a model was tested on, and what it answered.

    images   (N, C, H, W)
    targets  (N,) class ids, or (N, J) multi-hot
    lengths  (N, J)
    names    of the classes
    each     how many classes every image has, where that is known
    """

    images: Tensor
    targets: Tensor
    lengths: Tensor
    names: list[str]
    each: int | None

    @property
    def several(self) -> bool:
        return self.targets.ndim == 2

    def mistakes(self, limit: int | None = None) -> Tensor:
        return explain.worst_mistakes(self.lengths, self.targets, limit, self.each)

    def shown(self, limit: int) -> Tensor:
        """Positions of `limit` examples of the classes, and after them of up to two mistakes; none comes twice."""
        mistakes = self.mistakes(2).tolist()
        examples = [place for place in examples_of(self.targets, limit).tolist() if place not in mistakes]
        return torch.tensor([*examples, *mistakes])


def examples_of(targets: Tensor, limit: int) -> Tensor:
    """Positions of the first image of each class, then of the next ones until there are `limit`."""
    classes = targets.argmax(-1) if targets.ndim == 2 else targets
    first: dict[int, int] = {}
    for position, index in enumerate(classes.tolist()):
        first.setdefault(index, position)
    chosen = [first[index] for index in sorted(first)][:limit]
    taken = set(chosen)
    rest = (position for position in range(len(targets)) if position not in taken)
    return torch.tensor(chosen + [position for position, _ in zip(rest, range(limit - len(chosen)))])


def surest(lengths: Tensor, limit: int) -> list[int]:
    """Positions of the most confident answers, no two of the same class."""
    best: dict[int, int] = {}
    for position in lengths.amax(-1).argsort(descending=True, stable=True).tolist():
        best.setdefault(int(lengths[position].argmax()), position)
        if len(best) == limit:
            break
    return list(best.values())
