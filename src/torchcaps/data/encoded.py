"""Images that are not files of their own, but rows or members of larger ones: their labels, and a torch Dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from torchcaps.data.dataset import Splits
from torchcaps.data.decoding import Contents
from torchcaps.data.folder import load_listings
from torchcaps.data.images import check_channels, check_size, decode
from torchcaps.data.listing import Listing
from torchcaps.data.split import SplitOptions
from torchcaps.data.storage import StorageOptions
from torchcaps.errors import UserError

MAX_CLASSES = 100_000


class Packed(NamedTuple):
    """Listed images inside other files.

    Attributes:
        parts: "train", and "validation" and "test" if there are any.
        contents: reads the images that the parts list.
    """

    parts: dict[str, Listing]
    contents: Contents


class EncodedDataset(TorchDataset):
    """Images of a listing as a torch Dataset of pairs (image, class id); none is kept in memory.

    Args:
        listing: the images and classes.
        contents: reads the images.
        image_size: pixels a side, or (H, W); None keeps the size of the first image, which all others must have.
        channels: 1 or 3; None takes those of the first image.

    Attributes:
        classes: the class names.
    """

    def __init__(
        self,
        listing: Listing,
        contents: Contents,
        image_size: int | tuple[int, int] | None,
        channels: int | None,
    ):
        self.listing, self.contents, self.size = listing, contents, check_size(image_size)
        check_channels(channels)
        self.classes = listing.class_names
        first = self._decode(0, channels)
        self.shape = (channels or first.shape[0], *first.shape[1:])

    def __len__(self) -> int:
        return len(self.listing.paths)

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        pixels = self._decode(position, self.shape[0])
        if pixels.shape[1:] != self.shape[1:]:
            sizes = f"{pixels.shape[1]}×{pixels.shape[2]}, and the first image has {self.shape[1]}×{self.shape[2]}"
            raise UserError(f"{self.listing.paths[position]} has {sizes}: give image_size")
        return torch.from_numpy(np.broadcast_to(pixels, self.shape).copy()), self.listing.targets[position]

    def _decode(self, position: int, channels: int | None) -> np.ndarray:
        path = self.listing.paths[position]
        return decode(path, self.size, channels, self.contents.read(path))


def open_packed(
    packed: Packed, where: str, image_size: int | tuple[int, int] | None, channels: int | None
) -> EncodedDataset:
    """Open the only part of packed images as an `EncodedDataset`.

    Args:
        packed: the images.
        where: with what messages begin.
        image_size, channels: of the data set.
    """
    if len(packed.parts) > 1:
        raise UserError(f"{where} has images of {', '.join(packed.parts)}: give those of one part")
    return EncodedDataset(packed.parts["train"], packed.contents, image_size, channels)


def load_packed(
    packed: Packed,
    size: tuple[int, int] | None,
    channels: int | None,
    options: SplitOptions,
    storage: StorageOptions | None,
    source: str,
) -> Splits:
    """Load packed images as `load_folder` does those of a folder."""
    if len(packed.parts["train"].class_names) < 2:
        raise UserError(f"{source}: a classifier needs at least two classes, and this data has only one")
    return load_listings(packed.parts, size, channels, options, storage, source, packed.contents)


def as_targets(
    labels: Sequence[int | str], class_names: tuple[str, ...] | None, where: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Convert labels to class ids (N,) and class names.

    Args:
        labels: class ids, or names.
        class_names: if they are known; else ids name themselves, and names are in alphabetical order.
        where: with what messages begin.
    """
    words = {label for label in labels if isinstance(label, str)}
    if words and len(words) < len(set(labels)):
        number = next(label for label in labels if not isinstance(label, str))
        raise UserError(f"{where}: some labels are names, such as {min(words)!r}, and others numbers, such as {number}")
    if words:
        names = class_names or tuple(sorted(words))
        if unknown := sorted(words - set(names)):
            raise UserError(f"{where}: the label {unknown[0]!r} is not among the class names: add it there")
        ids: dict[Any, int] = {name: index for index, name in enumerate(names)}
        return torch.tensor([ids[label] for label in labels]), names
    least, most = min(labels, default=0), max(labels, default=0)
    if not 0 <= int(least) <= int(most) < min(MAX_CLASSES, len(class_names) if class_names else MAX_CLASSES):
        allowed = f"{len(class_names)} class names are given" if class_names else f"at most {MAX_CLASSES:,} are read"
        raise UserError(f"{where}: class ids run from {least} to {most}: they must start at 0, and {allowed}")
    names = class_names or tuple(str(index) for index in range(int(most) + 1))
    return torch.tensor(labels, dtype=torch.int64), names
