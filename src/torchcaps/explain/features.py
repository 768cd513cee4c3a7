"""Poses and couplings of convolutional capsules, layer by layer and pixel by pixel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.capsules import Capsules
from torchcaps.explain.require import require_layers
from torchcaps.explain.style import STYLE, aspect_of, new_figure, plain_axes
from torchcaps.models.capsule_unet import CapsuleUNet
from torchcaps.models.evaluating import evaluating

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_TILE_PIXELS = 96  # side of a map in a figure
MAX_COLUMNS = 16  # dimensions side by side


class LayerMaps(NamedTuple):
    """One layer's capsules for one image.

    Attributes:
        name: of the layer.
        pose: (T, D, H, W) for T capsule types.
        couplings: (children, T, H, W); None if nothing was routed: one parent type, or one iteration.
    """

    name: str
    pose: Tensor
    couplings: Tensor | None


def feature_maps(model: nn.Module, image_CHW: Tensor) -> list[LayerMaps]:
    """Return the capsules of every layer of a segmentation model, from the image to the classes.

    Args:
        model: a SegCaps.
        image_CHW: (C, H, W) in [0, 1], of any size.
    """
    segcaps = require_layers(model, "segmentation")
    return _maps(segcaps, lambda: segcaps.layers(segcaps.pad(image_CHW[None].to(segcaps.device))))


def drawing_maps(model: nn.Module, mask_HW: Tensor, noise_Z: Tensor) -> list[LayerMaps]:
    """Return the capsules of every layer of a synthesis model, from the label map to the image.

    Args:
        model: a CapsPix2Pix.
        mask_HW: (H, W) class ids.
        noise_Z: (Z,) noise vector.
    """
    generator = require_layers(model, "synthesis")
    inputs = mask_HW.long()[None].to(generator.device), noise_Z[None].to(generator.device)
    return _maps(generator, lambda: generator.layers(*inputs))


def _maps(model: CapsuleUNet, forward: Callable[[], dict[str, Capsules]]) -> list[LayerMaps]:
    children: dict[str, Capsules] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: children.update({name: inputs[0]}))
        for name, layer in model.capsule_layers
    ]
    try:
        with evaluating(model):
            found = forward()
            couplings = {
                name: layer(children[name], return_couplings=True)[1][0].cpu()
                for name, layer in model.capsule_layers
                if layer.iterations > 1 and layer.out_types > 1
            }
    finally:
        for hook in hooks:
            hook.remove()
    return [LayerMaps(name, capsules.pose[0].cpu(), couplings.get(name)) for name, capsules in found.items()]


def show_layers(layers: Sequence[LayerMaps]) -> tuple[dict[str, Figure], dict[str, Tensor]]:
    """Return figures and arrays of every layer, by file name."""
    figures, arrays = {}, {}
    for depth, layer in enumerate(layers):
        figures[f"features-{depth:02d}-{layer.name}"] = figure_features(layer)
        arrays[f"pose_{layer.name}"] = layer.pose
        if layer.couplings is not None:
            figures[f"couplings-{depth:02d}-{layer.name}"] = figure_couplings(layer)
            arrays[f"couplings_{layer.name}"] = layer.couplings
    return figures, arrays


def figure_features(maps: LayerMaps, *, title: str = "") -> Figure:
    """Draw a map for each dimension of each capsule type: types from top to bottom, dimensions from left to right."""
    T, D = maps.pose.shape[:2]
    columns = min(D, MAX_COLUMNS)
    rows = -(-D // columns)  # of one type
    small = shrunk(maps.pose.flatten(0, 1)).unflatten(0, (T, D))
    empty = rows * columns - D
    tiles = torch.cat([small, small.new_full((T, empty, *small.shape[2:]), torch.nan)], 1).unflatten(1, (rows, columns))
    reach = max(float(maps.pose.abs().max()), 1e-12)
    height = 0.62 * T * rows * aspect_of(small) + 0.9
    figure = new_figure(
        0.62 * columns + 1.6, height, title or f"{_words(maps.name)}: {T} capsule types × {D} dimensions"
    )
    across = "Dimension" if rows == 1 else f"Dimension, {columns} in a row"
    axes = plain_axes(figure.subplots(), across, "Capsule type")
    mosaic(figure, axes, tiles.flatten(0, 1), "RdBu_r", (-reach, reach), "Pose")
    step = tiles.shape[-2] + 1
    axes.set_yticks([(rows * t + (rows - 1) / 2) * step + step / 2 for t in range(T)], [str(t + 1) for t in range(T)])
    return figure


def figure_couplings(maps: LayerMaps, *, title: str = "") -> Figure:
    """Draw a map of the couplings of each child type (rows) to each parent type (columns)."""
    if maps.couplings is None:
        raise ValueError(f"figure_couplings: layer {maps.name} routes nothing, so it has no couplings to show")
    children, parents = maps.couplings.shape[:2]
    tiles = shrunk(maps.couplings.flatten(0, 1)).unflatten(0, (children, parents))
    side = 0.9
    size = max(side * parents + 2.0, 4.6), side * children * aspect_of(tiles) + 1.1
    figure = new_figure(*size, title or f"{_words(maps.name)}: couplings at each pixel")
    axes = plain_axes(figure.subplots(), "Parent type", "Child type")
    mosaic(figure, axes, tiles, STYLE["heat"], (0, max(float(tiles.max()), 1e-12)), "Coupling")
    step = tiles.shape[-2] + 1
    axes.set_yticks([(t + 0.5) * step for t in range(children)], [str(t + 1) for t in range(children)])
    return figure


def mosaic(figure: Figure, axes: Axes, tiles_RCHW: Tensor, colours: str, span: tuple[float, float], label: str) -> None:
    """Draw all tiles as one picture, a pixel apart: an axes for each tile would take matplotlib many seconds."""
    R, C, H, W = tiles_RCHW.shape
    apart = functional.pad(tiles_RCHW, (0, 1, 0, 1), value=torch.nan)
    picture = apart.permute(0, 2, 1, 3).reshape(R * (H + 1), C * (W + 1))
    shown = axes.imshow(picture.numpy(), cmap=colours, vmin=span[0], vmax=span[1], interpolation="nearest")
    axes.set_xticks([(c + 0.5) * (W + 1) for c in range(C)], [str(c + 1) for c in range(C)])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(shown, ax=axes, shrink=0.6, pad=0.02)
    bar.set_label(label, fontsize=STYLE["small"], color=STYLE["ink"])
    bar.ax.tick_params(labelsize=STYLE["small"], colors=STYLE["quiet"], length=2)
    bar.outline.set_visible(False)


def shrunk(maps_NHW: Tensor) -> Tensor:
    """Shrink maps by averaging until no side is longer than MAX_TILE_PIXELS."""
    height, width = (min(MAX_TILE_PIXELS, side) for side in maps_NHW.shape[1:])
    return functional.adaptive_avg_pool2d(maps_NHW.float(), (height, width))


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()
