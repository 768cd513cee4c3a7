"""The scaling plot: what routing takes as one axis grows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcaps.explain.style import STYLE, new_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"B": "Batch", "I": "Children", "J": "Parents (classes)", "r": "Iterations"}
LINES = {  # backend and products: label, colour, line
    ("reference", "fp32"): ("reference, fp32", STYLE["quiet"], "-"),
    ("reference", "tf32"): ("reference, TF32", STYLE["quiet"], "-"),
    ("chunked", "fp32"): ("chunked, fp32", STYLE["second"], "-"),
    ("chunked", "tf32"): ("chunked, TF32", STYLE["second"], "-"),
    ("fused", "tf32"): ("fused, TF32", STYLE["main"], "-"),
    ("fused", "bf16"): ("fused, bf16", STYLE["main"], "--"),
}
Row = dict[str, str]


def figure_scaling(rows: Sequence[Row]) -> Figure:
    """Milliseconds of forward and backward, a panel for each axis, from rows of `torchcaps bench --scaling`."""
    routing = [row for row in rows if row["what"] == "routing" and (row["backend"], row["precision"]) in LINES]
    figure = new_figure(11.0, 3.4, f"Dynamic routing, forward and backward, {routing[0]['machine']}")
    panels = figure.subplots(1, len(AXES), sharey=True)
    for panel, axis in zip(panels, AXES):
        chosen, where = _along(axis, routing)
        _draw(panel, axis, chosen, where)
    panels[0].set_ylabel("ms", fontsize=STYLE["text"], color=STYLE["ink"])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels),
        fontsize=STYLE["small"],
        frameon=False,
        handlelength=3.5,
    )
    return figure


def _along(axis: str, rows: Sequence[Row]) -> tuple[list[Row], str]:
    """The rows in which only this axis varies, and the values of the others in words."""
    others = [name for name in AXES if name != axis]
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in others)].append(row)
    fixed, chosen = max(groups.items(), key=lambda item: len({row[axis] for row in item[1]}))
    return chosen, ", ".join(f"{name} = {value}" for name, value in zip(others, fixed))


def _draw(panel: Axes, axis: str, rows: Sequence[Row], where: str) -> None:
    plain_axes(panel, AXES[axis])
    panel.set_title(where, fontsize=STYLE["small"], color=STYLE["quiet"])
    panel.set_yscale("log")
    panel.grid(axis="y", color=STYLE["faint"], linewidth=0.6)
    values = sorted({int(row[axis]) for row in rows})
    if axis == "r":
        panel.set_xticks(values)
    else:
        panel.set_xscale("log")
        panel.set_xticks(values, [f"{value:,}" for value in values], rotation=35, ha="right")
        panel.minorticks_off()
    for key, (label, colour, line) in LINES.items():
        points = sorted(
            (int(row[axis]), float(row["both_ms"])) for row in rows if (row["backend"], row["precision"]) == key
        )
        if len(points) > 1:
            panel.plot(*zip(*points), line, color=colour, label=label, linewidth=1.6, marker="o", markersize=3)
