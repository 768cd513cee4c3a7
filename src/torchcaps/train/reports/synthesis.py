"""report.html of a synthesis run: label maps, real images, drawn ones, and the effect of noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torchcaps import explain
from torchcaps.explain.html import paragraph, picture, section
from torchcaps.models import SynthesisModel
from torchcaps.models.synthesis import generate_images

if TYPE_CHECKING:
    from torchcaps.train.tasks.synthesis import SynthesisResult

MAX_EXAMPLES = 6  # label maps
NOISES = 3  # images drawn of each label map


def synthesis_sections(model: SynthesisModel, drawings: SynthesisResult | None) -> list[str]:
    """The sections about a generator and the images that it drew of held-out label maps; None without any."""
    if drawings is None:
        return [section("Drawn images", paragraph("No pairs were held out, so there is nothing to show."))]
    return [
        section("Drawn images", *_samples(model, drawings)),
        section("Interpolation", *_interpolation(model, drawings)),
    ]


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
