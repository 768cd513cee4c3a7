"""smallNORB: fifty toys photographed by two cameras, from 9 elevations and 18 azimuths, under 6 lights.

LeCun et al. 2004; of the ten toys of a class, five are for training and the other five for testing. The files are not
MATLAB's, in spite of ".mat", but binary matrices. Hinton et al. 2018 shrink the images to 48×48,
train on random 32×32 crops (augment.crop) and test on the centre; for generalisation to novel viewpoints they train on
a third of the directions and test on the others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset, Splits
from torchcaps.errors import UserError, did_you_mean
from torchcaps.io.limits import MAX_AXES, Readable, open_untrusted, read_body, size_in_bytes

HOME = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
FILES = tuple(
    f"smallnorb-{part}-{kind}.mat"
    for part in ("5x46789x9x18x6x2x96x96-training", "5x01235x9x18x6x2x96x96-testing")
    for kind in ("dat", "cat", "info")
)
CLASS_NAMES = ("animal", "human", "airplane", "truck", "car")
VALIDATION_TOY = 9  # one of TRAIN_TOYS
CAMERAS, SIDE = 2, 96
MAX_ROWS = 24_300  # of each set
TRAIN_TOYS, TEST_TOYS = (4, 6, 7, 8, 9), (0, 1, 2, 3, 5)
TOY, ELEVATION, AZIMUTH, LIGHT = range(4)  # columns of info; 5° a step from 30°, 10° a step
FAMILIAR = {"azimuth": (AZIMUTH, (30, 32, 34, 0, 2, 4)), "elevation": (ELEVATION, (0, 1, 2))}
MEAN, STD = 0.5, 0.125  # of a standardised image

TYPES = {0x1E3D4C51: "<f4", 0x1E3D4C53: "<f8", 0x1E3D4C54: "<i4", 0x1E3D4C55: "u1", 0x1E3D4C56: "<i2"}
CHUNK_IMAGES = 1024  # converted at a time: bounds the wider copy that the arithmetic needs
FETCH_HINT = f"fetch it again from {HOME}"
REFETCH_HINT = f"delete it and {FETCH_HINT}"


class SmallNorb(NamedTuple):
    """Both sets, and for each (N, 4) int64 info: toy 0–9, elevation 0–8, azimuth 0, 2, … 34, light 0–5."""

    train: Dataset
    test: Dataset
    info: tuple[Tensor, Tensor]


def smallnorb_splits(
    location: str | Path | Sequence[Path],
    viewpoint: str | None = None,
    *,
    familiar: bool = False,
    size: int = 48,
    standard: bool = False,
    toy: int | None = None,
) -> Splits:
    """Read all images, or those of one of the two experiments on novel viewpoints.

    Args:
        location: as of `read_smallnorb`.
        viewpoint: "azimuth": train on 300°–340° and 0°–40°, test on 60°–280°; "elevation": train on the lowest three of
            the nine, test on the others.
        familiar: test on the viewpoints of the training images instead, but still on other toys.
        size: as of `read_smallnorb`.
        standard: standardise the images.
        toy: the training toy of each class, 4, 6, 7, 8 or 9, to hold out for validation: images of toys that the model
            was trained on would not measure how it does on new ones.
    """
    if viewpoint is not None and viewpoint not in FAMILIAR:
        raise UserError(f"viewpoint={viewpoint!r}: {did_you_mean(viewpoint, FAMILIAR)}")
    if familiar and viewpoint is None:
        raise UserError("familiar=True needs viewpoint=, 'azimuth' or 'elevation'")
    train, test, (train_info, test_info) = read_smallnorb(location, size)
    name = "smallnorb"
    if viewpoint is not None:
        name = f"smallnorb-{viewpoint}" + ("-familiar" if familiar else "")
        seen = is_familiar(train_info, viewpoint).nonzero().flatten()
        train, train_info = train.subset(seen), train_info[seen]
        test = test.subset((is_familiar(test_info, viewpoint) == familiar).nonzero().flatten())
    if standard:
        train, test = (Dataset(standardise(each.images), each.targets, CLASS_NAMES) for each in (train, test))
    if toy is None:
        return Splits(train, None, test, name)
    held = train_info[:, TOY] == toy
    if not held.any() or held.all():
        raise UserError(f"toy={toy}: the training images show toys {sorted(set(train_info[:, TOY].tolist()))}")
    return Splits(train.subset((~held).nonzero().flatten()), train.subset(held.nonzero().flatten()), test, name)


def is_familiar(info_N4: Tensor, viewpoint: str) -> Tensor:
    """Return (N,) whether an image has a training viewpoint of the experiment."""
    column, values = FAMILIAR[viewpoint]
    return torch.isin(info_N4[:, column], torch.tensor(values))


def read_smallnorb(location: str | Path | Sequence[Path], size: int = 48) -> SmallNorb:
    """Read the training and test images, 24,300 stereo pairs each.

    Args:
        location: the folder of the six files, gzipped or not, or their paths in the order of FILES.
        size: 96, or a divisor of it: shrunk by the mean of each block.

    Returns:
        Images (N, 2, size, size), the two cameras as channels.
    """
    if size < 1 or SIDE % size:
        raise UserError(f"size={size}: smallNORB is {SIDE}×{SIDE} and shrinks by whole numbers, for example to 48")
    files = find_smallnorb(Path(location)) if isinstance(location, (str, Path)) else [*location]
    if len(files) != len(FILES):
        raise UserError(f"smallNORB has {len(FILES)} files, {len(files)} are given: {', '.join(FILES)}")
    train, train_info = _read_set(files[:3], TRAIN_TOYS, size)
    test, test_info = _read_set(files[3:], TEST_TOYS, size)
    return SmallNorb(train, test, (train_info, test_info))


def find_smallnorb(folder: Path) -> list[Path]:
    """Find the six files, gzipped or not, in the order of FILES."""
    found = [next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None) for name in FILES]
    if missing := [name for name, path in zip(FILES, found) if path is None]:
        raise UserError(f"{folder} does not hold {', '.join(missing)} (.gz or not): fetch what is missing from {HOME}")
    return [path for path in found if path is not None]


def shrink(images: Tensor, factor: int) -> Tensor:
    """Average blocks of factor × factor pixels, rounded to the nearest, a half up.

    Args:
        images: (N, C, H, W) uint8.
        factor: side of a block.

    Returns:
        (N, C, H / factor, W / factor) uint8.
    """
    if factor == 1:
        return images
    count, channels, height, width = images.shape
    small = images.new_empty(count, channels, height // factor, width // factor)
    pixels = factor * factor
    for block, out in zip(images.split(CHUNK_IMAGES), small.split(CHUNK_IMAGES)):
        total = torch.zeros(out.shape, dtype=torch.int32)
        for i in range(pixels):
            total += block[..., i // factor :: factor, i % factor :: factor]
        out.copy_((total + pixels // 2) // pixels)
    return small


def standardise(images: Tensor) -> Tensor:
    """Standardise each image, both cameras together.

    The paper's mean and deviation are 0 and 1; here they are ½ and ⅛, so that values fit in [0, 1], and a model with
    mean=(0.5, 0.5) and std=(0.125, 0.125) sees those of the paper. This precedes changes of brightness and contrast,
    which a model that standardises its own input would undo. Values beyond 4 deviations are clipped.

    Args:
        images: (N, C, H, W) uint8.

    Returns:
        (N, C, H, W) uint8; a blank image becomes grey.
    """
    result = torch.empty_like(images)
    for block, out in zip(images.split(CHUNK_IMAGES), result.split(CHUNK_IMAGES)):
        values = block.double()
        deviation = values - values.mean((1, 2, 3), keepdim=True)
        scale = deviation.square().mean((1, 2, 3), keepdim=True).sqrt().clamp(min=1e-6)
        out.copy_((255 * (MEAN + STD * deviation / scale)).round().clamp(0, 255))
    return result


def read_matrix(path: str | Path) -> Tensor:
    """Read a binary matrix file of bytes, shorts, integers, floats or doubles, gzipped or not."""
    path = Path(path)
    with open_untrusted(path, FETCH_HINT) as (file, max_bytes):
        code, shape = _read_header(file, path)
        return _read_values(file, path, code, shape, max_bytes)


def _read_header(file: Readable, path: Path) -> tuple[str, tuple[int, ...]]:
    """Read type and shape; little-endian: magic, number of axes, then at least three sizes (extra ones are 1)."""
    magic = file.read(4)
    code = TYPES.get(int.from_bytes(magic, "little"))
    if code is None:
        found = f"it starts with {magic.hex(' ') or 'nothing'}"
        raise UserError(f"{path} is not a binary matrix of a known type, {found}: {REFETCH_HINT}")
    (axes,) = _integers(file, 1, path)
    if not 1 <= axes <= MAX_AXES:
        raise UserError(f"{path} has a damaged header, which promises {axes} dimensions: {REFETCH_HINT}")
    return code, _integers(file, max(3, axes), path)[:axes]


def _read_values(file: Readable, path: Path, code: str, shape: tuple[int, ...], max_bytes: int) -> Tensor:
    expected = size_in_bytes(shape, np.dtype(code).itemsize)
    if expected is None:
        raise UserError(f"{path} has a damaged header, which promises the shape {shape}: {REFETCH_HINT}")
    body = read_body(file, path, shape, expected, max_bytes, REFETCH_HINT)
    values = np.ndarray(shape, code, buffer=body)
    return torch.from_numpy(values.astype(values.dtype.newbyteorder("="), copy=False))


def _integers(file: Readable, count: int, path: Path) -> tuple[int, ...]:
    data = file.read(4 * count)
    if len(data) < 4 * count:
        raise UserError(f"{path} has the wrong length: it ends within its header; {REFETCH_HINT}")
    return struct.unpack(f"<{count}i", data)


def _read_set(files: Sequence[Path], toys: tuple[int, ...], size: int) -> tuple[Dataset, Tensor]:
    """Images and info of one of the two sets, every value checked."""
    dat, cat, info = files
    labels = _expect(cat, "<i4", ())
    views = _expect(info, "<i4", (4,))
    images = _expect(dat, "u1", (CAMERAS, SIDE, SIDE))
    if not len(images) == len(labels) == len(views):
        raise UserError(
            f"{dat} has {len(images)} pairs of images, but {cat} {len(labels)} labels and {info} {len(views)} rows: "
            f"fetch all three again from {HOME}"
        )
    _check_values(cat, "label", labels, range(len(CLASS_NAMES)))
    _check_values(info, "toy", views[:, TOY], toys)
    _check_values(info, "elevation", views[:, ELEVATION], range(9))
    _check_values(info, "azimuth", views[:, AZIMUTH], range(0, 36, 2))
    _check_values(info, "light", views[:, LIGHT], range(6))
    return Dataset(shrink(images, SIDE // size), labels.long(), CLASS_NAMES), views.long()


def _expect(path: Path, kind: str, shape: tuple[int, ...]) -> Tensor:
    """Read (N, *shape) from a file whose header must give that shape and type."""
    with open_untrusted(path, FETCH_HINT) as (file, max_bytes):
        code, found = _read_header(file, path)
        if code != kind or found[1:] != shape or found[0] > MAX_ROWS:
            has, wanted = (" × ".join(map(str, each)) for each in (found, ("N", *shape)))
            raise UserError(
                f"{path} holds {np.dtype(code)} {has}, where {np.dtype(kind)} {wanted}, N up to {MAX_ROWS:,}, is "
                f"expected: are the files mixed up? If not, {REFETCH_HINT}"
            )
        return _read_values(file, path, code, found, max_bytes)


def _check_values(path: Path, name: str, values_N: Tensor, allowed: Iterable[int]) -> None:
    known = torch.tensor([*allowed], dtype=values_N.dtype)
    wrong = values_N[~torch.isin(values_N, known)]
    if len(wrong):
        listed = ", ".join(map(str, known.tolist()))
        raise UserError(f"{path} has the {name} {int(wrong[0])}, which should be one of {listed}: {REFETCH_HINT}")
