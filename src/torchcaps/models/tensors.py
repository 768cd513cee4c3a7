"""Tensors and text in a .safetensors file, and the JSON in that text: read only as far as they make sense."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from safetensors import safe_open
from torch import Tensor

from torchcaps.bounded import size_of

MOST_CHARACTERS = 1 << 22  # of JSON: a hundred thousand names of classes
DEEPEST = 64


class Unreadable(ValueError):
    """Why a file is not what it should be."""


class TensorFile(NamedTuple):
    metadata: dict[str, str]
    tensors: dict[str, Tensor]


def read_tensors(path: Path) -> TensorFile:
    """All of a file; its own library has checked every size in the header against the file."""
    size_of(path)
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return TensorFile(file.metadata() or {}, {name: file.get_tensor(name) for name in names})
    except Exception as error:
        # SafetensorError, OSError, or of a type that PyTorch has no name for, an AttributeError
        raise Unreadable(str(error) or type(error).__name__) from error


def read_json(text: str) -> Any:
    """The value of a text, finite numbers only, nested no deeper than anything that is saved here."""
    if len(text) > MOST_CHARACTERS:
        raise Unreadable(f"{len(text):,} characters of JSON")
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON ({error})") from error
    inside = [value]
    for _ in range(DEEPEST):
        inside = [each for outer in inside for each in _parts(outer)]
    if inside:
        raise Unreadable(f"JSON that is nested more than {DEEPEST} deep")
    return value


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")
