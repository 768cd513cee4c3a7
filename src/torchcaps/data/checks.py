"""Images and labels that would be misread: an error, or a warning that names the fix."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchcaps.errors import UserError

MAX_DARK = 16  # integer images that end here, as the digits of scikit-learn do, do not run to 255
SLIGHT = 0.5  # by which images of a stream may leave [0, 1] with a warning, as interpolated and noisy ones do


def check_images(images: Tensor, where: str = "fit", scaled: bool = True) -> None:
    """Raise a UserError, or warn, unless images in memory are what a model takes.

    Args:
        images: (N, C, H, W).
        where: with what messages begin.
        scaled: whether floats must be in [0, 1]; a module of a user's own may take others.
    """
    if looks_channels_last(images.shape[1:]):
        check_channels(images.shape, where, scaled=True)
    if not images.numel():
        return
    if images.is_floating_point() and not bool(images.isfinite().all()):
        bad = int((~images.isfinite()).flatten(1).any(1).nonzero()[0])
        raise UserError(f"{where}: image {bad} holds NaN or infinity; clean the data first")
    low, high = map(float, images.aminmax())
    if images.is_floating_point():
        note = check_floats(low, high, where, scaled)
        if note:
            warnings.warn(note, stacklevel=5)
    else:
        check_whole(low, high, where)


def check_floats(low: float, high: float, where: str, scaled: bool, slack: float = 0.0) -> str | None:
    """Raise a UserError for a range of floats that a model cannot take; or return what to warn of.

    Args:
        low: the least value of all images.
        high: the largest.
        where: with what messages begin.
        scaled: whether they must be in [0, 1].
        slack: by which they may leave it with a warning.
    """
    if not math.isfinite(low) or not math.isfinite(high):
        raise UserError(f"{where}: an image holds NaN or infinity; clean the data first")
    these = f"range from {low:.4g} to {high:.4g}"
    divisor = 16 if low >= 0 and high == MAX_DARK else 255
    if not scaled:
        far = max(-low, high) >= MAX_DARK
        return (
            f"{where}: the images {these}: divide by {divisor}, unless the module scales them itself" if far else None
        )
    if low < -slack or high > 1 + slack:
        raise UserError(
            f"{where}: float images must be in [0, 1], these {these}; divide by {divisor}, or undo a normalisation "
            "(model options mean and std do that)"
        )
    return f"{where}: float images should be in [0, 1], these {these}: use clamp(0, 1)" if low < 0 or high > 1 else None


def check_whole(low: float, high: float, where: str) -> None:
    """Raise a UserError unless integer images run up to 255."""
    if low < 0 or high > 255:
        raise UserError(f"{where}: integer images must be in 0…255")
    if 0 < high <= MAX_DARK:
        raise UserError(
            f"{where}: integer images are read as 0…255, and these end at {high:.0f}, almost black: divide by "
            f"{high:.0f} if that is white, or by 255 if they are that dark"
        )


def looks_channels_last(shape: Sequence[int]) -> bool:
    """Whether the shape of an image is more likely (H, W, C) than (C, H, W)."""
    if len(shape) != 3 or min(shape[:2]) <= 4:
        return False
    return shape[2] <= 4 or shape[0] == shape[1] > shape[2]


def check_channels(shape: Sequence[Any], where: str, scaled: bool) -> None:
    """Raise a UserError, or warn, of images (N, …) that look so.

    Args:
        shape: of the images.
        where: with what messages begin.
        scaled: whether they are for a model of this package, of which a wrong number of channels would be an option.
    """
    axes = ", ".join(map(str, shape))
    words = (
        f"{where}: images of shape ({axes}) look like (N, H, W, C) with {shape[3]} channels: move the last axis to the "
        "second place, or drop an alpha channel with images[..., :3]"
    )
    if scaled and shape[3] <= 4:
        raise UserError(words)
    warnings.warn(words, stacklevel=6)


class StreamCheck:
    """Checks the batches of a stream: a sample before training, then what passes by once, in the first epoch.

    Extremes are kept where the batches are. Those of a CPU are looked at in every batch, others when all have passed:
    nothing waits for a device before.

    Args:
        total: examples in the stream, or batches of a DataLoader.
        classes: J.
        where: with what messages begin.
        scaled: whether floats must be in [0, 1].
        batched: whether the total counts batches.
        trained: whether the stream is trained on, and so all classes should occur.
    """

    def __init__(self, total: int, classes: int, where: str, *, scaled: bool, batched: bool, trained: bool):
        self.total, self.classes, self.where = total, classes, where
        self.scaled, self.batched, self.trained = scaled, batched, trained
        self._extremes: list[Tensor] = []
        self._seen, self._warned = 0, False

    def note(self, images: Tensor, targets: Tensor, sample: bool = False) -> None:
        """Take account of a batch.

        Args:
            images: (B, …) as the user gives them.
            targets: (B,) or (B, J).
            sample: whether it is read before training, and will pass by once more.
        """
        if self._seen >= self.total or not len(images):
            return
        if targets.ndim == 2 and targets.shape[1] != self.classes:
            raise UserError(
                f"{self.where}: labels have {targets.shape[1]} columns, but there are {self.classes} classes"
            )
        least, most = images.aminmax(), targets.aminmax()
        found = [least.min, most.min, least.max, most.max]
        if self._extremes:
            pairs = list(zip(self._extremes, found))
            found = [torch.minimum(*pair) for pair in pairs[:2]] + [torch.maximum(*pair) for pair in pairs[2:]]
        self._extremes = found
        if not sample:
            self._seen += 1 if self.batched else len(targets)
        complete = self._seen >= self.total
        if sample or complete or images.device.type == "cpu":
            self._judge(images.is_floating_point(), targets.ndim == 2, sample or complete, complete)

    @property
    def reach(self) -> tuple[float, float]:
        """The least and the largest value so far."""
        return float(self._extremes[0]), float(self._extremes[2])

    def _judge(self, floats: bool, hot: bool, many: bool, complete: bool) -> None:
        low, first, high, last = (float(each) for each in self._extremes)
        note = None
        if floats:
            note = check_floats(low, high, self.where, self.scaled, SLIGHT)
        elif many or high > 255 or low < 0:  # of a single batch, which may be dark, the end says nothing
            check_whole(low, high, self.where)
        if hot and not 0 <= first <= last <= 1:
            raise UserError(f"{self.where}: labels of several classes must be 0 or 1, one column a class")
        if not hot:
            self._check_ids(int(first), int(last), complete)
        if note and not self._warned:
            self._warned = True
            warnings.warn(note, stacklevel=4)

    def _check_ids(self, first: int, last: int, complete: bool) -> None:
        if first < 0:
            raise UserError(f"{self.where}: labels must be class ids from 0, got {first}")
        if last >= self.classes:
            shift = f"; if they are numbered from {first}, subtract {first}" if first and last == self.classes else ""
            raise UserError(f"{self.where}: labels reach {last}, but {self.classes} classes are numbered from 0{shift}")
        if complete and self.trained and first > 0 and last == self.classes - 1:
            warnings.warn(
                f"{self.where}: labels run from {first} to {last}, so class 0 never occurs: if they are numbered from "
                f"{first}, subtract {first} and leave out a class",
                stacklevel=4,
            )
