"""Arrays of a user's as a Dataset; what could be misread is an error or a warning that names the fix."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.checks import check_images
from torchcaps.data.dataset import Dataset
from torchcaps.errors import UserError


def as_dataset(images: Any, labels: Any, class_names: Sequence[str] | None = None) -> Dataset:
    """Make a Dataset of arrays, and name every mistake in them.

    Args:
        images: (N, H, W), (N, C, H, W) or (N, H, W, C) with C 1 or 3; uint8, or floats in [0, 1].
        labels: (N,) class ids from 0, or names, or (N, J) multi-hot.
        class_names: one for each class; by default the ids, or the names in alphabetical order.
    """
    return make_dataset(images, labels, class_names)


def make_dataset(images: Any, labels: Any, class_names: Sequence[str] | None = None, scaled: bool = True) -> Dataset:
    """`as_dataset`; `scaled` says whether floats must be in [0, 1]."""
    pixels = _as_tensor("images", images)
    targets, names = _as_targets(labels, class_names)
    if len(pixels) != len(targets) or len(pixels) == 0:
        raise UserError(f"fit: {len(pixels)} images and {len(targets)} labels were given; give one label an image")
    return Dataset(_as_pixels(pixels, scaled), targets, names)


def _as_targets(labels: Any, class_names: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Targets as a Dataset has them, and the class names."""
    words = np.asarray(labels) if not isinstance(labels, Tensor) else None
    if words is not None and words.ndim == 1 and len(words) and all(isinstance(each, str) for each in words.tolist()):
        return _as_ids(words.tolist(), class_names)
    targets = _as_tensor("labels", labels)
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim == 2 and not bool(((targets == 0) | (targets == 1)).all()):
        raise UserError("fit: labels of several classes must be 0 or 1, one column a class")
    if targets.ndim not in (1, 2):
        raise UserError(f"fit: labels must be (N,) class ids or (N, J) multi-hot, got {tuple(targets.shape)}")
    if targets.ndim == 1:
        targets = _check_ids(targets, class_names)
    count = targets.shape[1] if targets.ndim == 2 else int(targets.max()) + 1 if len(targets) else 0
    names = tuple(class_names) if class_names else tuple(str(index) for index in range(count))
    return targets if targets.ndim == 1 else targets.float(), names


def _as_ids(words: list[str], class_names: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Class ids for labels that are names."""
    names = tuple(class_names) if class_names else tuple(sorted(set(words)))
    if unknown := sorted(set(words) - set(names)):
        raise UserError(f"fit: labels hold {unknown[0]!r}, which is not in class_names: add it there")
    ids = {name: index for index, name in enumerate(names)}
    return torch.tensor([ids[word] for word in words]), names


def _check_ids(targets: Tensor, class_names: Sequence[str] | None) -> Tensor:
    """Class ids (N,) as int64."""
    if not len(targets):
        return targets.long()
    if targets.is_floating_point():
        if not bool((targets == targets.round()).all()):
            raise UserError("fit: labels must be whole numbers, or an (N, J) multi-hot array")
        warnings.warn(
            "fit: the labels are floats and are read as class ids; convert them to integers to say so", stacklevel=6
        )
    targets = targets.long()
    least, most = int(targets.min()), int(targets.max())
    if least < 0:
        raise UserError(f"fit: labels must be class ids from 0, got {least}")
    if class_names and most >= len(class_names):
        shift = "; subtract 1 from the labels" if (least, most) == (1, len(class_names)) else ""
        raise UserError(f"fit: labels reach {most}, but {len(class_names)} class names are numbered from 0{shift}")
    if least > 0 and not class_names:
        warnings.warn(
            f"fit: labels run from {least} to {most}, so class 0 never occurs and the model has {most + 1} classes: "
            f"subtract {least} from the labels, or give class_names",
            stacklevel=6,
        )
    return targets


def _as_tensor(what: str, values: Any) -> Tensor:
    try:
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
    except (TypeError, ValueError) as error:
        raise UserError(f"fit: {what} must be numbers, in one array: {error}") from error
    return tensor.to(torch.int32) if tensor.dtype == torch.uint16 else tensor


def _as_pixels(images: Tensor, scaled: bool) -> Tensor:
    """(N, C, H, W), uint8 or float32."""
    images = channels_first(images[:, None] if images.ndim == 3 else images)
    if images.dtype == torch.bool:
        return images.float()
    if images.is_complex():
        raise UserError("fit: images must be real numbers, got complex ones: give images.real or images.abs()")
    check_images(images, scaled=scaled)
    return images.float() if images.is_floating_point() else images.to(torch.uint8)


def channels_first(images: Tensor, where: str = "fit") -> Tensor:
    """(N, C, H, W) of images with the channels in the second axis or the last.

    Args:
        images: with four axes.
        where: with what messages begin.
    """
    shape = tuple(images.shape)
    if images.ndim != 4:
        features = "; feature vectors are for a module of your own: give a TensorDataset" if images.ndim == 2 else ""
        raise UserError(f"{where}: images must be (N, H, W), (N, C, H, W) or (N, H, W, C), got {shape}{features}")
    first, last = shape[1] in (1, 3), shape[3] in (1, 3)
    if first and last and shape[1:] != (1, 1, 1):
        warnings.warn(
            f"{where}: images of shape {shape} are read as (N, C, H, W) with {shape[1]} channels; if they are "
            "(N, H, W, C), move the last axis to the second place",
            stacklevel=6,
        )
    return images.permute(0, 3, 1, 2).contiguous() if last and not first else images
