"""Run a robustness suite on saved models, with their own test images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchcaps.data.split import SplitOptions, split_dataset
from torchcaps.errors import UserError, did_you_mean
from torchcaps.explain.style import png_bytes
from torchcaps.io.folders import make_folder
from torchcaps.models import ImageModel
from torchcaps.robustness.charts import FIGURES
from torchcaps.robustness.suites import SUITES
from torchcaps.train.tasks.test_sets import classification_test_set


def run_suite(
    model: ImageModel,
    suite: str,
    *,
    against: ImageModel | None = None,
    names: tuple[str, str] = ("model", "against"),
    data: str | None = None,
    n: int = 500,
    seed: int = 0,
    out: Path | None = None,
) -> dict[str, Any]:
    """Run one suite on a random sample of the test images, stratified by class.

    Args:
        model: a classifier with one label an image.
        suite: a name in SUITES.
        against: a second model, measured on the same images.
        names: what to call the two.
        data: an image folder, a CSV or a name; by default the model's own test set.
        n: number of images.
        seed: of the sample, noise and attacks.
        out: folder for <suite>.json and <suite>.png.

    Returns:
        What the suite returns, and data, the name of the test set.
    """
    if suite not in SUITES:
        raise UserError(f"unknown suite {suite!r}: {did_you_mean(suite, SUITES)}")
    if out is not None:
        make_folder(out)
    models = {names[0]: model}
    if against is not None:
        _check_pair(model, against, names)
        models[names[1]] = against
    for name, each in models.items():
        _check_one_label(name, each)
    dataset, source = classification_test_set(model, data)
    if dataset.multi_label:
        raise UserError(f"{source} has images with several labels: the suites need one class for each image")
    if n < 1:
        raise UserError(f"--n {n}: give the number of test images to use, at least 1")
    chosen, _, _ = split_dataset(dataset, None, None, SplitOptions(validation=0, test=0, seed=seed, limit=n))
    result = {**SUITES[suite](models, model.prepare(chosen.images[:]), chosen.targets, seed=seed), "data": source}
    if out is not None:
        picture = png_bytes(FIGURES[suite](result))
        (out / f"{suite}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (out / f"{suite}.png").write_bytes(picture)
    return result


def suite_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A suite's result as a table: the heading, and a row for each strength of each change."""
    rows = []
    for curve in result["curves"]:
        for place, strength in enumerate(curve["strengths"]):
            figures = [_figure(curve, name, place) for name in result["models"]]
            rows.append([curve["change"], f"{strength} {curve['unit']}".strip(), curve["measure"], *figures])
    for found in result.get("linearity", []):
        figures = [
            "" if found["values"].get(name) is None else f"{found['values'][name]:.3f}" for name in result["models"]
        ]
        rows.append([found["change"], f"by chance {found['chance']:.3f}", "R² of the pose", *figures])
    return ["change", "strength", "measure", *result["models"]], rows


def _figure(curve: dict[str, Any], name: str, place: int) -> str:
    """98.3 %" for shares of images, a plain number for the rest, nothing where a model has no such measure."""
    if name not in curve["values"]:
        return ""
    value = curve["values"][name][place]
    if curve["measure"] == "angle of the pose":
        return f"{value:.1f}°"
    shares = ("accuracy", "FPR95", "longest is of a shown class", "shown classes are in the longest two")
    return f"{value:.1%}" if curve["measure"].split(" by ")[0] in shares else f"{value:.3f}"


def _check_one_label(name: str, model: ImageModel) -> None:
    if model.task != "classification":
        raise UserError(f"{name} is a {model.task} model, and the suites are for classifiers")
    if model.trained_by.get("multi_label") or getattr(model, "multi_label", False):
        raise UserError(
            f"{name} is a multi-label model, and the suites are for models with one label: "
            "use `torchcaps eval` without --suite"
        )


def _check_pair(model: ImageModel, against: ImageModel, names: tuple[str, str]) -> None:
    """Check that both models take the same images and classes."""
    if names[0] == names[1]:
        raise UserError(f"--against {names[1]}: that is the same model; give another")
    for what in ("image_shape", "resize_to", "class_names"):
        mine, other = tuple(getattr(model, what)), tuple(getattr(against, what))
        if mine != other:
            raise UserError(
                f"--against {names[1]}: its {what} is {_short(other)}, that of {names[0]} {_short(mine)}; "
                "give a model trained on the same classes and image size"
            )


def _short(values: tuple[Any, ...]) -> str:
    words = ", ".join(map(str, values[:5]))
    return f"({words}, …)" if len(values) > 5 else f"({words})"
