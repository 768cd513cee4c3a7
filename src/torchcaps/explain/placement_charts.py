"""Charts of placements: capsule length at each pose of the lattice, and histograms of the poses read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from torchcaps.explain.placement import PlacementReading
from torchcaps.explain.style import STYLE, image_axes, names_of, new_figure, plain_axes, shorten
from torchcaps.geometry import Lattice
from torchcaps.models import Placement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALONE_DEGREES, ALONE_LOG = 15.0, 0.2  # cell size if the lattice has one angle, or one scale
MAX_TICKS = 9  # angles below a heat map
MAX_CLASSES = 20  # rows of shades below a histogram


def figure_lattice(
    lengths_ASJ: Tensor,
    lattice: Lattice,
    reading: PlacementReading,
    class_names: Sequence[str] | None = None,
    *,
    title: str = "Capsule length at each pose of the lattice; the cross is the pose that was read",
) -> Figure:
    """Draw a heat map of angles × scales for each class, one colour scale for all, beside the image.

    Args:
        lengths_ASJ: (A, S, J) from `lattice_lengths`.
        lattice: of the model.
        reading: of the classes to show, all in one image.
        class_names: J names.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    N = len(reading.classes)
    shades = ScalarMappable(Normalize(0, 1), STYLE["heat"])
    high = min(2.2, max(0.9, 0.45 * len(lattice.scales)))
    figure = new_figure(1.9 + 3.3 * N, high + 1.4, title)
    first, *panels = figure.subplots(1, 1 + N, width_ratios=[1.2, *(3.0 for _ in range(N))], squeeze=False)[0]
    image_axes(first, reading.images[0], "Input")
    for number, axes in enumerate(panels):
        index = reading.classes[number].cpu()
        _heat(axes, lengths_ASJ[..., int(index)], lattice)
        plain_axes(axes, "Angle of the pose, degrees", "" if number else "Scale of the pose")
        _cross(axes, *place_on(lattice, float(reading.placement.angle[number]), float(reading.placement.scale[number])))
        head = f"{names_of(index, class_names)}, length {float(reading.lengths[number]):.2f}"
        about = f"{head}\nread {', '.join(pose_words(reading.placement, number)[:2])}"
        axes.set_title(about, fontsize=STYLE["text"], color=STYLE["ink"], pad=5)
    bar = figure.colorbar(shades, ax=panels, pad=0.02, ticks=[0, 0.25, 0.5, 0.75, 1])
    bar.set_label("Length", fontsize=STYLE["small"], color=STYLE["ink"])
    bar.ax.tick_params(labelsize=STYLE["small"], colors=STYLE["quiet"], length=2)
    bar.outline.set_visible(False)
    return figure


def figure_read_poses(
    angles: Tensor,
    scales: Tensor,
    classes: Tensor,
    class_names: Sequence[str],
    thickness: Tensor | None = None,
    *,
    bins: int = 25,
    title: str = "",
) -> Figure:
    """Draw histograms of angles, scales and stroke widths, over all classes and, below, for each class as shades.

    Args:
        angles, scales: (N,) in degrees, and factors.
        classes: (N,) ids; of more than 20 classes only the histograms over all are drawn.
        class_names: J names.
        thickness: (N,) stroke widths in pixels, if they were read.
        bins: number of bins from the smallest value to the largest.
    """
    from matplotlib.ticker import MaxNLocator

    J = len(class_names)
    by_class = 1 < J <= MAX_CLASSES
    ratios = [1.5, 0.2 * J] if by_class else [1.5]
    figure = new_figure(8.4, sum(ratios) + (1.1 if title else 0.8), title)
    columns = {"Angle, degrees": angles, "Scale": scales}
    columns |= {} if thickness is None else {"Stroke width, pixels": thickness}
    grid = figure.subplots(len(ratios), len(columns), squeeze=False, height_ratios=ratios, sharex="col")
    for column, (name, given) in enumerate(columns.items()):
        finite = given.isfinite()
        values, ids = given[finite].double().cpu().numpy(), classes[finite].cpu().numpy()
        edges = _bin_edges(values, bins)
        upper = plain_axes(grid[0, column], "", "" if column else "Images")
        upper.hist(values, list(edges), color=STYLE["main"])
        upper.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        if by_class:
            counts = np.stack([np.histogram(values[ids == j], edges)[0] for j in range(J)])
            shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
            lower = plain_axes(grid[1, column], "", "" if column else "Class")
            lower.pcolormesh(edges, np.arange(J + 1) - 0.5, shares, cmap=STYLE["counts"])
            lower.set_ylim(J - 0.5, -0.5)
            lower.set_yticks([] if column else range(J), [] if column else [shorten(each, 12) for each in class_names])
        grid[-1, column].set_xlabel(name, fontsize=STYLE["text"], color=STYLE["ink"])
    return figure


