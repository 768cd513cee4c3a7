"""Frozen sets of shapes, to be tested on, and the data sets that recipes name."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from torchcaps.data.dataset import Dataset, Splits
from torchcaps.data.datasets.shapes.scenes import Scenes, draw_shapes
from torchcaps.errors import UserError, did_you_mean

TRAINING_IMAGES, TRAINING_SEED = 2000, 0
FIXED_POINT = 1000  # a position, angle or scale is checked to a thousandth

_SCENE: dict[str, Any] = {"size": 64, "turn": 180.0, "scale": (0.75, 1.25), "shift": None}
_FACES: dict[str, Any] = {"wholes": ("face", "sad face")}


class FrozenSet(NamedTuple):
    """Images that never change, to be tested on.

    Attributes:
        parameters: of `draw_shapes`.
        images: how many.
        seed: of all random draws; no other set has it.
        checksum: as `checksum` returns it.
    """

    parameters: dict[str, Any]
    images: int
    seed: int
    checksum: str


FROZEN_SETS = {
    "upright": FrozenSet({}, 1000, 20171101, "58a8eb05484e93cacbafc4a2019b456b"),
    "turned": FrozenSet({"turn": 180.0}, 1000, 20171102, "bc61f7fbb7b0cbd74b91d9bae307d5a6"),
    "scrambled": FrozenSet({"turn": 180.0, "scrambled": True}, 1000, 20171103, "7c241ac361a0edd256a7b70c557aec97"),
    "faces": FrozenSet(_FACES, 1000, 20171104, "77bf2951b1b8918e88c28d66c596fb6b"),
    "faces-turned": FrozenSet({**_FACES, "turn": 180.0}, 1000, 20171105, "8578b37144c0c35b53271ccecf356527"),
    "picassos": FrozenSet({**_FACES, "scrambled": True}, 1000, 20171106, "ebd1252f022dbafd02ab5546dd73b1ff"),
    "harbours": FrozenSet({"wholes": ("harbour",), "size": 64}, 200, 20171107, "410394475f7ef6c6297750353dd6ea8a"),
    # Boats of 12 to 20 pixels.
    "scenes": FrozenSet(
        {**_SCENE, "number": (1, 6), "overlap": (0.0, 0.3), "visible": 0.4, "distractors": (0, 2)},
        300,
        20171108,
        "f976760c150b5d33d591e42d32677d92",
    ),
    "crowded": FrozenSet(
        {**_SCENE, "number": (2, 4), "overlap": (0.2, 0.4), "visible": 0.4},
        300,
        20171109,
        "315777aa6d805475cd8677371b5e524b",
    ),
}


def frozen_set(name: str) -> Scenes:
    """Draw a set that is the same on every machine, and check that it is.

    Args:
        name: in FROZEN_SETS.

    Returns:
        Scenes in float32, with images of 256 grey levels.
    """
    if name not in FROZEN_SETS:
        raise UserError(f"there is no frozen set called {name!r}: {did_you_mean(name, FROZEN_SETS)}")
    known = FROZEN_SETS[name]
    scenes = rounded(draw_shapes(known.images, known.seed, dtype=torch.float64, **known.parameters))
    if checksum(scenes) != known.checksum:
        raise UserError(
            f"the shapes {name!r} differ with PyTorch {torch.__version__} on this machine, so results would not be "
            "comparable with others: try another version of PyTorch, and please report this"
        )
    levels = tuple(level.to(dtype=torch.float32) for level in scenes.levels)
    images, light, visible, overlap = (
        each.float() for each in (scenes.images, scenes.light, scenes.visible, scenes.overlap)
    )
    return Scenes(images, levels, light, visible, overlap)


def rounded(scenes: Scenes) -> Scenes:
    """The same with images of 256 grey levels, as a data set stores them."""
    return replace(scenes, images=(255 * scenes.images).round() / 255)


def checksum(scenes: Scenes) -> str:
    """Hash images and ground truth.

    The hash covers the images as bytes, and of each level the classes, the owners, what is present, and positions,
    angles and scales in thousandths. Drawn in float64, these do not depend on the last digits of a sine, which may
    differ between processors and with the number of threads.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update((255 * scenes.images).round().to(torch.uint8).numpy().tobytes())
    for level in scenes.levels:
        for tensor in level.tensors().values():
            whole = (FIXED_POINT * tensor).round() if tensor.is_floating_point() else tensor
            digest.update(whole.to(torch.int32).numpy().tobytes())
    return digest.hexdigest()


def as_dataset(scenes: Scenes) -> Dataset:
    """Images with the class of their first whole, for classification.

    Args:
        scenes: with at least one whole in each image.
    """
    wholes = scenes.wholes
    if not bool(wholes.present.any(1).all()):
        raise UserError("an image without a whole has no class: draw shapes with number=(1, 1) and scrambled=False")
    first = wholes.present.long().argmax(1, keepdim=True)
    images = (255 * scenes.images).round().to(torch.uint8)
    return Dataset(images.cpu(), wholes.label.gather(1, first)[:, 0].cpu(), wholes.names)


def shapes_splits(
    test: str = "upright", count: int = TRAINING_IMAGES, seed: int = TRAINING_SEED, **parameters: Any
) -> Splits[Dataset]:
    """Draw single shapes for training, and a frozen set for testing.

    Args:
        test: a name in FROZEN_SETS, with one whole in each image.
        count: number of training images.
        seed: of the training images.
        **parameters: of `ShapeParameters`, for training; by default boats and houses within 15 degrees of upright.

    Returns:
        Training and test images. Validation images are not held out yet.
    """
    if seed in [known.seed for known in FROZEN_SETS.values()]:
        raise UserError(f"seed={seed} belongs to a frozen set: choose another one for training")
    tested = as_dataset(frozen_set(test))
    train = as_dataset(draw_shapes(count, seed, dtype=torch.float64, **parameters))
    if train.class_names != tested.class_names:
        raise UserError(f"the test set {test!r} has other classes: give wholes={tested.class_names}")
    return Splits(train, None, tested, "shapes")
