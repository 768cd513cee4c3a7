"""Folders of images with masks."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.dataset import Splits
from torchcaps.data.images import check_channels, decode, opened_image, set_channels, sixteen_to_eight_bits
from torchcaps.data.listing import IMAGE_SUFFIXES, SPLIT_NAMES, abbreviate, entries
from torchcaps.data.segmentation import SegmentationDataset, split_segmentation
from torchcaps.errors import UnreadableImage, UserError
from torchcaps.io.npy import read_npy
from torchcaps.losses import IGNORED

if TYPE_CHECKING:
    from PIL import Image

log = logging.getLogger("torchcaps")

ARRAY_SUFFIX = ".npy"
TWO_CLASSES = ("background", "foreground")
MAX_CLASS_ID = 2**31  # of floating-point masks, whose values may not fit an integer
MAX_INFERRED_CLASSES = 32  # without num_classes; more values than this are the greys of a smoothed mask
LAYOUT = (
    "put the images into FOLDER/images and their masks, with the same names, into FOLDER/masks; "
    "or two such folders into each of FOLDER/train, FOLDER/test and, if you like, FOLDER/val"
)


def load_mask_folder(
    folder: str | Path,
    *,
    positive: int | None = None,
    channels: int | None = None,
    num_classes: int | None = None,
    validation: float = 0.1,
    test: float | str | Sequence[str] = 0.2,
    seed: int = 0,
    limit: int | None = None,
) -> Splits[SegmentationDataset]:
    """Read a folder of images and masks, split into training, validation and test data.

    If the folder has train, test or val (validation, valid) folders, each with images and masks, these are the parts,
    and missing parts are held out from training. With validation=0 a val folder is used for training too.

    Args:
        folder: the folder.
        positive: as for `read_mask_folder`.
        channels: as for `read_mask_folder`.
        num_classes: as for `read_mask_folder`.
        validation: as for `split_segmentation`.
        test: as for `split_segmentation`.
        seed: as for `split_segmentation`.
        limit: as for `split_segmentation`.
    """
    parts = _list_parts(Path(folder).expanduser())
    # read together: the values of masks must mean the same in every part
    data = _read([files for part in parts.values() for files in part], positive, channels, num_classes)
    blocks = torch.arange(len(data)).split([len(part) for part in parts.values()])
    rows = dict(zip(parts, blocks))
    if validation == 0 and "validation" in rows:
        rows["train"] = torch.cat([rows["train"], rows.pop("validation")])
    if "test" in rows and not isinstance(test, (int, float)):
        raise UserError(f"test={test}: {folder} has a test folder; omit test")
    own = {part: data.subset(rows[part]) for part in ("validation", "test") if part in rows}
    train, held_out, tested = split_segmentation(
        data.subset(rows["train"]),
        0 if "validation" in own else validation,
        0 if "test" in own else test,
        seed,
        limit,
    )
    return Splits(train, own.get("validation", held_out), own.get("test", tested), "pairs")


def is_mask_folder(folder: Path) -> bool:
    """Return whether a folder has the layout of images with masks."""
    parts = [folder, *(path for path in entries(folder) if path.name.lower() in SPLIT_NAMES)] if folder.is_dir() else []
    return any((part / "images").is_dir() and (part / "masks").is_dir() for part in parts)


def read_picture(path: Path, channels: int) -> Tensor:
    """Read one image file as `read_mask_folder` does, at its own size: (C, H, W) uint8."""
    pixels = _read_image(path)
    white = 255 if pixels.dtype != np.uint8 and pixels.max() > 1 else 1
    return set_channels(_as_tensor(pixels, white)[None], channels)[0]


def read_label(path: Path, num_classes: int, positive: int | None = None) -> Tensor:
    """Read one mask file as (H, W) uint8 class ids of a model.

    Args:
        path: the file.
        num_classes: J of the model.
        positive: the value that means class 1, all others meaning 0; by default values are class ids, or, with two
            classes, 0 and 255.
    """
    values = _read_mask(path)
    found = set(np.unique(values).tolist())
    if positive is None and num_classes == 2 and found <= {0, IGNORED}:
        positive = IGNORED
    if positive is not None:
        if len(found) > 2:
            raise UserError(
                f"{path} has the values {abbreviate(map(str, sorted(found)))}: masks of this model have two "
                f"values, of which {positive} is the class"
            )
        return torch.from_numpy((values == positive).astype(np.uint8))
    if stray := found - {*range(num_classes), IGNORED}:
        two = ", or 0 and 255 alone" if num_classes == 2 else ""
        raise UserError(
            f"{path} has the values {abbreviate(map(str, sorted(found)))}, {len(stray)} of which are no class of this "
            f"model: class ids are 0 to {num_classes - 1}{two}"
        )
    return torch.from_numpy(values.astype(np.uint8))


def read_mask_folder(
    folder: str | Path,
    *,
    positive: int | None = None,
    channels: int | None = None,
    num_classes: int | None = None,
) -> SegmentationDataset:
    """Read the images in FOLDER/images and the masks with the same names in FOLDER/masks, sorted by name.

    Images are npy files or any format of `torchcaps.data.load_image`, and keep their size. 16-bit images are scaled so
    that 65535 becomes 255. An npy file holds (H, W), (H, W, C) or (C, H, W): uint8, uint16, or floats, in [0, 1] in all
    files or in [0, 255].

    Masks have one channel, or several that are equal, and are not JPEG. Their values are class ids 0, 1, 2, …, and 255
    for pixels to ignore; or only 0 and 255, which become 0 and 1.

    Args:
        folder: the folder.
        positive: the value that becomes class 1, all others becoming 0.
        channels: 1, 3, or None for 1 where every file is grey and 3 otherwise.
        num_classes: J, if not every class occurs in a mask; absent classes are logged.
    """
    return _read(_list_pairs(Path(folder).expanduser()), positive, channels, num_classes)


class _Pair(NamedTuple):
    name: str
    image: Path
    mask: Path


def _list_parts(root: Path) -> dict[str, list[_Pair]]:
    """List the files of each part: "train", and "validation" and "test" where the folder has them."""
    folders = sorted(entries(root)) if root.is_dir() else []
    inside = [path for path in folders if path.name.lower() in SPLIT_NAMES and (path / "images").is_dir()]
    if not inside:
        return {"train": _list_pairs(root)}
    if (root / "images").is_dir():
        raise UserError(f"{root} has both images and {abbreviate(path.name for path in inside)}: {LAYOUT}")
    parts: dict[str, list[_Pair]] = {}
    for path in inside:
        part = SPLIT_NAMES[path.name.lower()]
        if part in parts:
            raise UserError(f"{root} has several folders for {part} images: keep one of them")
        parts[part] = _list_pairs(path)
    if "train" not in parts:
        raise UserError(f"{root} has {abbreviate(path.name for path in inside)} but no train folder: {LAYOUT}")
    return parts


def _list_pairs(root: Path) -> list[_Pair]:
    for folder in (root, root / "images", root / "masks"):
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}: {LAYOUT}")
    images, masks = _by_name(root / "images"), _by_name(root / "masks")
    if not images:
        raise UserError(f"there are no images in {root / 'images'}: {LAYOUT}")
    if unpaired := sorted(images.keys() - masks.keys()):
        raise UserError(
            f"{root / 'masks'} has no mask for {abbreviate(unpaired)}: name each like its image, or remove these"
        )
    if unpaired := sorted(masks.keys() - images.keys()):
        raise UserError(
            f"{root / 'images'} has no image for the masks {abbreviate(unpaired)}: add them, or remove the masks"
        )
    return [_Pair(name, images[name], masks[name]) for name in sorted(images)]


def _by_name(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(entries(folder)):
        if path.name.startswith(".") or path.suffix.lower() not in {*IMAGE_SUFFIXES, ARRAY_SUFFIX}:
            continue
        if path.stem in found:
            raise UserError(f"{folder} has both {found[path.stem].name} and {path.name}: keep one of them")
        found[path.stem] = path
    return found


def _read(
    files: list[_Pair], positive: int | None, channels: int | None, num_classes: int | None
) -> SegmentationDataset:
    check_channels(channels)
    if num_classes is not None and not 2 <= num_classes <= IGNORED:
        raise UserError(f"num_classes={num_classes}: give 2 to {IGNORED}, including the background")
    if positive is not None and num_classes not in (None, 2):
        raise UserError(f"positive={positive} makes two classes: omit num_classes={num_classes}")
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # the decoders release the GIL
        pairs = list(pool.map(_read_pair, files))
    pixels, values = [image for image, _ in pairs], [mask for _, mask in pairs]
    floats = [image for image in pixels if image.dtype != np.uint8]
    white = 255 if any(image.max() > 1 for image in floats) else 1
    images = [_as_tensor(image, white) for image in pixels]
    most = channels or max(len(image) for image in images)
    images = [set_channels(image[None], most)[0] for image in images]
    masks, class_names = _class_ids(values, files, positive, num_classes)
    segments = SegmentationDataset(images, masks, class_names, tuple(each.name for each in files))
    if segments.absent:
        log.warning("no mask shows the class %s", abbreviate(map(repr, segments.absent)))
    return segments


def _read_pair(files: _Pair) -> tuple[np.ndarray, np.ndarray]:
    image = _read_image(files.image)
    mask = _read_mask(files.mask)
    if image.shape[1:] != mask.shape:
        sizes = f"{image.shape[1]}×{image.shape[2]}, but its mask {files.mask} is {mask.shape[0]}×{mask.shape[1]}"
        raise UserError(f"{files.image} is {sizes}: make them the same size")
    return image, mask


def _read_image(path: Path) -> np.ndarray:
    """Read (1 or 3, H, W) uint8, or floating point as in the file."""
    if path.suffix.lower() != ARRAY_SUFFIX:
        with _opened(path) as picture:
            size = picture.height, picture.width
        return decode(path, size, None)
    pixels = read_npy(path)
    if pixels.ndim == 2:
        pixels = pixels[None]
    elif pixels.shape[-1] in (1, 3):
        pixels = pixels.transpose(2, 0, 1)
    if len(pixels) not in (1, 3):
        raise UnreadableImage(path, f"an image is (H, W) or has 1 or 3 channels, not the shape {pixels.shape}")
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.uint16:
        return sixteen_to_eight_bits(pixels)
    if pixels.dtype.kind != "f":
        raise UnreadableImage(path, f"{pixels.dtype} has no known range; save it as uint8, uint16 or floats in [0, 1]")
    if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 255):
        raise UnreadableImage(path, f"floats from {pixels.min():g} to {pixels.max():g}; scale them to [0, 1]")
    return pixels


def _as_tensor(pixels_CHW: np.ndarray, white: int) -> Tensor:
    """Convert to (C, H, W) uint8; `white` is the largest possible floating-point value."""
    if pixels_CHW.dtype != np.uint8:
        pixels_CHW = (pixels_CHW.astype(np.float64) * (255 / white)).round().astype(np.uint8)
    return torch.from_numpy(np.array(pixels_CHW, order="C"))  # a copy: Pillow's arrays are read-only


def _read_mask(path: Path) -> np.ndarray:
    """Read (H, W) integers as stored; for a palette these are the indices."""
    if path.suffix.lower() == ARRAY_SUFFIX:
        values = read_npy(path)
        if values.ndim == 3 and 1 in (len(values), values.shape[-1]):
            values = values[0] if len(values) == 1 else values[..., 0]
    else:
        with _opened(path) as picture:
            if picture.format in ("JPEG", "MPO", "WEBP") or picture.info.get("compression") == "jpeg":
                raise ValueError("lossy compression changes the values of a mask; save the masks as PNG")
            values = _one_channel(np.asarray(picture), transparent=picture.mode.endswith("A"))
    if values.ndim != 2:
        raise UnreadableImage(path, f"a mask is (H, W), not the shape {values.shape}")
    if values.dtype.kind == "f" and np.abs(values).max() < MAX_CLASS_ID and np.array_equal(values, values.round()):
        values = values.astype(np.int64)
    if values.dtype.kind not in "bui":
        raise UnreadableImage(path, "a mask has an integer for each pixel, its class id")
    return values.astype(np.uint8) if values.dtype.kind == "b" else values


def _one_channel(values: np.ndarray, transparent: bool) -> np.ndarray:
    if values.ndim == 2:
        return values
    if transparent and (values[..., -1] == 255).all():
        values = values[..., :-1]
    if (values != values[..., :1]).any():
        raise ValueError("in colour, or transparent; save the masks with one channel of class ids")
    return values[..., 0]


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open an image file upright."""
    from PIL import ImageOps

    with opened_image(path) as picture:
        if picture.format == "TIFF" and (pages := getattr(picture, "n_frames", 1)) > 1:
            raise ValueError(f"{pages} images in one file; save each in its own file")
        ImageOps.exif_transpose(picture, in_place=True)
        yield picture


