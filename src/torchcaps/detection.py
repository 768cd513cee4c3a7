"""Find the objects in images: class, position, angle and scale of each, its parts, and a drawing of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.data import read_picture
from torchcaps.errors import UserError
from torchcaps.explain.objects import Outline, colour_of_class, figure_objects, figure_one_by_one, oriented_box
from torchcaps.explain.style import png_bytes
from torchcaps.io.atomic import atomic_write, write_text
from torchcaps.models import ImageModel, SceneCaps, SceneOutput, load
from torchcaps.models.evaluating import evaluating
from torchcaps.similarity import Similarity

PRESENT = 0.5
MAX_PIXELS = 1 << 22  # of an image
LEAST = 1e-6  # presence of what is an object at all
MAX_DRAWN = 8  # objects of an image that are drawn one by one
FIELDS = ("file", "object", "class", "presence", "x", "y", "angle", "scale")


@dataclass(frozen=True)
class Detection:
    """An object in an image.

    Attributes:
        name: of its class.
        label: number of its class.
        presence: in [0, 1].
        x, y: position in pixels; 0 is the middle of the leftmost, or topmost, pixel.
        angle: degrees, counter-clockwise, in [-180, 180].
        scale: relative to the size that training images call 1.
        parts: the objects of the level below that it is made of.
        box: (4, 2) corners of the box around what was drawn of it; None without a decoder.
        drawing: (C, H, W) in [0, 1]: the object by itself; None for parts, and without a decoder.
    """

    name: str
    label: int
    presence: float
    x: float
    y: float
    angle: float
    scale: float
    parts: tuple[Detection, ...] = ()
    box: Tensor | None = field(default=None, repr=False, compare=False)
    drawing: Tensor | None = field(default=None, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Numbers and names, rounded for JSON."""
        found: dict[str, Any] = {"class": self.name, "presence": round(self.presence, 4)}
        found |= {name: round(getattr(self, name), 3) for name in ("x", "y", "angle")}
        found |= {"scale": round(self.scale, 4), "parts": [part.as_dict() for part in self.parts]}
        if self.box is not None:
            found["box"] = [[round(value, 2) for value in corner] for corner in self.box.tolist()]
        return found


def require_detector(model: ImageModel) -> SceneCaps:
    """Raise a UserError for models that do not find objects."""
    if not isinstance(model, SceneCaps):
        raise UserError(
            f"this model does not find objects (it learned {model.task}): train one with `torchcaps train shapes`, or "
            "use `torchcaps predict`"
        )
    return model


def detect(
    model: SceneCaps | str | Path,
    images: Tensor | np.ndarray | str | Path | Sequence[str | Path],
    *,
    presence: float = PRESENT,
    iterations: int | None = None,
) -> list[list[Detection]]:
    """Find the objects in images.

    Args:
        model: a model that finds objects, or what `torchcaps.load` takes.
        images: (B, C, H, W) uint8, or float in [0, 1]; or one or more image files, each of its own size.
        presence: from which an object counts, in [0, 1].
        iterations: of routing; by default the model's own number.

    Returns:
        For each image its objects, the most present first.
    """
    if not 0 <= presence <= 1:
        raise UserError(f"presence={presence}: give a number from 0 to 1")
    finder = require_detector(model if isinstance(model, ImageModel) else load(model))
    return [_detections(finder, output, size, presence) for output, size in _outputs(finder, images, iterations)]


def _outputs(model: SceneCaps, images: Any, iterations: int | None) -> Iterator[tuple[SceneOutput, tuple[int, int]]]:
    """The output for each image, and its size."""
    if isinstance(images, (Tensor, np.ndarray)):
        batch = torch.as_tensor(images)
        if batch.ndim != 4:
            raise UserError(f"images must be (B, C, H, W), got {tuple(batch.shape)}; one image is images[None]")
        singles: Iterator[Tensor] = iter(batch.split(1))
    else:
        files = [images] if isinstance(images, (str, Path)) else images
        singles = (read_picture(Path(file), model.image_shape[0])[None] for file in files)
    with torch.no_grad(), evaluating(model):
        for image in singles:
            yield model(_checked(model, image), iterations=iterations), (image.shape[-2], image.shape[-1])


