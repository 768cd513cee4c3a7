"""Figures 3, 4 and 5 of Sabour et al. 2017 made again, and a figure of coupling maps, from what paper.py gives."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import UserError, did_you_mean
from torchcaps.explain.figures import figure_sweep
from torchcaps.explain.paper import CouplingMaps, Examples, Perturbed
from torchcaps.explain.style import STYLE, aspect_of, image_axes, new_figure, pixels, shorten
from torchcaps.explain.sweep import SWEEP

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours of light: where both are, they add up, to yellow or to white. The second pair is for every kind of vision.
LIGHTS = {
    "red-green": {"red": (1.0, 0.0, 0.0), "green": (0.0, 1.0, 0.0)},
    "orange-blue": {"orange": (1.0, 0.6, 0.0), "blue": (0.0, 0.4, 1.0)},
}
HEADINGS = {"right": "Right", "wrong": "Wrong: by label, by prediction", "absent": "By a class not in the image"}


def overlay(drawn: Tensor, colours: str = "red-green") -> np.ndarray:
    """Two pictures as light of two colours, added and cut off at 1.

    drawn    (2, C, H, W) in [0, 1]; of several channels the mean
    colours  one of LIGHTS
    returns  (H, W, 3)
    """
    grey_2HW = torch.as_tensor(np.stack([pixels(picture.mean(0, keepdim=True)) for picture in drawn]))
    return torch.einsum("mhw,mc->hwc", grey_2HW, torch.tensor(list(_lights(colours).values()))).clamp(max=1).numpy()


def figure_digit_examples(
    examples: Examples,
    class_names: Sequence[str] | None = None,
    *,
    title: str = "Reconstructions: (label, prediction, class drawn)",
) -> Figure:
    """Figure 3: what `digit_examples` gave, inputs over reconstructions."""
    labels = [_tuple((*each.labels, *each.predicted, *each.shown), class_names) for each in examples.columns]
    pictures = [pixels(each.drawn[0]) for each in examples.columns]
    return _two_rows(examples, labels, pictures, _count(examples, "images"), title)


def figure_pair_examples(
    examples: Examples,
    class_names: Sequence[str] | None = None,
    *,
    colours: str = "red-green",
    title: str = "Two digits in one image, each reconstructed from its own capsule",
) -> Figure:
    """Figure 5: what `pair_examples` gave, inputs over both reconstructions in two colours.

    Above each column stand L, the labels, and R, the classes reconstructed; P marks a wrong prediction, * a class that
    is not there.

    colours  one of LIGHTS
    """
    first, second = _lights(colours)
    labels = []
    for each in examples.columns:
        mark = "*R:" if each.group == "absent" else "R:" if each.shown == each.labels else "R:P:"
        labels.append(f"{mark}{_tuple(each.shown, class_names)}\nL:{_tuple(each.labels, class_names)}")
    pictures = [overlay(each.drawn, colours) for each in examples.columns]
    words = f"The first class of R is {first}, the second {second}. {_count(examples, 'pairs')}"
    return _two_rows(examples, labels, pictures, words, title)


def figure_perturbations(
    rows: Sequence[Perturbed],
    values: Sequence[float] = SWEEP,
    class_names: Sequence[str] | None = None,
    *,
    title: str = "The dimension of each class capsule that varies most",
) -> Figure:
    """Figure 4: what `perturbations` gave, one row a class, one column a value added."""
    if not rows:
        return _only_words("No image was answered right.", title)
    figure = figure_sweep(torch.stack([row.swept for row in rows]), values, title=title)
    axes = figure.axes[0]
    axes.set_yticks(axes.get_yticks(), [f"{_name(row.label, class_names)}, dim. {row.dimension + 1}" for row in rows])
    axes.set_ylabel("")
    return figure


def figure_coupling_maps(
    images: Tensor,
    maps: CouplingMaps,
    class_names: Sequence[str] | None = None,
    *,
    colours: str = "red-green",
    title: str = "Where routing found each class",
) -> Figure:
    """One row an image: the input, and as light upon it what each of the two longest classes gained by routing.

    images   (B, C, H, W)
    maps     what `coupling_maps` gave for them; the largest value of a row is the brightest
    colours  one of LIGHTS
    """
    lights = torch.tensor(list(_lights(colours).values()))
    figure = new_figure(4.6, len(images) * (1.4 * aspect_of(images) + 0.2) + 0.35, title)
    grid = figure.subplots(len(images), 3, squeeze=False)
    for axes, image, classes, lengths, gained in zip(grid, images, *maps):
        image_axes(axes[0], image, "Input")
        grey_HW1 = torch.as_tensor(pixels(image.mean(0, keepdim=True)))[..., None]
        for side in range(2):
            image_axes(axes[1 + side], None, f"{_name(int(classes[side]), class_names)}, length {lengths[side]:.2f}")
            glow_HW3 = gained[side, ..., None] / gained.max().clamp_min(1e-12) * lights[side]
            axes[1 + side].imshow((0.35 * grey_HW1 + glow_HW3).clamp(max=1).numpy(), interpolation="nearest")
    return figure


def _two_rows(examples: Examples, labels: list[str], pictures: list[np.ndarray], words: str, title: str) -> Figure:
    """Inputs over pictures, a label above each column, a heading above each group, words below."""
    if not examples.columns:
        return _only_words(words, title)
    side, gap, line = 0.95, 0.2, 0.125  # inches: a column, the space between groups, a line of text
    high = side * aspect_of(examples.columns[0].image)
    sizes = Counter(each.group for each in examples.columns)  # in their order
    headings = [_fold(HEADINGS[group], side * size) for group, size in sizes.items()]
    needed = 0.4 + side * len(labels) + gap * (len(sizes) - 1)
    width = max(4.4, needed)
    below = _fold(words, width)
    head = line * _lines(headings)
    figure = new_figure(width, 0.55 + head + line * (_lines(labels) + _lines([below])) + 2 * high, title)
    widths = [each for size in sizes.values() for each in [side] * size + [gap]]
    widths[-1] = max(0.01, width - needed)  # what the columns leave free is on the right
    grid = figure.add_gridspec(3, len(widths), width_ratios=widths, height_ratios=[head, high, high])
    place = 0
    for group, heading in zip(sizes, headings):
        above = image_axes(figure.add_subplot(grid[0, place : place + sizes[group]]))
        above.text(0, 0, heading, va="bottom", fontsize=STYLE["small"], color=STYLE["quiet"], in_layout=False)
        place += sizes[group] + 1
    for index, (each, label, picture) in enumerate(zip(examples.columns, labels, pictures)):
        place = index + list(sizes).index(each.group)  # past the spaces
        colour = STYLE["second"] if each.group == "wrong" else None
        upper = image_axes(figure.add_subplot(grid[1, place]), each.image, label, colour)
        lower = image_axes(figure.add_subplot(grid[2, place]))
        lower.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        if index == 0:
            upper.set_ylabel("Input", fontsize=STYLE["small"], color=STYLE["ink"])
            lower.set_ylabel("Reconstruction", fontsize=STYLE["small"], color=STYLE["ink"])
    figure.supxlabel(below, x=0.01, ha="left", fontsize=STYLE["small"], color=STYLE["quiet"])
    return figure


def _only_words(words: str, title: str) -> Figure:
    figure = new_figure(4.4, 1.0, title)
    image_axes(figure.subplots()).text(0, 0.5, words, va="center", fontsize=STYLE["text"], color=STYLE["quiet"])
    return figure


def _count(examples: Examples, kind: str) -> str:
    if not examples.mistakes:
        return f"No mistake in {examples.images:,} {kind}."
    shown = sum(each.group == "wrong" for each in examples.columns) // 2  # each in two columns
    return f"Mistakes: {examples.mistakes:,} in {examples.images:,} {kind}, {shown or 'none'} shown."


def _lights(colours: str) -> dict[str, tuple[float, float, float]]:
    if colours not in LIGHTS:
        raise UserError(f"colours {colours!r}: {did_you_mean(colours, LIGHTS)}")
    return LIGHTS[colours]


def _fold(words: str, width: float) -> str:
    """Small print on as many lines as a width in inches asks for."""
    return textwrap.fill(words, int(width * 72 / (0.56 * STYLE["small"])))


def _lines(texts: Iterable[str]) -> int:
    return max(1 + text.count("\n") for text in texts)


def _tuple(classes: Sequence[int], class_names: Sequence[str] | None) -> str:
    """In brackets, on one line if the names are short, else on a line each."""
    names = [_name(index, class_names) for index in classes]
    between = ", " if max(map(len, names)) < 3 else ",\n"
    return f"({between.join(names)})"


def _name(index: int, class_names: Sequence[str] | None) -> str:
    return str(index) if class_names is None else shorten(class_names[index], 12)
