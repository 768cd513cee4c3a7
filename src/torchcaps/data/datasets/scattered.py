"""Digits scattered over an image: one to five of 128×128 pixels, each with the box around its ink."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset, Splits
from torchcaps.data.datasets.shapes.draws import Draws
from torchcaps.data.objects import ObjectDataset, pack_objects
from torchcaps.errors import UserError

SIZE, NUMBER, OVERLAP = 128, (1, 5), 0.3
TRAINING_IMAGES, TEST_IMAGES = 4000, 500
TRAINING_SEED, VALIDATION_SEED, TEST_SEED = 0, 20261118, 20261119
INK = 64  # grey level from which a pixel belongs to the digit, of 255
ATTEMPTS = 100  # to place a digit


class Digit(NamedTuple):
    """The ink of a digit, cut out, and its class."""

    image: Tensor
    label: int


def scatter_digits(
    digits: Dataset,
    count: int,
    seed: int,
    *,
    size: int = SIZE,
    number: tuple[int, int] = NUMBER,
    overlap: float = OVERLAP,
    twin: float = 0.0,
) -> ObjectDataset:
    """Put digits at random places of larger images.

    An object is a digit: its position is the centre of the box around its ink, its scale 1, and width and height those
    of the box.

    Args:
        digits: where digits are taken from.
        count: number of images.
        seed: of all random draws.
        size: side of an image.
        number: of digits in an image, the least and the most.
        overlap: the largest share of a digit's box that the box of another covers.
        twin: if not 0, each image has two digits of the same class with centres at this distance, in any direction,
            and `number` and `overlap` are not used.
    """
    if digits.images.shape[1] != 1 or digits.images.dtype != torch.uint8:
        raise UserError("scattered digits are made of grey images of 8 bits")
    if not 1 <= number[0] <= number[1] or not 0 <= overlap <= 1 or min(size, count) < 1 or twin < 0:
        raise UserError(f"scattered digits: impossible number={number}, overlap={overlap}, size={size} or {count=}")
    images, rows = [], []
    for at in range(count):
        draws = Draws(seed, [at])
        chosen = _twins(digits, draws, size, twin) if twin else _several(digits, draws, size, number, overlap)
        canvas = torch.zeros(size, size, dtype=torch.long)
        for digit, (left, top, right, bottom) in chosen:
            canvas[top:bottom, left:right] += digit.image
        images.append(canvas.clamp(max=255).to(torch.uint8)[None])
        rows.append([_row(digit.label, box) for digit, box in chosen])
    return ObjectDataset(torch.stack(images), pack_objects(rows), (digits.class_names,), (), (1,) * digits.num_classes)


Box = tuple[int, int, int, int]


def _row(label: int, box: Box) -> list[float]:
    left, top, right, bottom = box
    return [0, label, (left + right - 1) / 2, (top + bottom - 1) / 2, 1, 0, right - left, bottom - top]


def _several(
    digits: Dataset, draws: Draws, size: int, number: tuple[int, int], overlap: float
) -> list[tuple[Digit, Box]]:
    chosen: list[tuple[Digit, Box]] = []
    total = int(draws.integers("number", *number, 1))
    picks = draws.integers("digit", 0, len(digits) - 1, number[1])[0]
    for position in range(total):
        digit = _cut(digits, int(picks[position]))
        height, width = digit.image.shape
        if max(height, width) > size:
            raise UserError(f"scattered digits: a digit of {height}×{width} does not fit into {size}×{size} pixels")
        places = draws.unit(f"place {position}", ATTEMPTS, 2)[0].tolist()
        for across, down in places:
            left, top = int(across * (size - width + 1)), int(down * (size - height + 1))
            box = (left, top, left + width, top + height)
            if all(max(_share(box, other), _share(other, box)) <= overlap for _, other in chosen):
                chosen.append((digit, box))
                break
    return chosen


def _twins(digits: Dataset, draws: Draws, size: int, distance: float) -> list[tuple[Digit, Box]]:
    """Two digits of one class around the centre of the image."""
    first, second, way = draws.unit("twins", 3)[0].tolist()
    one = _cut(digits, int(first * len(digits)))
    same = (digits.targets == one.label).nonzero()[:, 0]
    other = _cut(digits, int(same[int(second * len(same))]))
    right, down = (distance / 2 * part for part in (math.cos(2 * math.pi * way), math.sin(2 * math.pi * way)))
    found = []
    for digit, sign in ((one, 1), (other, -1)):
        height, width = digit.image.shape
        left = round(size / 2 + sign * right - width / 2)
        top = round(size / 2 + sign * down - height / 2)
        found.append((digit, (left, top, left + width, top + height)))
    return found


def _cut(digits: Dataset, position: int) -> Digit:
    image = digits.images[position, 0]
    rows, columns = (image.amax(axis) >= min(INK, int(image.max())) for axis in (1, 0))
    rows, columns = rows.nonzero()[:, 0], columns.nonzero()[:, 0]
    cut = image[int(rows[0]) : int(rows[-1]) + 1, int(columns[0]) : int(columns[-1]) + 1]
    return Digit(cut.long(), int(digits.targets[position]))


def _share(box: Box, other: Box) -> float:
    """The share of a box that another covers."""
    across = min(box[2], other[2]) - max(box[0], other[0])
    down = min(box[3], other[3]) - max(box[1], other[1])
    return max(0, across) * max(0, down) / ((box[2] - box[0]) * (box[3] - box[1]))


def scattered_splits(digits: Splits[Dataset], limit: int | None = None) -> Splits[ObjectDataset]:
    """Scatter the digits of each split.

    Args:
        digits: where digits are taken from.
        limit: the most training images.
    """
    validation, test = digits.validation, digits.test
    return Splits(
        scatter_digits(digits.train, min(limit or TRAINING_IMAGES, TRAINING_IMAGES), TRAINING_SEED),
        None if validation is None else scatter_digits(validation, TEST_IMAGES, VALIDATION_SEED),
        None if test is None else scatter_digits(test, TEST_IMAGES, TEST_SEED),
        f"scattered-{digits.source}",
    )
