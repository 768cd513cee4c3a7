"""Figures of synthesised images: beside label maps and real images, and interpolated between two noise vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.explain.features import mosaic, shrunk
from torchcaps.explain.masks import COLOURS, colour_of
from torchcaps.explain.style import STYLE, aspect_of, image_axes, new_figure, pixels, plain_axes
from torchcaps.losses import IGNORED
from torchcaps.models import SynthesisModel
from torchcaps.models.evaluating import evaluating
from torchcaps.models.synthesis import noise_vectors, slerp

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAMES = 8  # of an interpolation
MAX_FEATURE_MAPS = 16  # of one frame: those that change most from frame to frame


class Interpolation(NamedTuple):
    """Images of one label map, with noise interpolated from one vector to another.

    Attributes:
        images: (N, C, H, W), N frames.
        features: (N, F, h, w), the last layer's input for each frame.
    """

    images: Tensor
    features: Tensor


def interpolate(
    model: SynthesisModel, mask_HW: Tensor, first: int = 0, last: int = 1, frames: int = FRAMES, seed: int = 0
) -> Interpolation:
    """Draw a label map with noise interpolated between two vectors.

    Args:
        model: with a noise vector.
        mask_HW: (H, W) class ids.
        first, last: numbers of the two noise vectors of the seed.
        frames: N, both ends included.
        seed: of the noise vectors.
    """
    start, end = noise_vectors(seed, (first, last), model.z)
    noise = slerp(start, end, frames).to(model.device)
    masks = mask_HW.long().to(model.device)[None].expand(frames, -1, -1)
    images, features = [], []
    with evaluating(model):
        for mask, vector in zip(masks.split(1), noise.split(1)):
            seen = model.features(mask, vector)
            features.append(seen.float().cpu())
            images.append(model.to_image(seen).cpu())
    return Interpolation(torch.cat(images), torch.cat(features))


def label_picture(mask_HW: Tensor) -> np.ndarray:
    """Draw a label map as (H, W, 3) uint8: a single class white, several in colours, background black, ignored grey."""
    ids = mask_HW.cpu().numpy()
    known = ids != IGNORED
    several = bool((ids[known] > 1).any())
    shown = np.zeros((*ids.shape, 3))
    for index in range(1, int(ids[known].max(initial=0)) + 1):
        shown[ids == index] = colour_of(COLOURS[(index - 1) % len(COLOURS)]) if several else 1.0
    shown[~known] = 0.5
    return (255 * shown).round().astype(np.uint8)


def figure_drawings(
    masks: Sequence[Tensor], real: Sequence[Tensor] | None, drawn: Sequence[Tensor], *, title: str = ""
) -> Figure:
    """Draw a row for each label map: the map, the real image if given, and images drawn with several noise vectors.

    Args:
        masks: N of (H, W).
        real: N of (C, H, W) in [0, 1], or None.
        drawn: N of (M, C, H, W), one for each of M noise vectors.
    """
    count = len(drawn[0])
    heads = [
        "Label map",
        *(["Real"] if real is not None else []),
        *(f"Drawn, noise {number}" for number in range(count)),
    ]
    heights = [1.5 * aspect_of(mask) for mask in masks]
    figure = new_figure(1.55 * len(heads) + 0.1, sum(heights) + 0.1 * len(masks) + (0.7 if title else 0.3), title)
    grid = figure.subplots(len(masks), len(heads), squeeze=False, height_ratios=heights)
    for row, mask in enumerate(masks):
        shown = [*([real[row]] if real is not None else []), *drawn[row]]
        first, *others = grid[row]
        image_axes(first, None, heads[0] if row == 0 else "").imshow(label_picture(mask), interpolation="nearest")
        for axes, head, image in zip(others, heads[1:], shown):
            image_axes(axes, image, head if row == 0 else "")
    return figure


def figure_interpolation(
    interpolations: dict[str, Interpolation], *, title: str = "From one noise vector to another"
) -> Figure:
    """Draw a row of frames for each model.

    Args:
        interpolations: by the name of the model.
    """
    frames = len(next(iter(interpolations.values())).images)
    height = 1.25 * aspect_of(next(iter(interpolations.values())).images)
    figure = new_figure(1.25 * frames + 0.6, height * len(interpolations) + (0.8 if title else 0.3), title)
    grid = figure.subplots(len(interpolations), frames, squeeze=False)
    for row, (name, each) in enumerate(interpolations.items()):
        for column, image in enumerate(each.images):
            ends = {0: "z₁", frames - 1: "z₂"}.get(column, "")
            image_axes(grid[row, column], image, ends if row == 0 else "")
        grid[row, 0].set_ylabel(name, fontsize=STYLE["small"], color=STYLE["ink"])
    return figure


def figure_interpolation_features(interpolation: Interpolation, *, title: str) -> Figure:
    """Draw the last layer's feature maps that change most: one column each, one row for each frame."""
    change_F = interpolation.features.std(0).mean((1, 2))
    chosen = change_F.argsort(descending=True, stable=True)[:MAX_FEATURE_MAPS].sort().values
    maps = interpolation.features[:, chosen]
    tiles = shrunk(maps.flatten(0, 1)).unflatten(0, maps.shape[:2])
    reach = max(float(tiles.abs().max()), 1e-12)
    figure = new_figure(0.62 * len(chosen) + 1.6, 0.62 * len(tiles) * aspect_of(tiles) + 0.9, title)
    axes = plain_axes(figure.subplots(), "Dimension", "Frame, from z₁ to z₂")
    mosaic(figure, axes, tiles, "RdBu_r", (-reach, reach), "Value")
    step = tiles.shape[-1] + 1
    axes.set_xticks([(c + 0.5) * step for c in range(len(chosen))], [str(int(f) + 1) for f in chosen])
    down = tiles.shape[-2] + 1
    axes.set_yticks([(r + 0.5) * down for r in range(len(tiles))], [str(r + 1) for r in range(len(tiles))])
    return figure


def film_strip(images_NCHW: Tensor, across: int = 8) -> np.ndarray:
    """Put frames (N, C, H, W) into one image, `across` in a row, a pixel apart: uint8, (H', W') or (H', W', 3)."""
    N = len(images_NCHW)
    columns = min(across, N)
    empty = -N % columns
    framed = functional.pad(images_NCHW, (1, 1, 1, 1), value=1.0)
    framed = torch.cat([framed, framed.new_ones(empty, *framed.shape[1:])])
    rows = framed.unflatten(0, (-1, columns))
    strip = rows.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
    return (255 * pixels(strip)).round().astype(np.uint8)
