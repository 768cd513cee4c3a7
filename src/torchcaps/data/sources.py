"""Named data sets: where their images come from, and how they are split."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from torchcaps.data.dataset import Dataset, Splits
from torchcaps.data.datasets.affnist import affnist_like_splits, affnist_splits, expanded_splits
from torchcaps.data.datasets.cifar import find_cifar10, read_cifar10
from torchcaps.data.datasets.multimnist import MARGIN, multimnist_splits
from torchcaps.data.datasets.scattered import scattered_splits
from torchcaps.data.datasets.shapes.annotated import ShapeSource
from torchcaps.data.datasets.shapes.parts import PARTS
from torchcaps.data.datasets.shapes.sets import shapes_splits
from torchcaps.data.datasets.smallnorb import SIDE, VALIDATION_TOY, smallnorb_splits
from torchcaps.data.download import REMOTES, dataset_folder, fetch
from torchcaps.data.encoded import load_packed
from torchcaps.data.folder import load_folder
from torchcaps.data.formats.idx import read_idx_pair
from torchcaps.data.hugging_face import is_saved_dataset, list_saved
from torchcaps.data.images import check_channels, check_size, resize_images, set_channels
from torchcaps.data.mask_folder import is_mask_folder
from torchcaps.data.mask_sources import MASK_SOURCES, MaskOptions
from torchcaps.data.split import SplitOptions, split_dataset
from torchcaps.data.storage import StorageOptions
from torchcaps.data.tar_shards import is_shards, list_shards
from torchcaps.errors import UserError, did_you_mean
from torchcaps.registry import Registry

Size = tuple[int, int] | None
DIGIT_NAMES = tuple("0123456789")
FASHION_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def load_data(
    source: str = "digits",
    *,
    path: str | Path | None = None,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    validation: float = 0.1,
    test: float | str = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    per_class: int | None = None,
    positive: int | None = None,
    num_classes: int | None = None,
    storage: str = "memory",
    workers: int | None = None,
    cache_dir: str | Path | None = None,
    on_error: str = "stop",
    processes: int = 1,
    console: Console | None = None,
) -> Splits[Any]:
    """Load training, validation and test data: a Dataset each, or a SegmentationDataset where images have masks.

    Args:
        source: a name in SOURCES, or in MASK_SOURCES for images with masks.
        path: the folder (or CSV file) of "folder", or the folder of "pairs"; the tar files of "shards", as in
            train-{000..009}.tar; the folder of "hugging-face" that `save_to_disk` has written; for other sources, the
            folder of their files, if that is not the data folder.
        image_size: pixels a side, or (H, W); None keeps the size of the source (an image folder: 32).
        channels: 1 or 3; None keeps those of the source.
        validation: fraction (below 1) or number of images held out from training; 0 for none.
        test: the same, for sources without a test set. With masks also names of images, separated by commas, or
            "last:6" for the last six by name.
        split_seed: of the validation images; the test images do not depend on it.
        limit: the most training images to keep, for a quick run.
        per_class: the number of training images to keep of each class.
        positive: the value of masks that is class 1, all others being background.
        num_classes: the number of classes of masks, if not every class occurs.
        storage, workers, cache_dir, on_error, processes, console: of images in files or shards; see `StorageOptions`.
    """
    if source not in SOURCES and source not in MASK_SOURCES:
        hint = "for a folder of images use source='folder' and path=" if Path(source).exists() else ""
        raise UserError(f"unknown data source {source!r}: {hint or did_you_mean(source, [*SOURCES, *MASK_SOURCES])}")
    size, folder = check_size(image_size), None if path is None else Path(path).expanduser()
    check_channels(channels)
    kept = StorageOptions(storage, workers, cache_dir, on_error, processes, console)
    if source not in STORED and (storage in ("cache", "stream") or on_error == "skip"):
        raise UserError(
            f"storage and on_error are for folders, shards and Hugging Face data; {source} is kept in memory: omit them"
        )
    if source in MASK_SOURCES:
        if per_class is not None:
            raise UserError("per_class: an image with a mask has no single class; use limit")
        masks = MaskOptions(folder, size, channels, positive, num_classes, validation, test, split_seed, limit)
        return MASK_SOURCES[source](masks)
    if positive is not None or num_classes is not None or isinstance(test, str):
        raise UserError(f"positive, num_classes and names of test images are for images with masks, not for {source}")
    split = SplitOptions(validation, test, split_seed, limit, per_class)
    if source in STORED:
        return STORED[source](folder, size, channels, split, kept)
    return SOURCES[source](folder, size, channels, split)


def named_data(text: str) -> tuple[str, str | None]:
    """Return the (source, path) that `--data TEXT` stands for: a folder of images or of pairs, a CSV file, tar shards,
    a folder that `save_to_disk` has written, or the name of a data set."""
    if is_saved_dataset(Path(text)):
        return "hugging-face", str(Path(text).resolve())
    if is_shards(text):
        return "shards", os.path.abspath(text)
    if Path(text).exists():
        return "pairs" if is_mask_folder(Path(text)) else "folder", str(Path(text).resolve())
    if text not in (*STORED, "pairs") and (text in SOURCES or text in MASK_SOURCES):
        return text, None
    raise UserError(f"--data {text}: there is no such folder, and no data set of that name; see `torchcaps list`")


def _digits(path: Path | None, size: Size, channels: int | None, options: SplitOptions) -> Splits:
    """Load the 1,797 handwritten digits of scikit-learn, 8×8."""
    if path is not None:
        raise UserError(
            "the digits come with scikit-learn and have no path: for a folder of images use source='folder'"
        )
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = torch.from_numpy(found.images) * (255 / 16)  # counts from 0 to 16
    data = Dataset(pixels.round().to(torch.uint8)[:, None], torch.from_numpy(found.target).long(), DIGIT_NAMES)
    return _prepare("digits", data, None, size, channels, options)


def _mnist(path: Path | None, size: Size, channels: int | None, options: SplitOptions) -> Splits:
    return _mnist_family("mnist", DIGIT_NAMES, path, size, channels, options)


def _fashion_mnist(path: Path | None, size: Size, channels: int | None, options: SplitOptions) -> Splits:
    return _mnist_family("fashion-mnist", FASHION_NAMES, path, size, channels, options)


def _mnist_family(
    name: str, class_names: tuple[str, ...], path: Path | None, size: Size, channels: int | None, options: SplitOptions
) -> Splits:
    files = [_find_idx(path, remote.name) for remote in REMOTES[name]] if path else _idx_files(name)
    train_images, train_labels, test_images, test_labels = files
    train = read_idx_pair(train_images, train_labels, class_names)
    test = read_idx_pair(test_images, test_labels, class_names)
    return _prepare(name, train, test, size, channels, options)


def _multimnist(path: Path | None, size: Size, channels: int | None, options: SplitOptions) -> Splits:
    """Load two overlapping MNIST digits of different classes, 36×36."""
    return multimnist_splits(_mnist(path, _unpadded(size, 2 * MARGIN), channels, options))


def _multimnist_shift6(path: Path | None, size: Size, channels: int | None, options: SplitOptions) -> Splits:
    """Load the same, shifted by up to 6 pixels instead of 4, as in the authors' code."""
    return multimnist_splits(_mnist(path, _unpadded(size, 2 * MARGIN), channels, options), shift=6)


