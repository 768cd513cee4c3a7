"""Encoded images that are not files of their own, but rows or members of larger ones; each is read by its number."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from torchcaps.data.dataset import Dataset, Splits
from torchcaps.data.folder import CHUNK_FILES, DEFAULT_SIZE
from torchcaps.data.images import check_channels, check_size, decode
from torchcaps.data.split import SplitOptions, split_dataset
from torchcaps.errors import UnreadableImage, UserError

MAX_CLASSES = 100_000


class EncodedImages(Protocol):
    """N images as PNG, JPEG and so on; several threads may read them at once."""

    def __len__(self) -> int: ...
    def name(self, number: int) -> Path:
        """Return what messages call an image."""
        ...

    def read(self, number: int) -> bytes:
        """Read the content of an image."""
        ...


@dataclass(frozen=True, eq=False)
class EncodedListing:
    """Some of the images of a source, with classes.

    Args:
        images: the source.
        numbers: (N,) of the images in it.
        targets: (N,) class ids.
        class_names: J names.
    """

    images: EncodedImages
    numbers: Tensor
    targets: Tensor
    class_names: tuple[str, ...]

    @classmethod
    def of(cls, images: EncodedImages, targets: Tensor, class_names: tuple[str, ...]) -> EncodedListing:
        """List all images of a source."""
        return cls(images, torch.arange(len(images)), targets, class_names)

    def __len__(self) -> int:
        return len(self.numbers)

    def subset(self, indices: Tensor) -> EncodedListing:
        """Return the images at the positions `indices` (M,), in that order."""
        return replace(self, numbers=self.numbers[indices], targets=self.targets[indices])

    def decode(self, position: int, size: tuple[int, int] | None, channels: int | None) -> np.ndarray:
        """Decode the image at a position to (1 or 3, H, W) uint8, at its own size if `size` is None."""
        number = int(self.numbers[position])
        return decode(self.images.name(number), size, channels, self.images.read(number))


class EncodedDataset(TorchDataset):
    """Images of a source as a torch Dataset of pairs (image, class id); none is kept in memory.

    Args:
        listing: the images and classes.
        image_size: pixels a side, or (H, W); None keeps the size of the first image, which all others must have.
        channels: 1 or 3; None takes those of the first image.

    Attributes:
        classes: the class names.
    """

    def __init__(self, listing: EncodedListing, image_size: int | tuple[int, int] | None, channels: int | None):
        size = check_size(image_size)
        check_channels(channels)
        first = listing.decode(0, size, channels)
        self.listing, self.size, self.classes = listing, size, listing.class_names
        self.shape = (channels or first.shape[0], *first.shape[1:])

    def __len__(self) -> int:
        return len(self.listing)

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        pixels = self.listing.decode(position, self.size, self.shape[0])
        if pixels.shape[1:] != self.shape[1:]:
            name = self.listing.images.name(int(self.listing.numbers[position]))
            sizes = f"{pixels.shape[1]}×{pixels.shape[2]}, and the first image has {self.shape[1]}×{self.shape[2]}"
            raise UserError(f"{name} has {sizes}: give image_size")
        return torch.from_numpy(np.broadcast_to(pixels, self.shape).copy()), self.listing.targets[position]


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


def load_encoded(
    parts: dict[str, EncodedListing],
    size: tuple[int, int] | None,
    channels: int | None,
    options: SplitOptions,
    source: str,
) -> Splits[Dataset]:
    """Decode images into memory; parts that are not given are held out from training.

    Args:
        parts: "train", and "validation" and "test" if there are any.
        size: (H, W) of every image; by default 32×32.
        channels: 1, 3, or None for 1 where every image is grey and 3 otherwise.
        options: of the split.
        source: the name of the data source.
    """
    if len(parts["train"].class_names) < 2:
        raise UserError(f"{source}: a classifier needs at least two classes, and this data has only one")
    split = split_dataset(parts["train"], parts.get("validation"), parts.get("test"), options)
    listings = [part for part in split if part is not None]
    images = iter(_decode_all(listings, size or DEFAULT_SIZE, channels))
    train, validation, test = (None if part is None else _dataset(part, next(images)) for part in split)
    assert train is not None
    return Splits(train, validation, test, source)


def _decode_all(listings: list[EncodedListing], size: tuple[int, int], channels: int | None) -> list[Tensor]:
    """(N, C, H, W) uint8 of each listing; one error names all images that cannot be read."""
    places = [(listing, position) for listing in listings for position in range(len(listing))]
    try:
        images = np.empty((len(places), channels or 3, *size), dtype=np.uint8)
    except MemoryError as error:
        raise UserError(
            f"{len(places):,} images of {size[0]}×{size[1]} do not fit in memory: reduce image_size"
        ) from error
    grey = np.zeros(len(places), dtype=bool)

    def decode_block(start: int) -> list[UnreadableImage]:
        unreadable = []
        for number in range(start, min(start + CHUNK_FILES, len(places))):
            listing, position = places[number]
            try:
                pixels = listing.decode(position, size, channels)
            except UnreadableImage as error:
                unreadable.append(error)
                continue
            images[number], grey[number] = pixels, len(pixels) == 1
        return unreadable

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # the decoders release Python's lock
        unreadable = [error for block in pool.map(decode_block, range(0, len(places), CHUNK_FILES)) for error in block]
    if unreadable:
        named = "; ".join(f"{error.path} ({error.reason})" for error in unreadable[:5])
        more = f"; and {len(unreadable) - 5} more" if len(unreadable) > 5 else ""
        raise UserError(f"{len(unreadable)} of {len(places)} images cannot be read: {named}{more}. Replace them")
    if channels is None and grey.all():
        images = images[:, :1].copy()
    return list(torch.from_numpy(images).split([len(listing) for listing in listings]))


def _dataset(listing: EncodedListing, images: Tensor) -> Dataset:
    files = tuple(str(listing.images.name(number)) for number in listing.numbers.tolist())
    return Dataset(images, listing.targets, listing.class_names, files)
