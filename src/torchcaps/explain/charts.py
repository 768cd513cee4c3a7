"""Charts of training and errors: learning curves, confusion matrix, mistakes, capsule lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.explain.style import STYLE, Tile, aspect_of, names_of, new_figure, plain_axes, shorten, show_tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchcaps.metrics.summary import Reliability

Series = tuple[list[float], list[float]]
SHARES = ("accuracy", "dice", "similarity")  # measures shown in percent


def figure_curves(history: Sequence[Mapping[str, Any]], *, title: str = "", panels: int = 4) -> Figure:
    """Draw a panel for each measure, training and validation together: the loss first, then shares such as accuracy.

    Args:
        history: a dict per epoch; keys that start with train_ or val_ are drawn.
        title: of the figure.
        panels: the maximum number of panels.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    known = {key.split("_", 1)[1] for entry in history for key in entry if key.startswith(("train_", "val_"))}
    curves = {name: {split: _series(history, f"{split}_{name}") for split in ("train", "val")} for name in known}
    drawable = [name for name in known if any(xs for xs, _ in curves[name].values())]
    names = sorted(drawable, key=lambda name: (name != "loss", name not in SHARES, name))[:panels]
    figure = new_figure(max(4.5, 3.6 * len(names)), 3.0, title)
    if not names:
        return _text_only(figure, "No epoch was recorded.")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
        plain_axes(axes, "Epoch", name.replace("_", " ").capitalize())
        axes.grid(axis="y", color=STYLE["faint"], linewidth=0.6)
        for split, label, colour in (("train", "Training", STYLE["main"]), ("val", "Validation", STYLE["second"])):
            xs, ys = curves[name][split]
            if xs:
                marker = "o" if len(xs) < 12 else None
                axes.plot(xs, ys, color=colour, label=label, linewidth=1.6, marker=marker, markersize=3.5)
        everything = [y for _, ys in curves[name].values() for y in ys]
        if name in SHARES:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
        elif min(everything) > 0 and max(everything) > 30 * min(everything):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        first, last = (pick(x for xs, _ in curves[name].values() for x in xs) for pick in (min, max))
        if first == last:
            axes.set_xlim(first - 0.5, last + 0.5)
            axes.set_xticks([first], [f"{first:g}"])
        axes.legend(fontsize=STYLE["small"], frameon=False, labelcolor=STYLE["ink"])
    return figure


def figure_reliability(found: Reliability, *, title: str = "") -> Figure:
    """Draw the accuracy of predictions over their confidence, above the number of images.

    Args:
        found: what `torchcaps.metrics.summary.reliability` returned.
        title: of the figure.
    """
    from matplotlib.ticker import PercentFormatter

    figure = new_figure(4.2, 4.4, title)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    plain_axes(upper, "", "Accuracy")
    upper.plot([0, 1], [0, 1], color=STYLE["faint"], linewidth=1.2)
    shown = found.images > 0
    upper.plot(
        found.confidence[shown], found.accuracy[shown], color=STYLE["main"], linewidth=1.6, marker="o", markersize=4
    )
    upper.set(xlim=(0, 1), ylim=(0, 1.02))
    upper.yaxis.set_major_formatter(PercentFormatter(1))
    plain_axes(lower, "Confidence", "Images")
    bins = len(found.images)
    lower.bar([(k + 0.5) / bins for k in range(bins)], found.images, width=0.9 / bins, color=STYLE["main"])
    lower.xaxis.set_major_formatter(PercentFormatter(1))
    return figure


def figure_by_size(
    curves: Mapping[str, Sequence[tuple[int, float, float]]], *, measure: str, title: str = ""
) -> Figure:
    """Draw a measure over the number of training images.

    Args:
        curves: by name, the points (images, mean, standard deviation).
        measure: label of the y axis.
        title: of the figure.
    """
    figure = new_figure(5.6, 3.4, title)
    axes = plain_axes(figure.subplots(), "Training images", measure)
    axes.grid(axis="y", color=STYLE["faint"], linewidth=0.6)
    sizes = sorted({size for points in curves.values() for size, _, _ in points})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    for (name, points), colour in zip(curves.items(), (STYLE["main"], STYLE["second"], STYLE["quiet"])):
        xs, means, deviations = zip(*sorted(points))
        axes.errorbar(
            xs, means, deviations, label=name, color=colour, linewidth=1.6, marker="o", markersize=4, capsize=3
        )
    axes.legend(fontsize=STYLE["small"], frameon=False, labelcolor=STYLE["ink"], loc="lower right")
    return figure


