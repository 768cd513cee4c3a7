"""Pictures of masks: over the image, beside the ground truth, and the errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from torchcaps.explain.style import STYLE, aspect_of, image_axes, new_figure, pixels, shorten
from torchcaps.losses import IGNORED
from torchcaps.models import SegmentationModel
from torchcaps.models.evaluating import evaluating

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by every kind of colour vision; they repeat for more classes.
COLOURS = ("#009e73", "#e69f00", "#cc79a7", "#0072b2", "#f0e442", "#56b4e9", "#d55e00")
OPACITY = 0.55  # of a mask over its image
EXTRA, MISSED, CONFUSED = "#d55e00", "#56b4e9", "#f0e442"
MAX_SIDE_PIXELS = 512  # larger images are cropped to their centre


class Comparison(NamedTuple):
    """An image with its true and its predicted mask.

    Attributes:
        image: (C, H, W) in [0, 1].
        true, found: (H, W) true and predicted class ids; 255 in `true` is ignored.
        reconstruction: (C, H, W); None for models without a decoder.
        label: written beside the image.
    """

    image: Tensor
    true: Tensor
    found: Tensor
    reconstruction: Tensor | None = None
    label: str = ""


def overlay(image_CHW: Tensor, ids_HW: Tensor) -> np.ndarray:
    """Draw a mask over its image, each class but the background in a colour of its own.

    Args:
        image_CHW: (C, H, W) in [0, 1], grey or RGB.
        ids_HW: (H, W) class ids; 255 is ignored.

    Returns:
        (H, W, 3) uint8.
    """
    shown = _rgb(image_CHW)
    ids = ids_HW.cpu().numpy()
    for index in range(1, int(ids[ids != IGNORED].max(initial=0)) + 1):
        colour = colour_of(COLOURS[(index - 1) % len(COLOURS)])
        shown[ids == index] = (1 - OPACITY) * shown[ids == index] + OPACITY * colour
    return (255 * shown).round().astype(np.uint8)


def error_map(image_CHW: Tensor, true_HW: Tensor, found_HW: Tensor) -> np.ndarray:
    """Draw the errors of a mask over the darkened image: false positives, false negatives and confused classes.

    Args:
        image_CHW: (C, H, W) in [0, 1].
        true_HW, found_HW: (H, W) true and predicted class ids; 255 in `true_HW` is ignored.

    Returns:
        (H, W, 3) uint8.
    """
    shown = 0.5 * _rgb(image_CHW)
    true, found = true_HW.cpu().numpy(), found_HW.cpu().numpy()
    counted = true != IGNORED
    for where, colour in (
        (counted & (found > 0) & (true == 0), EXTRA),
        (counted & (found == 0) & (true > 0), MISSED),
        (counted & (found > 0) & (true > 0) & (found != true), CONFUSED),
    ):
        shown[where] = colour_of(colour)
    return (255 * shown).round().astype(np.uint8)


def compare(
    model: SegmentationModel, image_CHW: Tensor, true_HW: Tensor, found_HW: Tensor, label: str = ""
) -> Comparison:
    """Collect what `figure_masks` shows of an image; large images are cropped to their centre.

    Args:
        model: whose decoder reconstructs the image, if it has one.
        image_CHW: (C, H, W) uint8.
        true_HW, found_HW: (H, W) true and predicted class ids.
        label: written beside the image.
    """
    image, true, found = (centre_crop(each) for each in (image_CHW, true_HW, found_HW))
    image = image.float() / 255
    return Comparison(image, true, found, masked_reconstruction(model, image), label)


def masked_reconstruction(model: SegmentationModel, image_CHW: Tensor) -> Tensor | None:
    """Reconstruct the pixels that the model assigns to a class: (C, H, W); None if it has no decoder."""
    if getattr(model, "decoder", None) is None:
        return None
    with evaluating(model):
        drawn = model(image_CHW[None].to(model.device)).reconstruction
    return None if drawn is None else drawn[0].cpu()


def centre_crop(values: Tensor) -> Tensor:
    """Crop (..., H, W) to the MAX_SIDE_PIXELS × MAX_SIDE_PIXELS pixels in the centre; smaller images stay whole."""
    top, left = (max(0, side - MAX_SIDE_PIXELS) // 2 for side in values.shape[-2:])
    return values[..., top : top + MAX_SIDE_PIXELS, left : left + MAX_SIDE_PIXELS]


def figure_masks(compared: Sequence[Comparison], class_names: Sequence[str], *, title: str = "") -> Figure:
    """Draw a row for each image: input, ground truth, prediction, errors, and reconstruction if there is one."""
    from matplotlib.patches import Patch

    drawn = any(each.reconstruction is not None for each in compared)
    heads = ["Input", "Truth", "Prediction", "Errors", *(["Reconstruction"] if drawn else [])]
    heights = [1.9 * aspect_of(each.image) for each in compared]
    figure = new_figure(2.0 * len(heads) + 0.3, sum(heights) + 0.2 * len(compared) + 0.9, title)
    grid = figure.subplots(len(compared), len(heads), squeeze=False, height_ratios=heights)
    for row, each in enumerate(compared):
        pictures = [
            _rgb(each.image),
            overlay(each.image, each.true),
            overlay(each.image, each.found),
            error_map(each.image, each.true, each.found),
        ]
        for column, head in enumerate(heads):
            axes = image_axes(grid[row, column], None, head if row == 0 else "")
            if column < len(pictures):
                axes.imshow(pictures[column], interpolation="nearest")
            elif each.reconstruction is not None:
                axes.imshow(pixels(each.reconstruction), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        grid[row, 0].set_ylabel(each.label, fontsize=STYLE["small"], color=STYLE["ink"])
    names = [shorten(name) for name in class_names[1 : 1 + len(COLOURS)]]
    legend = [Patch(color=colour, label=name) for name, colour in zip(names, COLOURS)]
    kinds = [("false positive", EXTRA), ("false negative", MISSED), ("wrong class", CONFUSED)][: len(class_names)]
    legend += [Patch(color=colour, label=f"errors: {kind}") for kind, colour in kinds]
    figure.legend(
        handles=legend,
        loc="outside lower left",
        ncols=len(legend),
        fontsize=STYLE["small"],
        frameon=False,
        labelcolor=STYLE["ink"],
    )
    return figure


def figure_predicted_mask(
    image_CHW: Tensor,
    found_HW: Tensor,
    presence_KHW: Tensor,
    redrawn_CHW: Tensor | None,
    class_names: Sequence[str],
    *,
    title: str = "Predicted mask and class presence",
) -> Figure:
    """Draw the image, the predicted mask over it, the presence of each class, and the reconstruction.

    Args:
        image_CHW: (C, H, W) in [0, 1].
        found_HW: (H, W) predicted class ids.
        presence_KHW: (K, H, W) in [0, 1]; K = 1 is the one class that is not background.
        redrawn_CHW: (C, H, W) reconstruction; None if there is none.
        class_names: the background's first.
    """
    names = class_names[1:] if len(presence_KHW) == 1 else class_names
    panels = len(presence_KHW) + 2 + (redrawn_CHW is not None)
    figure = new_figure(max(2.0 * panels + 0.4, 4.8), 1.9 * aspect_of(image_CHW) + 0.8, title)
    first, second, *others = figure.subplots(1, panels, squeeze=False)[0]
    image_axes(first, image_CHW, "Input")
    image_axes(second, None, "Prediction").imshow(overlay(image_CHW, found_HW), interpolation="nearest")
    for axes, name, presence in zip(others, names, presence_KHW):
        image_axes(axes, None, shorten(name)).imshow(presence.cpu().numpy(), cmap=STYLE["heat"], vmin=0, vmax=1)
    if redrawn_CHW is not None:
        image_axes(others[-1], redrawn_CHW, "Reconstruction")
    return figure


def _rgb(image_CHW: Tensor) -> np.ndarray:
    """Return (H, W, 3) in [0, 1]."""
    shown = pixels(image_CHW)
    return np.repeat(shown[..., None], 3, axis=2) if shown.ndim == 2 else shown.copy()


def colour_of(code: str) -> np.ndarray:
    """Turn "#rrggbb" into (3,) in [0, 1]."""
    return np.array([int(code[place : place + 2], 16) / 255 for place in (1, 3, 5)])
