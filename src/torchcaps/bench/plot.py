"""Figures of routing benchmarks: run time along each axis, and run time and test error of each routing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcaps.explain.style import STYLE, new_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"B": "Batch", "I": "Children", "J": "Parents (classes)", "r": "Iterations"}
LINES = {  # backend and precision: label, colour, line style
    ("reference", "fp32"): ("reference, fp32", STYLE["quiet"], "-"),
    ("reference", "tf32"): ("reference, TF32", STYLE["quiet"], "-"),
    ("chunked", "fp32"): ("chunked, fp32", STYLE["second"], "-"),
    ("chunked", "tf32"): ("chunked, TF32", STYLE["second"], "-"),
    ("fused", "tf32"): ("fused, TF32", STYLE["main"], "-"),
    ("fused", "bf16"): ("fused, bf16", STYLE["main"], "--"),
}
Row = dict[str, str]


def figure_scaling(rows: Sequence[Row]) -> Figure:
    """Plot the run time of forward and backward, with one panel per axis, from rows of `torchcaps bench --scaling`."""
    routing = [row for row in rows if row["what"] == "routing" and (row["backend"], row["precision"]) in LINES]
    figure = new_figure(11.0, 3.4, f"Dynamic routing, forward and backward, {routing[0]['machine']}")
    panels = figure.subplots(1, len(AXES), sharey=True)
    for panel, axis in zip(panels, AXES):
        chosen, fixed = _along(axis, routing)
        _draw(panel, axis, chosen, fixed)
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


def figure_family(rows: Sequence[Row]) -> Figure:
    """Plot one line per routing, the fastest first, from rows of `torchcaps bench --routing`.

    The panels show the run time of a layer, forward and backward, and the test error of the networks that were trained.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator

    family = sorted((row for row in rows if row["what"] == "routing"), key=lambda row: float(row["both_ms"]))
    trained = [(line, row) for line, row in enumerate(family) if row["test_error"]]
    title = f"Class capsules by routing, batch {family[0]['B']}, {family[0]['machine']}"
    figure = new_figure(9.0 if trained else 6.0, 1.3 + 0.3 * len(family), title)
    panels = figure.subplots(1, 2 if trained else 1, sharey=True, squeeze=False)[0]
    times, errors = panels[0], panels[-1]
    _lines(times, family, "both_ms", "Forward and backward, ms")
    times.set_yticks(range(len(family)), [row["name"] for row in family])
    times.invert_yaxis()
    times.set_xscale("log")
    times.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    times.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    times.minorticks_off()
    if trained:
        epochs = trained[0][1]["epochs"]
        _lines(errors, family, "test_error", f"MNIST error after {epochs} epochs, % ± standard error")
    for line, row in trained:
        error = float(row["test_error"])
        spread = math.sqrt(error * (100 - error) / int(row["test_n"]))  # standard error of a proportion
        errors.plot([error - spread, error + spread], [line, line], color=STYLE["main"], linewidth=1)
    return figure


def _lines(panel: Axes, rows: Sequence[Row], column: str, label: str) -> None:
    """Draw a dot and its value on each line that has one."""
    plain_axes(panel, label)
    panel.grid(axis="y", color=STYLE["faint"], linewidth=0.6)
    panel.tick_params(axis="y", length=0, labelsize=STYLE["text"], labelcolor=STYLE["ink"])
    panel.margins(x=0.15, y=0.12)
    for line, row in enumerate(rows):
        if row[column]:
            value = float(row[column])
            panel.plot(value, line, "o", color=STYLE["main"], markersize=6)
            panel.annotate(
                f"{value:.2f}",
                (value, line),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=STYLE["small"],
                color=STYLE["quiet"],
            )


def _along(axis: str, rows: Sequence[Row]) -> tuple[list[Row], str]:
    """The rows in which only this axis varies, and the fixed values of the others as text."""
    others = [name for name in AXES if name != axis]
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in others)].append(row)
    fixed, chosen = max(groups.items(), key=lambda item: len({row[axis] for row in item[1]}))
    return chosen, ", ".join(f"{name} = {value}" for name, value in zip(others, fixed))


def _draw(panel: Axes, axis: str, rows: Sequence[Row], fixed: str) -> None:
    plain_axes(panel, AXES[axis])
    panel.set_title(fixed, fontsize=STYLE["small"], color=STYLE["quiet"])
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
