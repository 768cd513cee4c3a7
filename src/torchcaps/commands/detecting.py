"""`torchcaps detect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchcaps.commands.common import AsJson, Device, Model, err, say, show
from torchcaps.devices import make_device
from torchcaps.errors import UserError

if TYPE_CHECKING:
    from torchcaps.detection import Detection


def detect(
    model: Model,
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder for pictures with the boxes of the objects.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="File for a table with one row for each object.")] = None,
    presence: Annotated[float, typer.Option(help="Presence from which an object counts.", min=0, max=1)] = 0.5,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Find the objects in image files: class, position in pixels, angle in degrees and scale of each, and its parts."""
    import torchcaps
    from torchcaps.detection import require_detector, write_csv, write_detections

    finder = require_detector(torchcaps.load(model, make_device(device)))
    found: list[list[Detection]] = []
    read: list[Path] = []
    failed = 0
    for path in images:
        try:
            found += torchcaps.detect(finder, path, presence=presence)
            read.append(path)
        except UserError as error:
            failed += 1
            err.print(f"{path}: {error}", style="red", soft_wrap=True, highlight=False, markup=False)
    if as_json:
        print(
            json.dumps(
                [
                    {"file": str(path), "objects": [each.as_dict() for each in objects]}
                    for path, objects in zip(read, found)
                ],
                indent=2,
            )
        )
    elif read:
        rows = [row for path, objects in zip(read, found) for row in _rows(path, objects)]
        show(("file", "class", "presence", "x", "y", "angle", "scale", "parts"), rows)
    written = [] if csv is None or not read else [write_csv(csv, read, found)]
    if out_ is not None and read:
        written += write_detections(read, finder, found, out_)
    for path in [] if as_json else written:
        say(path)
    if failed:
        raise typer.Exit(1)


def _rows(path: Path, objects: list[Detection]) -> list[tuple[str, ...]]:
    if not objects:
        return [(str(path), "nothing", *[""] * 6)]
    return [
        (
            str(path),
            each.name,
            f"{each.presence:.2f}",
            f"{each.x:.1f}",
            f"{each.y:.1f}",
            f"{each.angle:.1f}°",
            f"{each.scale:.2f}",
            ", ".join(part.name for part in each.parts),
        )
        for each in objects
    ]
