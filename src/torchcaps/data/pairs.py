"""Images with their masks: read from a folder, split by whole images, and cut into random windows on the device."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.batches import as_float
from torchcaps.data.images import UnreadableImage, check_channels, decode, set_channels
from torchcaps.data.listing import IMAGE_SUFFIXES, SPLIT_NAMES
from torchcaps.data.split import HoldOut, divide
from torchcaps.errors import UserError
from torchcaps.losses import IGNORED

if TYPE_CHECKING:
    from PIL import Image

log = logging.getLogger("torchcaps")

ARRAY = ".npy"
TWO_CLASSES = ("background", "foreground")
UNASKED = 32  # class ids taken for such without num_classes: many more are the greys of a mask that was smoothed
LAYOUT = (
    "put the images into FOLDER/images and their masks, by the same names, into FOLDER/masks; "
    "or two such folders into each of FOLDER/train, FOLDER/test and, if you like, FOLDER/val"
)


@dataclass(frozen=True, eq=False)
class Segments:
    """Images with their masks, each pair of a size of its own.

    images       N of (C, H, W)  uint8, all with as many channels
    masks        N of (H, W)     uint8 class ids; IGNORED (255) where nothing is known
    class_names  J names
    names        N, of the files without their endings
    """

    images: list[Tensor]
    masks: list[Tensor]
    class_names: tuple[str, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not len(self.images) == len(self.masks) == len(self.names):
            counts = f"{len(self.images)}, {len(self.masks)} and {len(self.names)}"
            raise UserError(f"every image needs a mask and a name; there are {counts} of them")
        for name, image, mask in zip(self.names, self.images, self.masks):
            if image.dtype != torch.uint8 or image.ndim != 3 or not image.numel():
                raise UserError(f"image {name} must be uint8 (C, H, W); it is {image.dtype} {tuple(image.shape)}")
            if mask.dtype != torch.uint8 or mask.shape != image.shape[1:]:
                fits = f"uint8 {tuple(image.shape[1:])}"
                raise UserError(f"the mask of {name} must be {fits}; it is {mask.dtype} {tuple(mask.shape)}")
            if len(image) != self.channels:
                raise UserError(f"all images must have {self.channels} channels, as the first; {name} has {len(image)}")
            if stray := _pixels_of(mask)[self.num_classes : IGNORED].nonzero().flatten().tolist():
                found, last = self.num_classes + stray[0], self.num_classes - 1
                raise UserError(f"the mask of {name} has the class id {found}; class ids must lie in 0..{last}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """Of every image; 1 where there is none."""
        return len(self.images[0]) if self.images else 1

    @property
    def absent(self) -> tuple[str, ...]:
        """The classes that no mask shows."""
        return tuple(name for name, pixels in zip(self.class_names, self.class_counts().tolist()) if not pixels)

    def class_counts(self) -> Tensor:
        """How many pixels are of each class: (J,)."""
        none = torch.zeros(IGNORED + 1, dtype=torch.long)
        return sum((_pixels_of(mask) for mask in self.masks), none)[: self.num_classes]

    def subset(self, indices: Tensor) -> Segments:
        """The pairs at these positions, in this order.

        indices  (M,)
        """
        places = indices.tolist()
        images, masks = [self.images[i] for i in places], [self.masks[i] for i in places]
        return replace(self, images=images, masks=masks, names=tuple(self.names[i] for i in places))


@dataclass(frozen=True, eq=False)
class SegmentSplits:
    """What a run learns from, what it chooses by, and what it is judged on, once, at the end."""

    train: Segments
    validation: Segments | None
    test: Segments | None
    source: str

    def fingerprint(self) -> str:
        """A short text that changes with any image or mask, or with the part it is in."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.train, self.validation, self.test):
            digest.update(b"|")
            for tensor in () if part is None else (*part.images, *part.masks):
                digest.update(f"{tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()


def load_pairs(
    folder: str | Path,
    *,
    positive: int | None = None,
    channels: int | None = None,
    num_classes: int | None = None,
    validation: float = 0.1,
    test: float | str | Sequence[str] = 0.2,
    seed: int = 0,
) -> SegmentSplits:
    """A folder of images and masks, to train on, to choose by and to test with.

    Where the folder has train, test or val (validation, valid) in it, each with images and masks, these are the parts;
    what is missing is held out from training. With validation=0 a val folder is trained on, too.

    positive, channels, num_classes  as for `read_pairs`
    validation, test, seed           as for `split_pairs`
    """
    parts = _list_parts(Path(folder).expanduser())
    # all at once: what a value of a mask means must be the same in every part
    every = _read([files for part in parts.values() for files in part], positive, channels, num_classes)
    blocks = torch.arange(len(every)).split([len(part) for part in parts.values()])
    rows = dict(zip(parts, blocks))
    if validation == 0 and "validation" in rows:
        rows["train"] = torch.cat([rows["train"], rows.pop("validation")])
    if "test" in rows and not isinstance(test, (int, float)):
        raise UserError(f"test={test}: {folder} has a test folder of its own; leave test out")
    own = {part: every.subset(rows[part]) for part in ("validation", "test") if part in rows}
    train, held_out, tested = split_pairs(
        every.subset(rows["train"]), 0 if "validation" in own else validation, 0 if "test" in own else test, seed
    )
    return SegmentSplits(train, own.get("validation", held_out), own.get("test", tested), "pairs")


def read_pairs(
    folder: str | Path,
    *,
    positive: int | None = None,
    channels: int | None = None,
    num_classes: int | None = None,
) -> Segments:
    """The images in FOLDER/images with the masks in FOLDER/masks that have their names, in the order of these.

    Images are png, jpg, tif, npy and what else `torchcaps.data.load_image` reads, and keep their size. Those with 16
    bits are scaled by the range of that type: 65535 becomes 255. An npy file holds (H, W), (H, W, C) or (C, H, W):
    uint8, uint16, or floats in [0, 1] or [0, 255], by the same range in all files.

    Masks are of one channel, or of several that are alike, and not JPEG. Their values are class ids 0, 1, 2, …, with
    255 for pixels to ignore; or 0 and 255 alone, which become 0 and 1.

    positive     the value that becomes class 1, all others becoming 0
    channels     1, 3, or None for 1 where every file is grey and 3 otherwise
    num_classes  where not every id need occur; a class that no mask shows is logged, and among `Segments.absent`
    """
    return _read(_list_pairs(Path(folder).expanduser()), positive, channels, num_classes)


def split_pairs(
    segments: Segments, validation: float = 0.1, test: float | str | Sequence[str] = 0.2, seed: int = 0
) -> tuple[Segments, Segments | None, Segments | None]:
    """(train, validation, test), by whole images; None for a part that is not asked for.

    validation  a fraction below 1, or a number of images; 0 for none
    test        the same, and then it does not change with the seed; or "last:6" for the last six by name; or names,
                in a list or with commas between them
    """
    if isinstance(test, (int, float)):
        amount, named_N = test, torch.zeros(len(segments), dtype=torch.bool)
    else:
        amount, named_N = 0, _named(segments.names, test)
    plan = HoldOut(validation, amount, seed)
    rest, named = (_Rows(chosen_N.nonzero().flatten()) for chosen_N in (~named_N, named_N))
    needed = 1 + (plan.validation > 0) + (plan.test > 0)
    if len(rest.rows) < needed:
        left = f"{len(segments)} images" if not len(named.rows) else f"the {len(rest.rows)} images not named for test"
        raise UserError(f"{left} are too few for a split into {needed}: add some, or set validation or test to 0")
    train, held_out, tested = divide(rest, None, named if len(named.rows) else None, plan)
    return (
        segments.subset(train.rows),
        None if held_out is None else segments.subset(held_out.rows),
        None if tested is None else segments.subset(tested.rows),
    )


class Windows(NamedTuple):
    """A batch of windows.

    images  (B, C, crop, crop)  float32 in [0, 1]
    masks   (B, crop, crop)     int64 class ids, or IGNORED
    """

    images: Tensor
    masks: Tensor


class Crops:
    """Images and masks on the device, to take windows from at random places; nothing waits for the device.

    An image smaller than a window is continued by its reflection (one of a single pixel by that pixel), which its mask
    ignores.

    segments  at least one pair
    crop      side of a window
    """

    on_device = True

    def __init__(self, segments: Segments, crop: int, device: torch.device | str) -> None:
        if crop < 1:
            raise UserError(f"crop={crop}: give the side of a window in pixels, at least 1")
        if not len(segments):
            raise UserError("there are no images to take windows from")
        self.device, self.crop, self.channels = torch.device(device), crop, segments.channels
        images, masks = zip(*(_at_least(crop, *pair) for pair in zip(segments.images, segments.masks)))
        sizes_N2 = torch.tensor([mask.shape for mask in masks])
        area_N = sizes_N2.prod(1)
        # One after another, each row by row, the channels of an image one after another.
        self._images, self._masks = (torch.cat([t.flatten() for t in ts]).to(self.device) for ts in (images, masks))
        self._sizes_N2, self._starts_N = sizes_N2.to(self.device), (area_N.cumsum(0) - area_N).to(self.device)

    def __len__(self) -> int:
        return len(self._starts_N)

    @property
    def home(self) -> torch.device:
        """Where `take` wants its indices."""
        return self.device

    def take(self, indices_B: Tensor, generator: torch.Generator | None = None) -> Windows:
        """A window of each of these images; every place where it fits is as likely."""
        sizes_B2, start_B111 = self._sizes_N2[indices_B], self._starts_N[indices_B].view(-1, 1, 1, 1)
        # A whole number far beyond any image: its remainder is as good as uniform, and exact on every device.
        where = self.device if generator is None else generator.device
        drawn_B2 = torch.randint(2**62, (len(indices_B), 2), generator=generator, device=where).to(self.device)
        top_B, left_B = (drawn_B2 % (sizes_B2 - self.crop + 1)).unbind(1)
        side = torch.arange(self.crop, device=self.device)
        rows_B1H1 = (top_B[:, None] + side)[:, None, :, None]
        columns_B11W = (left_B[:, None] + side)[:, None, None, :]
        places_B1HW = rows_B1H1 * sizes_B2[:, 1].view(-1, 1, 1, 1) + columns_B11W
        channel_1C11 = torch.arange(self.channels, device=self.device).view(1, -1, 1, 1)
        planes_BC11 = self.channels * start_B111 + channel_1C11 * sizes_B2.prod(1).view(-1, 1, 1, 1)
        masks_BHW = self._masks[(start_B111 + places_B1HW).squeeze(1)]
        return Windows(as_float(self._images[planes_BC11 + places_B1HW]), masks_BHW.long())


def _pixels_of(mask_HW: Tensor) -> Tensor:
    """(256,)  how many pixels have each value"""
    return torch.bincount(mask_HW.flatten(), minlength=IGNORED + 1)


def _at_least(side: int, image_CHW: Tensor, mask_HW: Tensor) -> tuple[Tensor, Tensor]:
    """The pair, continued on every side where it is smaller than this."""
    height, width = mask_HW.shape
    if min(height, width) >= side:
        return image_CHW, mask_HW
    rows, top = _reflected(height, side)
    columns, left = _reflected(width, side)
    larger = mask_HW.new_full((len(rows), len(columns)), IGNORED)
    larger[top : top + height, left : left + width] = mask_HW
    return image_CHW[:, rows[:, None], columns], larger


def _reflected(length: int, side: int) -> tuple[Tensor, int]:
    """Where each of `side` pixels comes from, back and forth over `length` of them; and where the first of these is."""
    before = max(side - length, 0) // 2
    period = max(2 * (length - 1), 1)
    steps = (torch.arange(max(side, length)) - before) % period
    return torch.minimum(steps, period - steps), before


@dataclass(frozen=True, eq=False)
class _Rows:
    """Positions of pairs, all of one class: what `divide` can split."""

    rows: Tensor
    class_names: tuple[str, ...] = ("pair",)

    @property
    def targets(self) -> Tensor:
        return torch.zeros_like(self.rows)

    def subset(self, indices: Tensor) -> _Rows:
        return _Rows(self.rows[indices])


def _named(names: tuple[str, ...], test: str | Sequence[str]) -> Tensor:
    """(N,)  which of these are asked for"""
    if isinstance(test, str) and test.startswith("last:"):
        count = test.removeprefix("last:")
        if not count.isdecimal() or not 0 < int(count) <= len(names):
            raise UserError(f"test={test}: give a number from 1 to {len(names)} after last:, for example last:1")
        wanted = set(sorted(names)[-int(count) :])
    else:
        wanted = {name.strip() for name in test.split(",")} if isinstance(test, str) else set(test)
        if unknown := sorted(wanted - set(names)):
            known = f"they are called {_some(names)}"
            raise UserError(f"test: no image is called {_some(unknown)}; {known}. Or give a fraction, or last:6")
    return torch.tensor([name in wanted for name in names])


class _Files(NamedTuple):
    name: str
    image: Path
    mask: Path


def _list_parts(root: Path) -> dict[str, list[_Files]]:
    """The files of each part: "train", and "validation" and "test" where the folder has them."""
    folders = sorted(root.iterdir()) if root.is_dir() else []
    inside = [path for path in folders if path.name.lower() in SPLIT_NAMES and (path / "images").is_dir()]
    if not inside:
        return {"train": _list_pairs(root)}
    if (root / "images").is_dir():
        raise UserError(f"{root} has both images and {_some(path.name for path in inside)} in it: {LAYOUT}")
    parts: dict[str, list[_Files]] = {}
    for path in inside:
        part = SPLIT_NAMES[path.name.lower()]
        if part in parts:
            raise UserError(f"{root} has several folders for {part} images: keep one of them")
        parts[part] = _list_pairs(path)
    if "train" not in parts:
        raise UserError(f"{root} has {_some(path.name for path in inside)} but no train folder: {LAYOUT}")
    return parts


def _list_pairs(root: Path) -> list[_Files]:
    for folder in (root, root / "images", root / "masks"):
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}: {LAYOUT}")
    images, masks = _by_name(root / "images"), _by_name(root / "masks")
    if not images:
        raise UserError(f"there are no images in {root / 'images'}: {LAYOUT}")
    if lonely := sorted(images.keys() - masks.keys()):
        raise UserError(f"{root / 'masks'} has no mask for {_some(lonely)}: name each like its image, or remove these")
    if lonely := sorted(masks.keys() - images.keys()):
        raise UserError(f"{root / 'images'} has no image for the masks {_some(lonely)}: add them, or remove the masks")
    return [_Files(name, images[name], masks[name]) for name in sorted(images)]


