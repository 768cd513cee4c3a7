"""Figures 3 and 4 of Sabour et al. 2017, and maps of couplings; `docs/make_figures.py` puts them into the docs.

The examples shown are always the first of their kind in the order of the images: none is picked by its quality.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.explain.figures import figure_sweep
from torchcaps.explain.pair_figures import class_name, class_tuple, count_mistakes, light_colours, text_figure, two_rows
from torchcaps.explain.pairs import Examples, Pick, mistake_picks, reconstruct_picks
from torchcaps.explain.require import require_capsules, require_decoder
from torchcaps.explain.routing import maps_on_image, routing_maps
from torchcaps.explain.style import aspect_of, image_axes, new_figure, pixels
from torchcaps.explain.sweep import SWEEP, sweep
from torchcaps.metrics.predictions import predict_batches

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Perturbation(NamedTuple):
    """A row of figure 4: one dimension of a class capsule, changed.

    Attributes:
        label: the class.
        dimension: counted from 0.
        swept: (V, C, H, W) reconstructions with each of V numbers added to it.
    """

    label: int
    dimension: int
    swept: Tensor


class CouplingMaps(NamedTuple):
    """Where routing found the two longest class capsules.

    Attributes:
        classes: (B, 2), the longest first.
        lengths: (B, 2).
        gained: (B, 2, H, W) coupling × capsule length, minus that of uniform couplings.
    """

    classes: Tensor
    lengths: Tensor
    gained: Tensor


def digit_examples(
    model: nn.Module, images: Tensor, targets: Tensor, *, classes: Iterable[int] | None = None, failures: int = 2
) -> Examples:
    """Choose and reconstruct the columns of figure 3: the first right prediction of each class, the first mistakes.

    Args:
        model: routes a grid of primary capsules and has a decoder.
        images: (N, C, H, W) in [0, 1].
        targets: (N,) class ids.
        classes: to show a right prediction of, in this order; all by default.
        failures: the maximum number of mistakes, each reconstructed from its label and from the prediction.
    """
    capsnet = require_decoder(model, "digit_examples")
    labels, predicted = (
        targets.cpu()[:, None],
        predict_batches({"": capsnet}, images)[""].lengths.argmax(-1, keepdim=True),
    )
    picks: list[Pick] = [
        (place, "right", [label]) for label, place in _first_right(labels[:, 0], predicted[:, 0], classes)
    ]
    return reconstruct_picks(capsnet, images, labels, predicted, picks + mistake_picks(labels, predicted, failures))


def perturbations(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    values: Sequence[float] = SWEEP,
    *,
    classes: Iterable[int] | None = None,
) -> list[Perturbation]:
    """Choose the rows of figure 4: the dimension of each class that varies most, changed in its first right image.

    The dimension that varies most has the largest variance of the class's pose over all images of that class. A class
    without a right prediction is omitted.

    Args:
        model: routes a grid of primary capsules and has a decoder.
        images: (N, C, H, W) in [0, 1].
        targets: (N,) class ids.
        values: V numbers to add.
        classes: to show, in this order; all by default.
    """
    capsnet = require_decoder(model, "perturbations")
    answers, labels = predict_batches({"": capsnet}, images)[""], targets.cpu()
    rows = []
    for label, place in _first_right(labels, answers.lengths.argmax(-1), classes):
        own_ND = answers.poses[labels == label, label]  # type: ignore[index]
        dimension = int(own_ND.var(0, correction=0).argmax())
        rows.append(Perturbation(label, dimension, sweep(capsnet, images[place], values, label)[dimension].cpu()))
    return rows


def coupling_maps(model: nn.Module, images: Tensor) -> CouplingMaps:
    """Compute where the capsules are that routing assigned to each of the two longest class capsules.

    In the first iteration every child is coupled equally to all classes. The map is what a class gained until the last
    iteration, and 0 where it lost.

    Args:
        model: routes a grid of primary capsules.
        images: (B, C, H, W) in [0, 1].
    """
    capsnet = require_capsules(model, "coupling_maps")
    lengths, classes = predict_batches({"": capsnet}, images)[""].lengths.topk(2)
    maps_RBJHW = maps_on_image(capsnet, routing_maps(capsnet, images)).cpu()
    gained_BJHW = (maps_RBJHW[-1] - maps_RBJHW[0]).clamp_min(0)
    return CouplingMaps(classes, lengths, gained_BJHW[torch.arange(len(images))[:, None], classes])


def figure_digit_examples(
    examples: Examples,
    class_names: Sequence[str] | None = None,
    *,
    title: str = "Reconstructions: (label, prediction, class drawn)",
) -> Figure:
    """Draw figure 3, inputs over reconstructions, from `digit_examples`."""
    labels = [class_tuple((*each.labels, *each.predicted, *each.shown), class_names) for each in examples.columns]
    pictures = [pixels(each.drawn[0]) for each in examples.columns]
    return two_rows(examples, labels, pictures, count_mistakes(examples, "images"), title)


def figure_perturbations(
    rows: Sequence[Perturbation],
    values: Sequence[float] = SWEEP,
    class_names: Sequence[str] | None = None,
    *,
    title: str = "The dimension of each class capsule that varies most",
) -> Figure:
    """Draw figure 4, a row per class and a column per value added, from `perturbations`."""
    if not rows:
        return text_figure("No image was answered right.", title)
    figure = figure_sweep(torch.stack([row.swept for row in rows]), values, title=title)
    axes = figure.axes[0]
    axes.set_yticks(
        axes.get_yticks(), [f"{class_name(row.label, class_names)}, dim. {row.dimension + 1}" for row in rows]
    )
    axes.set_ylabel("")
    return figure


def figure_coupling_maps(
    images: Tensor,
    maps: CouplingMaps,
    class_names: Sequence[str] | None = None,
    *,
    colours: str = "red-green",
    title: str = "Where routing found each class",
) -> Figure:
    """Draw a row for each image: the input, and in colour on it what each of the two longest classes gained.

    Args:
        images: (B, C, H, W).
        maps: from `coupling_maps`; the largest value of a row is the brightest.
        class_names: J names.
        colours: one of `pair_figures.LIGHTS`.
        title: of the figure.
    """
    lights = torch.tensor(list(light_colours(colours).values()))
    figure = new_figure(4.6, len(images) * (1.4 * aspect_of(images) + 0.2) + 0.35, title)
    grid = figure.subplots(len(images), 3, squeeze=False)
    for axes, image, classes, lengths, gained in zip(grid, images, *maps):
        image_axes(axes[0], image, "Input")
        grey_HW1 = torch.as_tensor(pixels(image.mean(0, keepdim=True)))[..., None]
        for side in range(2):
            image_axes(
                axes[1 + side], None, f"{class_name(int(classes[side]), class_names)}, length {lengths[side]:.2f}"
            )
            glow_HW3 = gained[side, ..., None] / gained.max().clamp_min(1e-12) * lights[side]
            axes[1 + side].imshow((0.35 * grey_HW1 + glow_HW3).clamp(max=1).numpy(), interpolation="nearest")
    return figure


def _first_right(labels_N: Tensor, predicted_N: Tensor, classes: Iterable[int] | None) -> list[tuple[int, int]]:
    """Return each class (of all, if None) with a right prediction, and the position of the first."""
    chosen = labels_N.unique().tolist() if classes is None else classes
    right = [(label, ((labels_N == label) & (predicted_N == label)).nonzero()) for label in chosen]
    return [(label, int(places[0])) for label, places in right if len(places)]
