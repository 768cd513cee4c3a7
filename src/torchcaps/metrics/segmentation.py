"""How well predicted masks fit the true ones: Dice, IoU, 95 % Hausdorff distance, pixel error."""

from __future__ import annotations

import csv
import io
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.data import SegmentationDataset
from torchcaps.errors import UserError
from torchcaps.losses import IGNORED

MEASURES = ("dice", "iou", "hausdorff95")


class Summary(NamedTuple):
    """Means over images.

    Attributes:
        per_class: class → measure → mean.
        mean: measure → mean over all classes but the background.
    """

    per_class: dict[int, dict[str, float]]
    mean: dict[str, float]


class Scores(NamedTuple):
    """How well each of N masks fits the true one.

    Attributes:
        names: of the images.
        classes: names of the J classes.
        each: class → measure → value for each of the N images, as `mask_metrics` returns them.
        errors: share of wrong pixels of each of the N images.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    each: list[dict[int, dict[str, float]]]
    errors: list[float]

    def means(self) -> dict[str, float]:
        """Return means over images and over all classes but the background."""
        return {**summarise(self.each).mean, "pixel_error": sum(self.errors) / len(self.errors)}

    def per_class(self) -> dict[str, dict[str, float]]:
        """Return means over images for every class."""
        return {self.classes[index]: values for index, values in summarise(self.each).per_class.items()}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each image and class."""
        return [
            {"image": name, "class": self.classes[index], **values, "pixel_error": error}
            for name, image, error in zip(self.names, self.each, self.errors)
            for index, values in image.items()
        ]

    def dice(self) -> list[float]:
        """Return the Dice of each image, the mean over all classes but the background."""
        return [summarise([image]).mean["dice"] for image in self.each]


def score(found: Sequence[Tensor], segments: SegmentationDataset, classes: tuple[str, ...] | None = None) -> Scores:
    """Compare predicted masks with the true masks of a dataset.

    Args:
        found: N masks (H, W) of class ids.
        segments: the dataset with N images.
        classes: class names to use instead of the dataset's.
    """
    pairs = list(zip(found, segments.masks))
    each = [mask_metrics(predicted, true, segments.num_classes) for predicted, true in pairs]
    errors = [pixel_error(predicted, true) for predicted, true in pairs]
    return Scores(segments.names, classes or segments.class_names, each, errors)


