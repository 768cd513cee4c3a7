"""report.html of a run that learned to draw: label maps, real images, drawn ones, and what noise does to them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchcaps import explain
from torchcaps.explain.html import paragraph, picture, section
from torchcaps.models import SynthesisModel
from torchcaps.models.synthesis import generate_images
from torchcaps.train.reports.classification import write_page
from torchcaps.train.tasks.synthesis import Drawings

SHOWN = 6  # label maps, the first ones
NOISES = 3  # images drawn of each


def write_drawing_report(
    path: str | os.PathLike[str],
    *,
    title: str,
    summary: Mapping[str, Any],
    recipe_text: str,
    history: Sequence[Mapping[str, Any]],
    model: SynthesisModel,
    drawings: Drawings | None,
) -> Path:
    """Write a self-contained page and return its path.

    drawings  of label maps that the run did not learn from; None where there are none
    """
    sections = [section("Drawn images", paragraph("No pairs were held out, so there is nothing to show."))]
    if drawings is not None:
        sections = [
            section("Drawn images", *_samples(model, drawings)),
            section("Interpolation", *_walk(model, drawings)),
        ]
    return write_page(path, title, summary, history, sections, recipe_text)


def _samples(model: SynthesisModel, drawings: Drawings) -> list[str]:
    masks = drawings.real.masks[:SHOWN]
    real = [image.float() / 255 for image in drawings.real.images[:SHOWN]]
    each = [generate_images(model, masks, seed) for seed in range(NOISES)]
    figure = explain.figure_drawings(masks, real, [torch.stack(some) for some in zip(*each)])
    caption = "The first label maps that were held out, their real images, and what is drawn of them."
    return [picture(figure, "Label maps, real images and drawn ones", caption)]


def _walk(model: SynthesisModel, drawings: Drawings) -> list[str]:
    if not model.has_noise:
        return [paragraph("The noise of this model is dropout: there is no way from one image to another.")]
    walked = explain.walk(model, drawings.real.masks[0])
    features = explain.figure_walk_features(walked, title="The last layer on the way")
    caption = "One label map, with noise that changes step by step from one vector to another."
    return [
        picture(explain.figure_walk({"": walked}, title=""), "Images from one noise vector to another", caption),
        picture(features, "Feature maps of the last layer, frame by frame", "The maps that change most."),
    ]
