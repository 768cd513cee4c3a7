"""Figures of familiarity scores, and of the images answered with "none of these"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from torchcaps.explain.style import STYLE, Tile, aspect_of, names_of, new_figure, plain_axes, show_tiles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 40
COLUMNS = 6


def figure_familiarity(scores_N: Tensor, correct_N: Tensor, none_below: float, *, title: str = "") -> Figure:
    """Draw a histogram of the familiarity, right and wrong predictions apart, with the threshold.

    Args:
        scores_N: (N,) familiarity.
        correct_N: (N,) bool, whether the predicted class is right.
        none_below: the threshold.
    """
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(7.0, 2.6 if title else 2.3, title)
    axes = plain_axes(figure.subplots(), "Familiarity", "Images")
    values, right = scores_N.double().cpu().numpy(), correct_N.cpu().numpy()
    edges = np.histogram_bin_edges(np.append(values, none_below), BINS)
    counts = [values[right], values[~right]]
    colours, labels = [STYLE["main"], STYLE["second"]], ["right prediction", "wrong prediction"]
    axes.hist(counts, list(edges), stacked=True, color=colours, label=labels)
    axes.axvline(none_below, color=STYLE["ink"], linewidth=1, linestyle="--", label="threshold")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.legend(fontsize=STYLE["small"], frameon=False, labelcolor=STYLE["ink"], loc="upper left")
    return figure


def figure_rejected(
    images: Tensor,
    targets: Tensor,
    answers: Tensor,
    scores_N: Tensor,
    class_names: Sequence[str] | None = None,
    *,
    title: str = "",
) -> Figure:
    """Draw images with their true class, the nearest class and their familiarity; wrong classes are marked.

    Args:
        images: (N, C, H, W), at least one.
        targets, answers: (N,) true and nearest class ids, or (N, J) multi-hot.
        scores_N: (N,) familiarity.
        class_names: J names.
    """
    columns = min(COLUMNS, len(images))
    rows = math.ceil(len(images) / columns)
    tiles: list[Tile | None] = []
    for image, target, answer, score in zip(images, targets.cpu(), answers.cpu(), scores_N):
        true, nearest = (names_of(each, class_names, 10) for each in (target, answer))
        colour = None if true == nearest else STYLE["second"]
        tiles.append(Tile(image, f"true {true}, nearest {nearest}\n{float(score):.2f}".replace("-", "−"), colour))
    tiles += [None] * (rows * columns - len(tiles))
    height = rows * (1.25 * aspect_of(images) + 0.42)
    figure = new_figure(max(3.0, 1.4 * columns), height + (0.35 if title else 0), title)
    show_tiles(figure, [tiles[start : start + columns] for start in range(0, len(tiles), columns)], side=1.2)
    return figure
