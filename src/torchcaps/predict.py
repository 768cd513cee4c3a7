"""An image file through a saved model: what is on it, and figures that show why."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchcaps import explain
from torchcaps.data import load_image, read_picture
from torchcaps.data.images import upright_size
from torchcaps.errors import UserError, did_you_mean
from torchcaps.explain.familiarity import scores
from torchcaps.explain.features import show_layers
from torchcaps.explain.files import write_png
from torchcaps.generate import drawing_model, explain_drawing
from torchcaps.models import ImageModel, Output, SegmentationModel, SynthesisModel
from torchcaps.models.segmentation import to_mask
from torchcaps.models.tiles import predict_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NONE = "none of these"


def check_finds(model: ImageModel) -> None:
    """Whether a model answers to images at all."""
    if isinstance(model, SynthesisModel):
        raise UserError("this model draws images from masks, and finds nothing in images: use `torchcaps generate`")


def image_for(model: ImageModel, path: Path) -> Tensor:
    """An image file as this model wants it: (1, C, H, W) in [0, 1], on its device."""
    check_finds(model)
    height, width = model.resize_to
    return model.prepare(load_image(path, (model.image_shape[0], height, width))[None])


def none_below(model: ImageModel) -> float | None:
    """The familiarity below which a model answers "none of these" by itself; None if it does not."""
    threshold = getattr(model, "none_below", None)
    if threshold is not None and not callable(getattr(model, "familiarity", None)):
        raise UserError(
            f"this model has none_below = {threshold}, but a {type(model).__name__} does not measure how familiar an "
            "image is: give --reject, a length below which the answer is 'none of these'"
        )
    return threshold


def answer(
    model: ImageModel, image: Tensor, output: Output, reject: float | None = None
) -> tuple[set[int], dict[str, float]]:
    """Decide which classes a model answers with for one image.

    Args:
        model: one that names classes.
        image: (1, C, H, W) in [0, 1].
        output: what the model said about it.
        reject: length below which a class does not count; None: a model with `none_below` decides by familiarity.

    Returns:
        The ids of the classes, none for "none of these"; familiarity and none_below if these decided.
    """
    asked, familiar = model.trained_by, {} if reject is not None else _familiarity(model, image, output)
    if familiar and familiar["familiarity"] < familiar["none_below"]:
        return set(), familiar
    several, each = bool(asked.get("multi_label")), asked.get("labels_each")
    found_J = explain.predicted_classes(output.lengths, several, each)[0] & (output.lengths[0] >= (reject or 0.0))
    return set(found_J.nonzero().flatten().tolist()), familiar


@torch.no_grad()
def predict_file(model: ImageModel, path: Path, reject: float | None = None) -> dict[str, Any]:
    """Say which classes are on an image file.

    Args:
        model: one that names classes.
        path: the image file.
        reject: length below which a class does not count. By default none is too short; a model with `none_below`
            then answers none of its classes if the image is less familiar to it than that.

    Returns:
        file: the path.
        classes: the names of those found, longest first.
        ranking: for every class its name and length, longest first; of a model that says how classes stand also x, y,
            angle, scale, spread and, if it tells them, stretch, shear and thickness: see `Placement`. x, y and
            thickness are in pixels of the file, upright as it is shown. The others are those of the image as the model
            is given it, resized: if that changes the ratio of the sides, the angle on the file is another.
        familiarity, none_below: only if these decided whether it is one of the classes.
    """
    image = image_for(model, path)
    output = model(image)
    lengths = output.lengths[0].tolist()
    standing = _standing(model, path, output)
    answered, familiar = answer(model, image, output, reject)
    numbers = [*lengths, *familiar.values(), *(value for each in standing for value in each.values())]
    if any(math.isnan(number) for number in numbers):
        raise UserError(f"{path}: the model answers NaN; it was not trained to the end, or its weights are damaged")
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    found = [index for index in order if index in answered]
    ranking = [
        {"class": model.class_names[index], "length": round(lengths[index], 6), **standing[index]} for index in order
    ]
    return {
        "file": str(path),
        "classes": [model.class_names[index] for index in found],
        "ranking": ranking,
        **familiar,
    }


def _standing(model: ImageModel, path: Path, output: Output) -> list[dict[str, float]]:
    """How each of the J classes stands in a file: x, y and thickness in its own pixels, the rest as the model says."""
    if output.placement is None:
        return [{} for _ in model.class_names]
    parts = {name: values[0].tolist() for name, values in output.placement._asdict().items() if values is not None}
    sides = zip(("y", "x"), upright_size(path), model.resize_to, model.image_shape[1:])
    for name, in_file, resized, kept in sides:
        cut = (resized - kept) // 2  # as `prepare` does
        parts[name] = [(place + cut + 0.5) * in_file / resized - 0.5 for place in parts[name]]
        if "thickness" in parts:  # both sides together: by the geometric mean of their factors
            parts["thickness"] = [value * (in_file / resized) ** 0.5 for value in parts["thickness"]]
    return [{name: round(value, 4) for name, value in zip(parts, values)} for values in zip(*parts.values())]


def _familiarity(model: ImageModel, image: Tensor, output: Output) -> dict[str, float]:
    """How familiar the image (1, C, H, W) is, and how familiar it should be; empty if the model does not ask."""
    threshold = none_below(model)
    if threshold is None:
        return {}
    return {"familiarity": scores(model, image, output)["familiarity"].item(), "none_below": threshold}


def check_names(images: Sequence[Path], folder: Path) -> None:
    """Whether each of these gets files of its own in the folder, and none is a mask that somebody drew."""
    if (folder / "images").exists():
        raise UserError(
            f"--out {folder}: it has images in it, whose own masks would be overwritten; give another folder"
        )
    given = {path.resolve() for path in images}
    for path in images:
        mask, overlay = (folder / kind / f"{path.stem}.png" for kind in ("masks", "overlays"))
        if mask.exists() and not overlay.exists():
            raise UserError(f"--out {folder}: {mask} is no mask of ours and would be overwritten; give another folder")
        if given & {mask.resolve(), overlay.resolve()}:
            raise UserError(f"--out {folder}: what is found in {path} would overwrite an image; give another folder")
    stems = [path.stem for path in images]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise UserError(
            f"several images are called {twice[0]}: their masks would have the same name; take them in turn"
        )


def segment_file(model: SegmentationModel, path: Path, folder: Path) -> dict[str, Any]:
    """Write masks/<name>.png and overlays/<name>.png of an image file of any size.

    In the mask the class looked for is 255 and the background 0; of several classes it has the ids.

    returns  where they are, and the share of the image that each class takes
    """
    image = read_picture(path, model.image_shape[0])
    presence = predict_map(model, image)
    if not presence.isfinite().all():
        raise UserError(f"{path}: the model answers NaN; it was not trained to the end, or its weights are damaged")
    found = to_mask(presence[None])[0].cpu()
    shares = torch.bincount(found.flatten(), minlength=model.num_classes) / found.numel()
    values = found * 255 if model.num_classes == 2 else found
    pictures = {"masks": values.numpy().astype(np.uint8), "overlays": explain.overlay(image.float() / 255, found)}
    files = {kind: folder / kind / f"{path.stem}.png" for kind in pictures}
    for kind, pixels in pictures.items():
        write_png(files[kind], pixels)
    return {
        "file": str(path),
        "size": list(found.shape),
        "shares": dict(zip(model.class_names, shares.tolist())),
        "mask": str(files["masks"]),
        "overlay": str(files["overlays"]),
    }


def explain_file(
    model: ImageModel,
    path: Path,
    folder: Path,
    target: str | None = None,
    *,
    against: ImageModel | None = None,
    any_size: bool = False,
) -> list[Path]:
    """Write what a model saw in an image file as figures, and the numbers behind them; returns the files.

    Of a model that names a class: lengths, reconstruction, sweep, routing; of one that also says how the class stands:
    lengths, the lattice of views, the image seen through the pose that was read, reconstruction, sweep. Of one that
    finds masks: the mask over the image, what was redrawn, the capsules of every layer, and where they were routed. Of
    one that draws, the file is a mask: images of it, and the way from one to another, if asked for `against` a second
    model.
    """
    if isinstance(model, SynthesisModel):
        if target is not None:
            raise UserError("--target: this model draws every class at once; leave it away")
        rival = None if against is None else drawing_model(against)
        figures, arrays = explain_drawing(model, path, rival, any_size)
    elif against is not None or any_size:
        raise UserError("--against and --any-size are for models that draw; this one does not")
    elif isinstance(model, SegmentationModel):
        if target is not None:
            raise UserError("--target: this model finds every class at once; leave it away")
        figures, arrays = _explain_pixels(model, path)
    else:
        figures, arrays = _explain_class(model, path, target)
    pictures = {name: explain.png_bytes(figure) for name, figure in figures.items()}
    numbers = {name: array.cpu().numpy() for name, array in arrays.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures.items():
            (folder / f"{name}.png").write_bytes(picture)
        np.savez_compressed(folder / "arrays.npz", **numbers)  # type: ignore[arg-type]
    except OSError as error:
        raise UserError(f"cannot write to {os.fspath(folder)}: {error.strerror or error}") from error
    return [*(folder / f"{name}.png" for name in pictures), folder / "arrays.npz"]


def _explain_class(model: ImageModel, path: Path, target: str | None) -> tuple[dict[str, Figure], dict[str, Tensor]]:
    if target is not None and target not in model.class_names:
        raise UserError(f"--target {target}: the model has no such class; {did_you_mean(target, model.class_names)}")
    image = image_for(model, path)
    if explain.has_placement(model):
        return explain.show_placement(model, image[0], None if target is None else model.class_names.index(target))
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
    arrays = {
        "image": image[0],
        "lengths": lengths,
        "reconstruction": (redrawn.from_predicted if redrawn.from_true is None else redrawn.from_true)[0],
        "sweep": swept,
        "routing_maps": maps,
        "couplings": couplings,
        "entropies": entropies,
    }
    return figures, arrays


def _explain_pixels(model: SegmentationModel, path: Path) -> tuple[dict[str, Figure], dict[str, Tensor]]:
    """Of a large image, its middle."""
    image = explain.centre_crop(read_picture(path, model.image_shape[0])).float() / 255
    presence = predict_map(model, image).cpu()
    layers = explain.feature_maps(model, image)
    redrawn = explain.masked_reconstruction(model, image)
    found = to_mask(presence[None])[0]
    figures = {"mask": explain.figure_predicted_mask(image, found, presence, redrawn, model.class_names)}
    arrays = {"image": image, "presence": presence}
    if redrawn is not None:
        arrays["reconstruction"] = redrawn
    shown = show_layers(layers)
    return figures | shown[0], arrays | shown[1]
