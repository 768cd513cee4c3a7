"""An image file through a saved model: what is on it, and figures that show why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps import explain
from torchcaps.data import load_image
from torchcaps.errors import UserError, did_you_mean
from torchcaps.models import ImageModel

NONE = "none of these"


def image_for(model: ImageModel, path: Path) -> Tensor:
    """An image file as this model wants it: (1, C, H, W) in [0, 1], on its device."""
    height, width = model.resize_to
    return model.prepare(load_image(path, (model.image_shape[0], height, width))[None])


@torch.no_grad()
def predict_file(model: ImageModel, path: Path, reject: float = 0.0) -> dict[str, Any]:
    """The classes found on an image file (none below `reject`), and every class with its length, longest first."""
    found = model(image_for(model, path)).lengths
    lengths, asked = found[0].tolist(), model.trained_by
    if not all(length == length for length in lengths):
        raise UserError(f"{path}: the model answers NaN; it was not trained to the end, or its weights are damaged")
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    ranking = [{"class": model.class_names[index], "length": round(lengths[index], 6)} for index in order]
    answered = explain.predicted_classes(found, bool(asked.get("multi_label")), asked.get("labels_each"))[0].tolist()
    classes = [model.class_names[index] for index in order if answered[index] and lengths[index] >= reject]
    return {"file": str(path), "classes": classes, "ranking": ranking}


def explain_file(model: ImageModel, path: Path, folder: Path, target: str | None = None) -> list[Path]:
    """Write reconstruction, sweep, routing and lengths as figures, and the numbers behind them; returns the files."""
    if target is not None and target not in model.class_names:
        raise UserError(f"--target {target}: the model has no such class; {did_you_mean(target, model.class_names)}")
    image = image_for(model, path)
    chosen = None if target is None else torch.tensor([model.class_names.index(target)], device=image.device)
    redrawn = explain.reconstructions(model, image, chosen)
    shown = int(redrawn.predictions if chosen is None else chosen)
    swept = explain.sweep(model, image[0], target=shown)
    maps = explain.routing_maps(model, image)[:, 0]
    couplings = explain.routing_couplings(model, image)[:, 0]
    entropies, lengths = explain.coupling_entropy(couplings), redrawn.lengths[0]
    heat = explain.maps_on_image(model, maps)
    figures = {
        "lengths": explain.figure_lengths(lengths, model.class_names),
        "reconstruction": explain.figure_reconstructions(image, redrawn, model.class_names),
        "sweep": explain.figure_sweep(swept, title=f"Class {model.class_names[shown]}, dimension by dimension"),
        "routing": explain.figure_routing(image[0], heat, lengths, entropies, model.class_names),
    }
    arrays: dict[str, Any] = {
        "image": image[0],
        "lengths": lengths,
        "reconstruction": (redrawn.from_predicted if redrawn.from_true is None else redrawn.from_true)[0],
        "sweep": swept,
        "routing_maps": maps,
        "couplings": couplings,
        "entropies": entropies,
    }
    arrays = {name: array.cpu().numpy() for name, array in arrays.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name, figure in figures.items():
            written.append(folder / f"{name}.png")
            written[-1].write_bytes(explain.png_bytes(figure))
        np.savez_compressed(folder / "arrays.npz", **arrays)
    except OSError as error:
        raise UserError(f"cannot write to {os.fspath(folder)}: {error.strerror or error}") from error
    return [*written, folder / "arrays.npz"]
