"""Figures of placements: aligned views, reconstructions in place, sweeps in degrees and pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcaps.explain.charts import figure_lengths
from torchcaps.explain.placement import (
    POSE_SWEEP,
    PlacementReading,
    canonical_views,
    draw_placed,
    draw_upright,
    lattice_lengths,
    read_placements,
    read_poses,
    runner_up,
    sweep_capsule,
    sweep_pose,
)
from torchcaps.explain.placement_charts import figure_lattice, pose_words
from torchcaps.explain.style import STYLE, Tile, aspect_of, names_of, new_figure, show_tiles
from torchcaps.explain.sweep import SWEEP
from torchcaps.geometry import Affine
from torchcaps.models import PoseCaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

POSE = "#56b4e9"  # sky blue of Okabe and Ito: visible on black and on white
FRAME = 0.25  # half the side of the square that marks a pose, relative to the image's shorter side


def show_placement(model: PoseCaps, image: Tensor, shown: int | None) -> tuple[dict[str, Figure], dict[str, Tensor]]:
    """Explain the placement of a class in an image: figures by file name, and the arrays behind them.

    Args:
        model: reads placements; without a decoder there are no reconstructions.
        image: (C, H, W) in [0, 1].
        shown: the class; None for that of the longest capsule.
    """
    seen = read_poses(model, image[None])
    lengths_J = seen.lengths[0]
    shown = int(lengths_J.argmax()) if shown is None else shown
    other = runner_up(lengths_J, shown)
    classes = torch.tensor([shown] if other is None else [shown, other])
    reading = read_placements(model, image.expand(len(classes), -1, -1, -1), classes)
    lattice_ASJ, views, names = lattice_lengths(model, image), canonical_views(model, reading), model.class_names
    figures = {
        "lengths": figure_lengths(lengths_J, names),
        "lattice": figure_lattice(lattice_ASJ, model.lattice, reading, names),
        "canonical": figure_canonical(model, reading, views, names),
    }
    arrays = {"image": image, "lengths": lengths_J, "classes": classes, "lattice_lengths": lattice_ASJ}
    arrays |= {
        "lattice_angles": torch.tensor(model.lattice.angles),
        "lattice_scales": torch.tensor(model.lattice.scales),
    }
    arrays |= {name: part[0] for name, part in seen.placement._asdict().items() if part is not None}
    arrays["canonical"] = views
    if model.decoder is not None:
        drawn, turned = draw_placed(model, reading), sweep_pose(model, image, shown)
        changed = sweep_capsule(model, image, shown)
        title = (
            f"Class {names[shown]}: its placement changed, then each dimension of its capsule by a share of its length"
        )
        figures["reconstruction"] = figure_placed(model, reading, drawn, names)
        figures["sweep"] = figure_pose_sweep(turned, changed, title=title)
        arrays |= {"upright": draw_upright(model, reading), "reconstruction": drawn, "sweep": changed}
        arrays |= {f"sweep_{name}": images for name, images in turned.items()}
    return figures, arrays


def figure_canonical(
    model: PoseCaps,
    reading: PlacementReading,
    views: Tensor,
    class_names: Sequence[str] | None = None,
    *,
    title: str = "The image, and its alignment by the pose that was read",
) -> Figure:
    """Draw a row for each class: the image with the pose on it, the aligned view, the upright reconstruction.

    Args:
        model: whose decoder reconstructs, if it has one.
        reading: of N classes.
        views: (N, C, H, W) from `canonical_views`.
    """
    upright = None if model.decoder is None else draw_upright(model, reading)
    rows = []
    for place in range(len(views)):
        words = pose_words(reading.placement, place)
        row = [Tile(reading.images[place], "\n".join([", ".join(words[:3]), *words[3:]]))]
        row.append(Tile(views[place], "Aligned"))
        rows.append([*row, Tile(upright[place], "Reconstructed upright")] if upright is not None else row)
    side, heads = 1.9, _heads(reading, class_names)
    lines = 1 if reading.placement.thickness is None else 2
    height = len(rows) * (side * aspect_of(views) + 0.1 + 0.15 * lines)
    figure = new_figure(0.6 + (side + 0.1) * len(rows[0]), height + 0.6, title)
    axes = show_tiles(figure, rows, heads, side=side)
    poses = model.affine(reading.placement)
    for number, shown in enumerate(axes.images[:: len(rows[0])]):
        _draw_pose(axes, shown, poses[number])
    return figure


def figure_placed(
    model: PoseCaps,
    reading: PlacementReading,
    drawn: Tensor,
    class_names: Sequence[str] | None = None,
    *,
    true: Tensor | None = None,
    title: str = "Each class reconstructed in its placement",
) -> Figure:
    """Draw a column for each class: its pose on the image, and below its reconstruction in that pose.

    Args:
        model: that read the poses.
        reading: of N classes.
        drawn: (N, C, H, W) from `draw_placed`.
        true: (N,) bool, whether the class is in the image; if not, it is marked.
    """
    N = len(drawn)
    side = 0.9 if N > 3 else 1.6
    words = ["\n".join(pose_words(reading.placement, place)) for place in range(N)]
    colours = [None if true is None or bool(true[place]) else STYLE["second"] for place in range(N)]
    heads = zip(reading.images, _heads(reading, class_names), colours)
    rows = [[Tile(*each) for each in heads], [Tile(*each) for each in zip(drawn, words)]]
    height = 2 * side * aspect_of(drawn) + 1.1 + (0.15 if reading.placement.thickness is not None else 0)
    figure = new_figure(max(4.4, 0.5 + (side + 0.1) * N), height + (0.35 if title else 0), title)
    axes = show_tiles(figure, rows, ["Input", "Reconstruction"], side=side)
    poses = model.affine(reading.placement)
    for number, shown in enumerate(axes.images[:N]):
        _draw_pose(axes, shown, poses[number])
    return figure


def figure_pose_sweep(
    turned: dict[str, Tensor],
    changed: Tensor,
    *,
    title: str = "The placement changed, then each dimension of the capsule by a share of its length",
) -> Figure:
    """Draw a row for each part of the placement, in its unit, then one for each dimension of the capsule.

    Args:
        turned: (V, C, H, W) of each part, from `sweep_pose` with its default values.
        changed: (D, V, C, H, W) from `sweep_capsule` with its default values.
    """
    rows = [[Tile(*each) for each in zip(images, _in_units(name, POSE_SWEEP[name]))] for name, images in turned.items()]
    shares = [f"{100 * value:+.0f} %".replace("-", "−") if value else "0" for value in SWEEP]
    rows += [[Tile(*each) for each in zip(images, shares)] for images in changed[:1]]
    rows += [[Tile(image) for image in images] for images in changed[1:]]
    names = [name.capitalize() if len(name) > 1 else name for name in turned]
    side, high = 0.62, 0.62 * aspect_of(changed) + 0.1
    height = len(rows) * high + 0.14 * (len(turned) + 1)
    figure = new_figure(0.8 + (side + 0.1) * len(SWEEP), height + (0.6 if title else 0.2), title)
    show_tiles(figure, rows, [*names, *(f"{number + 1}" for number in range(len(changed)))], side, upright=True)
    return figure


def _heads(reading: PlacementReading, class_names: Sequence[str] | None) -> list[str]:
    return [
        f"{names_of(index.cpu(), class_names, 12)}\n{float(long):.2f}"
        for index, long in zip(reading.classes, reading.lengths)
    ]


def _in_units(name: str, values: Sequence[float]) -> list[str]:
    """Format changes of a part of a placement: "+8°", "× 1.07", "−1.2 px"."""
    if name in ("scale", "stretch"):
        return [f"× {value:.2f}" for value in values]
    unit = {"angle": "°", "x": " px", "y": " px"}.get(name, "")
    return [(f"{value:+g}".replace("-", "−") if value else "0") + unit for value in values]


def _draw_pose(axes: Axes, shown: AxesImage, pose: Affine) -> None:
    """Draw a pose on one of the images that `show_tiles` put on these axes.

    A dot is the centre of the class, an arrow points to its top, a square shows its rotation and scale.
    """
    from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle

    left, right, bottom, top = shown.get_extent()
    H, W = shown.get_size()
    reach = FRAME * min(H, W)
    places = reach * torch.tensor([[0, 0], [0, -1], [-1, -1], [1, -1], [1, 1], [-1, 1]]).to(pose.shift)
    inches = pose(places).cpu() * (right - left) / W + torch.tensor([(left + right) / 2, (bottom + top) / 2])
    centre, up, *corners = inches.tolist()
    edge = Rectangle((left, top), right - left, bottom - top, transform=axes.transData)
    arrow = FancyArrowPatch(centre, up, arrowstyle="-|>", mutation_scale=8, shrinkA=0, shrinkB=0, linewidth=1.4)
    for mark in (Polygon(corners, fill=False, linewidth=1), arrow):
        mark.set_color(POSE)
        axes.add_patch(mark).set_clip_path(edge)
    (dot,) = axes.plot(*centre, "o", color=POSE, markersize=3.5)
    dot.set_clip_path(edge)
