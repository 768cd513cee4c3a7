"""Figures 3, 4 and 5 of Sabour et al. 2017 made again, and where the children of two overlaid digits sit.

Whatever is shown is the first of its kind in the order of the images given: nothing is picked by how good it looks.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchcaps.errors import UserError, did_you_mean
from torchcaps.explain.figures import figure_sweep
from torchcaps.explain.measure import ask
from torchcaps.explain.needs import evaluating, needs_capsules, needs_decoder
from torchcaps.explain.routing import maps_on_image, routing_maps
from torchcaps.explain.style import STYLE, aspect_of, image_axes, new_figure, pixels, shorten
from torchcaps.explain.sweep import SWEEP, sweep
from torchcaps.models import CapsNet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchcaps.data import Batch

# Colours of light: where both are, they add up, to yellow or to white. The second pair is for every kind of vision.
LIGHTS = {
    "red-green": {"red": (1.0, 0.0, 0.0), "green": (0.0, 1.0, 0.0)},
    "orange-blue": {"orange": (1.0, 0.6, 0.0), "blue": (0.0, 0.4, 1.0)},
}
HEADINGS = {"right": "Right", "wrong": "Wrong: by label, by prediction", "absent": "By a class not in the image"}

Group = Literal["right", "wrong", "absent"]
Pick = tuple[int, Group, list[int]]  # the place of an image, why it is shown, the classes to draw it from


class Example(NamedTuple):
    """An image, and what the decoder draws of it from each of M classes by itself: a column of figure 3 or 5.

    group      "right": all M classes were found; "wrong": they were not; "absent": one is drawn that is not there
    image      (C, H, W)
    drawn      (M, C, H, W)
    labels     the M true classes
    predicted  the classes of the M longest capsules; one that is true stands where it stands in the labels
    shown      the M classes that were drawn
    """

    group: Group
    image: Tensor
    drawn: Tensor
    labels: tuple[int, ...]
    predicted: tuple[int, ...]
    shown: tuple[int, ...]


class Examples(NamedTuple):
    """The columns of a figure, chosen from so many images, of which so many were answered wrongly."""

    columns: list[Example]
    images: int
    mistakes: int


class Perturbed(NamedTuple):
    """A row of figure 4: one dimension of a class capsule, changed.

    label      the class
    dimension  counted from 0
    swept      (V, C, H, W)  what is drawn after each of V numbers is added to it
    """

    label: int
    dimension: int
    swept: Tensor


class CouplingMaps(NamedTuple):
    """Where routing found the children of the two longest class capsules.

    classes  (B, 2)        longest first
    lengths  (B, 2)
    gained   (B, 2, H, W)  coupling × the child's length, above what equal couplings give
    """

    classes: Tensor
    lengths: Tensor
    gained: Tensor


def digit_examples(
    model: nn.Module, images: Tensor, targets: Tensor, *, classes: Iterable[int] | None = None, failures: int = 2
) -> Examples:
    """Figure 3: the first right answer of each class; the first mistakes, drawn from the label and the prediction.

    images   (N, C, H, W) in [0, 1]
    targets  (N,)
    classes  those to show a right answer of, in this order, if there is one; all of them by default
    """
    capsnet = needs_decoder(model, "digit_examples")
    labels, predicted = targets.cpu()[:, None], ask({"": capsnet}, images)[""].lengths.argmax(-1, keepdim=True)
    picks: list[Pick] = [
        (place, "right", [label]) for label, place in _first_right(labels[:, 0], predicted[:, 0], classes)
    ]
    return _draw(capsnet, images, labels, predicted, picks + _mistakes(labels, predicted, failures))


def pair_examples(model: nn.Module, batch: Batch, *, right: int = 4, failures: int = 2, absent: int = 2) -> Examples:
    """Figure 5: the first pairs that were found, the first that were not, and classes that are not in the image.

    A mistake is drawn from its labels and from the two longest capsules. The last group shows the first pairs that were
    found once more, their second class replaced by the longest capsule that is not in the image: if any capsule draws
    what is not there, that one should.

    batch  images (B, C, H, W) in [0, 1] with labels (B, 2), as `torchcaps.data.multimnist.draw_pairs` makes them
    """
    capsnet = needs_decoder(model, "pair_examples")
    if batch.labels is None or batch.labels.shape[1:] != (2,):
        raise UserError("pair_examples: give a batch of images with two labels each, as draw_pairs makes them")
    lengths, labels = ask({"": capsnet}, batch.images)[""].lengths, batch.labels.cpu()
    predicted = _in_order_of(labels, lengths.topk(2).indices)
    found = (predicted == labels).all(-1).nonzero().flatten().tolist()
    picks: list[Pick] = [(place, "right", labels[place].tolist()) for place in found[:right]]
    picks += _mistakes(labels, predicted, failures)
    if capsnet.num_classes > 2:
        others = lengths.scatter(1, labels, -1.0).argmax(-1).tolist()
        picks += [(place, "absent", [int(labels[place, 0]), others[place]]) for place in found[:absent]]
    return _draw(capsnet, batch.images, labels, predicted, picks)


def perturbations(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    values: Sequence[float] = SWEEP,
    *,
    classes: Iterable[int] | None = None,
) -> list[Perturbed]:
    """Figure 4: the dimension of each class that varies most, changed in the first image of it that is answered right.

    The one that varies most has the largest variance over the poses that the capsule of a class takes in all images of
    that class. A class without a right answer is left out.

    images   (N, C, H, W) in [0, 1]
    targets  (N,)
    values   V numbers to add
    """
    capsnet = needs_decoder(model, "perturbations")
    answers, labels = ask({"": capsnet}, images)[""], targets.cpu()
    rows = []
    for label, place in _first_right(labels, answers.lengths.argmax(-1), classes):
        own_ND = answers.poses[labels == label, label]  # type: ignore[index]
        dimension = int(own_ND.var(0, correction=0).argmax())
        rows.append(Perturbed(label, dimension, sweep(capsnet, images[place], values, label)[dimension].cpu()))
    return rows


def coupling_maps(model: nn.Module, images: Tensor) -> CouplingMaps:
    """Where the children sit that routing gave to each of the two longest class capsules.

    In the first iteration every child is coupled to all classes alike. What a class has more of in the last is what
    routing decided; where it has less, the map is 0.

    images  (B, C, H, W) in [0, 1]
    """
    capsnet = needs_capsules(model, "coupling_maps")
    lengths, classes = ask({"": capsnet}, images)[""].lengths.topk(2)
    maps_RBJHW = maps_on_image(capsnet, routing_maps(capsnet, images)).cpu()
    gained_BJHW = (maps_RBJHW[0] - maps_RBJHW[-1]).clamp_min(0)
    return CouplingMaps(classes, lengths, gained_BJHW[torch.arange(len(images))[:, None], classes])


def overlay(drawn: Tensor, colours: str = "red-green") -> np.ndarray:
    """Two pictures as light of two colours, added and cut off at 1.

    drawn    (2, C, H, W) in [0, 1]; of several channels the mean
    colours  one of LIGHTS
    returns  (H, W, 3)
    """
    grey_2HW = torch.as_tensor(np.stack([pixels(picture.mean(0, keepdim=True)) for picture in drawn]))
    return torch.einsum("mhw,mc->hwc", grey_2HW, torch.tensor(list(_lights(colours).values()))).clamp(max=1).numpy()


def figure_digit_examples(
    examples: Examples,
    class_names: Sequence[str] | None = None,
    *,
    title: str = "Reconstructions: (label, prediction, class drawn)",
) -> Figure:
    """Figure 3: what `digit_examples` gave, inputs over reconstructions."""
    labels = [_tuple((*each.labels, *each.predicted, *each.shown), class_names) for each in examples.columns]
    pictures = [pixels(each.drawn[0]) for each in examples.columns]
    return _two_rows(examples, labels, pictures, _count(examples, "images"), title)


def figure_pair_examples(
    examples: Examples,
    class_names: Sequence[str] | None = None,
    *,
    colours: str = "red-green",
    title: str = "Two digits in one image, each reconstructed from its own capsule",
) -> Figure:
    """Figure 5: what `pair_examples` gave, inputs over both reconstructions in two colours.

    Above each column stand L, the labels, and R, the classes reconstructed; P marks a wrong prediction, * a class that
    is not there.

    colours  one of LIGHTS
    """
    first, second = _lights(colours)
    labels = []
    for each in examples.columns:
        mark = "*R:" if each.group == "absent" else "R:" if each.shown == each.labels else "R:P:"
        labels.append(f"{mark}{_tuple(each.shown, class_names)}\nL:{_tuple(each.labels, class_names)}")
    pictures = [overlay(each.drawn, colours) for each in examples.columns]
    words = f"The first class of R is {first}, the second {second}. {_count(examples, 'pairs')}"
    return _two_rows(examples, labels, pictures, words, title)


def figure_perturbations(
    rows: Sequence[Perturbed],
    values: Sequence[float] = SWEEP,
    class_names: Sequence[str] | None = None,
    *,
    title: str = "The dimension of each class capsule that varies most",
) -> Figure:
    """Figure 4: what `perturbations` gave, one row a class, one column a value added."""
    if not rows:
        return _only_words("No image was answered right.", title)
    figure = figure_sweep(torch.stack([row.swept for row in rows]), values, title=title)
    axes = figure.axes[0]
    axes.set_yticks(axes.get_yticks(), [f"{_name(row.label, class_names)}, dim. {row.dimension + 1}" for row in rows])
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
    """One row an image: the input, and as light upon it what each of the two longest classes gained by routing.

    images   (B, C, H, W)
    maps     what `coupling_maps` gave for them; the largest value of a row is the brightest
    colours  one of LIGHTS
    """
    lights = torch.tensor(list(_lights(colours).values()))
    figure = new_figure(4.6, len(images) * (1.4 * aspect_of(images) + 0.2) + 0.35, title)
    grid = figure.subplots(len(images), 3, squeeze=False)
    for axes, image, classes, lengths, gained in zip(grid, images, *maps):
        image_axes(axes[0], image, "Input")
        grey_HW1 = torch.as_tensor(pixels(image.mean(0, keepdim=True)))[..., None]
        for side in range(2):
            image_axes(axes[1 + side], None, f"{_name(int(classes[side]), class_names)}, length {lengths[side]:.2f}")
            glow_HW3 = gained[side, ..., None] / gained.max().clamp_min(1e-12) * lights[side]
            axes[1 + side].imshow((0.35 * grey_HW1 + glow_HW3).clamp(max=1).numpy(), interpolation="nearest")
    return figure


def _first_right(labels_N: Tensor, predicted_N: Tensor, classes: Iterable[int] | None) -> list[tuple[int, int]]:
    """Each of the classes (None: of all) that was ever answered right, and where for the first time."""
    chosen = labels_N.unique().tolist() if classes is None else classes
    right = [(label, ((labels_N == label) & (predicted_N == label)).nonzero()) for label in chosen]
    return [(label, int(places[0])) for label, places in right if len(places)]


def _in_order_of(labels_B2: Tensor, predicted_B2: Tensor) -> Tensor:
    """(B, 2): the predicted classes, one that is true standing where it stands in the labels."""
    crossed = (predicted_B2 == labels_B2.flip(1)).any(1, keepdim=True)
    return torch.where(crossed, predicted_B2.flip(1), predicted_B2)


def _mistakes(labels_NM: Tensor, predicted_NM: Tensor, limit: int) -> list[Pick]:
    """The first mistakes, each to be drawn from its labels and from what was predicted."""
    places = (predicted_NM != labels_NM).any(-1).nonzero().flatten().tolist()[:limit]
    return [(place, "wrong", classes[place].tolist()) for place in places for classes in (labels_NM, predicted_NM)]


def _draw(model: CapsNet, images: Tensor, labels_NM: Tensor, predicted_NM: Tensor, picks: list[Pick]) -> Examples:
    columns = []
    for place, group, shown in picks:
        with evaluating(model):
            each = torch.tensor([shown], device=model.device)
            drawn = model(images[place : place + 1].to(model.device), each=each).reconstruction[0].cpu()
        labels, predicted = (tuple(classes[place].tolist()) for classes in (labels_NM, predicted_NM))
        columns.append(Example(group, images[place].cpu(), drawn, labels, predicted, tuple(shown)))
    return Examples(columns, len(images), int((predicted_NM != labels_NM).any(-1).sum()))


def _two_rows(examples: Examples, labels: list[str], pictures: list[np.ndarray], words: str, title: str) -> Figure:
    """Inputs over pictures, a label above each column, a heading above each group, words below."""
    if not examples.columns:
        return _only_words(words, title)
    side, gap, line = 0.95, 0.2, 0.125  # inches: a column, the space between groups, a line of text
    high = side * aspect_of(examples.columns[0].image)
    sizes = Counter(each.group for each in examples.columns)  # in their order
    headings = [_fold(HEADINGS[group], side * size) for group, size in sizes.items()]
    needed = 0.4 + side * len(labels) + gap * (len(sizes) - 1)
    width = max(4.4, needed)
    below = _fold(words, width)
    head = line * _lines(headings)
    figure = new_figure(width, 0.55 + head + line * (_lines(labels) + _lines([below])) + 2 * high, title)
    widths = [each for size in sizes.values() for each in [side] * size + [gap]]
    widths[-1] = max(0.01, width - needed)  # what the columns leave free is on the right
    grid = figure.add_gridspec(3, len(widths), width_ratios=widths, height_ratios=[head, high, high])
    place = 0
    for group, heading in zip(sizes, headings):
        above = image_axes(figure.add_subplot(grid[0, place : place + sizes[group]]))
        above.text(0, 0, heading, va="bottom", fontsize=STYLE["small"], color=STYLE["quiet"], in_layout=False)
        place += sizes[group] + 1
    for index, (each, label, picture) in enumerate(zip(examples.columns, labels, pictures)):
        place = index + list(sizes).index(each.group)  # past the spaces
        colour = STYLE["second"] if each.group == "wrong" else None
        upper = image_axes(figure.add_subplot(grid[1, place]), each.image, label, colour)
        lower = image_axes(figure.add_subplot(grid[2, place]))
        lower.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        if index == 0:
            upper.set_ylabel("Input", fontsize=STYLE["small"], color=STYLE["ink"])
            lower.set_ylabel("Reconstruction", fontsize=STYLE["small"], color=STYLE["ink"])
    figure.supxlabel(below, x=0.01, ha="left", fontsize=STYLE["small"], color=STYLE["quiet"])
    return figure


def _only_words(words: str, title: str) -> Figure:
    figure = new_figure(4.4, 1.0, title)
    image_axes(figure.subplots()).text(0, 0.5, words, va="center", fontsize=STYLE["text"], color=STYLE["quiet"])
    return figure


def _count(examples: Examples, kind: str) -> str:
    if not examples.mistakes:
        return f"No mistake in {examples.images:,} {kind}."
    shown = sum(each.group == "wrong" for each in examples.columns) // 2  # each in two columns
    return f"Mistakes: {examples.mistakes:,} in {examples.images:,} {kind}, {shown or 'none'} shown."


def _lights(colours: str) -> dict[str, tuple[float, float, float]]:
    if colours not in LIGHTS:
        raise UserError(f"colours {colours!r}: {did_you_mean(colours, LIGHTS)}")
    return LIGHTS[colours]


def _fold(words: str, width: float) -> str:
    """Small print on as many lines as a width in inches asks for."""
    return textwrap.fill(words, int(width * 72 / (0.56 * STYLE["small"])))


def _lines(texts: Iterable[str]) -> int:
    return max(1 + text.count("\n") for text in texts)


def _tuple(classes: Sequence[int], class_names: Sequence[str] | None) -> str:
    """In brackets, on one line if the names are short, else on a line each."""
    names = [_name(index, class_names) for index in classes]
    between = ", " if max(map(len, names)) < 3 else ",\n"
    return f"({between.join(names)})"


def _name(index: int, class_names: Sequence[str] | None) -> str:
    return str(index) if class_names is None else shorten(class_names[index], 12)