def _unpadded(size: Size, padding: int) -> Size:
    """Return the size of a digit in an image of this size."""
    if size is not None and min(size) <= padding:
        raise UserError(f"image_size={size[0]}×{size[1]} leaves no room for a digit: give more than {padding}")
    return None if size is None else (size[0] - padding, size[1] - padding)


def _mnist_expanded(path: Path | None, size: Size, channels: int | None, options: SplitOptions) -> Splits:
    """Load MNIST in 40×40: centred for training, at random positions for validation and testing."""
    return convert_splits(expanded_splits(_mnist(path, None, None, options)), size, channels)


def _affnist_like(path: Path | None, size: Size, channels: int | None, options: SplitOptions) -> Splits:
    """Load the same for training; affine transformed digits for testing."""
    return convert_splits(affnist_like_splits(_mnist(path, None, None, options)), size, channels)


def _affnist(path: Path | None, size: Size, channels: int | None, options: SplitOptions) -> Splits:
    """Load the same for training; the original affNIST for testing, from `path`, its test.mat or the folder of it."""
    mnist = _mnist(None, None, None, options)
    return convert_splits(affnist_splits(mnist, path or dataset_folder("affnist")), size, channels)


def _smallnorb(
    viewpoint: str | None, familiar: bool, path: Path | None, size: Size, channels: int | None, options: SplitOptions
) -> Splits:
    """Load stereo pairs of toys, 48×48, standardised as in the paper; other sizes are resized from the original 96×96.
    Validation images, if any, are those of one toy in five."""
    if channels not in (None, 2):
        raise UserError(f"channels={channels}: smallNORB has two, one for each camera; omit channels")
    files = [_find_idx(path, remote.name) for remote in REMOTES["smallnorb"]] if path else _idx_files("smallnorb")
    side = 48 if size in (None, (48, 48)) else SIDE
    toy = VALIDATION_TOY if options.validation else None
    splits = smallnorb_splits(files, viewpoint, familiar=familiar, size=side, standard=True, toy=toy)
    train, validation, test = split_dataset(splits.train, splits.validation, splits.test, options)
    return convert_splits(Splits(train, validation, test, splits.source), size, channels)


