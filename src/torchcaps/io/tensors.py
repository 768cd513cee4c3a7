"""Tensors and metadata in .safetensors files, and the JSON in that metadata; every input is checked."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchcaps.io.atomic import atomic_write
from torchcaps.io.limits import size_of

Metadata = dict[str, str]

MAX_CHARACTERS = 1 << 22  # of JSON: enough for a hundred thousand class names
MAX_DEPTH = 64


class Unreadable(ValueError):
    """The content of a file is not valid; the message says why."""


class Unavailable(Unreadable):
    """A file could not be opened or loaded; its content may be valid."""


class TensorFile(NamedTuple):
    """The content of a .safetensors file."""

    metadata: Metadata
    tensors: dict[str, Tensor]


def read_tensors(path: Path) -> TensorFile:
    """Read a whole file; safetensors checks every size in the header against the file."""
    size_of(path)
    try:
        with open(path, "rb"):
            pass
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return TensorFile(file.metadata() or {}, {name: file.get_tensor(name) for name in names})
    except OSError as error:
        raise Unavailable(error.strerror or str(error)) from error
    except MemoryError as error:
        raise Unavailable("there is too little memory") from error
    except Exception as error:
        # SafetensorError, or an AttributeError for a dtype that PyTorch does not have
        raise Unreadable(str(error) or type(error).__name__) from error


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: Metadata, previous: Path | None = None) -> None:
    """Write tensors, metadata and their checksum atomically; see `atomic_write` for `previous`."""
    with atomic_write(path, previous) as temporary:
        temporary.touch()
        default_mode = stat.S_IMODE(temporary.stat().st_mode)
        save_file(tensors, temporary, {**metadata, "checksum": checksum(tensors, metadata)})
        temporary.chmod(default_mode)  # safetensors lets only the owner read its files


def read_json(text: str, finite: bool = True) -> Any:
    """Parse JSON of limited length and depth.

    Args:
        text: the JSON.
        finite: refuse NaN and infinity.
    """
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"{len(text):,} characters of JSON; at most {MAX_CHARACTERS:,} are read")
    try:
        value = json.loads(text, parse_constant=_refuse if finite else None)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON ({error})") from error
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
    if level:
        raise Unreadable(f"JSON that is nested more than {MAX_DEPTH} deep")
    return value


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def checksum(tensors: dict[str, Tensor], metadata: Metadata) -> str:
    """Hash the names, dtypes, shapes and values of all tensors, and the metadata."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(metadata.keys() - {"checksum"}):
        digest.update(f"{key}={metadata[key]}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
