"""Pictures of a scene that is parsed: its levels from parts to wholes, and routing iteration by iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.explain.style import STYLE, image_axes, new_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_SHARE = 0.05  # of a part, from which an edge of a tree is drawn
MIN_ALPHA = 0.08  # of a hypothesis whose presence is zero


class SceneObject(NamedTuple):
    """An object of one level.

    Attributes:
        name: of its class.
        outlines: polygons (n, 2) in pixels of the image.
        colour: in which it is drawn.
    """

    name: str
    outlines: Sequence[Tensor]
    colour: str


def figure_parse_tree(image: Tensor, levels: Sequence[Sequence[SceneObject]], shares: Sequence[Tensor]) -> Figure:
    """Show each level of a scene on the image, and the tree that couplings make of the levels.

    Args:
        image: (C, H, W) in [0, 1].
        levels: the objects of each level, parts first.
        shares: for each level but the first, (objects below, objects) how much of each lower one each takes.
    """
    figure = new_figure(3.0 * (1 + len(levels)), 3.2)
    axes = figure.subplots(1, 1 + len(levels), squeeze=False, width_ratios=[*[1] * len(levels), 1.5])[0]
    for each, objects in zip(axes, levels):
        image_axes(each, 0.45 * image, _count(objects))
        each.set_autoscale_on(False)
        for known in objects:
            _draw(each, known, 1.0)
    _tree(axes[-1], levels, shares)
    return figure


def _count(objects: Sequence[SceneObject]) -> str:
    """The classes of objects, with how many there are of each: "2 boats, 2 houses"."""
    names = [known.name for known in objects]
    return ", ".join(
        f"{names.count(name)} {name}{'' if names.count(name) == 1 else 's'}" for name in dict.fromkeys(names)
    )


def _draw(axes: Axes, known: SceneObject, alpha: float) -> None:
    for outline in known.outlines:
        corners = outline.tolist()
        axes.plot(*zip(*corners, corners[0]), color=known.colour, linewidth=1.4, alpha=alpha)


def _tree(axes: Axes, levels: Sequence[Sequence[SceneObject]], shares: Sequence[Tensor]) -> None:
    """Nodes of each level in a row, the wholes on top; the lower the share, the paler the edge."""
    axes.set_axis_off()
    orders = [torch.arange(len(levels[-1]))]
    for taken in reversed(shares):  # the children of one object stand side by side, so that edges do not cross
        above = orders[0].argsort()
        orders.insert(0, above[taken.argmax(1)].argsort(stable=True))
    places = [((order.argsort() + 0.5) / max(1, len(order))).tolist() for order in orders]
    for height, taken in enumerate(shares):
        for below, above in (taken > LEAST_SHARE).nonzero().tolist():
            ends = (places[height][below], places[height + 1][above])
            axes.plot(ends, (height, height + 1), color=STYLE["quiet"], linewidth=1.4, alpha=float(taken[below, above]))
    for height, objects in enumerate(levels):
        for at, (x, known) in enumerate(sorted(zip(places[height], objects), key=lambda pair: pair[0])):
            axes.plot(x, height, "o", color=known.colour, markersize=8)
            # Names of many objects would overlap, so those of the lowest level stand by turns on two lines.
            drop = 12 + 10 * (at % 2) if height == 0 else -16
            axes.annotate(
                known.name,
                (x, height),
                xytext=(0, -drop),
                textcoords="offset points",
                ha="center",
                va="center",
                fontsize=STYLE["small"] if height else 0.8 * STYLE["small"],
                color=STYLE["ink"],
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.35, len(levels) - 0.7)


def figure_scene_routing(
    image: Tensor,
    parts: Sequence[str],
    hypotheses: Sequence[Sequence[SceneObject]],
    presence: Tensor,
    couplings: Tensor,
    iterations: Sequence[int],
) -> Figure:
    """Show hypotheses and couplings of a scene after some iterations of routing.

    Args:
        image: (C, H, W) in [0, 1].
        parts: I names.
        hypotheses: K in each iteration; the same ones, moved.
        presence: (R, K) in [0, 1]; the less present a hypothesis, the paler it is drawn.
        couplings: (R, I, K + 1) share of each part that each hypothesis takes, and last, that none takes.
        iterations: R numbers, written above.
    """
    figure = new_figure(3.1 * len(iterations), 6.6)
    rows = figure.subplots(2, len(iterations), squeeze=False)
    for column, number in enumerate(iterations):
        axes, found = rows[0, column], hypotheses[column]
        image_axes(axes, 0.45 * image, f"iteration {number}")
        axes.set_autoscale_on(False)
        for known, there in zip(found, presence[column].tolist()):
            _draw(axes, known, MIN_ALPHA + (1 - MIN_ALPHA) * there)
        names = [f"{known.name} {there:.2f}" for known, there in zip(found, presence[column].tolist())]
        _couplings(rows[1, column], parts, names, couplings[column])
    return figure


def _couplings(axes: Axes, parts: Sequence[str], wholes: Sequence[str], shares: Tensor) -> Any:
    """A matrix with a number in each field that is not empty."""
    plain_axes(axes)
    drawn = axes.imshow(shares.numpy(), cmap=STYLE["counts"], vmin=0, vmax=1.4, aspect="auto")
    axes.set_xticks(range(len(wholes) + 1), [*wholes, "none"], rotation=90)
    axes.set_yticks(range(len(parts)), parts)
    for row, column in (shares >= LEAST_SHARE).nonzero().tolist():
        axes.text(
            column,
            row,
            f"{float(shares[row, column]):.1f}",
            ha="center",
            va="center",
            fontsize=0.8 * STYLE["small"],
            color=STYLE["ink"],
        )
    return drawn
