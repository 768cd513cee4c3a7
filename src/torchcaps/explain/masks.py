"""Pictures of masks: over the image, beside the truth, and where the two differ."""

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

# Okabe and Ito's colours, told apart by every kind of colour vision; of more classes than these they begin again.
COLOURS = ("#009e73", "#e69f00", "#cc79a7", "#0072b2", "#f0e442", "#56b4e9", "#d55e00")
VEIL = 0.55  # how much a mask hides of the image below it
EXTRA, MISSED, CONFUSED = "#d55e00", "#56b4e9", "#f0e442"
SHOWN = 512  # pixels a side of what is shown of a larger image: its middle


class Compared(NamedTuple):
    """An image, what is there, what was found, and what the decoder draws of that, if there is one.

    image           (C, H, W) in [0, 1]
    true, found     (H, W) class ids; 255 in `true` is ignored
    reconstruction  (C, H, W)
    label           to be written beside it
    """

    image: Tensor
    true: Tensor
    found: Tensor
    reconstruction: Tensor | None = None
    label: str = ""


def overlay(image_CHW: Tensor, ids_HW: Tensor) -> np.ndarray:
    """(H, W, 3) uint8: the image in grey or colour, each class but the background as a veil in a colour of its own.

    image_CHW  in [0, 1]
    """
    shown = _rgb(image_CHW)
    ids = ids_HW.cpu().numpy()
    for index in range(1, int(ids[ids != IGNORED].max(initial=0)) + 1):
        shown[ids == index] = (1 - VEIL) * shown[ids == index] + VEIL * colour_of(COLOURS[(index - 1) % len(COLOURS)])
    return (255 * shown).round().astype(np.uint8)


def error_map(image_CHW: Tensor, true_HW: Tensor, found_HW: Tensor) -> np.ndarray:
    """(H, W, 3) uint8: the darkened image, with what was found too much, missed, or taken for another class."""
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
) -> Compared:
    """What there is to show of one image; of a large one, its middle.

    image_CHW  uint8
    """
    image, true, found = (middle(each) for each in (image_CHW, true_HW, found_HW))
    image = image.float() / 255
    return Compared(image, true, found, redraw(model, image), label)


def redraw(model: SegmentationModel, image_CHW: Tensor) -> Tensor | None:
    """(C, H, W): what the decoder draws of what the model finds in the image; None if it has no decoder."""
    if getattr(model, "decoder", None) is None:
        return None
    with evaluating(model):
        drawn = model(image_CHW[None].to(model.device)).reconstruction
    return None if drawn is None else drawn[0].cpu()


def middle(values: Tensor) -> Tensor:
    """(..., H, W) → the SHOWN × SHOWN pixels in the middle, or all of it."""
    top, left = (max(0, side - SHOWN) // 2 for side in values.shape[-2:])
    return values[..., top : top + SHOWN, left : left + SHOWN]


def figure_masks(compared: Sequence[Compared], class_names: Sequence[str], *, title: str = "") -> Figure:
    """A row for each image: input, truth, what was found, where the two differ, and the reconstruction."""
    from matplotlib.patches import Patch

    drawn = any(each.reconstruction is not None for each in compared)
    heads = ["Input", "Truth", "Found", "Errors", *(["Redrawn"] if drawn else [])]
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
    kinds = [("too much", EXTRA), ("missed", MISSED)] + ([("another class", CONFUSED)] if len(class_names) > 2 else [])
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


def figure_found(
    image_CHW: Tensor,
    found_HW: Tensor,
    presence_KHW: Tensor,
    redrawn_CHW: Tensor | None,
    class_names: Sequence[str],
    *,
    title: str = "What was found, and how sure that is",
) -> Figure:
    """The image, the mask over it, how present each class is, and what the decoder draws of it.

    presence_KHW  K = 1 is the class that is not background
    """
    names = class_names[1:] if len(presence_KHW) == 1 else class_names
    panels = len(presence_KHW) + 2 + (redrawn_CHW is not None)
    figure = new_figure(max(2.0 * panels + 0.4, 4.8), 1.9 * aspect_of(image_CHW) + 0.8, title)
    first, second, *others = figure.subplots(1, panels, squeeze=False)[0]
    image_axes(first, image_CHW, "Input")
    image_axes(second, None, "Found").imshow(overlay(image_CHW, found_HW), interpolation="nearest")
    for axes, name, presence in zip(others, names, presence_KHW):
        image_axes(axes, None, shorten(name)).imshow(presence.cpu().numpy(), cmap=STYLE["heat"], vmin=0, vmax=1)
    if redrawn_CHW is not None:
        image_axes(others[-1], redrawn_CHW, "Redrawn")
    return figure


def _rgb(image_CHW: Tensor) -> np.ndarray:
    """(H, W, 3) in [0, 1]"""
    shown = pixels(image_CHW)
    return np.repeat(shown[..., None], 3, axis=2) if shown.ndim == 2 else shown.copy()


def colour_of(code: str) -> np.ndarray:
    """(3,) in [0, 1]"""
    return np.array([int(code[place : place + 2], 16) / 255 for place in (1, 3, 5)])
