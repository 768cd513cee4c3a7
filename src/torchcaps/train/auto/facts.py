"""The facts about a folder of images by which its recipe is chosen; all of them from training images."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data.checkup import split_listing
from torchcaps.data.dataset import count_classes
from torchcaps.data.images import decode, set_channels, upright_size
from torchcaps.data.listing import Listing, list_folder
from torchcaps.data.split import SplitOptions
from torchcaps.errors import UnreadableImage
from torchcaps.metrics.baselines import fit_svm, hog_features

MAX_SAMPLE = 400  # training images that are looked at
LOOKED_AT = 128  # pixels a side, at most, at which colours and tones are judged
COMPARED_AT = 32  # pixels a side at which views are compared
GREY = 2.0  # largest mean difference between the channels of a grey image, of 255
FLAT = 0.2  # median share of neighbouring pixels that are equal: photographs have fewer, drawings more
ZOOM = 1.2  # of the enlarged view
LOST = 0.1  # accuracy that a view may lose and still count as recognised; photographs turned lose 0.15 to 0.45
INFORMED = 0.1  # accuracy above chance from which the comparison says something
FOLDS = 3


class FolderFacts(NamedTuple):
    """What the recipe of a folder depends on.

    Attributes:
        images: training images.
        classes: of them.
        height, width: median size in pixels.
        colour: whether any image has colours.
        photographs: whether neighbouring pixels differ, as in photographs, rather than being flat, as in drawings.
        several: whether an image can have several classes.
        uneven: whether the most frequent class has more than twice as many images as the rarest.
        mirrors, turns, zooms: whether a simple classifier recognises training images as well when they are mirrored,
            turned by quarters, or enlarged; None if it recognises too little to say.
    """

    images: int
    classes: int
    height: int
    width: int
    colour: bool
    photographs: bool
    several: bool = False
    uneven: bool = False
    mirrors: bool | None = None
    turns: bool | None = None
    zooms: bool | None = None

    def describe(self) -> str:
        """Return one line of words."""
        kind = "photographs" if self.photographs else "images"
        return (
            f"{self.images:,} {'colour' if self.colour else 'grey'} {kind} of {self.classes:,} classes, median size "
            f"{self.height}×{self.width}"
        )


def folder_facts(path: str | Path, options: SplitOptions | None = None) -> FolderFacts:
    """Gather the facts of a folder or a CSV file from its training images.

    Args:
        path: of the folder or the CSV file.
        options: how the images will be split; by default as `load_data` splits them.
    """
    train = split_listing(list_folder(Path(path)), options or SplitOptions())["train"]
    counts = count_classes(train.targets, len(train.class_names))
    positions = _sample(len(train.paths))
    sizes, images, kept = [], [], []
    for position in positions:
        try:
            size = upright_size(train.paths[position])
            shown = (min(size[0], LOOKED_AT), min(size[1], LOOKED_AT))
            images.append(torch.from_numpy(decode(train.paths[position], shown, None).copy()))
        except UnreadableImage:  # loading the data will report it
            continue
        sizes.append(size)
        kept.append(position)
    if not images:
        return FolderFacts(len(train.paths), len(train.class_names), COMPARED_AT, COMPARED_AT, True, False)
    height, width = (int(np.median([size[axis] for size in sizes])) for axis in (0, 1))
    colour = any(_has_colour(image) for image in images)
    flat = float(np.median([_flat_share(image) for image in images]))
    several = train.targets.ndim == 2
    views = (None, None, None) if several else _recognised_views(images, train, kept, colour)
    present = counts[counts > 0]
    return FolderFacts(
        images=len(train.paths),
        classes=len(train.class_names),
        height=height,
        width=width,
        colour=colour,
        photographs=colour and flat < FLAT,
        several=several,
        uneven=bool(present.max() > 2 * present.min()),
        mirrors=views[0],
        turns=views[1],
        zooms=views[2],
    )


def _sample(count: int) -> list[int]:
    """At most MAX_SAMPLE positions at even steps; files are sorted by class, so all classes are in it in proportion."""
    if count <= MAX_SAMPLE:
        return list(range(count))
    return [i * count // MAX_SAMPLE for i in range(MAX_SAMPLE)]


def _has_colour(image_CHW: Tensor) -> bool:
    if len(image_CHW) == 1:
        return False
    values = image_CHW.float()
    return float((values.amax(0) - values.amin(0)).mean()) > GREY


def _flat_share(image_CHW: Tensor) -> float:
    """The share of horizontal and vertical neighbours that are equal."""
    values = image_CHW.short()
    across, down = values[:, :, 1:] != values[:, :, :-1], values[:, 1:] != values[:, :-1]
    differ = [each.any(0).float().mean() for each in (across, down) if each.numel()]
    return 1 - float(torch.stack(differ).mean()) if differ else 1.0


def _recognised_views(
    images: list[Tensor], train: Listing, positions: list[int], colour: bool
) -> tuple[bool | None, bool | None, bool | None]:
    """Whether a linear SVM on HOG features recognises held-out training images mirrored, turned and enlarged."""
    from sklearn.model_selection import StratifiedKFold

    targets = train.targets[positions].numpy()
    present, counts = np.unique(targets, return_counts=True)
    usable = np.isin(targets, present[counts >= FOLDS])
    if len(np.unique(targets[usable])) < 2:
        return None, None, None
    small = torch.stack([_small(image, colour) for image, keep in zip(images, usable) if keep])
    targets = targets[usable]
    views = [small, small.flip(-1), small.rot90(1, (-2, -1)), small.rot90(3, (-2, -1)), _enlarged(small)]
    features = [hog_features(view) for view in views]
    right = np.zeros(len(views))
    for fitted, held_out in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(features[0], targets):
        svm = fit_svm(features[0][fitted], targets[fitted], costs=(1e-2,))
        right += [(svm.predict(view[held_out]) == targets[held_out]).sum() for view in features]
    plain, mirrored, left, down, enlarged = (right / len(targets)).tolist()
    if plain < 1 / len(np.unique(targets)) + INFORMED:
        return None, None, None
    return plain - mirrored <= LOST, plain - (left + down) / 2 <= LOST, plain - enlarged <= LOST


def _small(image_CHW: Tensor, colour: bool) -> Tensor:
    image = set_channels(image_CHW[None], 3 if colour else 1).float()
    size = (COMPARED_AT, COMPARED_AT)
    return F.interpolate(image, size, mode="bilinear", antialias=True)[0].round().to(torch.uint8)


def _enlarged(images: Tensor) -> Tensor:
    """The middle of each image at the size of the whole."""
    border = round(COMPARED_AT * (1 - 1 / ZOOM) / 2)
    middle = images[..., border:-border, border:-border].float()
    return F.interpolate(middle, tuple(images.shape[2:]), mode="bilinear").round().to(torch.uint8)
