"""A mask file through a saved model that draws: images of it, films from one of them to another, and figures of why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps import explain
from torchcaps.data import read_label
from torchcaps.errors import UserError
from torchcaps.explain.features import show_layers
from torchcaps.explain.files import write_gif, write_png
from torchcaps.explain.style import pixels
from torchcaps.models import ImageModel, SynthesisModel
from torchcaps.models.synthesis import draw_masks, noise_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 4  # images of one label map in a figure


class Label(NamedTuple):
    """A mask file: what it is called, and its class ids (H, W)."""

    name: str
    mask: Tensor


def drawing_model(model: ImageModel) -> SynthesisModel:
    """The model, if it draws."""
    if not isinstance(model, SynthesisModel):
        raise UserError(
            f"a {type(model).__name__} draws no images from masks; give a model that does, such as one of "
            "`torchcaps train capspix2pix`"
        )
    return model


def read_labels(model: SynthesisModel, paths: Sequence[Path], any_size: bool = False) -> list[Label]:
    """Mask files as this model knows their classes; all of them are read and checked before anything is drawn.

    any_size  also those of another size than the model was trained on
    """
    names = [path.stem for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"several masks are called {twice[0]}: their images would have one name; take them in turn")
    positive = (model.trained_by.get("data") or {}).get("positive")
    labels = [Label(path.stem, read_label(path, model.num_classes, positive)) for path in paths]
    for path, (_, mask) in zip(paths, labels):
        size, own = ("×".join(map(str, shape)) for shape in (mask.shape, model.image_shape[1:]))
        if size != own and not any_size:
            raise UserError(
                f"{path} is {size}, and this model draws images of {own}: give a mask of that size, or let --any-size "
                "draw it as it is"
            )
        try:
            model.check_size(*mask.shape)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
    return labels


def generate_files(
    model: SynthesisModel, paths: Sequence[Path], folder: Path, n: int = 4, seed: int = 0, any_size: bool = False
) -> list[dict[str, Any]]:
    """Write `folder/<name>-<number>.png`, images 0 to n − 1 of each mask; the same seed gives the same files."""
    labels = read_labels(model, paths, any_size)
    files = {label.name: [folder / f"{label.name}-{number}.png" for number in range(n)] for label in labels}
    _keep_masks(paths, [file for some in files.values() for file in some])
    answers = []
    for path, label in zip(paths, labels):
        for number, file in enumerate(files[label.name]):
            write_png(file, _bytes(draw_masks(model, [label.mask], seed, [number])[0]))
        answers.append({"file": str(path), "size": list(label.mask.shape), "images": [*map(str, files[label.name])]})
    return answers


def interpolate_files(
    model: SynthesisModel,
    paths: Sequence[Path],
    folder: Path,
    ends: tuple[int, int],
    frames: int = 16,
    seed: int = 0,
    any_size: bool = False,
) -> list[dict[str, Any]]:
    """Write a film from image number ends[0] of each mask to ends[1], as a strip (.png) and to be played (.gif)."""
    if not model.has_noise:
        raise UserError("--interpolate: the noise of this model is dropout; there is nothing between two images of it")
    labels = read_labels(model, paths, any_size)
    stems = [f"{label.name}-from-{ends[0]}-to-{ends[1]}" for label in labels]
    files = [[folder / f"{stem}{ending}" for ending in (".png", ".gif")] for stem in stems]
    _keep_masks(paths, [file for some in files for file in some])
    answers = []
    for path, label, (strip, film) in zip(paths, labels, files):
        walked = explain.interpolate(model, label.mask, *ends, frames, seed)
        write_png(strip, explain.film_strip(walked.images))
        write_gif(film, [_bytes(image) for image in walked.images])
        answers.append({"file": str(path), "size": list(label.mask.shape), "images": [str(strip), str(film)]})
    return answers


def explain_drawing(
    model: SynthesisModel, path: Path, against: SynthesisModel | None = None, any_size: bool = False
) -> tuple[dict[str, Figure], dict[str, Tensor]]:
    """Figures, and the numbers behind them: images of the mask, the way from one to another, and the last layer's
    features on that way, beside those of another model; of capsules also those of every layer."""
    (label,) = read_labels(model, [path], any_size)
    models = {_name(model): model}
    if against is not None:
        read_labels(against, [path], any_size)
        models[_name(against) if _name(against) != _name(model) else "against"] = against
    drawn = torch.stack([draw_masks(model, [label.mask], 0, [number])[0] for number in range(SHOWN)])
    figures = {"drawings": explain.figure_drawings([label.mask], None, [drawn])}
    arrays = {"mask": label.mask, "drawings": drawn}
    walks = {name: explain.interpolate(each, label.mask) for name, each in models.items() if each.has_noise}
    if walks:
        figures["interpolation"] = explain.figure_interpolation(walks)
    for name, walked in walks.items():
        title = f"{name}: features of the last layer, from z₁ to z₂"
        figures[f"interpolation-features-{name}"] = explain.figure_interpolation_features(walked, title=title)
        arrays |= {f"interpolation_{name}": walked.images, f"interpolation_features_{name}": walked.features}
    if hasattr(model, "layers"):
        shown = show_layers(explain.drawing_maps(model, label.mask, noise_of(0, [0], model.z)[0]))
        figures, arrays = figures | shown[0], arrays | shown[1]
    return figures, arrays


def _name(model: SynthesisModel) -> str:
    return type(model).__name__.lower()


def _bytes(image_CHW: Tensor) -> np.ndarray:
    return (255 * pixels(image_CHW)).round().astype(np.uint8)


def _keep_masks(paths: Sequence[Path], files: Sequence[Path]) -> None:
    given = {path.resolve() for path in paths}
    for file in files:
        if file.resolve() in given:
            raise UserError(f"--out {file.parent}: an image would overwrite the mask {file}; give another folder")
