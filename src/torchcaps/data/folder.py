"""Folders of images as data sets: files of any size, mode and format, kept in memory, in a cache, or read as needed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from torchcaps.data.dataset import Dataset, Splits
from torchcaps.data.decoding import DECODED, RECORD, Contents, ImageFiles, decode_files, find_channels
from torchcaps.data.image_cache import open_cache
from torchcaps.data.listing import Listing, abbreviate, list_folder
from torchcaps.data.split import SplitOptions, split_dataset
from torchcaps.data.storage import StorageOptions, choose_storage
from torchcaps.data.streamed import FileImages, StreamedDataset
from torchcaps.errors import UnreadableImage, UserError

DEFAULT_SIZE = (32, 32)


def load_folder(
    path: Path,
    size: tuple[int, int] | None,
    channels: int | None,
    options: SplitOptions,
    storage: StorageOptions | None = None,
) -> Splits:
    """Load the images of a folder or CSV file; parts that it does not have are held out from training.

    Args:
        path: the folder or CSV file.
        size: (H, W) of every image; by default 32×32.
        channels: 1, 3, or None for 1 where every file is grey and 3 otherwise.
        options: of the split.
        storage: where the images are kept; by default in memory.
    """
    return load_listings(list_folder(path), size, channels, options, storage, "folder")


def load_listings(
    parts: dict[str, Listing],
    size: tuple[int, int] | None,
    channels: int | None,
    options: SplitOptions,
    storage: StorageOptions | None,
    source: str,
    contents: Contents | None = None,
) -> Splits:
    """Load the images of listings; parts that are not given are held out from training.

    Args:
        parts: "train", and "validation" and "test" if there are any.
        size, channels, options, storage: as of `load_folder`.
        source: the name of the source.
        contents: of images that are not files of their own.
    """
    storage = storage or StorageOptions()
    train, validation, test = parts["train"], parts.get("validation"), parts.get("test")
    if validation is not None and options.validation == 0:
        train, validation = train.joined(validation), None  # for a final fit on all but the test images
    # split first, so that a limit saves time, and no file moves to another part when one cannot be read
    listings = split_dataset(train, validation, test, options)
    paths = tuple(path for part in listings if part is not None for path in part.paths)
    files = ImageFiles(paths, (find_channels(paths, channels, contents), *(size or DEFAULT_SIZE)), contents)
    kept = choose_storage(files, storage)
    found = _in_memory(files, storage) if kept == "memory" else _on_disk(files, storage, kept == "cache")
    left_out = _left_out(found.unreadable, len(paths), storage.on_error)
    made, start = [], 0
    for part, name in zip(listings, ("training", "validation", "test")):
        made.append(None if part is None else _dataset(part, found, start, name))
        start += 0 if part is None else len(part.paths)
    assert made[0] is not None
    return Splits(made[0], made[1], made[2], source, left_out)


class _Found(NamedTuple):
    """The images of N files.

    Attributes:
        images: (N, C, H, W) uint8, a tensor or FileImages.
        records: (N,) RECORD.
        unreadable: the errors of files that cannot be read.
        dataset: makes the data set of some of the images.
    """

    images: Any
    records: np.ndarray
    unreadable: list[UnreadableImage]
    dataset: Callable[..., Dataset]


def _in_memory(files: ImageFiles, storage: StorageOptions) -> _Found:
    try:
        pixels = np.empty((len(files.paths), *files.shape), dtype=np.uint8)
    except MemoryError as error:
        _, height, width = files.shape
        raise UserError(
            f"{len(files.paths):,} images of {height}×{width} do not fit in memory: reduce image_size, or set "
            "storage=auto"
        ) from error
    records = np.zeros(len(files.paths), dtype=RECORD)
    unreadable = decode_files(files, records, pixels, storage.threads, storage.console)
    return _Found(torch.from_numpy(pixels), records, _in_order(unreadable), Dataset)


def _on_disk(files: ImageFiles, storage: StorageOptions, has_pixels: bool) -> _Found:
    """Images that are read from a cache or decoded when needed. The cache has one order for all splits."""
    cache = open_cache(files.sorted(), storage.root, storage.threads, storage.console, has_pixels)
    number_of = {path: number for number, path in enumerate(cache.files.paths)}
    numbers = np.array([number_of[path] for path in files.paths])
    images = FileImages(cache, numbers)
    make = partial(StreamedDataset, workers=storage.threads)
    return _Found(images, cache.records[numbers], _in_order(cache.unreadable), make)


def _in_order(unreadable: dict[int, UnreadableImage]) -> list[UnreadableImage]:
    return [unreadable[number] for number in sorted(unreadable)]


def _dataset(part: Listing, found: _Found, start: int, name: str) -> Dataset:
    """Make the data set of a part whose files begin at `start`, without those that cannot be read."""
    records = found.records[start : start + len(part.paths)]
    made = found.dataset(
        found.images.narrow(0, start, len(part.paths)),
        part.targets,
        part.class_names,
        tuple(map(str, part.paths)),
        digests=torch.from_numpy(records["digest"].copy()),
    )
    readable = torch.from_numpy(records["state"] == DECODED)
    if readable.all():
        return made
    rest = made.subset(readable.nonzero().flatten())
    lost = (made.class_counts() > 0) & (rest.class_counts() == 0)
    if not len(rest) or (name == "training" and lost.any()):
        lost_classes = abbreviate([class_name for class_name, gone in zip(part.class_names, lost.tolist()) if gone])
        raise UserError(f"none of the {name} images of {lost_classes} can be read: replace them")
    return rest


def _left_out(unreadable: list[UnreadableImage], total: int, on_error: str) -> tuple[str, ...]:
    """The files that cannot be read: an error, or with on_error=skip a warning that names them."""
    if not unreadable:
        return ()
    named = "; ".join(f"{error.path} ({error.reason})" for error in unreadable[:5])
    more = f"; and {len(unreadable) - 5} more" if len(unreadable) > 5 else ""
    if on_error == "stop":
        raise UserError(
            f"{len(unreadable)} of {total} images cannot be read: {named}{more}. Replace or remove them, or leave them "
            "out with on_error=skip"
        )
    warnings.warn(f"{len(unreadable)} of {total} images cannot be read and are left out: {named}{more}", stacklevel=4)
    return tuple(str(error.path) for error in unreadable)
