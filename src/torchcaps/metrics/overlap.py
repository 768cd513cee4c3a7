"""How well a predicted mask fits the true one: Dice, IoU, the distance between outlines, wrong pixels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.errors import UserError
from torchcaps.losses import IGNORED

MEASURES = ("dice", "iou", "hausdorff95")


class Summary(NamedTuple):
    """Means over images.

    per_class  class → measure → mean
    mean       measure → mean over all classes but the background
    """

    per_class: dict[int, dict[str, float]]
    mean: dict[str, float]


def overlap(predicted_HW: Tensor, mask_HW: Tensor, num_classes: int) -> dict[int, dict[str, float]]:
    """Dice, IoU and 95 % Hausdorff distance (in pixels) of each class of one image, the background included.

    A class that neither has is perfect: 1, 1 and 0. One that only one of them has is missed: 0, 0 and the diagonal of
    the image. Pixels whose true id is 255 do not count for Dice and IoU; for the distance they are background.

    predicted_HW  class ids
    mask_HW       class ids; 255 is ignored
    returns       class → measure → value
    """
    if num_classes < 2:
        raise UserError(f"overlap: there must be a background and another class, got num_classes={num_classes}")
    predicted, mask = predicted_HW.detach().cpu().long(), mask_HW.detach().cpu().long()
    counted = _counted(predicted, mask)
    _check_ids("predicted", predicted[counted], num_classes)
    _check_ids("true", mask[counted], num_classes)

    from monai.metrics import compute_dice, compute_iou  # takes two seconds

    found, true = (_one_hot(ids[counted], num_classes) for ids in (predicted, mask))
    dice = compute_dice(found, true, ignore_empty=False)[0].tolist()
    iou = compute_iou(found, true, ignore_empty=False)[0].tolist()

    found, true = (_one_hot(ids.where(counted, 0), num_classes) for ids in (predicted, mask))
    distances = [_distance(found[:, [index]], true[:, [index]]) for index in range(num_classes)]
    return {index: dict(zip(MEASURES, values)) for index, values in enumerate(zip(dice, iou, distances))}


def summarise(images: Sequence[dict[int, dict[str, float]]]) -> Summary:
    """The means over images of what `overlap` gave for each; every image counts the same."""
    if not images or any(image.keys() != images[0].keys() for image in images):
        raise ValueError("summarise: give the overlaps of at least one image, all for the same classes")
    per_class = {
        index: {name: math.fsum(image[index][name] for image in images) / len(images) for name in MEASURES}
        for index in images[0]
    }
    positive = [values for index, values in per_class.items() if index]
    return Summary(per_class, {name: math.fsum(v[name] for v in positive) / len(positive) for name in MEASURES})


def pixel_error(predicted_HW: Tensor, mask_HW: Tensor) -> float:
    """The share of pixels whose class is wrong, of those that are not ignored (255); 0 if all are."""
    counted = _counted(predicted_HW, mask_HW)
    return int((counted & (predicted_HW != mask_HW)).sum()) / max(int(counted.sum()), 1)


def _counted(predicted_HW: Tensor, mask_HW: Tensor) -> Tensor:
    if predicted_HW.ndim != 2 or predicted_HW.shape != mask_HW.shape:
        shapes = f"{tuple(predicted_HW.shape)} and {tuple(mask_HW.shape)}"
        raise ValueError(f"overlap: expected two masks of the same shape (H, W), got {shapes}")
    return mask_HW != IGNORED


def _check_ids(name: str, ids: Tensor, num_classes: int) -> None:
    wrong = ids[(ids < 0) | (ids >= num_classes)]
    if len(wrong):
        raise UserError(
            f"overlap: a {name} class id is {wrong[0]}, but there are {num_classes} classes, 0 to {num_classes - 1}; "
            f"give pixels to be ignored the id {IGNORED} in the mask"
        )


def _distance(found_11HW: Tensor, true_11HW: Tensor) -> float:
    """The larger of the distances within which 95 % of either outline lie from the other."""
    from monai.metrics import compute_hausdorff_distance

    if not found_11HW.any() or not true_11HW.any():  # MONAI has nan and inf
        return math.hypot(*true_11HW.shape[2:]) if found_11HW.any() or true_11HW.any() else 0.0
    with warnings.catch_warnings():  # of an argument that MONAI itself passes (its issue 9059)
        warnings.filterwarnings("ignore", ".*get_mask_edges:always_return_as_numpy", FutureWarning)
        return compute_hausdorff_distance(found_11HW, true_11HW, include_background=True, percentile=95).item()


def _one_hot(ids: Tensor, num_classes: int) -> Tensor:
    """(...) class ids → (1, classes, ...), as MONAI wants them."""
    return functional.one_hot(ids, num_classes).movedim(-1, 0)[None].to(torch.float32)
