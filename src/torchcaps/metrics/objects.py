"""How well found objects fit the true ones: F1, errors of position, angle and scale, average precision of boxes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.layers.part import LABEL, LEVEL, POSE, SIZE
from torchcaps.metrics import rounded
from torchcaps.similarity import Similarity

PIXELS, DEGREES = 1.5, 5.0  # within which an object counts as found
PRESENT = 0.5
IOU = 0.5


class Matches(NamedTuple):
    """Which true object each found one is.

    Attributes:
        found: (B, K) position of the true object; -1 for what is none, or was found before.
        counted: (B, K) whether the object is present, so that it counts.
        pixels, degrees, log_scale: (B, K) distances from the true object; NaN where there is none.
        known: number of true objects.
    """

    found: Tensor
    counted: Tensor
    pixels: Tensor
    degrees: Tensor
    log_scale: Tensor
    known: int

    def f1(self) -> float:
        """The harmonic mean of precision and recall; 1 if there is nothing to find and nothing found."""
        total = self.known + int(self.counted.sum())
        return 2 * int((self.found >= 0).sum()) / total if total else 1.0

    def summary(self) -> dict[str, float]:
        """F1, precision, recall, and median errors of the objects that were found."""
        right, said = int((self.found >= 0).sum()), int(self.counted.sum())
        figures = {
            "f1": self.f1(),
            "precision": right / said if said else math.nan,
            "recall": right / self.known if self.known else math.nan,
        }
        for name, values in (("pixels", self.pixels), ("degrees", self.degrees), ("scale", self.log_scale.abs())):
            errors = values[self.found >= 0]
            figures[f"median_error_{name}"] = float(errors.median()) if len(errors) else math.nan
        return {name: rounded(value) for name, value in figures.items()}


def match_objects(
    label: Tensor,
    presence: Tensor,
    pose: Tensor,
    truth: Tensor,
    level: int,
    *,
    pixels: float = PIXELS,
    degrees: float = DEGREES,
) -> Matches:
    """Match found objects with true ones of the same class: the most present first, each with the nearest one left.

    Args:
        label: (B, K) classes of the found objects.
        presence: (B, K) in [0, 1]; those above one half count.
        pose: (B, K, 4) as the numbers of a `Similarity`.
        truth: (B, N, 8) rows of an `ObjectDataset`.
        level: of the objects that count.
        pixels: the largest distance of a match.
        degrees: the largest difference of its angle; 180 for any.
    """
    label, presence, pose, truth = (each.cpu() for each in (label, presence, pose, truth))
    there = truth[..., LEVEL] == level
    step = (_inverse(truth[..., POSE], there)[:, None] @ Similarity(pose)[:, :, None]).log()
    apart = torch.cdist(pose[..., :2].double(), truth[..., POSE][..., :2].double()).to(pose)
    turned = step[..., 2].abs() * (180 / math.pi)
    counted = presence > PRESENT
    allowed = (label[:, :, None] == truth[:, None, :, LABEL]) & there[:, None] & counted[..., None]
    allowed = allowed & (apart <= pixels) & (turned <= degrees)
    found = _assign(apart.masked_fill(~allowed, math.inf), presence)
    place = found.clamp_min(0)[..., None]

    def at(values: Tensor) -> Tensor:
        return (
            values.gather(-1, place)[..., 0].masked_fill(found < 0, math.nan) if values.shape[-1] else found * math.nan
        )

    return Matches(found, counted, at(apart), at(turned), at(step[..., 3]), int(there.sum()))


def _inverse(pose: Tensor, there: Tensor) -> Similarity:
    return Similarity(torch.where(there[..., None], pose, pose.new_tensor([0, 0, 1, 0]))).inverse()


def _assign(costs: Tensor, presence: Tensor) -> Tensor:
    """(B, K) the cheapest free column of each row, the rows in the order of presence; -1 where all cost infinity."""
    B, K, _ = costs.shape
    found = torch.full((B, K), -1)
    order = presence.argsort(dim=1, descending=True, stable=True)
    for image in costs.isfinite().any((1, 2)).nonzero()[:, 0].tolist():
        free = costs[image].clone()
        for row in order[image].tolist():
            column = int(free[row].argmin())
            if free[row, column] < math.inf:
                found[image, row] = column
                free[:, column] = math.inf
    return found


def boxes_of(pose: Tensor, size: Tensor) -> Tensor:
    """(…, 4) left, top, right and bottom of upright boxes around turned ones.

    Args:
        pose: (…, 4) as the numbers of a `Similarity`.
        size: (…, 2) width and height at scale 1.
    """
    cos, sin = pose[..., 2].abs(), pose[..., 3].abs()
    reach = 0.5 * torch.stack([cos * size[..., 0] + sin * size[..., 1], sin * size[..., 0] + cos * size[..., 1]], -1)
    return torch.cat([pose[..., :2] - reach, pose[..., :2] + reach], -1)


def mean_average_precision(
    label: Tensor, presence: Tensor, boxes: Tensor, truth: Tensor, classes: int, iou: float = IOU
) -> float:
    """The mean over classes of the area under the curve of precision against recall, made monotonous.

    Args:
        label: (B, K) classes of the found objects.
        presence: (B, K) by which they are ranked; those of presence 0 are left out.
        boxes: (B, K, 4) left, top, right, bottom.
        truth: (B, N, 8) rows of an `ObjectDataset`, of level 0.
        classes: J.
        iou: from which a box fits.
    """
    label, presence, boxes, truth = (each.cpu() for each in (label, presence, boxes, truth))
    there = truth[..., LEVEL] == 0
    known = boxes_of(truth[..., POSE], truth[..., SIZE])
    overlap = _iou(boxes[:, :, None], known[:, None])
    fits = (label[:, :, None] == truth[:, None, :, LABEL]) & there[:, None] & (presence > 0)[..., None]
    right = _assign((1 - overlap).masked_fill(~fits | (overlap < iou), math.inf), presence) >= 0
    precisions = []
    for index in range(classes):
        total = int((there & (truth[..., LABEL] == index)).sum())
        chosen = (label == index) & (presence > 0)
        if total:
            order = presence[chosen].argsort(descending=True)
            precisions.append(_area(right[chosen][order].double(), total))
    return rounded(sum(precisions) / len(precisions)) if precisions else math.nan


def _area(right: Tensor, total: int) -> float:
    if not len(right):
        return 0.0
    precision = right.cumsum(0) / torch.arange(1, len(right) + 1)
    best = precision.flip(0).cummax(0).values.flip(0)  # the best precision at this recall or a higher one
    return float((best * right).sum() / total)


def _iou(one: Tensor, other: Tensor) -> Tensor:
    inside = torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])
    shared = inside.clamp_min(0).prod(-1)
    areas = [(each[..., 2:] - each[..., :2]).prod(-1) for each in (one, other)]
    return shared / (areas[0] + areas[1] - shared).clamp_min(1e-9)