def _bin_edges(values: np.ndarray[Any, Any], bins: int) -> np.ndarray[Any, Any]:
    """Span the values; at least a hundredth if they hardly differ, as in an untrained model."""
    if not len(values):
        return np.linspace(-0.5, 0.5, bins + 1)
    middle, half = (values.min() + values.max()) / 2, max(np.ptp(values) / 2, 0.005)
    return np.linspace(middle - half, middle + half, bins + 1)


def place_on(lattice: Lattice, angle: float, scale: float) -> tuple[float, float]:
    """Return the position of a pose on a heat map of the lattice: degrees, and the logarithm of the scale."""
    if lattice.full_circle:  # the map starts half a step before the first angle
        start = lattice.angles[0] - (lattice.angles[1] - lattice.angles[0]) / 2
        angle = start + (angle - start) % 360
    return angle, float(np.log(scale))


def pose_words(placement: Placement, number: int) -> list[str]:
    """Describe one of N placements: "+12° ± 4°", "× 1.05", "x 13.2, y 14.0", and "strokes 2.9 px" if it was read."""
    x, y, angle, scale, spread = (float(part[number]) for part in placement[:5])
    turned = f"{angle:+.0f}°"
    turned = "0°" if turned[1:] == "0°" else turned
    words = [f"{turned} ± {spread:.0f}°", f"× {scale:.2f}", f"x {x:.1f}, y {y:.1f}"]
    if placement.thickness is not None:
        words.append(f"strokes {float(placement.thickness[number]):.1f} px")
    return [each.replace("-", "−") for each in words]


def _heat(axes: Axes, lengths_AS: Tensor, lattice: Lattice) -> None:
    """Shade a cell for each angle and scale, on a logarithmic axis of scales."""
    edges = _edges(lattice.angles, ALONE_DEGREES), _edges(np.log(lattice.scales), ALONE_LOG)
    values = lengths_AS.detach().float().cpu().numpy().T
    axes.pcolormesh(*edges, values, cmap=STYLE["heat"], vmin=0, vmax=1, edgecolors="white", linewidth=0.4)
    step = -(-len(lattice.angles) // MAX_TICKS)
    upright = min(range(len(lattice.angles)), key=lambda index: abs(lattice.angles[index]))
    angles = lattice.angles[upright % step :: step]
    axes.set_xticks(angles, [f"{angle:g}".replace("-", "−") for angle in angles])
    axes.set_yticks(np.log(lattice.scales), [f"{scale:.3g}" for scale in lattice.scales])


def _cross(axes: Axes, x: float, y: float) -> None:
    """Mark a pose with a white cross on a black one, visible on every shade; outside the lattice it widens the axes."""
    for colour, width in (("black", 4.0), ("white", 2.0)):
        axes.plot(x, y, "x", color=colour, markersize=9, markeredgewidth=width)


def _edges(centres: Sequence[float] | np.ndarray, alone: float) -> np.ndarray:
    """Return the borders of evenly spaced cells; `alone` is the width of a single cell."""
    middle = np.asarray(centres, dtype=float)
    step = middle[1] - middle[0] if len(middle) > 1 else alone
    return np.append(middle - step / 2, middle[-1] + step / 2)
