"""The affNIST experiment: training on digits shifted in 40×40, testing on affine transformed digits.

Sabour et al. 2017, section 5.2: a network trained on shifted upright digits is tested on digits that are rotated,
sheared, scaled and shifted. `read_affnist` reads the original test set; `affnist_like` makes one with the same ranges
from the MNIST test digits, with the same pixels on every machine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data.augment import centre_crop
from torchcaps.data.dataset import Dataset, Splits, verified
from torchcaps.data.formats.mat import DamagedMat, NotLevel5, read_struct
from torchcaps.errors import UserError

FRAME = 40
ROTATE, SHEAR, SCALE = 20.0, 0.2, 0.2  # largest change either way: degrees; y by x; fraction of each axis
COPIES = 4
PLACE_SEED = 40
AFFNIST_LIKE_SEED = 2017
AFFNIST_LIKE_CHECKSUM = "73b7ab31130ed8a9ff5a768b6bbc0f12"
CHUNK_IMAGES = 500  # resampled at a time: bounds the float64 copies

VARIABLE = "affNISTdata"
HOME = "https://www.cs.toronto.edu/~tijmen/affNIST/"
FETCH_HINT = f"fetch 32x/transformed/test.mat.zip from {HOME} and unpack it, or use source='affnist-like'"


def expanded_splits(mnist: Splits) -> Splits:
    """Make splits in 40×40: centred training digits (for augment.shift=6), shifted validation and test digits."""
    validation = None if mnist.validation is None else place(mnist.validation, PLACE_SEED)
    test = None if mnist.test is None else place(mnist.test, PLACE_SEED)
    return Splits(expand(mnist.train), validation, test, "mnist-expanded")


def affnist_like_splits(mnist: Splits) -> Splits:
    """Make the splits of `expanded_splits`, but with transformed test digits."""
    test = None if mnist.test is None else affnist_like(mnist.test)
    return replace(expanded_splits(mnist), test=test, source="affnist-like")


def affnist_splits(mnist: Splits, root: Path) -> Splits:
    """Make the splits of `expanded_splits`, but with the original test set from `root`, test.mat or its folder."""
    path = root if root.suffix == ".mat" else root / "test.mat"
    test = read_affnist(path)
    if test.images.count_nonzero() == centre_crop(test.images, 28).count_nonzero():
        raise UserError(f"the digits in {path} are only centred, not transformed: {FETCH_HINT}")
    return replace(expanded_splits(mnist), test=test, source="affnist")


def expand(dataset: Dataset, size: int = FRAME) -> Dataset:
    """Put each image in the middle of a black frame: (N, C, size, size)."""
    down, across = _room(dataset, size)
    top, left = down // 2, across // 2
    return replace(dataset, images=F.pad(dataset.images, (left, across - left, top, down - top)))


def place(dataset: Dataset, seed: int, size: int = FRAME) -> Dataset:
    """Put each image at a uniformly random position in a black frame, where all of it fits.

    Returns:
        (N, C, size, size) images; a position depends on the seed and the index of the image alone.
    """
    (count, channels, height, width), room = dataset.images.shape, _room(dataset, size)
    unit_N2 = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    top_N, left_N = (unit_N2 * (torch.tensor(room) + 1)).long().unbind(1)
    rows_NH1 = (top_N[:, None] + torch.arange(height))[:, :, None]
    columns_N1W = (left_N[:, None] + torch.arange(width))[:, None, :]
    frames = dataset.images.new_zeros(count, channels, size, size)
    frames[torch.arange(count)[:, None, None], :, rows_NH1, columns_N1W] = dataset.images.permute(0, 2, 3, 1)
    return replace(dataset, images=frames)


def transform(dataset: Dataset, seed: int, copies: int, size: int = FRAME) -> Dataset:
    """Transform each image with random affine maps in the ranges of affNIST, without cutting anything off.

    Args:
        dataset: N images.
        seed: of the maps.
        copies: variants of each image, which follow each other.
        size: side of the result.

    Returns:
        (N · copies, C, size, size) images; a variant depends on the seed and its index alone.
    """
    if copies < 1:
        raise UserError(f"copies={copies}: give the number of variants of each image, at least 1")
    _room(dataset, size)
    count = copies * len(dataset)
    origin_M = torch.arange(len(dataset)).repeat_interleave(copies)
    draws = draw(count, seed)
    images = dataset.images.new_empty(count, dataset.image_shape[0], size, size)
    for start in range(0, count, CHUNK_IMAGES):
        part = slice(start, start + CHUNK_IMAGES)
        originals = dataset.images[origin_M[part]]
        forward_B22 = linear(*(column[part] for column in draws[:4]))
        lowest_B2, highest_B2 = room_to_move(originals, forward_B22, size)
        if (lowest_B2 > highest_B2).any():
            first = int(origin_M[part][(lowest_B2 > highest_B2).any(dim=1)][0])
            raise UserError(f"image {first} is too large for {size}×{size} once transformed: give a larger size")
        shift_B2 = lowest_B2 + draws.position_N2[part] * (highest_B2 - lowest_B2)
        shift_B2 = shift_B2.nan_to_num(0)  # a blank image has infinite room
        moved = resample(originals, forward_B22, shift_B2, size)
        images[part] = moved.round() if images.dtype == torch.uint8 else moved
    files = None if dataset.files is None else tuple(dataset.files[i] for i in origin_M.tolist())
    return Dataset(images, dataset.targets[origin_M], dataset.class_names, files)


def affnist_like(test: Dataset) -> Dataset:
    """Make the affNIST-like test set from the MNIST test digits: 40,000 images, the same on every machine."""
    return verified(transform(test, AFFNIST_LIKE_SEED, COPIES), test, AFFNIST_LIKE_CHECKSUM, "affNIST-like")


class Draws(NamedTuple):
    """Random parameters of N variants, in float64."""

    angle_N: Tensor  # degrees, counter-clockwise
    shear_N: Tensor
    grow_x_N: Tensor
    grow_y_N: Tensor
    position_N2: Tensor  # x and y in [0, 1), as a fraction of the room to move


def draw(count: int, seed: int) -> Draws:
    """Draw the parameters of `count` variants, uniform in the published ranges."""
    unit_N6 = torch.rand(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    angle_N, shear_N, x_N, y_N = (2 * unit_N6[:, :4] - 1).unbind(1)
    return Draws(ROTATE * angle_N, SHEAR * shear_N, 1 + SCALE * x_N, 1 + SCALE * y_N, unit_N6[:, 4:])


def linear(angle_N: Tensor, shear_N: Tensor, grow_x_N: Tensor, grow_y_N: Tensor) -> Tensor:
    """Compose a rotation, a shear (y moves by x) and a scaling, in this order; x points right and y down.

    Returns:
        (N, 2, 2) maps from (x, y) in the image to (x, y) in the frame, both in pixels from the centre.
    """
    angle_N = angle_N.deg2rad()
    cos_N, sin_N = angle_N.cos(), angle_N.sin()
    across_N2 = torch.stack([cos_N, sin_N], dim=1)
    down_N2 = torch.stack([shear_N * cos_N - sin_N, cos_N + shear_N * sin_N], dim=1)
    return torch.stack([grow_x_N[:, None] * across_N2, grow_y_N[:, None] * down_N2], dim=1)


def room_to_move(images_NCHW: Tensor, forward_N22: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return how far each transformed image can be shifted before any ink leaves the frame.

    Returns:
        The lowest and the highest (x, y) of its centre, (N, 2) each, from the centre of the frame.
    """
    height, width = images_NCHW.shape[2:]
    ink_N1P = (images_NCHW > 0).any(dim=1).flatten(1)[:, None]
    positions_N2P = forward_N22 @ _from_centre(height, width).view(height * width, 2).T
    # bilinear interpolation spreads the ink of a pixel by less than one pixel of the original
    spread_N2 = forward_N22.abs().sum(dim=2)
    least_N2 = torch.where(ink_N1P, positions_N2P, torch.inf).amin(dim=2) - spread_N2
    most_N2 = torch.where(ink_N1P, positions_N2P, -torch.inf).amax(dim=2) + spread_N2
    edge = (size + 1) / 2  # of the first pixel outside, where the ink has faded to zero
    return -edge - least_N2, edge - most_N2


