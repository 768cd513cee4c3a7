"""The common style of all figures; matplotlib's global settings stay unchanged."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: dict[str, Any] = {
    "title": 11,  # sizes, in points
    "text": 9,
    "small": 7.5,
    "ink": "#262626",
    "quiet": "#6e6e6e",
    "faint": "#d8d8d8",
    "main": "#0072b2",  # blue and vermilion of Okabe and Ito: distinguishable with every kind of colour vision
    "second": "#d55e00",
    "counts": "Blues",
    "heat": "inferno",
}

MAX_ASPECT = 3.0  # height over width that fits a page


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """Create an empty figure, in inches, with constrained layout; the title is wrapped to its width."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    if title:
        room = int(width * 72 / (0.56 * STYLE["title"]))
        lines = textwrap.fill(shorten(title, 200), room)
        figure.suptitle(lines, fontsize=STYLE["title"], color=STYLE["ink"], x=0.01, ha="left")
    return figure


def plain_axes(axes: Axes, x: str = "", y: str = "") -> Axes:
    """Style axes: two thin spines, grey ticks, labels."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(STYLE["faint"])
    axes.tick_params(labelsize=STYLE["small"], colors=STYLE["quiet"], length=2)
    axes.set_xlabel(x, fontsize=STYLE["text"], color=STYLE["ink"])
    axes.set_ylabel(y, fontsize=STYLE["text"], color=STYLE["ink"])
    return axes


def image_axes(axes: Axes, image: Tensor | None = None, label: str = "", colour: str | None = None) -> Axes:
    """Style axes for an image alone, with a label above."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(image is not None)
        spine.set_color(colour or STYLE["faint"])
    if image is not None:
        axes.imshow(pixels(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    if label:
        axes.set_title(label, fontsize=STYLE["small"], color=colour or STYLE["ink"], pad=3)
    return axes


class Tile(NamedTuple):
    """One of many images in a figure.

    Attributes:
        image: (C, H, W) tensor, or (H, W, 3) array.
        label: written above it.
        colour: of label and frame; the default's if None.
    """

    image: Tensor | np.ndarray
    label: str = ""
    colour: str | None = None


def show_tiles(
    figure: Figure,
    rows: Sequence[Sequence[Tile | None]],
    names: Sequence[str] = (),
    side: float = 0.85,
    upright: bool = False,
) -> Axes:
    """Draw rows of images on one axes, which is faster than an axes for each image.

    Args:
        figure: to draw in.
        rows: of tiles; None leaves a gap.
        names: of the rows, written on the left.
        side: width of an image in inches, the unit of the axes.
        upright: whether the names are horizontal.
    """
    from matplotlib.patches import Rectangle

    axes = image_axes(figure.subplots())
    images = [_array(tile.image) for row in rows for tile in row if tile is not None]
    high, gap, line = side * min(MAX_ASPECT, max(map(_aspect, images))), 0.1, STYLE["small"] / 72 * 1.3
    bottom = 0.0
    for number, row in enumerate(rows):
        lines = max((tile.label.count("\n") + 1 for tile in row if tile is not None and tile.label), default=0)
        top = bottom + gap + line * lines
        bottom = top + high
        for column, tile in enumerate(row):
            if tile is None:
                continue
            image = _array(tile.image)
            wide, tall = side * min(1, high / side / _aspect(image)), min(high, side * _aspect(image))
            left, above = column * (side + gap) + (side - wide) / 2, top + (high - tall) / 2
            place = (left, left + wide, above + tall, above)
            axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest", extent=place)
            edge = tile.colour or STYLE["faint"]
            axes.add_patch(Rectangle((left, above), wide, tall, fill=False, edgecolor=edge, linewidth=0.8))
            if tile.label:
                about = {"fontsize": STYLE["small"], "color": tile.colour or STYLE["ink"]}
                axes.text(left + wide / 2, above - 0.03, tile.label, ha="center", va="bottom", **about)
        if number < len(names):
            about = {"fontsize": STYLE["text"], "color": STYLE["ink"], "rotation": 0 if upright else 90}
            axes.text(-0.08, top + high / 2, names[number], ha="right", va="center", multialignment="center", **about)
    columns = max(map(len, rows))
    room = max((0.1 + STYLE["text"] / 72 * _across(name, upright) for name in names), default=0.01)
    axes.set_xlim(-room, columns * (side + gap) - gap + 0.01)
    axes.set_ylim(bottom + 0.01, 0)
    return axes


def _across(name: str, upright: bool) -> float:
    """Return the width of a row's name in multiples of the font size."""
    lines = name.split("\n")
    return 0.7 * max(map(len, lines)) if upright else 1.3 * len(lines)


def _array(image: Tensor | np.ndarray) -> np.ndarray:
    return pixels(image) if isinstance(image, Tensor) else image


def _aspect(image: np.ndarray) -> float:
    return image.shape[0] / image.shape[1]


def pixels(image: Tensor) -> np.ndarray:
    """Turn (C, H, W) into (H, W) grey or (H, W, 3) RGB in [0, 1]; any other number of channels is averaged to grey."""
    image = torch.nan_to_num(image.detach().float().cpu()).clamp(0, 1)
    return image.permute(1, 2, 0).numpy() if len(image) == 3 else image.mean(0).numpy()


def aspect_of(images: Tensor) -> float:
    """Return height over width of (…, H, W), clipped to what fits a page."""
    return min(MAX_ASPECT, max(1 / MAX_ASPECT, images.shape[-2] / images.shape[-1]))


def shorten(name: object, room: int = 16) -> str:
    """Shorten a name to one line of at most `room` characters, and escape dollar signs, which would start a formula."""
    words = " ".join(str(name).split())
    if len(words) > room:
        tail = room // 3  # names with the same start often differ at the end
        words = f"{words[: room - 1 - tail].rstrip()}…{words[-tail:].lstrip()}"
    return words.replace("$", r"\$")


def names_of(classes: Tensor, class_names: Sequence[str] | None, room: int = 16) -> str:
    """Name one class id (), or the classes of a multi-hot vector (J,): "3", "3 + 7", "none"."""
    several = classes.nonzero().flatten().tolist() if classes.ndim else [int(classes)]
    names = [str(index) if class_names is None else class_names[index] for index in several]
    return shorten(" + ".join(names) or "none", room)


def png_bytes(figure: Figure, dpi: int = 144) -> bytes:
    """Render a figure as a PNG file; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
