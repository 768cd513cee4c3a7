"""Segmentation models: run time and memory of a training step, and of predicting a large image tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import torch
from rich.console import Console

from torchcaps.bench.rows import blank_row, rounded, table_of, write_rows
from torchcaps.bench.step import measure_training, peak_mib
from torchcaps.bench.timing import median_seconds
from torchcaps.models import SegmentationModel, create_model
from torchcaps.models.tiles import predict_map
from torchcaps.train.environment import machine
from torchcaps.train.recipe import LossSection
from torchcaps.train.state import seeded
from torchcaps.train.tasks.segmentation import SegmentationTask

MODELS = ("segcaps", "unet")
TRAINING_SIZES = ((256, 1), (512, 4))  # side of an image, and batch
TRAINING_SIZES_ON_CPU = ((64, 1),)
TILED_SIDE, COMPARED_SIDE = 2048, 1024  # of an image to time, and of one to compare with a prediction without tiles
LOSSES = LossSection(cross_entropy=1.0, dice=1.0)

COLUMNS = {  # name in the CSV file: title in the table
    "what": "what",
    "name": "model",
    "parameters": "parameters",
    "side": "side",
    "B": "batch",
    "ms": "ms",
    "peak_mib": "peak MiB",
    "difference": "difference",
}
HEAD = ("machine", *COLUMNS)


class MaskRow(NamedTuple):
    """Run time and memory of a training step, or of a prediction by tiles.

    Attributes:
        difference: Only by tiles: the largest difference to a prediction without tiles.
    """

    what: str
    name: str
    parameters: int
    side: int
    B: int
    ms: float
    peak_mib: float | None
    difference: float | None = None


def run_masks(device: torch.device, *, out: Path | None, console: Console) -> list[MaskRow]:
    """Measure training steps of each model; on CUDA also predictions by tiles."""
    write_rows(out, HEAD, [])
    console.print(machine(device), highlight=False)
    cuda = device.type == "cuda"
    rows: list[MaskRow] = []
    for name in MODELS:
        for side, batch in TRAINING_SIZES if cuda else TRAINING_SIZES_ON_CPU:
            rows.append(measure_step(name, device, side, batch))
            write_rows(out, HEAD, _csv_rows(rows, device))
        if cuda:
            rows.append(measure_tiles(name, device, TILED_SIDE, COMPARED_SIDE))
            write_rows(out, HEAD, _csv_rows(rows, device))
    console.print(table_of(COLUMNS, _csv_rows(rows, device)))
    if out is not None:
        console.print(f"written to {out}", highlight=False)
    return rows


def measure_step(name: str, device: torch.device, side: int, batch: int, rounds: int = 11) -> MaskRow:
    """Measure a training step; on CUDA in bf16, compiled, as a CUDA graph."""
    with seeded(0, device):
        model = _model(name, side, device)
        images = torch.rand(batch, 1, side, side, device=device)
        masks = (torch.rand(batch, side, side, device=device) < 0.2).long()
    task = SegmentationTask.make(model, None, LOSSES)
    ms, mib = measure_training(model, images, masks, task, rounds)
    return MaskRow("training step", name, model.parameter_count(), side, batch, ms, mib)


@torch.no_grad()
def measure_tiles(name: str, device: torch.device, side: int, compared: int, rounds: int = 3) -> MaskRow:
    """Measure a prediction by tiles in float32, as in `torchcaps predict`.

    Args:
        name: Name of the model.
        device: Where to run it.
        side: Side of the image to time.
        compared: Side of the image for which tiles are compared with a prediction without tiles.
        rounds: How often to time it.
    """
    with seeded(0, device):
        model = _model(name, 256, device).eval()
        image, smaller = (torch.rand(1, each, each) for each in (side, compared))

    def call() -> torch.Tensor:
        return predict_map(model, image)

    mib = peak_mib(call, model, training=False)
    seconds = median_seconds({name: call}, device, rounds)[name]
    with torch.backends.cudnn.flags(benchmark=False, allow_tf32=False):  # TF32 would hide differences between tiles
        whole = model(smaller[None].to(device)).probabilities[0]
        difference = float((predict_map(model, smaller) - whole).abs().max())
    return MaskRow("by tiles", name, model.parameter_count(), side, 1, seconds * 1e3, mib, difference)


def _model(name: str, side: int, device: torch.device) -> SegmentationModel:
    return cast(SegmentationModel, create_model(name, image_shape=(1, side, side), num_classes=2)).to(device)


def _csv_rows(rows: Sequence[MaskRow], device: torch.device) -> list[dict[str, str]]:
    return [
        blank_row(HEAD, device)
        | {
            **{name: str(value) for name, value in row._asdict().items()},
            "ms": f"{row.ms:.2f}",
            "peak_mib": rounded(row.peak_mib, 0),
            "difference": "" if row.difference is None else f"{row.difference:.1e}",
        }
        for row in rows
    ]