def _cifar10(path: Path | None, size: Size, channels: int | None, options: SplitOptions) -> Splits:
    root = path or dataset_folder("cifar10")
    (remote,) = REMOTES["cifar10"]
    location = find_cifar10(root)
    if location is None and path is not None:
        raise UserError(f"{path} holds neither cifar-10-batches-bin nor {remote.name}: check the path, or omit it")
    train, test = read_cifar10(location or fetch(remote, root))
    return _prepare("cifar10", train, test, size, channels, options)


def _shapes(
    test: str, wholes: tuple[str, ...], path: Path | None, size: Size, channels: int | None, options: SplitOptions
) -> Splits:
    """Draw single shapes, 32×32, within 15 degrees of upright for training; testing is on a frozen set."""
    if path is not None:
        raise UserError("shapes are drawn and have no path: omit path")
    drawn = shapes_splits(test, wholes=wholes)
    train, validation, tested = split_dataset(drawn.train, None, drawn.test, options)
    return convert_splits(replace(drawn, train=train, validation=validation, test=tested), size, channels)


def _scattered(
    source: Callable[..., Splits], side: int, path: Path | None, size: Size, channels: int | None, options: SplitOptions
) -> Splits:
    """Load digits scattered over images of 128×128, one to five in each."""
    if size is not None or channels not in (None, 1):
        raise UserError("scattered digits are grey images of one size: omit image_size and channels")
    if options.per_class is not None:
        raise UserError("per_class: an image of scattered digits has several classes; use limit")
    return scattered_splits(source(path, (side, side), 1, replace(options, limit=None)), options.limit)


def _folder(
    path: Path | None,
    size: Size,
    channels: int | None,
    options: SplitOptions,
    storage: StorageOptions | None = None,
) -> Splits:
    if path is None:
        raise UserError("source='folder' needs path=, the folder of images (or a .csv file)")
    return load_folder(path, size, channels, options, storage)


def _tar_shards(
    path: Path | None,
    size: Size,
    channels: int | None,
    options: SplitOptions,
    storage: StorageOptions | None = None,
) -> Splits:
    if path is None:
        raise UserError("source='shards' needs path=, such as shards/train-{000..009}.tar")
    return load_packed(list_shards(str(path)), size, channels, options, storage, "shards")


def _hugging_face(
    path: Path | None,
    size: Size,
    channels: int | None,
    options: SplitOptions,
    storage: StorageOptions | None = None,
) -> Splits:
    if path is None:
        raise UserError("source='hugging-face' needs path=, the folder that save_to_disk has written")
    return load_packed(list_saved(path), size, channels, options, storage, "hugging-face")