def _class_ids(
    masks: list[np.ndarray], files: list[_Pair], positive: int | None, num_classes: int | None
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Convert mask values to class ids; return the masks and the class names."""
    found = [set(np.unique(mask).tolist()) for mask in masks]
    values = set[int]().union(*found)
    if positive is None and IGNORED in values and values <= {0, IGNORED} and num_classes in (None, 2):
        positive = IGNORED
    if positive is not None:
        if positive not in values:
            raise UserError(f"positive={positive}: no mask has this value, only {abbreviate(map(str, sorted(values)))}")
        return [torch.from_numpy((mask == positive).astype(np.uint8)) for mask in masks], TWO_CLASSES
    ids = values - {IGNORED}
    count = num_classes or max(2, next(n for n in range(len(ids) + 1) if n not in ids))
    allowed = set(range(2 if num_classes is None and count > MAX_INFERRED_CLASSES else count))
    if stray := ids - allowed:
        path, has = next((each.mask, has) for each, has in zip(files, found) if has & stray)
        known = "0, 1, 2, … without a gap" if num_classes is None else f"0 to {num_classes - 1}"
        raise UserError(
            f"{path} has the values {abbreviate(map(str, sorted(has)))}, but class ids are {known}, and 255 is "
            "ignored: choose the value of the positive class, as in "
            f"--set data.positive={max(has)}, or give num_classes"
        )
    names = TWO_CLASSES if count == 2 else tuple(map(str, range(count)))
    return [torch.from_numpy(mask.astype(np.uint8)) for mask in masks], names
