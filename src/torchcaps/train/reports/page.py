"""report.html: what the reports of all tasks have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps import explain
from torchcaps.explain.html import code, page, paragraph, picture, section, table
from torchcaps.io.atomic import write_text
from torchcaps.models import ImageModel

SHARES = (
    "accuracy",
    "macro_f1",
    "calibration_error",
    "precision",
    "recall",
    "dice",
    "iou",
    "pixel_error",
    "similarity",
)  # given in percent


class Report(NamedTuple):
    """A self-contained page about a run.

    Attributes:
        path: of the page.
        title: of the page.
        summary: rows of the first table.
        recipe_text: printed at the end.
        history: a dict per epoch: epoch, train_loss, val_accuracy, …
        model: the trained model.
    """

    path: Path
    title: str
    summary: Mapping[str, Any]
    recipe_text: str
    history: Sequence[Mapping[str, Any]]
    model: ImageModel

    def write(self, sections: Sequence[str], answer: Sequence[str] = ()) -> Path:
        """Write the page; returns its path.

        Args:
            sections: of the task.
            answer: sections that come first; without any, the summary and the learning curves do.
        """
        rows = [
            (_words(key), _value(key, value))
            for key, value in self.summary.items()
            if value is not False and value not in (None, {}) and not key.endswith(("per_class", "baselines"))
        ]
        summary, curves = section("Summary", table(rows)), section("Learning curves", _curves(self.history))
        shown = [*answer, *sections, curves, summary] if answer else [summary, curves, *sections]
        return write_text(self.path, page(self.title, [*shown, section("Recipe", code(self.recipe_text))]))


def _curves(history: Sequence[Mapping[str, Any]]) -> str:
    if not history:
        return paragraph("No epoch was recorded.")
    caption = "Training measures are averages over an epoch, in which the weights change."
    if not any(key.startswith("val_") for entry in history for key in entry):
        caption += " No validation images were held out."
    return picture(explain.figure_curves(history), "Loss and other measures by epoch", caption)


def _words(key: str) -> str:
    known = {"val": "validation", "n": "images"}
    return " ".join(known.get(word, word) for word in key.split("_")).capitalize().replace(" mib", ", MiB")


def percent(value: float) -> str:
    return f"{100 * value:.2f} %" if value == value else "–"


def _value(key: str, value: Any) -> str:
    if key == "versions":
        return ", ".join(f"{name} {version}" for name, version in value.items())
    if isinstance(value, float) and key.endswith(SHARES):
        return percent(value)
    if key.endswith("accuracy_interval"):
        return " to ".join(map(percent, value))
    formats: dict[type, Callable[[Any], str]] = {float: "{:,.4g}".format, int: "{:,}".format, str: str}
    return formats.get(str if key == "seed" else type(value), partial(json.dumps, default=str))(value)
