"""Examples for the page: images of the kind that a model was trained on, or the reason why there are none."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.data.download import no_downloads
from torchcaps.errors import UserError
from torchcaps.models import ImageModel
from torchcaps.serve import responses
from torchcaps.serve.pictures import data_url
from torchcaps.train.tasks.test_sets import classification_test_set

# Sources of digits as large and smooth as those that the page draws.
DRAWN_SOURCES = ("mnist", "multimnist", "multimnist-shift6", "mnist-expanded", "affnist-like", "affnist")
DIGIT_SOURCES = ("digits", *DRAWN_SOURCES)
COLUMNS, ROWS = 10, 3  # of examples


class ExampleImages(NamedTuple):
    """Images of a model's own data.

    Attributes:
        kind: drawn for the strokes that come with the page, data for `images`, none for no examples.
        note: what they are, or why there are none.
        images: (N, C, H, W) as the model takes them.
        classes: the class ids of each.
        reason: of an error, for the person who started the server: it may name a path.
    """

    kind: responses.ExampleKind
    note: str
    images: Tensor
    classes: list[list[int]]
    reason: str = ""

    def describe(self, class_names: tuple[str, ...] | list[str]) -> responses.Examples:
        pictures = [
            responses.Example(classes=[class_names[index] for index in classes], picture=data_url(image))
            for image, classes in zip(self.images, self.classes)
        ]
        return responses.Examples(kind=self.kind, note=self.note, images=pictures)


def no_examples(kind: responses.ExampleKind, note: str, reason: str = "") -> ExampleImages:
    """Return that there are no images of the server's own."""
    return ExampleImages(kind, note, torch.empty(0, 1, 1, 1), [], reason)


NOT_LOADED = no_examples("none", "No examples were loaded.")


def find_examples(model: ImageModel, source: str | None) -> ExampleImages:
    """Choose examples for a model from its own test data; nothing is downloaded."""
    if source is None:
        return no_examples("none", "No examples: it is not recorded what this network was trained on.")
    if source in DRAWN_SOURCES:
        return no_examples("drawn", "Drawn for this page, in the size of the digits that the network was trained on.")
    try:
        with no_downloads():
            data, _ = classification_test_set(model)
        if not len(data):
            raise UserError("the data has no test images")
        chosen = _chosen(data.targets)
        images = model.prepare(data.images[chosen])
    except UserError as error:
        note = f"No examples: the data that this network was trained on ({source}) cannot be loaded."
        return no_examples("none", note, str(error))
    targets = data.targets[chosen]
    several = targets.ndim == 2
    classes = [target.nonzero().flatten().tolist() if several else [int(target)] for target in targets]
    note = f"Test images of the data that the network was trained on ({source})."
    if source == "digits":
        note += " They have 8×8 pixels; a drawing is another kind of image, so expect more mistakes there."
    return ExampleImages("data", note, images, classes)


def _chosen(targets: Tensor) -> Tensor:
    """Positions of examples in rows: the first image of each of ten classes, then the second of each, and so on; of
    more classes, one image each."""
    classes = targets.argmax(-1) if targets.ndim == 2 else targets
    places: dict[int, list[int]] = {}
    for position, index in enumerate(classes.tolist()):
        places.setdefault(index, []).append(position)
    rounds = max(map(len, places.values()))
    order = [places[index][turn] for turn in range(rounds) for index in sorted(places) if turn < len(places[index])]
    return torch.tensor(order[: COLUMNS * ROWS])