def _checked(model: SceneCaps, image: Tensor) -> Tensor:
    pixels = image.shape[-2] * image.shape[-1]
    if not pixels:
        raise UserError(f"an image of {image.shape[-2]}×{image.shape[-1]} pixels has nothing in it")
    if pixels > MAX_PIXELS:
        raise UserError(f"an image of {pixels:,} pixels is too large: cut it, or scale it, to {MAX_PIXELS:,} at most")
    if image.is_floating_point() and not bool(image.isfinite().all()):
        raise UserError("an image has NaN or infinite pixels: replace them by numbers from 0 to 1")
    return model.prepare(image)


def _detections(model: SceneCaps, output: SceneOutput, size: tuple[int, int], presence: float) -> list[Detection]:
    """The objects of the only image of an output."""
    present = output.presence[0]
    chosen = [k for k in present.argsort(descending=True).tolist() if present[k] >= max(presence, LEAST)]
    drawn: list[dict[str, Tensor]] = [{} for _ in chosen]
    if chosen and model.decoder is not None:
        drawings = model.reconstruct(output, size, chosen)[0]
        boxes = [oriented_box(drawing, output.poses[0, k]) for drawing, k in zip(drawings, chosen)]
        drawn = [{"box": box.cpu(), "drawing": drawing.cpu()} for box, drawing in zip(boxes, drawings)]
    top = len(model.level_names) - 1
    return [_detection(model, output, top, k, **more) for k, more in zip(chosen, drawn)]


def _detection(model: SceneCaps, output: SceneOutput, level: int, index: int, **drawn: Tensor) -> Detection:
    """The object at a position of a level, with what it is made of."""
    found: Any = output.levels[level - 1] if level else output.parts
    pose = Similarity(found.pose[0, index])
    label = int(found.types[0, index].argmax())
    parts: tuple[Detection, ...] = ()
    if level:
        below = (output.levels[level - 1].couplings[0, :, index] > PRESENT).nonzero()[:, 0].tolist()
        parts = tuple(_detection(model, output, level - 1, part) for part in below)
    return Detection(
        model.level_names[level][label],
        label,
        float(found.presence[0, index]),
        float(pose.x),
        float(pose.y),
        float(pose.angle),
        float(pose.scale),
        parts,
        **drawn,
    )


def write_detections(
    files: Sequence[Path], model: SceneCaps, found: Sequence[Sequence[Detection]], folder: Path
) -> list[Path]:
    """Write for each image a picture with the boxes of its objects, and one with each object drawn by itself.

    Args:
        files: the images.
        model: that found the objects.
        found: the objects of each image.
        folder: where to write; files of the same name are replaced.
    """
    written = []
    for file, objects in zip(files, found):
        image = read_picture(file, model.image_shape[0]).float() / 255
        outlines = [outline_of(each) for each in objects]
        pages = {"": figure_objects([image], [outlines], [file.name])}
        if objects and objects[0].drawing is not None:
            some = list(objects[:MAX_DRAWN])
            drawings = torch.stack([each.drawing for each in some if each.drawing is not None])
            pages["-objects"] = figure_one_by_one(image, [each.name for each in some], drawings, outlines[:MAX_DRAWN])
        for suffix, figure in pages.items():
            path = folder / f"{file.stem}{suffix}.png"
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary:
                temporary.write_bytes(png_bytes(figure))
            written.append(path)
    return written


def outline_of(found: Detection) -> Outline:
    """How an object is drawn into a picture; without a decoder as a small square at its position."""
    corners = found.box
    if corners is None:
        square = torch.tensor([(-3.0, -3.0), (3.0, -3.0), (3.0, 3.0), (-3.0, 3.0)])
        placed = Similarity.of(x=found.x, y=found.y, angle=found.angle, scale=found.scale)
        corners = placed(square)
    return Outline(found.name, found.presence, corners, colour_of_class(found.label))


def write_csv(path: Path, files: Sequence[Path], found: Sequence[Sequence[Detection]]) -> Path:
    """Write one row for each object."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for file, objects in zip(files, found):
        for number, each in enumerate(objects, start=1):
            row = each.as_dict()
            writer.writerow([file, number, *(row[name] for name in FIELDS[2:])])
    return write_text(path, text.getvalue())
