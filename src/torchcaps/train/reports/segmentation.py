"""report.html of a segmentation run: scores, masks, errors and reconstructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from torchcaps import explain
from torchcaps.data import SegmentationDataset
from torchcaps.explain.html import paragraph, picture, section, table
from torchcaps.metrics.segmentation import Scores
from torchcaps.models import SegmentationModel

MAX_EXAMPLES = 6  # images, from the one with the lowest Dice to the one with the highest


def segmentation_sections(
    model: SegmentationModel, segments: SegmentationDataset, predicted: Sequence[Tensor], scores: Scores | None
) -> list[str]:
    """The sections about a segmentation model.

    Args:
        model: to explain.
        segments: N held-out images with masks.
        predicted: N predicted masks (H, W).
        scores: of these masks; None without images.
    """
    if scores is None:
        return [section("Test images", paragraph("There are no test images, so there is nothing to show."))]
    return [
        section("Per class", *_per_class(scores)),
        section("Masks", *_masks(model, segments, predicted, scores)),
        section("Image by image", _per_image(scores)),
    ]


def _per_class(scores: Scores) -> list[str]:
    about = (
        "Means over images. 95 % of the predicted and of the true outline lie within the Hausdorff distance, in "
        "pixels, of each other; if only one mask has the class, it is the diagonal of the image."
    )
    rows = [(name, *_figures(values)) for name, values in scores.per_class().items()]
    return [paragraph(about), table(rows, ("Class", "Dice", "IoU", "Hausdorff 95 %"))]


def _masks(
    model: SegmentationModel, segments: SegmentationDataset, found: Sequence[Tensor], scores: Scores
) -> list[str]:
    dice = scores.dice()
    order = sorted(range(len(dice)), key=dice.__getitem__)
    count = min(MAX_EXAMPLES, len(order))
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
    caption = "From the image with the lowest Dice to that with the highest, at even steps."
    if compared[0].reconstruction is not None:
        caption += " The reconstruction uses the capsules where a class was predicted; the rest is black."
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