def as_csv(scores: Scores) -> str:
    """Return the rows as CSV text with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["image", "class", *MEASURES, "pixel_error"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(scores.rows())
    return text.getvalue()


def dice(predicted_BHW: Tensor, masks_BHW: Tensor, num_classes: int) -> Tensor:
    """Compute the Dice coefficient of each class in each mask; 1 where neither mask has the class.

    Args:
        predicted_BHW: (B, H, W) class ids.
        masks_BHW: (B, H, W) true class ids; pixels with id 255 are ignored.
        num_classes: J, the background included.

    Returns:
        (J, B).
    """
    both_JB, sizes_JB = _overlaps(predicted_BHW, masks_BHW, num_classes)
    return torch.where(sizes_JB > 0, 2 * both_JB / sizes_JB.clamp_min(1), 1.0)


def iou(predicted_BHW: Tensor, masks_BHW: Tensor, num_classes: int) -> Tensor:
    """Compute the intersection over union of each class in each mask, with the arguments and result of `dice`."""
    both_JB, sizes_JB = _overlaps(predicted_BHW, masks_BHW, num_classes)
    return torch.where(sizes_JB > 0, both_JB / (sizes_JB - both_JB).clamp_min(1), 1.0)


def mask_metrics(predicted_HW: Tensor, mask_HW: Tensor, num_classes: int) -> dict[int, dict[str, float]]:
    """Compute Dice, IoU and 95 % Hausdorff distance (in pixels) of each class of one image.

    A class that neither mask has scores 1, 1 and 0. A class that only one of them has scores 0, 0 and the diagonal of
    the image. Ignored pixels do not count for Dice and IoU; for the distance they are background.

    Args:
        predicted_HW: (H, W) class ids.
        mask_HW: (H, W) true class ids; pixels with id 255 are ignored.
        num_classes: at least 2, the background included.

    Returns:
        class → measure → value.
    """
    if num_classes < 2:
        raise UserError(f"mask_metrics: a background and one other class are needed, got num_classes={num_classes}")
    predicted, mask = predicted_HW.detach().cpu().long(), mask_HW.detach().cpu().long()
    counted = _counted(predicted, mask)
    _check_ids("predicted", predicted[counted], num_classes)
    _check_ids("true", mask[counted], num_classes)
    overlaps = [measure(predicted[None], mask[None], num_classes)[:, 0].tolist() for measure in (dice, iou)]
    found, true = (_one_hot(ids.where(counted, 0), num_classes) for ids in (predicted, mask))
    distances = [_distance(found[:, [index]], true[:, [index]]) for index in range(num_classes)]
    return {index: dict(zip(MEASURES, values)) for index, values in enumerate(zip(*overlaps, distances))}


def summarise(images: Sequence[dict[int, dict[str, float]]]) -> Summary:
    """Average what `mask_metrics` returned for each image; every image has the same weight."""
    if not images or any(image.keys() != images[0].keys() for image in images):
        raise ValueError("summarise: give the metrics of at least one image, all for the same classes")
    per_class = {
        index: {name: math.fsum(image[index][name] for image in images) / len(images) for name in MEASURES}
        for index in images[0]
    }
    positive = [values for index, values in per_class.items() if index]
    return Summary(per_class, {name: math.fsum(v[name] for v in positive) / len(positive) for name in MEASURES})


def pixel_error(predicted_HW: Tensor, mask_HW: Tensor) -> float:
    """Return the share of wrong pixels among those that are not ignored (id 255); 0 if all are ignored."""
    counted = _counted(predicted_HW, mask_HW)
    return int((counted & (predicted_HW != mask_HW)).sum()) / max(int(counted.sum()), 1)


def _overlaps(predicted_BHW: Tensor, masks_BHW: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Count the pixels that both masks give a class, and the sum of the pixels that each gives it: (J, B) each."""
    counted = masks_BHW != IGNORED
    both, sizes = [], []
    for index in range(num_classes):
        found, true = (predicted_BHW == index) & counted, masks_BHW == index
        both.append((found & true).flatten(1).sum(1))
        sizes.append(found.flatten(1).sum(1) + true.flatten(1).sum(1))
    return torch.stack(both), torch.stack(sizes)


def _counted(predicted_HW: Tensor, mask_HW: Tensor) -> Tensor:
    if predicted_HW.ndim != 2 or predicted_HW.shape != mask_HW.shape:
        shapes = f"{tuple(predicted_HW.shape)} and {tuple(mask_HW.shape)}"
        raise ValueError(f"mask_metrics: expected two masks of the same shape (H, W), got {shapes}")
    return mask_HW != IGNORED


def _check_ids(name: str, ids: Tensor, num_classes: int) -> None:
    wrong = ids[(ids < 0) | (ids >= num_classes)]
    if len(wrong):
        raise UserError(
            f"mask_metrics: a {name} class id is {wrong[0]}, but there are {num_classes} classes, "
            f"0 to {num_classes - 1}; give pixels to be ignored the id {IGNORED} in the mask"
        )


def _distance(found_11HW: Tensor, true_11HW: Tensor) -> float:
    """Return the larger of the distances within which 95 % of either outline lie from the other."""
    from monai.metrics import compute_hausdorff_distance  # takes two seconds

    if not found_11HW.any() or not true_11HW.any():  # MONAI returns NaN and inf
        return math.hypot(*true_11HW.shape[2:]) if found_11HW.any() or true_11HW.any() else 0.0
    with warnings.catch_warnings():  # about an argument that MONAI itself passes (its issue 9059)
        warnings.filterwarnings("ignore", ".*get_mask_edges:always_return_as_numpy", FutureWarning)
        return compute_hausdorff_distance(found_11HW, true_11HW, include_background=True, percentile=95).item()


def _one_hot(ids: Tensor, num_classes: int) -> Tensor:
    """Turn class ids (H, W) into (1, J, H, W), as MONAI expects them."""
    return functional.one_hot(ids, num_classes).movedim(-1, 0)[None].to(torch.float32)
