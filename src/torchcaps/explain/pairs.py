"""Reconstructions of two classes in one image, each from its own capsule (figure 5 of Sabour et al. 2017).

The examples shown are always the first of their kind in the order of the images: none is picked by its quality.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.explain.require import require_decoder
from torchcaps.metrics.predictions import predict_batches
from torchcaps.models import CapsuleModel
from torchcaps.models.evaluating import evaluating

if TYPE_CHECKING:
    from torchcaps.data import Batch

Group = Literal["right", "wrong", "absent"]
Pick = tuple[int, Group, list[int]]  # position of an image, why it is shown, the classes to reconstruct it from


class Example(NamedTuple):
    """An image, and its reconstruction from each of M classes alone: a column of figure 3 or 5.

    Attributes:
        group: "right": all M classes were predicted; "wrong": they were not; "absent": one is not in the image.
        image: (C, H, W).
        drawn: (M, C, H, W) reconstructions.
        labels: the M true classes.
        predicted: the classes of the M longest capsules; a true one has the position that it has in the labels.
        shown: the M classes that were reconstructed.
    """

    group: Group
    image: Tensor
    drawn: Tensor
    labels: tuple[int, ...]
    predicted: tuple[int, ...]
    shown: tuple[int, ...]


class Examples(NamedTuple):
    """The columns of a figure, the number of images they were chosen from, and how many of those were wrong."""

    columns: list[Example]
    images: int
    mistakes: int


def pair_examples(model: nn.Module, batch: Batch, *, right: int = 4, failures: int = 2, absent: int = 2) -> Examples:
    """Choose and reconstruct the columns of figure 5.

    These are the first pairs predicted right, the first predicted wrong, and classes that are not in the image. A
    mistake is reconstructed from its labels and from the two longest capsules. The last group repeats the first right
    pairs with the second class replaced by that of the longest capsule that is not in the image: if any capsule
    reconstructs what is not there, that one should.

    Args:
        model: routes a grid of primary capsules and has a decoder.
        batch: images (B, C, H, W) in [0, 1] with labels (B, 2), as `multimnist.draw_pairs` makes them.
        right, failures, absent: the maximum number of examples of each group.
    """
    capsnet = require_decoder(model, "pair_examples")
    if batch.labels is None or batch.labels.shape[1:] != (2,):
        raise UserError("pair_examples: give a batch of images with two labels each, as draw_pairs makes them")
    lengths, labels = predict_batches({"": capsnet}, batch.images)[""].lengths, batch.labels.cpu()
    predicted = _in_order_of(labels, lengths.topk(2).indices)
    found = (predicted == labels).all(-1).nonzero().flatten().tolist()
    picks: list[Pick] = [(place, "right", labels[place].tolist()) for place in found[:right]]
    picks += mistake_picks(labels, predicted, failures)
    if capsnet.num_classes > 2:
        others = lengths.scatter(1, labels, -1.0).argmax(-1).tolist()
        picks += [(place, "absent", [int(labels[place, 0]), others[place]]) for place in found[:absent]]
    return reconstruct_picks(capsnet, batch.images, labels, predicted, picks)


def mistake_picks(labels_NM: Tensor, predicted_NM: Tensor, limit: int) -> list[Pick]:
    """Pick the first mistakes, each twice: from its labels and from the predicted classes."""
    places = (predicted_NM != labels_NM).any(-1).nonzero().flatten().tolist()[:limit]
    return [(place, "wrong", classes[place].tolist()) for place in places for classes in (labels_NM, predicted_NM)]


def reconstruct_picks(
    model: CapsuleModel, images: Tensor, labels_NM: Tensor, predicted_NM: Tensor, picks: list[Pick]
) -> Examples:
    """Reconstruct each picked image from the classes picked for it."""
    columns = []
    for place, group, shown in picks:
        with evaluating(model):
            each = torch.tensor([shown], device=model.device)
            drawn = model(images[place : place + 1].to(model.device), each=each).reconstruction[0].cpu()
        labels, predicted = (tuple(classes[place].tolist()) for classes in (labels_NM, predicted_NM))
        columns.append(Example(group, images[place].cpu(), drawn, labels, predicted, tuple(shown)))
    return Examples(columns, len(images), int((predicted_NM != labels_NM).any(-1).sum()))


def _in_order_of(labels_B2: Tensor, predicted_B2: Tensor) -> Tensor:
    """Order the predicted classes (B, 2) so that a true one has the position that it has in the labels."""
    crossed = (predicted_B2 == labels_B2.flip(1)).any(1, keepdim=True)
    return torch.where(crossed, predicted_B2.flip(1), predicted_B2)
