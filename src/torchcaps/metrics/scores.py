"""Masks that were found, measured image by image and class by class."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchcaps.data import SegmentationDataset
from torchcaps.metrics.overlap import MEASURES, overlap, pixel_error, summarise


class Scores(NamedTuple):
    """How well each of N masks fits the true one.

    names    of the images
    classes  names of the J classes
    each     N of class → measure → value, as `overlap` gives them
    errors   N shares of pixels that are wrong
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    each: list[dict[int, dict[str, float]]]
    errors: list[float]

    def means(self) -> dict[str, float]:
        """Means over images, and over all classes but the background."""
        return {**summarise(self.each).mean, "pixel_error": sum(self.errors) / len(self.errors)}

    def per_class(self) -> dict[str, dict[str, float]]:
        """Means over images, of every class."""
        return {self.classes[index]: values for index, values in summarise(self.each).per_class.items()}

    def rows(self) -> list[dict[str, Any]]:
        """One for each image and class."""
        return [
            {"image": name, "class": self.classes[index], **values, "pixel_error": error}
            for name, image, error in zip(self.names, self.each, self.errors)
            for index, values in image.items()
        ]

    def dice(self) -> list[float]:
        """Of each image, the mean over all classes but the background."""
        return [summarise([image]).mean["dice"] for image in self.each]


def score(found: Sequence[Tensor], segments: SegmentationDataset, classes: tuple[str, ...] | None = None) -> Scores:
    """Dice, IoU, 95 % Hausdorff distance and wrong pixels of the masks (H, W) found in these images.

    classes  names to use instead of the data's
    """
    pairs = list(zip(found, segments.masks))
    each = [overlap(mine, true, segments.num_classes) for mine, true in pairs]
    errors = [pixel_error(mine, true) for mine, true in pairs]
    return Scores(segments.names, classes or segments.class_names, each, errors)


def as_csv(scores: Scores) -> str:
    """The rows as text, with a heading."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["image", "class", *MEASURES, "pixel_error"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(scores.rows())
    return text.getvalue()