_BOAT_PARTS = ("rectangle", "triangle")
_SCENE: dict[str, Any] = {"size": 64, "turn": 180.0, "scale": (0.75, 1.25), "shift": None, "visible": 0.4}
SHAPE_SOURCES = (
    ShapeSource("shapes-objects", 2000, "upright", _BOAT_PARTS),
    ShapeSource("faces-objects", 2000, "faces", first=1, wholes=("face", "sad face")),
    ShapeSource("harbours", 1000, "harbours", _BOAT_PARTS, wholes=("harbour",), size=64),
    ShapeSource(
        "scenes", 10_000, "crowded", PARTS[:4], **_SCENE, number=(1, 6), overlap=(0.0, 0.4), distractors=(0, 2)
    ),
)
STORED = {
    "folder": _folder,
    "shards": _tar_shards,
    "hugging-face": _hugging_face,
}  # whose images are kept as one chooses
_KNOWN: dict[str, Callable[[Path | None, Size, int | None, SplitOptions], Splits]] = {
    "digits": _digits,
    "mnist": _mnist,
    "fashion-mnist": _fashion_mnist,
    "multimnist": _multimnist,
    "multimnist-shift6": _multimnist_shift6,
    "mnist-expanded": _mnist_expanded,
    "affnist-like": _affnist_like,
    "affnist": _affnist,
    "smallnorb": partial(_smallnorb, None, False),
    "smallnorb-azimuth": partial(_smallnorb, "azimuth", False),
    "smallnorb-azimuth-familiar": partial(_smallnorb, "azimuth", True),
    "smallnorb-elevation": partial(_smallnorb, "elevation", False),
    "smallnorb-elevation-familiar": partial(_smallnorb, "elevation", True),
    "cifar10": _cifar10,
    "shapes": partial(_shapes, "upright", ("boat", "house")),
    "shapes-turned": partial(_shapes, "turned", ("boat", "house")),
    "faces": partial(_shapes, "faces", ("face", "sad face")),
    "faces-turned": partial(_shapes, "faces-turned", ("face", "sad face")),
    **{source.name: source for source in SHAPE_SOURCES},
    "scattered-digits": partial(_scattered, _digits, 24),
    "scattered-mnist": partial(_scattered, _mnist, 28),
    **STORED,
}
SOURCES = Registry("data set", "register_data", _KNOWN)


def has_files(name: str) -> bool:
    """Return whether all files of this data set are in the data folder."""
    return all(_present(dataset_folder(name), remote.name) for remote in REMOTES[name])


def _idx_files(name: str) -> list[Path]:
    """Return the files of a data set in the data folder; download missing ones."""
    folder = dataset_folder(name)
    return [_present(folder, remote.name) or fetch(remote, folder) for remote in REMOTES[name]]


def _find_idx(folder: Path, name: str) -> Path:
    found = _present(folder, name)
    if found is None:
        raise UserError(f"{folder} does not hold {name} (.gz or not): check the path, or omit it to download")
    return found


def _present(folder: Path, name: str) -> Path | None:
    """Find a file, gzipped or not, also with the dot before idx that some copies have."""
    plain = name.removesuffix(".gz")
    spellings = (name, plain, name.replace("-idx", ".idx"), plain.replace("-idx", ".idx"))
    return next((folder / each for each in spellings if (folder / each).is_file()), None)


def _prepare(
    name: str, train: Dataset, test: Dataset | None, size: Size, channels: int | None, options: SplitOptions
) -> Splits:
    train, validation, test = split_dataset(train, None, test, options)
    return convert_splits(Splits(train, validation, test, name), size, channels)


def convert_splits(splits: Splits, size: Size, channels: int | None) -> Splits:
    """The same images in another size, or with another number of channels."""
    parts = (splits.train, splits.validation, splits.test)
    train, validation, test = (None if part is None else _converted(part, size, channels) for part in parts)
    assert train is not None
    return Splits(train, validation, test, splits.source)


def _converted(data: Dataset, size: Size, channels: int | None) -> Dataset:
    images = set_channels(data.images, channels)
    resized = resize_images(images, size or data.image_shape[1:])
    return replace(data, images=resized, digests=None)
