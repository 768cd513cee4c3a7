"""report.html of a synthesis run: label maps, real images, drawn ones, and the effect of noise."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps import explain
from torchcaps.explain.html import paragraph, picture, section
from torchcaps.models import SynthesisModel
from torchcaps.models.synthesis import generate_images
from torchcaps.train.reports.classification import write_page

if TYPE_CHECKING:
    from torchcaps.train.tasks.synthesis import SynthesisResult

MAX_EXAMPLES = 6  # label maps
NOISES = 3  # images drawn of each label map


def write_drawing_report(
    path: str | os.PathLike[str],
    *,
    title: str,
    summary: Mapping[str, Any],
    recipe_text: str,
    history: Sequence[Mapping[str, Any]],
    model: SynthesisModel,
    drawings: SynthesisResult | None,
) -> Path:
    """Write a self-contained page and return its path.

    Args:
        path: of the page.
        title: of the page.
        summary: rows of the first table.
        recipe_text: printed at the end.
        history: a dict per epoch.
        model: to explain.
        drawings: of held-out label maps; None without any.
    """
    sections = [section("Drawn images", paragraph("No pairs were held out, so there is nothing to show."))]
    if drawings is not None:
        sections = [
            section("Drawn images", *_samples(model, drawings)),
            section("Interpolation", *_interpolation(model, drawings)),
        ]
    return write_page(path, title, summary, history, sections, recipe_text)


def _samples(model: SynthesisModel, drawings: SynthesisResult) -> list[str]:
    masks = drawings.real.masks[:MAX_EXAMPLES]
    real = [image.float() / 255 for image in drawings.real.images[:MAX_EXAMPLES]]
    each = [generate_images(model, masks, seed) for seed in range(NOISES)]
    figure = explain.figure_drawings(masks, real, [torch.stack(some) for some in zip(*each)])
    caption = "The first held-out label maps, their real images, and images drawn of them."
    return [picture(figure, "Label maps, real images and drawn ones", caption)]


def _interpolation(model: SynthesisModel, drawings: SynthesisResult) -> list[str]:
    if not model.has_noise:
        return [paragraph("The noise of this model is dropout, which cannot be interpolated.")]
    interpolation = explain.interpolate(model, drawings.real.masks[0])
    features = explain.figure_interpolation_features(interpolation, title="The last layer, frame by frame")
    caption = "One label map, with noise interpolated from one vector to another."
    return [
        picture(
            explain.figure_interpolation({"": interpolation}, title=""),
            "Images from one noise vector to another",
            caption,
        ),
        picture(
            features, "Feature maps of the last layer, frame by frame", "The maps that change most from frame to frame."
        ),
    ]
