"""Figures of the robustness suites, from the dicts that the suites return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchcaps.explain.style import STYLE, new_figure, plain_axes, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

COLOURS = (STYLE["main"], STYLE["second"], "#009e73", "#cc79a7", "#222222")  # Okabe and Ito's, as in STYLE
LINES: dict[str, Any] = {"PGD on cross-entropy": "-", "PGD": "--", "FGSM": "-.", "random signs": ":"}
WORST = "PGD on cross-entropy"
MAX_MODELS_ALL_ATTACKS = 2  # for more models, only the worst attack is drawn
MARKERS = {"max length": "o", "energy": "s", "familiarity": "D"}
ROC_EPS = 0.1  # strength of the ROC curves
MAX_NAME_CHARS = 40

Result = Mapping[str, Any]


def figure_affine(result: Result) -> Figure:
    """Draw accuracy over rotation, shear, scale and translation."""
    return _accuracy_panels(result, "Accuracy on rotated, sheared, scaled and translated images")


def figure_corruption(result: Result) -> Figure:
    """Draw accuracy over noise, blur and occlusion."""
    return _accuracy_panels(result, "Accuracy on corrupted images")


def figure_adversarial(result: Result) -> Figure:
    """Draw accuracy under attack, and detection by reconstruction error for models with a decoder.

    For more than two models only the worst attack is drawn.
    """
    from matplotlib.lines import Line2D

    drawn = LINES if len(result["models"]) <= MAX_MODELS_ALL_ATTACKS else {WORST: LINES[WORST]}
    result = {
        **result,
        "curves": [each for each in result["curves"] if each["change"] in drawn],
        "detection": [each for each in result["detection"] if each["attack"] in drawn],
    }
    detections = [each for each in result["detection"] if each["eps"] == ROC_EPS]
    title = "Accuracy and detection under attack" if detections else "Accuracy under attack"
    figure = new_figure(11.0 if detections else 5.5, 3.9, _title(title, result))
    panels = figure.subplots(1, 3 if detections else 1, squeeze=False)[0]
    _shares(plain_axes(panels[0], "Largest change of a pixel", "Accuracy"))
    for curve in _curves(result, "accuracy"):
        _plot(panels[0], curve, result, LINES[curve["change"]])
    if detections:
        _plot_areas(panels[1], result)
        panels[1].set_xlim(panels[0].get_xlim())
        _plot_rocs(panels[2], detections, result)
    styles = [Line2D([], [], color=STYLE["quiet"], linestyle=line, label=name) for name, line in drawn.items()]
    _legend(figure, [*_names(result), *styles])
    return figure


def figure_equivariance(result: Result) -> Figure:
    """Draw length of the true class (above) and angle of its pose (below) over each change."""
    above, below = _curves(result, "length of the true class"), _curves(result, "angle of the pose")
    rows = 2 if below else 1
    title = _title("Does the capsule stay long while its pose follows?", result)
    figure = new_figure(9.6, 2.5 * rows + 1.2, title)
    grid = figure.subplots(rows, len(above), squeeze=False, sharey="row", sharex="col")
    for axes, curve in zip(grid[0], above):
        _plot(plain_axes(axes, "" if below else _words(curve)), curve, result)
        _frame(axes, "")
    for axes, curve in zip(grid[-1], below):
        _plot(plain_axes(axes, _words(curve)), curve, result)
        _frame(axes, _linearity(curve["change"], result), None)
    _name_y(grid[0, 0], "Length or probability\nof the true class")
    if below:
        _name_y(grid[1, 0], "Angle of the pose, degrees")
        grid[1, 0].set_ylim(bottom=0)
    _legend(figure, _names(result))
    return figure


def figure_scrambled(result: Result) -> Figure:
    """Draw accuracy and length of the true class on intact, shuffled and mirrored quadrants."""
    return _bar_panels(result, "Does the arrangement of parts matter?")


def figure_crowding(result: Result) -> Figure:
    """Draw lengths and accuracies for one image, two of one class, and two of two classes."""
    return _bar_panels(result, f"Two overlaid images, {result['apart']:g} pixels apart")


def figure_unfamiliar(result: Result) -> Figure:
    """Draw AUROC and FPR95 for each kind of unfamiliar image: a colour per model, a marker per score."""
    from matplotlib.lines import Line2D

    curves = [(*curve["measure"].split(" by ", 1), curve) for curve in result["curves"] if curve["change"] == "images"]
    scores = [score for measure, score, _ in curves if measure == "AUROC"]
    kinds = curves[0][2]["strengths"]
    # Every model and score has its own height within the row, so that equal values do not hide each other.
    present = {(name, score) for _, score, curve in curves for name in curve["values"]}
    rows = [(name, score) for name in result["models"] for score in scores if (name, score) in present]
    high = max(0.32, 0.09 * len(rows) + 0.08)
    figure = new_figure(8.4, high * len(kinds) + 1.4, _title("Can it recognise unknown classes?", result))
    panels = dict(zip(("AUROC", "FPR95"), figure.subplots(1, 2, sharey=True, gridspec_kw={"wspace": 0.06})))
    _shares_across(plain_axes(panels["FPR95"], "Share accepted when 95 % of the test images are"))
    plain_axes(panels["AUROC"], "Area under the ROC curve")
    lowest = 0.5
    for measure, score, curve in curves:
        for name, values in curve["values"].items():
            step = 0.85 * ((rows.index((name, score)) + 0.5) / len(rows) - 0.5)
            heights = [row + step for row in range(len(kinds))]
            style: dict[str, Any] = {"marker": MARKERS[score], "color": _colour(name, result), "markersize": 4.5}
            panels[measure].plot(values, heights, linestyle="none", clip_on=False, **style)
            lowest = min(lowest, *values) if measure == "AUROC" else lowest
    panels["AUROC"].axvline(0.5, color=STYLE["quiet"], linewidth=0.8, linestyle=":")
    panels["AUROC"].set_xlim(lowest - 0.02, 1.02)
    for axes in panels.values():
        axes.set_ylim(len(kinds) - 0.5, -0.5)
        axes.set_yticks(range(len(kinds)), [_capital(kind) for kind in kinds])
        axes.tick_params(axis="y", length=0, labelcolor=STYLE["ink"])
        axes.grid(axis="x", color=STYLE["faint"], linewidth=0.6)
        for between in range(1, len(kinds)):
            axes.axhline(between - 0.5, color=STYLE["faint"], linewidth=0.6)
    shapes: dict[str, Any] = {"color": STYLE["quiet"], "linestyle": "none"}
    marks = [Line2D([], [], marker=MARKERS[score], label=f"by {score}", **shapes) for score in scores]
    _legend(figure, [*_names(result), *marks])
    return figure


FIGURES: dict[str, Callable[[Result], Figure]] = {
    "affine": figure_affine,
    "corruption": figure_corruption,
    "adversarial": figure_adversarial,
    "equivariance": figure_equivariance,
    "scrambled": figure_scrambled,
    "crowding": figure_crowding,
    "unfamiliar": figure_unfamiliar,
}


def _accuracy_panels(result: Result, title: str) -> Figure:
    curves = result["curves"]
    figure = new_figure(2.8 * len(curves), 3.3, _title(title, result))
    panels = figure.subplots(1, len(curves), sharey=True)
    for axes, curve in zip(panels, curves):
        _plot(_shares(plain_axes(axes, _words(curve))), curve, result)
    _name_y(panels[0], "Accuracy")
    _legend(figure, _names(result))
    return figure


def _bar_panels(result: Result, title: str) -> Figure:
    """Draw a panel for each measure: a group of bars for each kind of image, a bar for each model."""
    curves, names = result["curves"], result["models"]
    rows = len(curves) // 2
    figure = new_figure(5.6 + 1.2 * (len(names) - 1), 2.4 * rows + 0.8, _title(title, result))
    thick = 0.8 / len(names)
    for axes, curve in zip(figure.subplots(rows, 2).flat, curves):
        _frame(plain_axes(axes), _capital(curve["measure"]))
        for position, name in enumerate(names):
            values = curve["values"][name]
            places = [kind + thick * (position - (len(names) - 1) / 2) for kind in range(len(values))]
            bars = axes.bar(places, values, 0.92 * thick, color=_colour(name, result))
            axes.bar_label(bars, fmt=_short_figure, padding=1, fontsize=STYLE["small"], color=STYLE["quiet"])
        axes.set_xticks(range(len(curve["strengths"])), curve["strengths"])
        axes.tick_params(axis="x", length=0, labelcolor=STYLE["ink"])
        axes.set_ylim(0, 1.08)
    _legend(figure, _names(result, marker=True))
    return figure


def _short_figure(value: float) -> str:
    """Format a value as ".87", without the leading zero: bars are narrow."""
    return f"{value:.2f}".lstrip("0") if value < 0.995 else "1"


def _plot(axes: Axes, curve: Result, result: Result, line: str = "-") -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for name, values in curve["values"].items():
        strengths, marker = curve["strengths"], "o" if line == "-" else None
        axes.plot(
            strengths,
            values,
            line,
            color=_colour(name, result),
            linewidth=1.6,
            marker=marker,
            markersize=3,
            clip_on=False,
        )
    axes.grid(axis="y", color=STYLE["faint"], linewidth=0.6)
    # Angles have ticks at thirds of a right angle, others at tenths.
    steps = [1, 1.5, 3, 4.5, 9, 10] if curve["unit"] == "degrees" else [1, 2, 2.5, 5, 10]
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}".replace("-", "−")))


def _plot_areas(axes: Axes, result: Result) -> None:
    plain_axes(axes, "Largest change of a pixel", "Area under the ROC curve")
    curves = _curves(result, "detection AUC")
    for curve in curves:
        _plot(axes, curve, result, LINES[curve["change"]])
    lowest = min(min(values) for curve in curves for values in curve["values"].values())
    _frame(axes, "Detection by reconstruction error", min(0.5, lowest) - 0.02)


def _plot_rocs(axes: Axes, detections: Sequence[Result], result: Result) -> None:
    _shares(plain_axes(axes, "False alarms", "Attacks caught"), f"Detection at a change of {ROC_EPS}")
    axes.xaxis.set_major_formatter(axes.yaxis.get_major_formatter())
    for each in detections:
        colour, line = _colour(each["model"], result), LINES[each["attack"]]
        axes.plot(each["false_alarms"], each["caught"], line, color=colour, linewidth=1.4)


def _shares(axes: Axes, title: str = "") -> Axes:
    """Format the y axis as 0 to 100 %."""
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    return _frame(axes, title)


def _shares_across(axes: Axes) -> Axes:
    """Format the x axis as 0 to 100 %."""
    from matplotlib.ticker import PercentFormatter

    axes.xaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.set_xlim(-0.02, 1.02)
    return axes


def _frame(axes: Axes, title: str, bottom: float | None = 0.0) -> Axes:
    """Set a small heading, and a y axis up to slightly above 1 (bottom None: the range of the data)."""
    axes.set_title(title, fontsize=STYLE["small"], color=STYLE["quiet"])
    if bottom is not None:
        axes.set_ylim(bottom, 1.02)
    return axes


def _linearity(change: str, result: Result) -> str:
    """Format "R² of a straight line 0.43 (chance 0.13)", with one value for each model that has poses."""
    (found,) = (each for each in result["linearity"] if each["change"] == change)
    figures = ["none" if value is None else f"{value:.2f}" for value in found["values"].values()]
    return f"R² of a straight line {', '.join(figures)} (chance {found['chance']:.2f})"


def _names(result: Result, marker: bool = False) -> list[Line2D]:
    from matplotlib.lines import Line2D

    shape: dict[str, Any] = {"marker": "s", "linestyle": "none"} if marker else {"linewidth": 1.6}
    return [
        Line2D([], [], color=_colour(name, result), label=shorten(name, MAX_NAME_CHARS), **shape)
        for name in result["models"]
    ]


def _name_y(axes: Axes, words: str) -> None:
    axes.set_ylabel(words, fontsize=STYLE["text"], color=STYLE["ink"])


def _legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Put a legend below the panels, in as many columns as fit."""
    letters = max(len(str(handle.get_label())) for handle in handles)
    room = figure.get_figwidth() * 72 / (0.6 * STYLE["small"] * letters + 5 * STYLE["small"])
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=max(1, min(len(handles), int(room))),
        fontsize=STYLE["small"],
        frameon=False,
        labelcolor=STYLE["ink"],
        handlelength=3 if handles[0].get_linestyle() == "-" else 1,
    )


def _colour(name: str, result: Result) -> str:
    return COLOURS[result["models"].index(name) % len(COLOURS)]


def _curves(result: Result, measure: str) -> list[Result]:
    return [curve for curve in result["curves"] if curve["measure"] == measure]


def _title(words: str, result: Result) -> str:
    return f"{words} ({result['n']:,} images)"


def _words(curve: Result) -> str:
    return f"{_capital(curve['change'])}, {curve['unit']}"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
