"""Folders of images as data sets: files of any size, mode and format, decoded once into memory."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset, Splits
from torchcaps.data.images import decode
from torchcaps.data.listing import Listing, list_folder
from torchcaps.data.split import SplitOptions, split_dataset
from torchcaps.errors import UnreadableImage, UserError

DEFAULT_SIZE = (32, 32)
CHUNK_FILES = 128  # decoded by a thread at a time


def load_folder(path: Path, size: tuple[int, int] | None, channels: int | None, options: SplitOptions) -> Splits:
    """Read the images of a folder or CSV file; parts that it does not have are held out from training.

    Args:
        path: the folder or CSV file.
        size: (H, W) of every image; by default 32×32.
        channels: 1, 3, or None for 1 where every file is grey and 3 otherwise.
        options: of the split.
    """
    parts = list_folder(path)
    train, validation, test = parts["train"], parts.get("validation"), parts.get("test")
    if validation is not None and options.validation == 0:
        train, validation = train.joined(validation), None  # for a final fit on all but the test images
    # split first, so that a limit saves time; decode all parts together, so that their channels agree
    train, validation, test = split_dataset(train, validation, test, options)
    parts_in_order = [part for part in (train, validation, test) if part is not None]
    images = decode_files([path for part in parts_in_order for path in part.paths], size or DEFAULT_SIZE, channels)
    blocks = iter(images.split([len(part.paths) for part in parts_in_order]))
    return Splits(
        train=_dataset(train, next(blocks)),
        validation=None if validation is None else _dataset(validation, next(blocks)),
        test=None if test is None else _dataset(test, next(blocks)),
        source="folder",
    )


def decode_files(paths: list[Path], size: tuple[int, int], channels: int | None) -> Tensor:
    """Decode files at one size to (N, C, H, W) uint8; one error names all files that cannot be read."""
    try:
        images = np.empty((len(paths), channels or 3, *size), dtype=np.uint8)
    except MemoryError as error:
        raise UserError(
            f"{len(paths):,} images of {size[0]}×{size[1]} do not fit in memory: reduce image_size"
        ) from error
    grey = np.zeros(len(paths), dtype=bool)

    def decode_block(start: int) -> list[UnreadableImage]:
        unreadable = []
        for i in range(start, min(start + CHUNK_FILES, len(paths))):
            try:
                pixels = decode(paths[i], size, channels)
            except UnreadableImage as error:
                unreadable.append(error)
                continue
            images[i] = pixels
            grey[i] = len(pixels) == 1
        return unreadable

    # threads, since the decoders release the GIL
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        unreadable = [error for block in pool.map(decode_block, range(0, len(paths), CHUNK_FILES)) for error in block]
    if unreadable:
        raise UserError(_describe(unreadable, len(paths)))
    if channels is None and grey.all():
        images = images[:, :1].copy()
    return torch.from_numpy(images)


def _dataset(part: Listing, images: Tensor) -> Dataset:
    return Dataset(images, part.targets, part.class_names, tuple(map(str, part.paths)))


def _describe(unreadable: list[UnreadableImage], total: int) -> str:
    named = "; ".join(f"{error.path} ({error.reason})" for error in unreadable[:5])
    more = f"; and {len(unreadable) - 5} more" if len(unreadable) > 5 else ""
    return f"{len(unreadable)} of {total} images cannot be read: {named}{more}. Replace or remove them"
