"""What loggers send: settings and figures as flat names with plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchcaps.io.atomic import write_text

MAX_ID_CHARACTERS = 200


def settings(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a recipe as ("train.epochs", 10); those that are None are left out."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from settings(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def figures(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of an epoch or a summary; of the dicts in it only the baselines."""
    numbers = (int, float)
    found = {key: value for key, value in line.items() if isinstance(value, numbers) and not isinstance(value, bool)}
    baselines = line.get("baselines") or {}
    found |= {f"baseline_{key}": value for key, value in baselines.items() if isinstance(value, float)}
    return {key: float(value) for key, value in found.items() if math.isfinite(value)}


def known_id(file: Path) -> str | None:
    """The identifier that a logger kept in the run folder, so that a resumed run continues the same record."""
    try:
        return file.read_text(encoding="utf-8")[:MAX_ID_CHARACTERS].strip() or None
    except FileNotFoundError:
        return None


def keep_id(file: Path, identifier: str) -> None:
    """Keep an identifier in the run folder."""
    write_text(file, identifier + "\n")