def figure_confusion(matrix: Tensor, class_names: Sequence[str], *, title: str = "") -> Figure:
    """Draw a confusion matrix: shades are shares of a row, numbers are counts where they fit.

    Args:
        matrix: (J, J) counts; rows are true classes, columns predicted ones.
        class_names: J names.
        title: of the figure.
    """
    from matplotlib.colors import PowerNorm

    counts = np.asarray(matrix.detach().cpu(), dtype=float)
    shares = counts / counts.sum(1, keepdims=True).clip(min=1)
    J = len(counts)
    side = min(8.0, max(3.0, 0.42 * J))
    figure = new_figure(side + 2.4, side + 1.4, title)
    axes = plain_axes(figure.subplots(), "Predicted", "True")
    # The square root makes a class that errs once in fifty visible beside the full diagonal.
    shades = axes.imshow(shares, cmap=STYLE["counts"], norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    cell = 0.85 * side * 72 / J  # points
    _class_ticks(axes, [shorten(name, 18) for name in class_names], cell)
    digits = len(str(int(counts.max(initial=0))))
    size = min(STYLE["text"], cell / (0.65 * digits + 0.4))
    if size >= 5:
        for row, column in zip(*np.nonzero(counts)):
            colour = "white" if shares[row, column] > 0.3 else STYLE["ink"]
            words = str(int(counts[row, column]))
            axes.text(column, row, words, ha="center", va="center", fontsize=size, color=colour)
    bar = figure.colorbar(shades, ax=axes, shrink=0.6, ticks=[0, 0.02, 0.1, 0.25, 0.5, 1])
    bar.ax.set_yticklabels(["0 %", "2 %", "10 %", "25 %", "50 %", "100 %"])
    bar.set_label("Share of the true class", fontsize=STYLE["small"], color=STYLE["ink"])
    bar.ax.tick_params(labelsize=STYLE["small"], colors=STYLE["quiet"], length=2)
    bar.outline.set_visible(False)
    return figure


def figure_mistakes(
    images: Tensor,
    true: Tensor,
    predicted: Tensor,
    lengths: Tensor,
    class_names: Sequence[str] | None = None,
    *,
    limit: int = 15,
    title: str = "",
) -> Figure:
    """Draw images with their true and predicted classes, in the order given (see `worst_mistakes`).

    Args:
        images: (N, C, H, W); the first `limit` are shown.
        true, predicted: (N,) class ids, or (N, J) multi-hot.
        lengths: (N, J) of the class capsules.
        class_names: J names.
        limit: the maximum number of images.
        title: of the figure.
    """
    count = min(len(images), limit)
    columns = min(5, max(3, count))
    rows = max(1, math.ceil(count / columns))
    figure = new_figure(1.7 * columns, rows * (1.6 * aspect_of(images) + 0.38) + (0.4 if title else 0), title)
    if not count:
        return _text_only(figure, "No mistakes.")
    tiles: list[Tile | None] = []
    for position in range(count):
        answer = predicted[position].cpu()
        label = f"true {names_of(true[position].cpu(), class_names, 13)}\npred. {names_of(answer, class_names, 13)}"
        if answer.ndim == 0:
            label += f" ({float(lengths[position, int(answer)]):.2f})"
        tiles.append(Tile(images[position], label))
    tiles += [None] * (rows * columns - count)
    show_tiles(figure, [tiles[start : start + columns] for start in range(0, len(tiles), columns)], side=1.5)
    return figure


def figure_lengths(
    lengths: Tensor,
    class_names: Sequence[str] | None = None,
    *,
    target: int | None = None,
    top: int = 20,
    title: str = "Length of each class capsule",
) -> Figure:
    """Draw the class lengths of one image as bars: all in class order, or the `top` longest of many classes.

    Args:
        lengths: (J,) of the class capsules.
        class_names: J names.
        target: the true class, marked in the figure.
        top: the maximum number of bars.
        title: of the figure.
    """
    values = lengths.detach().float().cpu()
    longest = values.argsort(descending=True, stable=True)
    order = longest[:top] if len(values) > top else torch.arange(len(values))
    answer = int(longest[0])
    figure = new_figure(4.8, 0.9 + 0.24 * len(order), title)
    axes = plain_axes(figure.subplots())
    places = list(range(len(order)))
    colours = [STYLE["main"] if index == answer else STYLE["faint"] for index in order.tolist()]
    axes.barh(places, values[order].numpy(), color=colours, height=0.72)
    for place, index in enumerate(order.tolist()):
        words = f"{float(values[index]):.2f}" + (" (true class)" if index == target else "")
        axes.text(float(values[index]) + 0.01, place, words, va="center", fontsize=STYLE["small"], color=STYLE["quiet"])
    axes.set_yticks(places, [names_of(index, class_names, 22) for index in order])
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_xlim(0, 1.25)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.tick_params(axis="y", length=0, labelcolor=STYLE["ink"])
    return figure


def _series(history: Sequence[Mapping[str, Any]], key: str) -> Series:
    """Return the epochs and the finite values of one key; epochs without it are omitted."""
    xs: list[float] = []
    ys: list[float] = []
    for position, entry in enumerate(history, start=1):
        value = entry.get(key)
        if isinstance(value, (int, float)) and math.isfinite(value):
            xs.append(float(entry.get("epoch", position)))
            ys.append(float(value))
    return xs, ys


def _class_ticks(axes: Axes, names: list[str], cell: float) -> None:
    """Name every class, or every n-th if the names would overlap."""
    step = math.ceil(1.25 * STYLE["small"] / cell)
    places = list(range(0, len(names), step))
    shown = [names[place] for place in places]
    crowded = max(map(len, shown), default=0) * 0.6 * STYLE["small"] > cell * step
    axes.set_xticks(places, shown, rotation=90 if crowded else 0)
    axes.set_yticks(places, shown)


def _text_only(figure: Figure, words: str) -> Figure:
    axes = figure.subplots()
    axes.set_axis_off()
    axes.text(0.5, 0.5, words, ha="center", va="center", fontsize=STYLE["text"], color=STYLE["quiet"])
    return figure
