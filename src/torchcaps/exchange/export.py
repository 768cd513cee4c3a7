"""A saved model to a file or folder for another runtime: checked first, put in place whole or not at all."""

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

ENDINGS = {"onnx": ".onnx", "torch": ".pt2", "aoti": "-aoti.pt2", "hub": "-hub"}


class Exported(NamedTuple):
    path: Path
    agreement: Agreement


def export(source: str, kind: str, out: Path | None = None, opset: int | None = None) -> Exported:
    """Export a saved model.

    source  what `torchcaps.load` takes
    kind    onnx, torch (a torch.export program), aoti (compiled by AOTInductor) or hub (a folder)
    out     by default named after the source, in the current folder
    """
    if kind not in ENDINGS:
        raise UserError(f"--to {kind}: {did_you_mean(kind, ENDINGS)}")
    if opset is not None and kind != "onnx":
        raise UserError("--opset goes with --to onnx")
    name = _name(source)
    path = Path(name + ENDINGS[kind]) if out is None else out
    _check_place(path, kind)
    model = torchcaps.load(source)
    try:
        return Exported(path, _write(model, kind, path, opset or OPSET, source, name))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def _write(model: ImageModel, kind: str, path: Path, opset: int, source: str, name: str) -> Agreement:
    """Write aside, in a folder that is gone afterwards; move from there what has passed the check."""
    place = next(folder for folder in path.absolute().parents if folder.is_dir())  # on the same disk as the path
    with tempfile.TemporaryDirectory(prefix=".exported-", dir=place) as folder:
        aside = Path(folder) / path.name
        if kind == "onnx":
            agreement = write_onnx(model, aside, opset)
        elif kind == "torch":
            agreement = write_program(model, aside)
        elif kind == "aoti":
            agreement = write_library(model, aside)
        else:
            agreement = write_folder(model, aside, source, name)
        written, goal = (aside, path) if kind == "hub" else (Path(folder), path.parent)
        goal.mkdir(parents=True, exist_ok=True)
        for file in sorted(written.iterdir(), key=lambda file: file.name == path.name):
            os.replace(file, goal / file.name)  # of several files the one that names the others comes last
    return agreement


def _check_place(path: Path, kind: str) -> None:
    """What can be known to be wrong before minutes are spent."""
    ending = Path("x" + ENDINGS[kind]).suffix
    nearest = next(place for place in path.absolute().parents if place.exists())
    if not nearest.is_dir():
        raise UserError(
            f"--out {path}: {nearest} is a file, and nothing can be written inside it; choose another place"
        )
    if kind == "hub":
        if path.exists() and not path.is_dir():
            raise UserError(f"--out {path}: that is a file; a hub's model is a folder")
    elif path.is_dir():
        raise UserError(f"--out {path}: that is a folder; give a file that ends in {ending}")
    elif path.suffix != ending:
        raise UserError(f"--out {path}: give a file that ends in {ending}")


def _name(source: str) -> str:
    """What to call what is exported: the folder's name, or the file's."""
    path = Path(source).resolve() if Path(source).exists() else Path(source)
    return path.stem if path.suffix == ".safetensors" else path.name
