"""Repeat a run, and compare the two number by number."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from torchcaps.errors import UserError
from torchcaps.io.tensors import checksum, read_tensors
from torchcaps.models.files import WEIGHTS
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import start_run

TIMES = ("images_per_second",)  # fields of metrics.jsonl that differ every time
ABOUT = ("machine", "versions", "commit", "data_checksum", "processes", "resumed")  # possible causes of a difference


class Difference(NamedTuple):
    what: str
    before: Any
    now: Any


def rerun(run: Path, *, out: Path | None = None, device: str | None = None, console: Console | None = None) -> Path:
    """Train a finished run's recipe again, by default on the same type of device; returns the new folder."""
    before = _summary(run)
    _lines(run)
    _weights(run)  # fail before hours of training
    folder = out or run.with_name(f"{run.name}-again-{datetime.now():%Y%m%d-%H%M%S}")
    recipe = load_recipe(str(run / "recipe.yaml"))
    return start_run(recipe, out=folder, device=device or before["device"].partition(":")[0], console=console)


def compare_runs(before: Path, now: Path) -> tuple[list[Difference], list[Difference]]:
    """Compare two runs.

    Returns:
        The differences (the first in the history, test and validation figures, weights), and what about the runs could
        explain them.
    """
    then, again = _summary(before), _summary(now)
    found = _history(before, now)
    keys = [key for key in then if key.startswith(("test_", "val_")) and key in again]
    found += [Difference(key, then[key], again[key]) for key in keys if then[key] != again[key]]
    weights = [_weights(folder) for folder in (before, now)]
    found += [Difference("weights (checksum)", *weights)] if weights[0] != weights[1] else []
    about = [Difference(key, then.get(key), again.get(key)) for key in ABOUT if then.get(key) != again.get(key)]
    return found, about


def _history(before: Path, now: Path) -> list[Difference]:
    lines = [_lines(folder) for folder in (before, now)]
    for first, second in zip(*lines):
        for key in first:
            if key not in TIMES and first[key] != second.get(key):
                return [Difference(f"{key} of epoch {first['epoch']}", first[key], second.get(key))]
    return [] if len(lines[0]) == len(lines[1]) else [Difference("epochs", len(lines[0]), len(lines[1]))]


def _lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    try:
        lines = [dict(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        if all("epoch" in line for line in lines):
            return lines
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _unreadable(folder, path) from error
    raise _unreadable(folder, path)


def _weights(folder: Path) -> str:
    path = folder / "model" / WEIGHTS
    try:
        return checksum(read_tensors(path).tensors, {})
    except ValueError as error:
        raise _unreadable(folder, path) from error


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    if not path.is_file():
        finish = f"finish it with `torchcaps train --resume {folder}`"
        way = finish if (folder / "recipe.yaml").is_file() else "give the folder that `torchcaps train` named"
        raise UserError(f"{folder} is not a finished run: it has no summary.json; {way}")
    try:
        found = dict(json.loads(path.read_text(encoding="utf-8")))
        found["device"].partition(":")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _unreadable(folder, path) from error
    return found


def _unreadable(folder: Path, path: Path) -> UserError:
    state = "was not written by a run" if path.is_file() else "does not exist"
    return UserError(
        f"{path} {state}, so the run cannot be compared: remove {folder / 'summary.json'}, and "
        f"`torchcaps train --resume {folder}` writes figures and model again from the last checkpoint"
    )
