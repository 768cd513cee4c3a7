"""The IDX format of the MNIST family, and the pair of image and label files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset
from torchcaps.errors import UserError
from torchcaps.io.limits import Readable, open_untrusted, read_body, size_in_bytes

UNSIGNED_BYTES = 0x08
REFETCH_HINT = "delete it and fetch it again"


def read_idx(path: str | Path, dimensions: int | None = None) -> Tensor:
    """Read the array in an IDX file of unsigned bytes, gzipped or not.

    Args:
        path: the file.
        dimensions: the number of axes it must have: 3 for images (N, H, W), 1 for labels (N,).
    """
    path = Path(path)
    with open_untrusted(path, "fetch it again") as (file, max_bytes):
        return _parse(file, path, dimensions, max_bytes)


def read_idx_pair(images: Path, labels: Path, class_names: tuple[str, ...]) -> Dataset:
    """Read greyscale images (N, 1, H, W) and their labels from two IDX files."""
    pixels, ids = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(ids):
        raise UserError(f"{images} has {len(pixels)} images but {labels} has {len(ids)} labels: fetch both again")
    if len(ids) and int(ids.max()) >= len(class_names):
        raise UserError(f"{labels} has the label {int(ids.max())}, but there are only {len(class_names)} classes")
    return Dataset(pixels[:, None], ids.long(), class_names)


def _parse(file: Readable, path: Path, dimensions: int | None, max_bytes: int) -> Tensor:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise UserError(f"{path} is not an IDX file: it starts with {magic.hex(' ') or 'nothing'}, not with 00 00")
    if magic[2] != UNSIGNED_BYTES:
        raise UserError(f"{path} holds IDX type 0x{magic[2]:02x}; only unsigned bytes (0x08) are images or labels")
    axes = magic[3]
    if axes < 1 or (dimensions is not None and axes != dimensions):
        raise UserError(
            f"{path} has {axes} dimensions where {dimensions or 'at least 1'} are expected: "
            "are the files of images and labels swapped?"
        )
    header = file.read(4 * axes)
    shape = tuple(int.from_bytes(header[4 * i : 4 * i + 4], "big") for i in range(axes))
    expected = size_in_bytes(shape, 1)
    if len(header) < 4 * axes or expected is None:
        raise UserError(f"{path} has the wrong length, or a damaged header of {axes} dimensions: {REFETCH_HINT}")
    body = read_body(file, path, shape, expected, max_bytes, REFETCH_HINT)
    # frombuffer refuses an empty buffer, but an empty set of images is valid
    return torch.frombuffer(body, dtype=torch.uint8).view(shape) if body else torch.empty(shape, dtype=torch.uint8)
