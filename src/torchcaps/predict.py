"""Apply a saved model to an image file: its classes or its mask, and figures that explain the result."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
from torchcaps.generate import explain_drawing, require_synthesis
from torchcaps.models import ImageModel, Output, SegmentationModel, SynthesisModel
from torchcaps.models.segmentation import to_mask
from torchcaps.models.tiles import predict_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NONE_OF_THESE = "none of these"


def check_takes_images(model: ImageModel) -> None:
    """Raise a UserError for models that generate images instead of reading them, or find objects in them."""
    if model.task == "synthesis":
        raise UserError("this model draws images from masks, and finds nothing in images: use `torchcaps generate`")
    if model.task == "detection":
        raise UserError("this model finds objects: use `torchcaps detect`, which also draws what it found with --out")


def read_input(model: ImageModel, path: Path) -> Tensor:
    """Read an image file as the input (1, C, H, W) of a model, in [0, 1] and on its device."""
    check_takes_images(model)
    height, width = model.resize_to
    return model.prepare(load_image(path, (model.image_shape[0], height, width))[None])


def familiarity_threshold(model: ImageModel) -> float | None:
    """The familiarity below which the model answers "none of these"; None if it never does.

    Raises a UserError if the model has a threshold but does not measure familiarity.
    """
    threshold = getattr(model, "none_below", None)
    if threshold is not None and not callable(getattr(model, "familiarity", None)):
        raise UserError(
            f"this model has none_below = {threshold}, but a {type(model).__name__} does not measure familiarity: give "
            "--reject, a length below which the answer is 'none of these'"
        )
    return threshold


def decide_classes(
    model: ImageModel, image: Tensor, output: Output, reject: float | None = None
) -> tuple[set[int], dict[str, float]]:
    """Decide which classes are in one image.

    Args:
        model: a classification model.
        image: (1, C, H, W) in [0, 1].
        output: of the model for the image.
        reject: length below which a class does not count; None: the model's familiarity threshold decides, if any.

    Returns:
        The class ids, none for "none of these"; `familiarity` and `none_below` if these decided.
    """
    trained_by, familiar = model.trained_by, {} if reject is not None else _familiarity(model, image, output)
    if familiar and familiar["familiarity"] < familiar["none_below"]:
        return set(), familiar
    multi_label, labels_each = bool(trained_by.get("multi_label")), trained_by.get("labels_each")
    predicted_J = explain.predicted_classes(output.lengths, multi_label, labels_each)[0]
    predicted_J = predicted_J & (output.lengths[0] >= (reject or 0.0))
    return set(predicted_J.nonzero().flatten().tolist()), familiar


@contextmanager
def without_decoder(model: ImageModel) -> Iterator[None]:
    """Detach the decoder of a model inside the block, so that no reconstruction is computed."""
    decoder = getattr(model, "decoder", None)
    if decoder is None:
        yield
        return
    model.decoder = None  # type: ignore[assignment]
    try:
        yield
    finally:
        model.decoder = decoder


@torch.no_grad()
def predict_file(model: ImageModel, path: Path, reject: float | None = None) -> dict[str, Any]:
    """Classify an image file.

    Args:
        model: a classification model.
        path: the image file.
        reject: length below which a class does not count. By default no length is too small, and a model with a
            familiarity threshold answers "none of these" below it.

    Returns:
        file: the path.
        classes: names of the predicted classes, by decreasing length.
        ranking: name and length of every class, by decreasing length; for models that predict a `Placement` also x, y,
            angle, scale, spread and, if available, stretch, shear and thickness. x, y and thickness are in pixels of
            the upright file. The other values refer to the resized image: if resizing changes the aspect ratio, the
            angle in the file is different.
        familiarity, none_below: only if these decided.
    """
    image = read_input(model, path)
    needs_decoder = reject is None and familiarity_threshold(model) is not None
    with nullcontext() if needs_decoder else without_decoder(model):
        output = model(image)
    lengths = output.lengths[0].tolist()
    placements = _placements(model, path, output)
    predicted, familiar = decide_classes(model, image, output, reject)
    numbers = [*lengths, *familiar.values(), *(value for each in placements for value in each.values())]
    if any(math.isnan(number) for number in numbers):
        raise UserError(f"{path}: the model answers NaN: its training diverged, or its weights are damaged")
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    found = [index for index in order if index in predicted]
    ranking = [
        {"class": model.class_names[index], "length": round(lengths[index], 6), **placements[index]} for index in order
    ]
    return {
        "file": str(path),
        "classes": [model.class_names[index] for index in found],
        "ranking": ranking,
        **familiar,
    }


def _placements(model: ImageModel, path: Path, output: Output) -> list[dict[str, float]]:
    """The placement of each class; x, y and thickness converted to pixels of the file."""
    if output.placement is None:
        return [{} for _ in model.class_names]
    parts = {name: values[0].tolist() for name, values in output.placement._asdict().items() if values is not None}
    sides = zip(("y", "x"), upright_size(path), model.resize_to, model.image_shape[1:])
    for name, in_file, resized, kept in sides:
        cut = (resized - kept) // 2  # as `prepare` does
        parts[name] = [(position + cut + 0.5) * in_file / resized - 0.5 for position in parts[name]]
        if "thickness" in parts:  # by the geometric mean of the factors of both sides
            parts["thickness"] = [value * (in_file / resized) ** 0.5 for value in parts["thickness"]]
    return [{name: round(value, 4) for name, value in zip(parts, values)} for values in zip(*parts.values())]


def _familiarity(model: ImageModel, image: Tensor, output: Output) -> dict[str, float]:
    """The familiarity of the image (1, C, H, W) and the threshold; empty if the model has no threshold."""
    threshold = familiarity_threshold(model)
    if threshold is None:
        return {}
    return {"familiarity": scores(model, image, output)["familiarity"].item(), "none_below": threshold}


def check_outputs(images: Sequence[Path], folder: Path) -> None:
    """Raise a UserError if two images have the same name, or if an image or a mask by hand would be overwritten."""
    if (folder / "images").exists():
        raise UserError(
            f"--out {folder}: it has a folder `images`, whose masks would be overwritten; give another folder"
        )
    given = {path.resolve() for path in images}
    for path in images:
        mask, overlay = (folder / kind / f"{path.stem}.png" for kind in ("masks", "overlays"))
        if mask.exists() and not overlay.exists():
            raise UserError(f"--out {folder}: {mask} exists and was not written by torchcaps; give another folder")
        if given & {mask.resolve(), overlay.resolve()}:
            raise UserError(f"--out {folder}: the result for {path} would overwrite an image; give another folder")
    stems = [path.stem for path in images]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise UserError(
            f"several images are called {twice[0]}: their masks would have the same name; predict them one at a time"
        )


def segment_file(model: SegmentationModel, path: Path, folder: Path) -> dict[str, Any]:
    """Segment an image file of any size; write masks/<name>.png and overlays/<name>.png.

    With two classes the foreground is 255 in the mask and the background 0; with more, the mask holds class ids.

    Returns:
        file, size, mask and overlay: paths and size.
        shares: the share of the image that each class covers.
    """
    image = read_picture(path, model.image_shape[0])
    with without_decoder(model):
        presence = predict_map(model, image)
    if not presence.isfinite().all():
        raise UserError(f"{path}: the model answers NaN: its training diverged, or its weights are damaged")
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
    """Write figures that explain a model's answer, and the numbers behind them.

    For classification models: lengths, reconstruction, sweep and routing; with a placement: lengths, the lattice of
    views, the image seen in the predicted pose, reconstruction and sweep. For segmentation models: the mask over the
    image, the reconstruction, the capsules of every layer and their couplings. For synthesis models: generated images
    and an interpolation.

    Args:
        model: any model.
        path: an image file; for a synthesis model a mask file.
        folder: to write to.
        target: name of the class to explain instead of the predicted one; for classification models.
        against: a second synthesis model to compare with.
        any_size: accept masks of another size than the training images.

    Returns:
        The files.
    """
    if model.task == "synthesis":
        if target is not None:
            raise UserError("--target: this model draws all classes at once; omit --target")
        other = None if against is None else require_synthesis(against)
        figures, arrays = explain_drawing(cast(SynthesisModel, model), path, other, any_size)
    elif against is not None or any_size:
        raise UserError("--against and --any-size are for models that draw; omit them for this model")
    elif model.task == "segmentation":
        if target is not None:
            raise UserError("--target: this model finds all classes at once; omit --target")
        figures, arrays = _explain_mask(cast(SegmentationModel, model), path)
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
    image = read_input(model, path)
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


def _explain_mask(model: SegmentationModel, path: Path) -> tuple[dict[str, Figure], dict[str, Tensor]]:
    """Explain the mask of an image; of a large one, only its middle."""
    image = explain.centre_crop(read_picture(path, model.image_shape[0])).float() / 255
    with without_decoder(model):
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
