"""Models that find masks: what a training step takes, and a whole image that is looked at by tiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import torch
from rich.console import Console
from rich.table import Table

from torchcaps.bench.rows import blank_row, write_rows
from torchcaps.bench.step import measure_training
from torchcaps.bench.timing import by_turns, extra_memory
from torchcaps.models import SegmentationModel, create_model
from torchcaps.models.tiles import predict_map
from torchcaps.train.environment import machine
from torchcaps.train.recipe import LossSection
from torchcaps.train.state import seeded
from torchcaps.train.tasks.segmentation import SegmentationTask

MODELS = ("segcaps", "unet")
STEPS = ((256, 1), (512, 4))  # side of an image, and batch
STEPS_ON_CPU = ((64, 1),)
WHOLE, COMPARED = 2048, 1024  # sides: of an image looked at by tiles, and of one also looked at as a whole
LOSSES = LossSection(cross_entropy=1.0, dice=1.0)

FIGURES = {  # the name in the CSV file and in the table
    "what": "what",
    "name": "model",
    "parameters": "parameters",
    "side": "side",
    "B": "batch",
    "ms": "ms",
    "peak_mib": "peak MiB",
    "difference": "difference",
}
HEAD = ("machine", *FIGURES)


class MaskRow(NamedTuple):
    """Milliseconds and memory of a training step, or of an answer by tiles; of the latter also the largest difference
    to an answer without tiles."""

    what: str
    name: str
    parameters: int
    side: int
    B: int
    ms: float
    peak_mib: float | None
    difference: float | None = None


def run_masks(device: torch.device, *, out: Path | None, console: Console) -> list[MaskRow]:
    """Training steps of each model; on CUDA also answers by tiles."""
    write_rows(out, HEAD, [])
    console.print(machine(device), highlight=False)
    cuda = device.type == "cuda"
    rows: list[MaskRow] = []
    for name in MODELS:
        for side, batch in STEPS if cuda else STEPS_ON_CPU:
            rows.append(measure_step(name, device, side, batch))
            write_rows(out, HEAD, _written(rows, device))
        if cuda:
            rows.append(measure_tiles(name, device, WHOLE, COMPARED))
            write_rows(out, HEAD, _written(rows, device))
    table = Table(*FIGURES.values(), box=None, pad_edge=False)
    for row in _written(rows, device):
        table.add_row(*(row[name] for name in FIGURES))
    console.print(table)
    if out is not None:
        console.print(f"written to {out}", highlight=False)
    return rows


def measure_step(name: str, device: torch.device, side: int, batch: int, rounds: int = 11) -> MaskRow:
    """On CUDA in bf16, compiled, recorded."""
    with seeded(0, device):
        model = _model(name, side, device)
        images = torch.rand(batch, 1, side, side, device=device)
        masks = (torch.rand(batch, side, side, device=device) < 0.2).long()
    task = SegmentationTask.make(model, None, LOSSES)
    ms, mib = measure_training(model, images, masks, task, rounds)
    return MaskRow("training step", name, model.parameter_count(), side, batch, ms, mib)


@torch.no_grad()
def measure_tiles(name: str, device: torch.device, side: int, compared: int, rounds: int = 3) -> MaskRow:
    """In float32, as `torchcaps predict` does it.

    compared  side of the image for which tiles are compared with one look at all of it
    """
    with seeded(0, device):
        model = _model(name, 256, device).eval()
        image, smaller = (torch.rand(1, each, each) for each in (side, compared))

    def call() -> torch.Tensor:
        return predict_map(model, image)

    extra = extra_memory(call, device)
    seconds = by_turns({name: call}, device, rounds)[name]
    with torch.backends.cudnn.flags(benchmark=False, allow_tf32=False):  # rounding is not what is asked about
        at_once = model(smaller[None].to(device)).probabilities[0]
        difference = float((predict_map(model, smaller) - at_once).abs().max())
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    mib = None if extra is None else (extra + weights) / 2**20
    return MaskRow("by tiles", name, model.parameter_count(), side, 1, seconds * 1e3, mib, difference)


def _model(name: str, side: int, device: torch.device) -> SegmentationModel:
    return cast(SegmentationModel, create_model(name, image_shape=(1, side, side), num_classes=2)).to(device)


def _written(rows: Sequence[MaskRow], device: torch.device) -> list[dict[str, str]]:
    return [
        blank_row(HEAD, device)
        | {
            **{name: str(value) for name, value in row._asdict().items()},
            "ms": f"{row.ms:.2f}",
            "peak_mib": "" if row.peak_mib is None else f"{row.peak_mib:.0f}",
            "difference": "" if row.difference is None else f"{row.difference:.1e}",
        }
        for row in rows
    ]
