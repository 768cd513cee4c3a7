"""Figures of how a class stands: the view through its pose, the placed drawing, sweeps in degrees and pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcaps.explain.charts import figure_lengths
from torchcaps.explain.placement import (
    POSE_SWEEP,
    Standing,
    canonical_views,
    draw_placed,
    draw_upright,
    lattice_lengths,
    read_poses,
    runner_up,
    stand,
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

POSE = "#56b4e9"  # sky blue of Okabe and Ito: seen on black and on white
FRAME = 0.25  # half a side of the square that shows a pose, as a share of the image's shorter side


def show_placement(model: PoseCaps, image: Tensor, shown: int | None) -> tuple[dict[str, Figure], dict[str, Tensor]]:
    """Show how a class stands in an image (C, H, W): figures by file name, and the numbers behind them.

    Args:
        model: what read the image; without a decoder there are no drawings.
        image: (C, H, W) in [0, 1].
        shown: the class; None for the most present one.
    """
    seen = read_poses(model, image[None])
    lengths_J = seen.lengths[0]
    shown = int(lengths_J.argmax()) if shown is None else shown
    other = runner_up(lengths_J, shown)
    classes = torch.tensor([shown] if other is None else [shown, other])
    stands = stand(model, image.expand(len(classes), -1, -1, -1), classes)
    lattice_ASJ, views, names = lattice_lengths(model, image), canonical_views(model, stands), model.class_names
    figures = {
        "lengths": figure_lengths(lengths_J, names),
        "lattice": figure_lattice(lattice_ASJ, model.lattice, stands, names),
        "canonical": figure_canonical(model, stands, views, names),
    }
    arrays = {"image": image, "lengths": lengths_J, "classes": classes, "lattice_lengths": lattice_ASJ}
    arrays |= {
        "lattice_angles": torch.tensor(model.lattice.angles),
        "lattice_scales": torch.tensor(model.lattice.scales),
    }
    arrays |= {name: part[0] for name, part in seen.placement._asdict().items() if part is not None}
    arrays["canonical"] = views
    if model.decoder is not None:
        drawn, turned = draw_placed(model, stands), sweep_pose(model, image, shown)
        changed = sweep_capsule(model, image, shown)
        title = f"Class {names[shown]}: its pose changed, then each dimension of its capsule by a share of its length"
        figures["reconstruction"] = figure_placed(model, stands, drawn, names)
        figures["sweep"] = figure_pose_sweep(turned, changed, title=title)
        arrays |= {"upright": draw_upright(model, stands), "reconstruction": drawn, "sweep": changed}
        arrays |= {f"sweep_{name}": images for name, images in turned.items()}
    return figures, arrays


def figure_canonical(
    model: PoseCaps,
    stands: Standing,
    views: Tensor,
    class_names: Sequence[str] | None = None,
    *,
    title: str = "The image as it stands, and seen through the pose that was read",
) -> Figure:
    """Draw a row for each class: the image with the pose on it, the view through that pose, the upright drawing.

    Args:
        model: whose decoder draws, if it has one.
        stands: N classes.
        views: (N, C, H, W) what `canonical_views` gave.
    """
    upright = None if model.decoder is None else draw_upright(model, stands)
    rows = []
    for place in range(len(views)):
        words = pose_words(stands.placement, place)
        row = [Tile(stands.images[place], "\n".join([", ".join(words[:3]), *words[3:]]))]
        row.append(Tile(views[place], "Seen through the pose"))
        rows.append([*row, Tile(upright[place], "Drawn upright")] if upright is not None else row)
    side, heads = 1.9, _heads(stands, class_names)
    lines = 1 if stands.placement.thickness is None else 2
    height = len(rows) * (side * aspect_of(views) + 0.1 + 0.15 * lines)
    figure = new_figure(0.6 + (side + 0.1) * len(rows[0]), height + 0.6, title)
    axes = show_tiles(figure, rows, heads, side=side)
    poses = model.affine(stands.placement)
    for number, shown in enumerate(axes.images[:: len(rows[0])]):
        _draw_pose(axes, shown, poses[number])
    return figure


def figure_placed(
    model: PoseCaps,
    stands: Standing,
    drawn: Tensor,
    class_names: Sequence[str] | None = None,
    *,
    true: Tensor | None = None,
    title: str = "Each class drawn where and how it stands",
) -> Figure:
    """Draw a column for each class: its pose on the image, and below what the decoder makes of it in that pose.

    Args:
        model: what read the poses.
        stands: N classes.
        drawn: (N, C, H, W) what `draw_placed` gave.
        true: (N,) bool, whether the class is in the image; if not it is marked.
    """
    N = len(drawn)
    side = 0.9 if N > 3 else 1.6
    words = ["\n".join(pose_words(stands.placement, place)) for place in range(N)]
    colours = [None if true is None or bool(true[place]) else STYLE["second"] for place in range(N)]
    heads = zip(stands.images, _heads(stands, class_names), colours)
    rows = [[Tile(*each) for each in heads], [Tile(*each) for each in zip(drawn, words)]]
    height = 2 * side * aspect_of(drawn) + 1.1 + (0.15 if stands.placement.thickness is not None else 0)
    figure = new_figure(max(4.4, 0.5 + (side + 0.1) * N), height + (0.35 if title else 0), title)
    axes = show_tiles(figure, rows, ["Input", "Drawn"], side=side)
    poses = model.affine(stands.placement)
    for number, shown in enumerate(axes.images[:N]):
        _draw_pose(axes, shown, poses[number])
    return figure


def figure_pose_sweep(
    turned: dict[str, Tensor],
    changed: Tensor,
    *,
    title: str = "The pose changed, then each dimension of the capsule by a share of its length",
) -> Figure:
    """Draw a row for each part of the pose, in its unit, then one for each dimension of the capsule.

    Args:
        turned: (V, C, H, W) of each part, what `sweep_pose` gave with its own values.
        changed: (D, V, C, H, W) what `sweep_capsule` gave with its own values.
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


def _heads(stands: Standing, class_names: Sequence[str] | None) -> list[str]:
    return [
        f"{names_of(index.cpu(), class_names, 12)}\n{float(long):.2f}"
        for index, long in zip(stands.classes, stands.lengths)
    ]


def _in_units(name: str, values: Sequence[float]) -> list[str]:
    """Changes of a part of a pose: "+8°", "× 1.07", "−1.2 px"."""
    if name in ("scale", "stretch"):
        return [f"× {value:.2f}" for value in values]
    unit = {"angle": "°", "x": " px", "y": " px"}.get(name, "")
    return [(f"{value:+g}".replace("-", "−") if value else "0") + unit for value in values]


def _draw_pose(axes: Axes, shown: AxesImage, pose: Affine) -> None:
    """Draw a pose on one of the images that `show_tiles` put on these axes.

    A dot is the centre of the class, an arrow points to its upper side, a square shows what an upright one became.
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
