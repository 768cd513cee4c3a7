"""Pictures of the objects that were found in images: their drawings as outlines, and one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.explain.masks import COLOURS
from torchcaps.explain.style import STYLE, image_axes, new_figure, plain_axes
from torchcaps.similarity import Similarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = 0.3  # of a drawing: from which a pixel belongs to the object
COLUMNS = 4
ARROW_PIXELS = 8.0  # length of an arrow of scale 1
LEAST_WEIGHT = 0.05  # of votes that are drawn
MAX_NAMED = 12  # objects whose names are written into a picture


class Outline(NamedTuple):
    """An object in a picture.

    Attributes:
        name: of its class.
        presence: in [0, 1].
        corners: (4, 2) x and y of the corners of its box, in order; the first edge is its top.
        colour: by class.
    """

    name: str
    presence: float
    corners: Tensor
    colour: str


def oriented_box(drawing: Tensor, pose: Tensor) -> Tensor:
    """(4, 2) corners of the box around an object's ink, turned as the object is; a point where there is no ink.

    Args:
        drawing: (C, H, W) the object by itself.
        pose: (4,) as the numbers of a `Similarity`.
    """
    rows, columns = (drawing.amax(0) > INK).nonzero().unbind(-1)
    placed = Similarity(pose.to(torch.float32))
    if not len(rows):
        return placed.numbers[:2].expand(4, 2)
    # The corners of the pixels, not their middles.
    places = torch.stack([columns, rows], -1).to(pose)
    corners = torch.cat(
        [places + pose.new_tensor(step) for step in ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5))]
    )
    own = placed.inverse()(corners)
    (left, top), (right, bottom) = own.amin(0).tolist(), own.amax(0).tolist()
    return placed(pose.new_tensor([(left, top), (right, top), (right, bottom), (left, bottom)]))


def colour_of_class(index: int) -> str:
    """The colour of a class, the same in all pictures."""
    return COLOURS[index % len(COLOURS)]


def draw_outlines(axes: Any, outlines: Sequence[Outline]) -> None:
    """Draw boxes into axes that show an image; the top edge of an object is thick."""
    for outline in outlines:
        corners = outline.corners.detach().cpu().tolist()
        axes.plot(*zip(*corners, corners[0]), color=outline.colour, linewidth=1.2)
        axes.plot(*zip(*corners[:2]), color=outline.colour, linewidth=3)
    if len(outlines) <= MAX_NAMED:
        for outline in outlines:
            right, down = outline.corners.mean(0).tolist()
            axes.text(
                right,
                down,
                outline.name,
                color="white",
                fontsize=STYLE["small"],
                ha="center",
                va="center",
                bbox={"facecolor": outline.colour, "edgecolor": "none", "alpha": 0.75, "pad": 1},
            )


def figure_objects(images: Sequence[Tensor], outlines: Sequence[Sequence[Outline]], labels: Sequence[str]) -> Figure:
    """Show images with the boxes of what was found in them.

    Args:
        images: (C, H, W) in [0, 1].
        outlines: those of each image.
        labels: written above each image.
    """
    columns = min(COLUMNS, max(1, len(images)))
    rows = -(-len(images) // columns)
    figure = new_figure(2.6 * columns, 2.9 * max(1, rows))
    axes = figure.subplots(max(1, rows), columns, squeeze=False).flatten()
    for each in axes[len(images) :]:
        each.set_axis_off()
    for each, image, boxes, label in zip(axes, images, outlines, labels):
        image_axes(each, image, label)
        each.set_autoscale_on(False)
        draw_outlines(each, boxes)
    return figure


def figure_one_by_one(image: Tensor, names: Sequence[str], drawings: Tensor, outlines: Sequence[Outline]) -> Figure:
    """Show an image, what was found in it, and each object drawn by itself.

    Args:
        image: (C, H, W) in [0, 1].
        names: of K objects.
        drawings: (K, C, H, W).
        outlines: K.
    """
    figure = new_figure(2.2 * (2 + len(names)), 2.6)
    axes = figure.subplots(1, 2 + len(names), squeeze=False)[0]
    image_axes(axes[0], image, "image")
    image_axes(axes[1], drawings.amax(0) if len(names) else torch.zeros_like(image), "all that was found")
    axes[1].set_autoscale_on(False)
    for each, name, drawing, outline in zip(axes[2:], names, drawings, outlines):
        image_axes(each, drawing, f"{name}  {outline.presence:.2f}", outline.colour)
    return figure


def figure_votes(image: Tensor, names: Sequence[str], votes: Tensor, weights: Tensor, found: Sequence[str]) -> Figure:
    """Show for each class where its votes put the whole: an arrow from the voted position to its top.

    Args:
        image: (C, H, W) in [0, 1].
        names: J classes.
        votes: (I, J, M, S, 4) as `WholeCaps.votes` returns them for one image.
        weights: (I, J, M, S) how much each counts.
        found: J descriptions, written above.
    """
    figure = new_figure(3.4 * len(names), 3.7)
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for j, (each, name, words) in enumerate(zip(axes, names, found)):
        image_axes(each, 0.6 * image, f"votes for {name}: {words}", colour_of_class(j))
        each.set_autoscale_on(False)
        for part in range(len(votes)):
            counts = weights[part, j] > LEAST_WEIGHT
            placed = Similarity(votes[part, j][counts].cpu())
            tips = placed(torch.tensor([0.0, -ARROW_PIXELS])) - placed.numbers[..., :2]
            each.quiver(
                *placed.numbers[..., :2].T.tolist(),
                *tips.T.tolist(),
                angles="xy",
                scale_units="xy",
                scale=1,
                width=0.012,
                color=COLOURS[(part + len(names)) % len(COLOURS)],
            )
    return figure


def figure_errors(angles: Sequence[float], errors: Sequence[tuple[str, Sequence[float]]]) -> Figure:
    """Show how far the pose that is read is from the true one, at all angles.

    Args:
        angles: of the object, in degrees.
        errors: name with unit, and one value for each angle.
    """
    figure = new_figure(3.0 * len(errors), 2.4)
    for axes, (name, values) in zip(figure.subplots(1, len(errors), squeeze=False)[0], errors):
        plain_axes(axes, "angle of the object, degrees", name)
        axes.plot(angles, values, color=STYLE["main"], linewidth=1.2)
        axes.axhline(0, color=STYLE["faint"], linewidth=0.8)
        axes.set_xticks([-180, -90, 0, 90, 180])
    return figure
