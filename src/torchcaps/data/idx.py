"""The IDX format of the MNIST family, and the pair of image and label files."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset
from torchcaps.errors import UserError

UNSIGNED_BYTES = 0x08
GZIP_MAGIC = b"\x1f\x8b"
DEFLATE_LIMIT = 1100  # deflate cannot shrink data by more than a factor of about 1032


def read_idx(path: str | Path, dimensions: int | None = None) -> Tensor:
    """The array in an IDX file of unsigned bytes, gzipped or not.

    dimensions  how many axes it must have: 3 for images (N, H, W), 1 for labels (N,)
    """
    path = Path(path)
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == GZIP_MAGIC
        size = path.stat().st_size
        if not zipped:
            with path.open("rb") as file:
                return _parse(file, path, dimensions, at_most=size)
        with gzip.open(path, "rb") as file:
            return _parse(file, path, dimensions, at_most=size * DEFLATE_LIMIT)  # type: ignore[arg-type]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is a damaged gzip file ({error}): delete it and fetch it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def read_idx_pair(images: Path, labels: Path, class_names: tuple[str, ...]) -> Dataset:
    """Greyscale images with their labels: (N, 1, H, W) from an IDX file of images and one of labels."""
    pixels, ids = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(ids):
        raise UserError(f"{images} has {len(pixels)} images but {labels} has {len(ids)} labels: fetch both again")
    if len(ids) and int(ids.max()) >= len(class_names):
        raise UserError(f"{labels} has the label {int(ids.max())}, but there are only {len(class_names)} classes")
    return Dataset(pixels[:, None], ids.long(), class_names)


def _parse(file: BinaryIO, path: Path, dimensions: int | None, at_most: int) -> Tensor:
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
    shape = [int.from_bytes(header[4 * i : 4 * i + 4], "big") for i in range(axes)]
    expected = math.prod(shape)
    # The header is not trusted with an allocation before the file could possibly hold that much.
    body = file.read(expected + 1) if len(header) == 4 * axes and expected <= at_most else b""
    if len(header) < 4 * axes or len(body) != expected:
        held = "more" if len(body) > expected else "less"
        raise UserError(
            f"{path} has the wrong length: its header promises {expected:,} bytes {tuple(shape)} "
            f"and it holds {held}; delete it and fetch it again"
        )
    # frombuffer refuses an empty buffer, and an empty set of images is a legal file
    return torch.frombuffer(bytearray(body), dtype=torch.uint8).view(shape) if body else torch.empty(shape).byte()
