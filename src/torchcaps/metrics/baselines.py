"""What simple classifiers reach on the same split: chance, the majority class, HOG with a linear SVM."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data import Dataset
from torchcaps.data.images import resize_images
from torchcaps.data.split import allocate

ORIENTATIONS, BLOCK = 9, 2  # of the histograms, and cells a side over which they are normalised
CELLS = 8  # a side, so that images of any size have about as many features
LEAST_SIDE = 16  # smaller images are enlarged
COSTS = (1e-3, 1e-2, 1e-1)  # of the SVM; one of them is chosen by cross-validation on training images
FOLDS = 3
# Bounds that keep the time below about ten seconds on one core.
MAX_IMAGES = 4000
MAX_PIXELS = 1 << 23  # 8,192 images of 32×32
MAX_SVM_ENTRIES = 1 << 28  # images × features × classes × fits
SEED = 0


class Baselines(NamedTuple):
    """Accuracies on the held-out images.

    Attributes:
        chance: of guessing each class equally often.
        majority: of always answering the most frequent class of the training images.
        hog_svm: of histograms of oriented gradients and a linear SVM; None if it was left out.
        note: on how many images it was trained and tested if not on all, or why it was left out; else empty.
        seconds: that HOG and SVM took.
    """

    chance: float
    majority: float
    hog_svm: float | None
    note: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for a summary."""
        return {key: value for key, value in self._asdict().items() if value not in (None, "")}


def measure_baselines(train: Dataset, held_out: Dataset) -> Baselines:
    """Fit on training images, and measure on held-out ones.

    Args:
        train: images with one class each.
        held_out: the images that the network is measured on.
    """
    counts = train.class_counts()
    majority = float((held_out.targets == counts.argmax()).float().mean())
    started = time.perf_counter()
    accuracy, note = _hog_svm(train, held_out)
    return Baselines(1 / train.num_classes, majority, accuracy, note, round(time.perf_counter() - started, 2))


def _hog_svm(train: Dataset, held_out: Dataset) -> tuple[float | None, str]:
    limit = min(MAX_IMAGES, MAX_PIXELS // max(1, math.prod(train.image_shape[1:])))
    limit = min(limit, MAX_SVM_ENTRIES // (BLOCK**2 * ORIENTATIONS * (CELLS - 1) ** 2 * train.num_classes))
    if int((train.class_counts() > 0).sum()) < 2 or limit < 2 * train.num_classes:
        return None, f"HOG + SVM left out: too slow for {train.num_classes:,} classes of this size"
    chosen, tested = _subsample(train, limit), _subsample(held_out, limit)
    features = hog_features(chosen.images[:])
    svm = fit_svm(features, chosen.targets.numpy())
    accuracy = float(svm.score(hog_features(tested.images[:]), tested.targets.numpy()))
    if len(chosen) == len(train) and len(tested) == len(held_out):
        return accuracy, ""
    return accuracy, f"HOG + SVM trained on {len(chosen):,} and tested on {len(tested):,} images, stratified by class"


def hog_features(images: Tensor) -> np.ndarray:
    """Compute histograms of oriented gradients.

    Args:
        images: (N, C, H, W) uint8, or float in [0, 1].

    Returns:
        (N, F).
    """
    from skimage.feature import hog

    if min(images.shape[2:]) < LEAST_SIDE:
        scale = -(-LEAST_SIDE // min(images.shape[2:]))
        size = (images.shape[2] * scale, images.shape[3] * scale)
        if images.is_floating_point():
            images = (images * 255).round().to(torch.uint8)
        images = resize_images(images, size)
    cell = max(2, round(min(images.shape[2:]) / CELLS))
    options: dict[str, Any] = {"orientations": ORIENTATIONS, "cells_per_block": (BLOCK, BLOCK), "channel_axis": -1}
    return np.stack([hog(image.permute(1, 2, 0).numpy(), pixels_per_cell=(cell, cell), **options) for image in images])


def fit_svm(features: np.ndarray, targets: np.ndarray, costs: tuple[float, ...] = COSTS) -> Any:
    """Fit a linear SVM, with the cost that is best in a cross-validation on the same examples.

    Args:
        features: (N, F).
        targets: (N,) class ids.
        costs: to choose from.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.svm import LinearSVC

    folds = min(FOLDS, int(np.unique(targets, return_counts=True)[1].min()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        svm = LinearSVC(C=costs[len(costs) // 2], dual="auto", random_state=SEED)
        if folds < 2 or len(costs) == 1:
            return svm.fit(features, targets)
        search = GridSearchCV(svm, {"C": list(costs)}, cv=StratifiedKFold(folds, shuffle=True, random_state=SEED))
        return search.fit(features, targets)


def _subsample(data: Dataset, limit: int) -> Dataset:
    """Return at most `limit` images, as many of each class as its share."""
    if len(data) <= limit:
        return data
    sizes = data.class_counts().tolist()
    generator = torch.Generator().manual_seed(SEED)
    chosen = []
    for label, count in enumerate(allocate(sizes, limit, sizes, 2 if limit >= 2 * len(sizes) else 0)):
        members = (data.targets == label).nonzero().flatten()
        chosen.append(members[torch.randperm(len(members), generator=generator)[:count]])
    return data.subset(torch.cat(chosen).sort().values)
