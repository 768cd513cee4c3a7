"""Figures of reconstructions, dimension sweeps and routing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.explain.reconstruct import Reconstructions
from torchcaps.explain.style import (
    STYLE,
    Tile,
    aspect_of,
    names_of,
    new_figure,
    pixels,
    plain_axes,
    shorten,
    show_tiles,
)
from torchcaps.explain.sweep import SWEEP

if TYPE_CHECKING:
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure


def figure_reconstructions(
    images: Tensor,
    drawn: Reconstructions,
    class_names: Sequence[str] | None = None,
    *,
    limit: int = 10,
    title: str = "Reconstructions from the true, the predicted and a wrong class",
) -> Figure:
    """Draw the inputs in a row, and below each its reconstructions from the true, the predicted and a wrong class.

    Args:
        images: (B, C, H, W); the first `limit` are shown.
        drawn: from `reconstructions`.
        class_names: J names.
        limit: the maximum number of images.
        title: of the figure.
    """
    kinds = [("Predicted", drawn.predicted, drawn.from_predicted), ("Wrong", drawn.wrong, drawn.from_wrong)]
    if drawn.true is not None and drawn.from_true is not None:
        kinds.insert(0, ("True", drawn.true, drawn.from_true))
    columns = min(len(images), limit)
    lengths = drawn.lengths.detach().cpu()
    height = (1 + len(kinds)) * (0.85 * aspect_of(images) + 0.1) + 0.3 * len(kinds)
    figure = new_figure(max(4.4, 0.5 + 0.95 * columns), height + (0.5 if title else 0.1), title)
    rows = [[Tile(image) for image in images[:columns]]]
    for kind, classes, pictures in kinds:
        row = []
        for column in range(columns):
            chosen = classes[column].cpu()
            long = lengths[column][chosen].tolist()
            label = f"{names_of(chosen, class_names, 12)}\n{', '.join(f'{value:.2f}' for value in long[:3])}"
            right = kind != "Predicted" or drawn.true is None or torch.equal(chosen, drawn.true[column].cpu())
            row.append(Tile(pictures[column], label, None if right else STYLE["second"]))
        rows.append(row)
    show_tiles(figure, rows, ["Input", *(f"{kind}\nclass" for kind, _, _ in kinds)])
    return figure


def figure_sweep(
    swept: Tensor, values: Sequence[float] = SWEEP, *, title: str = "What each dimension of the capsule encodes"
) -> Figure:
    """Draw a row for each dimension and a column for each value added to it.

    Args:
        swept: (D, V, C, H, W) from `sweep`.
        values: the V numbers that were added.
        title: of the figure.
    """
    D, V, C, H, W = swept.shape
    gap = max(1, round(0.06 * max(H, W)))
    # One picture of all tiles: D·V axes would take matplotlib many seconds.
    tiles = torch.ones(D, V, C, H + gap, W + gap)
    tiles[..., :H, :W] = swept.detach().float().cpu()
    mosaic = pixels(tiles.permute(2, 0, 3, 1, 4).reshape(C, D * (H + gap), V * (W + gap)))[:-gap, :-gap]
    tile = 0.55
    figure = new_figure(1 + tile * V, 0.9 + tile * D * aspect_of(swept), title)
    axes = plain_axes(figure.subplots(), "Added to the dimension", "Dimension")
    axes.imshow(mosaic, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    axes.set_xticks([column * (W + gap) + W / 2 for column in range(V)], [_signed(value) for value in values])
    axes.set_yticks([row * (H + gap) + H / 2 for row in range(D)], [str(row + 1) for row in range(D)])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def figure_routing(
    image: Tensor,
    heat: Tensor,
    lengths: Tensor,
    entropies: Tensor | Sequence[float] | None = None,
    class_names: Sequence[str] | None = None,
    *,
    top: int = 4,
    title: str = "Where the capsules coupled to each class are",
) -> Figure:
    """Draw the image under a heat map of each of the longest classes: a row per iteration, one colour scale for all.

    Args:
        image: (C, H, W).
        heat: (R, J, H, W) from `maps_on_image` and `routing_maps`, for this image.
        lengths: (J,) of the class capsules.
        entropies: (R,) from `coupling_entropy`, one for each iteration; shown with the entropy of equal couplings.
        class_names: J names.
        top: the number of classes.
        title: of the figure.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import MaxNLocator

    heat, lengths = torch.nan_to_num(heat.detach().float().cpu()), lengths.detach().float().cpu()
    chosen = lengths.argsort(descending=True, stable=True)[:top].tolist()
    R = len(heat)
    # Every child couples a little to every class: the square makes those couplings dark.
    scale = ScalarMappable(PowerNorm(2, 0, max(float(heat[:, chosen].max()), 1e-12)), STYLE["heat"])
    width, height = 1.7 * (1 + len(chosen)) + 0.9, R * 1.6 * aspect_of(image) + 0.9
    figure = new_figure(max(width, 4.8), height, title)
    names = [shorten(str(index) if class_names is None else class_names[index]) for index in chosen]
    heads = [f"{name}\nlength {float(lengths[index]):.2f}" for name, index in zip(names, chosen)]
    rows = [
        [
            Tile(image, "Input") if row == 0 else None,
            *(Tile(_blend(image, heat[row, j], scale), "" if row else head) for j, head in zip(chosen, heads)),
        ]
        for row in range(R)
    ]
    words = [f"Iteration {row + 1}" for row in range(R)]
    if entropies is not None:
        nats = [float(entropy) for entropy in entropies]
        most = _most_entropy(max(nats), heat.shape[1])
        words = [f"{each}\nentropy {entropy:.3f}\nof {most:.3f}" for each, entropy in zip(words, nats)]
    axes = show_tiles(figure, rows, words, side=1.5)
    bar = figure.colorbar(scale, ax=axes, shrink=0.6, pad=0.02, ticks=MaxNLocator(4))
    bar.set_label("Coupling × capsule length", fontsize=STYLE["small"], color=STYLE["ink"])
    bar.ax.tick_params(labelsize=STYLE["small"], colors=STYLE["quiet"], length=2)
    bar.outline.set_visible(False)
    return figure


def _most_entropy(largest: float, J: int) -> float:
    """The entropy of equal couplings, in nats; leaky routing, which alone exceeds that of J, has one more parent."""
    most = math.log(J)
    return most if largest < most + 1e-3 else math.log(J + 1)


def _blend(image: Tensor, heat_HW: Tensor, scale: ScalarMappable) -> np.ndarray:
    """Add the heat map's colours to the darkened grey image."""
    finer = max(1, round(160 / max(heat_HW.shape)))
    size = [finer * side for side in heat_HW.shape]
    smooth = functional.interpolate(heat_HW[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]
    grey = 0.45 * pixels(image.detach().mean(0, keepdim=True)).repeat(finer, 0).repeat(finer, 1)[..., None]
    return 1 - (1 - grey) * (1 - scale.to_rgba(smooth.numpy())[..., :3])


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−") if value else "0"
