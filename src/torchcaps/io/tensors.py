"""Tensors and text in a .safetensors file, and the JSON in that text: read only as far as they make sense."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchcaps.io.limits import size_of

Metadata = dict[str, str]

MAX_CHARACTERS = 1 << 22  # of JSON: a hundred thousand names of classes
MAX_DEPTH = 64


class Unreadable(ValueError):
    """Why a file is not what it should be."""


class Unavailable(Unreadable):
    """Why a file could not even be looked at: it may be as it should be."""


class TensorFile(NamedTuple):
    metadata: Metadata
    tensors: dict[str, Tensor]


def read_tensors(path: Path) -> TensorFile:
    """All of a file; its own library has checked every size in the header against the file."""
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
        # SafetensorError, or of a type that PyTorch has no name for, an AttributeError
        raise Unreadable(str(error) or type(error).__name__) from error


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: Metadata) -> None:
    """All of a file, with its checksum, on the disk when this returns."""
    path.touch()
    usual = stat.S_IMODE(path.stat().st_mode)
    save_file(tensors, path, {**metadata, "checksum": checksum(tensors, metadata)})
    path.chmod(usual)  # the library's files are for their owner alone; whoever may read the others may read this one
    flush(path)


def read_json(text: str, finite: bool = True) -> Any:
    """The value of a text, nested no deeper than anything that is saved here.

    finite  whether infinity and what is no number are refused
    """
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"{len(text):,} characters of JSON")
    try:
        value = json.loads(text, parse_constant=_refuse if finite else None)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON ({error})") from error
    inside = [value]
    for _ in range(MAX_DEPTH):
        inside = [each for outer in inside for each in _parts(outer)]
    if inside:
        raise Unreadable(f"JSON that is nested more than {MAX_DEPTH} deep")
    return value


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def checksum(tensors: dict[str, Tensor], metadata: Metadata) -> str:
    """Of every name, type, shape and number, and of what is said about them."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(metadata.keys() - {"checksum"}):
        digest.update(f"{key}={metadata[key]}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def flush(path: Path) -> None:
    """Wait until a file, or what a folder lists, is on the disk."""
    folder = path.is_dir()
    with suppress(OSError) if folder else nullcontext():  # some systems do not flush folders
        place = os.open(path, os.O_RDONLY if folder else os.O_RDWR)  # Windows refuses handles that cannot write
        try:
            os.fsync(place)
        finally:
            os.close(place)