def resample(images_NCHW: Tensor, forward_N22: Tensor, shift_N2: Tensor, size: int) -> Tensor:
    """Transform images about their centre and shift them, with one bilinear interpolation.

    In float64, so that values rounded to 8 bits are the same on every machine: none is close enough to a half.

    Args:
        images_NCHW: (N, C, H, W) images.
        forward_N22: (N, 2, 2) maps as of `linear`.
        shift_N2: (N, 2) the (x, y) of the image's centre, from the frame's centre.
        size: side of the frame.

    Returns:
        (N, C, size, size) float64.
    """
    height, width = images_NCHW.shape[2:]
    frame_P2 = _from_centre(size, size).view(size * size, 2)
    half_21 = torch.tensor([[width / 2], [height / 2]], dtype=torch.float64)  # the sampler's unit is half the image
    back_N22 = torch.linalg.inv(forward_N22) / half_21
    grid_NSS2 = ((frame_P2 - shift_N2[:, None]) @ back_N22.mT).view(-1, size, size, 2)
    return F.grid_sample(images_NCHW.double(), grid_NSS2, mode="bilinear", padding_mode="zeros", align_corners=False)


def _from_centre(height: int, width: int) -> Tensor:
    """Return (H, W, 2) the (x, y) of each pixel, from the centre."""
    y_H = torch.arange(height, dtype=torch.float64) - (height - 1) / 2
    x_W = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    return torch.stack([x_W.expand(height, width), y_H[:, None].expand(height, width)], dim=2)


