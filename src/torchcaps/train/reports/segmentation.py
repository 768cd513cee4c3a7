"""report.html of a run that learned masks: what it found, where it errs, what it draws."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from torchcaps import explain
from torchcaps.data import SegmentationDataset
from torchcaps.explain.html import paragraph, picture, section, table
from torchcaps.metrics.scores import Scores
from torchcaps.models import SegmentationModel
from torchcaps.train.reports.classification import write_page

SHOWN = 6  # images, from the one with the lowest Dice to the one with the highest


def write_mask_report(
    path: str | os.PathLike[str],
    *,
    title: str,
    summary: Mapping[str, Any],
    recipe_text: str,
    history: Sequence[Mapping[str, Any]],
    model: SegmentationModel,
    segments: SegmentationDataset,
    found: Sequence[Tensor],
    scores: Scores | None,
) -> Path:
    """Write a self-contained page and return its path.

    segments  N images with masks that the run did not learn from
    found     N of (H, W)  the masks that the model found in them
    scores    how well these fit; None where there are no images
    """
    sections = [section("Test images", paragraph("There were none, so there is nothing to show."))]
    if scores is not None:
        sections = [
            section("Per class", *_per_class(scores)),
            section("Masks", *_masks(model, segments, found, scores)),
            section("Image by image", _per_image(scores)),
        ]
    brief = {key: value for key, value in summary.items() if not key.endswith("per_class")}
    return write_page(path, title, brief, history, sections, recipe_text)


def _per_class(scores: Scores) -> list[str]:
    about = (
        "Means over images. The Hausdorff distance, in pixels, is that within which 95 % of the outline found and of "
        "the true one lie from each other; where only one of them has the class, it is the diagonal of the image."
    )
    rows = [(name, *_figures(values)) for name, values in scores.per_class().items()]
    return [paragraph(about), table(rows, ("Class", "Dice", "IoU", "Hausdorff 95 %"))]


def _masks(
    model: SegmentationModel, segments: SegmentationDataset, found: Sequence[Tensor], scores: Scores
) -> list[str]:
    dice = scores.dice()
    order = sorted(range(len(dice)), key=dice.__getitem__)
    count = min(SHOWN, len(order))
    chosen = [order[place * (len(order) - 1) // max(1, count - 1)] for place in range(count)]
    compared = [
        explain.compare(
            model,
            segments.images[at],
            segments.masks[at],
            found[at],
            f"{scores.names[at]}\nDice {100 * dice[at]:.1f} %",
        )
        for at in chosen
    ]
    caption = "From the image with the lowest Dice to the one with the highest, at even steps."
    if compared[0].reconstruction is not None:
        caption += " Redrawn: what the decoder makes of the capsules where something was found; the rest is black."
    return [picture(explain.figure_masks(compared, model.class_names), "Input, truth, prediction and errors", caption)]


def _per_image(scores: Scores) -> str:
    rows = [
        (name, scores.classes[index], *_figures(values), f"{100 * error:.2f} %")
        for name, image, error in zip(scores.names, scores.each, scores.errors)
        for index, values in image.items()
        if index
    ]
    return table(rows, ("Image", "Class", "Dice", "IoU", "Hausdorff 95 %", "Wrong pixels"))


def _figures(values: Mapping[str, float]) -> tuple[str, str, str]:
    return f"{100 * values['dice']:.2f} %", f"{100 * values['iou']:.2f} %", f"{values['hausdorff95']:.2f}"