def _by_name(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix.lower() not in {*IMAGE_SUFFIXES, ARRAY}:
            continue
        if path.stem in found:
            raise UserError(f"{folder} has both {found[path.stem].name} and {path.name}: keep one of them")
        found[path.stem] = path
    return found


def _read(files: list[_Files], positive: int | None, channels: int | None, num_classes: int | None) -> Segments:
    check_channels(channels)
    if num_classes is not None and not 2 <= num_classes <= IGNORED:
        raise UserError(f"num_classes={num_classes}: give 2 to {IGNORED}, the background among them")
    if positive is not None and num_classes not in (None, 2):
        raise UserError(f"positive={positive} makes two classes: leave num_classes={num_classes} out")
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # the decoders release the lock
        pairs = list(pool.map(_read_pair, files))
    pixels, values = [image for image, _ in pairs], [mask for _, mask in pairs]
    floats = [image for image in pixels if image.dtype != np.uint8]
    white = 255 if any(image.max() > 1 for image in floats) else 1
    images = [_as_tensor(image, white) for image in pixels]
    most = channels or max(len(image) for image in images)
    images = [set_channels(image[None], most)[0] for image in images]
    masks, class_names = _class_ids(values, files, positive, num_classes)
    segments = Segments(images, masks, class_names, tuple(each.name for each in files))
    if segments.absent:
        log.warning("no mask shows the class %s", _some(map(repr, segments.absent)))
    return segments


def _read_pair(files: _Files) -> tuple[np.ndarray, np.ndarray]:
    image = _read_image(files.image)
    mask = _read_mask(files.mask)
    if image.shape[1:] != mask.shape:
        sizes = f"{image.shape[1]}×{image.shape[2]}, but its mask {files.mask} is {mask.shape[0]}×{mask.shape[1]}"
        raise UserError(f"{files.image} is {sizes}: make them the same size")
    return image, mask


def _read_image(path: Path) -> np.ndarray:
    """(1 or 3, H, W)  uint8, or floating point where the file is"""
    if path.suffix.lower() != ARRAY:
        with _opened(path) as picture:
            size = picture.height, picture.width
        return decode(path, size, None)
    pixels = _read_array(path)
    if pixels.ndim == 2:
        pixels = pixels[None]
    elif pixels.shape[-1] in (1, 3):
        pixels = pixels.transpose(2, 0, 1)
    if len(pixels) not in (1, 3):
        raise UnreadableImage(path, f"an image is (H, W) or has 1 or 3 channels, not the shape {pixels.shape}")
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.uint16:
        return ((pixels.astype(np.int64) + 128) // 257).astype(np.uint8)  # 65535 / 257 = 255, rounded to the nearest
    if pixels.dtype.kind != "f":
        raise UnreadableImage(path, f"{pixels.dtype} has no known range; save it as uint8, uint16 or floats in [0, 1]")
    if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 255):
        raise UnreadableImage(path, f"floats from {pixels.min():g} to {pixels.max():g}; scale them to [0, 1]")
    return pixels


def _as_tensor(pixels_CHW: np.ndarray, white: int) -> Tensor:
    """(C, H, W)  uint8

    white  the brightest that a floating-point pixel can be
    """
    if pixels_CHW.dtype != np.uint8:
        pixels_CHW = (pixels_CHW.astype(np.float64) * (255 / white)).round().astype(np.uint8)
    return torch.from_numpy(np.array(pixels_CHW, order="C"))  # a copy: what PIL gives cannot be written to


def _read_mask(path: Path) -> np.ndarray:
    """(H, W)  whole numbers, as the file has them: of a palette the indices, which are what such masks mean"""
    if path.suffix.lower() == ARRAY:
        values = _read_array(path)
        if values.ndim == 3 and 1 in (len(values), values.shape[-1]):
            values = values[0] if len(values) == 1 else values[..., 0]
    else:
        with _opened(path) as picture:
            if picture.format in ("JPEG", "MPO", "WEBP") or picture.info.get("compression") == "jpeg":
                raise ValueError("a compressed photograph, whose values are not exact; save the masks again as PNG")
            values = _one_channel(np.asarray(picture), transparent=picture.mode.endswith("A"))
    if values.ndim != 2:
        raise UnreadableImage(path, f"a mask is (H, W), not the shape {values.shape}")
    if values.dtype.kind == "f" and np.array_equal(values, values.round()):
        values = values.astype(np.int64)
    if values.dtype.kind not in "bui":
        raise UnreadableImage(path, "a mask has a whole number for each pixel, the id of its class")
    return values.astype(np.uint8) if values.dtype.kind == "b" else values


def _one_channel(values: np.ndarray, transparent: bool) -> np.ndarray:
    if values.ndim == 2:
        return values
    if transparent and (values[..., -1] == 255).all():
        values = values[..., :-1]
    if (values != values[..., :1]).any():
        raise ValueError("in colour, or transparent; save the masks with one channel, the id of a pixel's class")
    return values[..., 0]


def _read_array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UnreadableImage(path, f"not an array in NumPy's own format ({error})") from error
    if not isinstance(array, np.ndarray) or array.ndim not in (2, 3) or not array.size:
        raise UnreadableImage(path, f"not an array of two or three axes: {getattr(array, 'shape', 'an archive')}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """The picture, upright and not yet decoded; whatever goes wrong with it names the file."""
    from PIL import Image, ImageOps

    try:
        with path.open("rb") as file, Image.open(file) as picture:
            if picture.format == "TIFF" and (pages := getattr(picture, "n_frames", 1)) > 1:
                raise ValueError(f"{pages} images in one file; save each in a file of its own")
            ImageOps.exif_transpose(picture, in_place=True)
            yield picture
    except Image.UnidentifiedImageError as error:
        raise UnreadableImage(path, "not an image in a known format") from error
    except Exception as error:
        # A damaged file can make a decoder raise nearly anything (SyntaxError, struct.error, IndexError, ...).
        raise UnreadableImage(path, str(error) or type(error).__name__) from error


def _class_ids(
    masks: list[np.ndarray], files: list[_Files], positive: int | None, num_classes: int | None
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Masks of class ids, and what the classes are called."""
    found = [set(np.unique(mask).tolist()) for mask in masks]
    values = set[int]().union(*found)
    if positive is None and IGNORED in values and values <= {0, IGNORED} and num_classes in (None, 2):
        positive = IGNORED
    if positive is not None:
        if positive not in values:
            raise UserError(f"positive={positive}: no mask has this value, only {_some(map(str, sorted(values)))}")
        return [torch.from_numpy((mask == positive).astype(np.uint8)) for mask in masks], TWO_CLASSES
    ids = values - {IGNORED}
    count = num_classes or max(2, next(n for n in range(len(ids) + 1) if n not in ids))
    allowed = set(range(2 if num_classes is None and count > UNASKED else count))
    if stray := ids - allowed:
        path, has = next((each.mask, has) for each, has in zip(files, found) if has & stray)
        known = "0, 1, 2, … without a gap" if num_classes is None else f"0 to {num_classes - 1}"
        raise UserError(
            f"{path} has the values {_some(map(str, sorted(has)))}, but class ids are {known}, and 255 is ignored: "
            f"choose the value of the positive class, as in --set data.positive={max(has)}, or give num_classes"
        )
    names = TWO_CLASSES if count == 2 else tuple(map(str, range(count)))
    return [torch.from_numpy(mask.astype(np.uint8)) for mask in masks], names


def _some(names: Iterable[str]) -> str:
    """The first five, and how many more there are."""
    names = list(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
