"""What figures 3, 4 and 5 of Sabour et al. 2017 show, and where the children of two overlaid digits sit.

Whatever is shown is the first of its kind in the order of the images given: nothing is picked by how good it looks.
paper_figures.py draws it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.explain.needs import needs_capsules, needs_decoder
from torchcaps.explain.routing import maps_on_image, routing_maps
from torchcaps.explain.sweep import SWEEP, sweep
from torchcaps.metrics.measure import ask
from torchcaps.models import CapsuleModel
from torchcaps.models.evaluating import evaluating

if TYPE_CHECKING:
    from torchcaps.data import Batch

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

    batch  images (B, C, H, W) in [0, 1] with labels (B, 2), as `multimnist.draw_pairs` makes them
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
    gained_BJHW = (maps_RBJHW[-1] - maps_RBJHW[0]).clamp_min(0)
    return CouplingMaps(classes, lengths, gained_BJHW[torch.arange(len(images))[:, None], classes])


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


def _draw(model: CapsuleModel, images: Tensor, labels_NM: Tensor, predicted_NM: Tensor, picks: list[Pick]) -> Examples:
    columns = []
    for place, group, shown in picks:
        with evaluating(model):
            each = torch.tensor([shown], device=model.device)
            drawn = model(images[place : place + 1].to(model.device), each=each).reconstruction[0].cpu()
        labels, predicted = (tuple(classes[place].tolist()) for classes in (labels_NM, predicted_NM))
        columns.append(Example(group, images[place].cpu(), drawn, labels, predicted, tuple(shown)))
    return Examples(columns, len(images), int((predicted_NM != labels_NM).any(-1).sum()))
