"""Figures of pairs of classes reconstructed from one image each (figure 5 of Sabour et al. 2017)."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import UserError, did_you_mean
from torchcaps.explain.pairs import Examples
from torchcaps.explain.style import STYLE, aspect_of, image_axes, new_figure, pixels, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Additive colours: where both are, they sum to yellow or white. The second pair suits every kind of colour vision.
LIGHTS = {
    "red-green": {"red": (1.0, 0.0, 0.0), "green": (0.0, 1.0, 0.0)},
    "orange-blue": {"orange": (1.0, 0.6, 0.0), "blue": (0.0, 0.4, 1.0)},
}
HEADINGS = {"right": "Right", "wrong": "Wrong: by label, by prediction", "absent": "By a class not in the image"}


def add_colours(drawn: Tensor, colours: str = "red-green") -> np.ndarray:
    """Colour two pictures, add them and clip at 1.

    Args:
        drawn: (2, C, H, W) in [0, 1]; channels are averaged.
        colours: one of LIGHTS.

    Returns:
        (H, W, 3).
    """
    grey_2HW = torch.as_tensor(np.stack([pixels(picture.mean(0, keepdim=True)) for picture in drawn]))
    return (
        torch.einsum("mhw,mc->hwc", grey_2HW, torch.tensor(list(light_colours(colours).values()))).clamp(max=1).numpy()
    )


def figure_pair_examples(
    examples: Examples,
    class_names: Sequence[str] | None = None,
    *,
    colours: str = "red-green",
    title: str = "Two digits in one image, each reconstructed from its own capsule",
) -> Figure:
    """Draw figure 5: inputs over both reconstructions in two colours.

    Above each column are L, the labels, and R, the classes reconstructed; P marks a wrong prediction, * a class that
    is not in the image.

    Args:
        examples: from `pair_examples`.
        class_names: J names.
        colours: one of LIGHTS.
        title: of the figure.
    """
    first, second = light_colours(colours)
    labels = []
    for each in examples.columns:
        mark = "*R:" if each.group == "absent" else "R:" if each.shown == each.labels else "R:P:"
        labels.append(f"{mark}{class_tuple(each.shown, class_names)}\nL:{class_tuple(each.labels, class_names)}")
    pictures = [add_colours(each.drawn, colours) for each in examples.columns]
    words = f"The first class of R is {first}, the second {second}. {count_mistakes(examples, 'pairs')}"
    return two_rows(examples, labels, pictures, words, title)


def two_rows(examples: Examples, labels: list[str], pictures: list[np.ndarray], words: str, title: str) -> Figure:
    """Draw inputs over pictures, with a label above each column, a heading above each group and a text below."""
    if not examples.columns:
        return text_figure(words, title)
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


def text_figure(words: str, title: str) -> Figure:
    """Draw a figure that holds a text alone."""
    figure = new_figure(4.4, 1.0, title)
    image_axes(figure.subplots()).text(0, 0.5, words, va="center", fontsize=STYLE["text"], color=STYLE["quiet"])
    return figure


def count_mistakes(examples: Examples, kind: str) -> str:
    """State the number of mistakes and of those shown."""
    if not examples.mistakes:
        return f"No mistake in {examples.images:,} {kind}."
    shown = sum(each.group == "wrong" for each in examples.columns) // 2  # each in two columns
    return f"Mistakes: {examples.mistakes:,} in {examples.images:,} {kind}, {shown or 'none'} shown."


def light_colours(colours: str) -> dict[str, tuple[float, float, float]]:
    """Look up a pair of LIGHTS."""
    if colours not in LIGHTS:
        raise UserError(f"colours {colours!r}: {did_you_mean(colours, LIGHTS)}")
    return LIGHTS[colours]


def _fold(words: str, width: float) -> str:
    """Wrap small text to a width in inches."""
    return textwrap.fill(words, int(width * 72 / (0.56 * STYLE["small"])))


def _lines(texts: Iterable[str]) -> int:
    return max(1 + text.count("\n") for text in texts)


def class_tuple(classes: Sequence[int], class_names: Sequence[str] | None) -> str:
    """List classes in brackets, on one line if the names are short, else on a line each."""
    names = [class_name(index, class_names) for index in classes]
    between = ", " if max(map(len, names)) < 3 else ",\n"
    return f"({between.join(names)})"


def class_name(index: int, class_names: Sequence[str] | None) -> str:
    """Name a class in at most 12 characters."""
    return str(index) if class_names is None else shorten(class_names[index], 12)
