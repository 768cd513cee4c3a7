"""Drawn scenes as data sets with objects."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchcaps.data.dataset import Splits
from torchcaps.data.datasets.shapes.objects import Objects
from torchcaps.data.datasets.shapes.parts import PART_KINDS, PARTS
from torchcaps.data.datasets.shapes.scenes import Scenes, draw_shapes
from torchcaps.data.datasets.shapes.sets import FROZEN_SETS, TRAINING_SEED, frozen_set
from torchcaps.data.datasets.shapes.wholes import member_table, whole_of
from torchcaps.data.objects import NOTHING, ObjectDataset
from torchcaps.data.split import SplitOptions, split_dataset
from torchcaps.errors import UserError
from torchcaps.similarity import Similarity


def annotate(scenes: Scenes, parts: Sequence[str] = PARTS, first: int = 0) -> ObjectDataset:
    """Images of shapes with their objects.

    Args:
        scenes: as `draw_shapes` returns them.
        parts: the types of parts that are told apart; others are not annotated.
        first: the lowest level that is annotated; its objects are the parts.
    """
    levels = scenes.levels[first:]
    parts = parts if levels[0].names == PARTS else levels[0].names
    names = (tuple(parts), *(level.names for level in levels[1:]))
    known = [_rows(level, names[number], number) for number, level in enumerate(levels)]
    members = []
    for below, above in itertools.pairwise(names):
        table = member_table(above)
        rows = zip(table.label.tolist(), table.present.tolist())
        members.append(
            tuple(tuple(below.index(table.names[id]) for id, is_there in zip(*row) if is_there) for row in rows)
        )
    symmetry = tuple(PART_KINDS[name].symmetry if name in PART_KINDS else 1 for name in names[0])
    images = (255 * scenes.images).round().to(torch.uint8).cpu()
    return ObjectDataset(images, torch.cat(known, 1), names, tuple(members), symmetry)


def _rows(level: Objects, names: Sequence[str], number: int) -> Tensor:
    """(B, N, 8) the objects of one level, with labels within `names`."""
    places = torch.tensor([names.index(name) if name in names else -1 for name in level.names])
    label = places[level.label.cpu()]
    present = level.present.cpu() & (label >= 0)
    numbers = Similarity.of(x=level.x, y=level.y, angle=level.angle, scale=level.scale).numbers.float().cpu()
    size = torch.tensor([_size(name) for name in level.names])[level.label.cpu()]
    columns = [present.where(present, False).float() * (number - NOTHING) + NOTHING, label.clamp_min(0).float()]
    return torch.cat([torch.stack(columns, -1), numbers, size], -1)


def _size(name: str) -> tuple[float, float]:
    """Width and height of a part or whole at scale 1: of what is not a polygon, of the circle around it."""
    if name not in PART_KINDS:
        radius = whole_of(name).radius
    elif corners := PART_KINDS[name].corners:
        x, y = zip(*corners)
        return max(x) - min(x), max(y) - min(y)
    else:
        radius = PART_KINDS[name].radius
    return 2 * radius, 2 * radius


class ShapeSource:
    """A data set of drawn scenes with objects: training images are drawn, the test images are a frozen set.

    Args:
        name: of the data set.
        count: training images.
        test: in FROZEN_SETS.
        parts: as in `annotate`.
        first: as in `annotate`.
        **parameters: of `ShapeParameters`, for training.
    """

    def __init__(
        self, name: str, count: int, test: str, parts: Sequence[str] = PARTS, first: int = 0, **parameters: Any
    ):
        self.name, self.count, self.test, self.parts, self.first = name, count, test, tuple(parts), first
        self.parameters = parameters

    def __call__(self, path: Any, size: Any, channels: int | None, options: SplitOptions) -> Splits[Any]:
        if path is not None or size is not None or channels not in (None, 1):
            raise UserError(f"{self.name} is drawn: omit path, image_size and channels")
        drawn = draw_shapes(self.count, TRAINING_SEED, dtype=torch.float64, **self.parameters)
        assert TRAINING_SEED not in [known.seed for known in FROZEN_SETS.values()]
        train, test = (annotate(scenes, self.parts, self.first) for scenes in (drawn, frozen_set(self.test)))
        first, validation, tested = split_dataset(train, None, test, options)
        return Splits(first, validation, tested, self.name)
