"""Export a saved model to a file or folder for another runtime; it is written only if it passes the check."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import torchcaps
from torchcaps.errors import UserError, did_you_mean
from torchcaps.exchange.check import Agreement
from torchcaps.exchange.hub import write_folder
from torchcaps.exchange.onnx_file import OPSET, write_onnx
from torchcaps.exchange.packages import write_library, write_program
from torchcaps.models import ImageModel

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2", "aoti": "-aoti.pt2", "hub": "-hub"}


class Exported(NamedTuple):
    """A finished export.

    Attributes:
        path: the file or folder.
        agreement: how it compares with the model.
    """

    path: Path
    agreement: Agreement


def export(source: str, kind: str, out: Path | None = None, opset: int | None = None) -> Exported:
    """Export a saved model.

    Args:
        source: what `torchcaps.load` takes.
        kind: "onnx", "torch" (a torch.export program), "aoti" (compiled by AOTInductor) or "hub" (a folder).
        out: where to write; by default named after the source, in the current folder.
        opset: of ONNX.
    """
    if kind not in SUFFIXES:
        raise UserError(f"--to {kind}: {did_you_mean(kind, SUFFIXES)}")
    if opset is not None and kind != "onnx":
        raise UserError("--opset is for --to onnx; omit it")
    name = _base_name(source)
    path = Path(name + SUFFIXES[kind]) if out is None else out
    _check_path(path, kind)
    model = torchcaps.load(source)
    try:
        return Exported(path, _write(model, kind, path, opset or OPSET, source, name))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def _write(model: ImageModel, kind: str, path: Path, opset: int, source: str, name: str) -> Agreement:
    """Write to a temporary folder on the same disk; move the files from there once they pass the check."""
    parent = next(folder for folder in path.absolute().parents if folder.is_dir())
    with tempfile.TemporaryDirectory(prefix=".exported-", dir=parent) as folder:
        temporary = Path(folder) / path.name
        if kind == "onnx":
            agreement = write_onnx(model, temporary, opset)
        elif kind == "torch":
            agreement = write_program(model, temporary)
        elif kind == "aoti":
            agreement = write_library(model, temporary)
        else:
            agreement = write_folder(model, temporary, source, name)
        written, goal = (temporary, path) if kind == "hub" else (Path(folder), path.parent)
        goal.mkdir(parents=True, exist_ok=True)
        for file in sorted(written.iterdir(), key=lambda file: file.name == path.name):
            os.replace(file, goal / file.name)  # the file that refers to the others comes last
    return agreement


def _check_path(path: Path, kind: str) -> None:
    """Raise a UserError for wrong paths before the export, which takes minutes."""
    suffix = Path("x" + SUFFIXES[kind]).suffix
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise UserError(f"--out {path}: {nearest} is a file, and nothing can be written inside it; choose another path")
    if kind == "hub":
        if path.exists() and not path.is_dir():
            raise UserError(f"--out {path}: that is a file; give a folder")
    elif path.is_dir():
        raise UserError(f"--out {path}: that is a folder; give a file that ends in {suffix}")
    elif path.suffix != suffix:
        raise UserError(f"--out {path}: give a file that ends in {suffix}")


def _base_name(source: str) -> str:
    """The name of the source's folder or file, without its ending."""
    path = Path(source).resolve() if Path(source).exists() else Path(source)
    return path.stem if path.suffix == ".safetensors" else path.name