def _room(dataset: Dataset, size: int) -> tuple[int, int]:
    """Return the free rows and columns of a frame around an image."""
    _, height, width = dataset.image_shape
    if max(height, width) > size:
        raise UserError(f"images of {height}×{width} do not fit into a frame of {size}×{size}: give a larger size")
    return size - height, size - width


def read_affnist(path: str | Path) -> Dataset:
    """Read the (N, 1, 40, 40) digits of an affNIST .mat file (test.mat, or a batch of the training digits)."""
    path = Path(path)
    try:
        fields = read_struct(path, VARIABLE, ("image", "label_int"), FETCH_HINT)
    except NotLevel5 as error:
        raise UserError(f"{path} is a MATLAB 7.3 file: save it again with -v7, or {FETCH_HINT}") from error
    except DamagedMat as error:
        raise UserError(f"{path} is not a MATLAB file, or a damaged one ({error}): {FETCH_HINT}") from error
    if fields is None:
        raise UserError(f"{path} holds no struct {VARIABLE}, so it is not affNIST's: {FETCH_HINT}")
    if missing := [name for name in ("image", "label_int") if name not in fields]:
        raise UserError(f"{VARIABLE} in {path} has no {' and no '.join(missing)}, so it is not affNIST's: {FETCH_HINT}")
    pixels_PN, labels = fields["image"], fields["label_int"].ravel()
    if pixels_PN.dtype != np.uint8 or pixels_PN.ndim != 2 or len(pixels_PN) != FRAME * FRAME:
        found = f"{pixels_PN.dtype} {'×'.join(map(str, pixels_PN.shape))}"
        raise UserError(f"the images in {path} are {found}, where affNIST's are uint8 {FRAME * FRAME}×N: {FETCH_HINT}")
    if labels.dtype.kind not in "uif" or not np.isin(labels, range(10)).all():
        raise UserError(f"{path} has labels other than the digits 0 to 9: {FETCH_HINT}")
    if len(labels) != pixels_PN.shape[1]:
        raise UserError(f"{path} has {pixels_PN.shape[1]} images but {len(labels)} labels: {FETCH_HINT}")
    # One column per image, in row-major order, although MATLAB is column-major.
    images = torch.from_numpy(np.ascontiguousarray(pixels_PN.T)).view(-1, 1, FRAME, FRAME)
    return Dataset(images, torch.from_numpy(labels.astype(np.int64)), tuple("0123456789"))
