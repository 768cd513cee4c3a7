"""Data sets of the Hugging Face library `datasets`: objects, and folders that `save_to_disk` has written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from torchcaps.data.encoded import EncodedDataset, EncodedListing, as_targets
from torchcaps.data.images import decode
from torchcaps.data.listing import SPLIT_NAMES, abbreviate
from torchcaps.errors import UserError
from torchcaps.extras import import_extra
from torchcaps.io.limits import size_of

EXTRA = "datasets"
LABEL_COLUMNS = ("label", "labels", "class", "target")
OF_ONE, OF_SEVERAL = "dataset_info.json", "dataset_dict.json"  # files that save_to_disk writes
WHERE = "Hugging Face data"


@dataclass(frozen=True, eq=False)
class RowImages:
    """The images of one column.

    Args:
        rows: a datasets.Dataset whose image column gives the content and path of files.
        column: its name.
        where: what messages call the data set.
    """

    rows: Any
    column: str
    where: str

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, number: int) -> Path:
        """Return the place of an image."""
        return Path(f"{self.where}[{number}]")

    def read(self, number: int) -> bytes:
        """Read the content of an image."""
        return _content(self.rows[number][self.column], self.name(number))


class RowStream(IterableDataset):
    """A datasets.IterableDataset as pairs (image, class id), in its own order.

    Args:
        rows: the data set; it must know its features.
    """

    def __init__(self, rows: Any):
        (datasets,) = import_extra(EXTRA, "datasets")
        if rows.features is None:
            raise UserError(f"{WHERE}: an iterable data set must know its features: use rows.cast(features)")
        self.image, label = _columns(rows.features)
        self.label, self.classes = label, getattr(rows.features[label], "names", None)
        if self.classes is None and "string" in str(getattr(rows.features[label], "dtype", "")):
            raise UserError(f"{WHERE}: the labels of an iterable data set must be class ids: cast them to ClassLabel")
        self.rows = rows.cast_column(self.image, datasets.Image(decode=False))

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for number, row in enumerate(self.rows):
            place = Path(f"{WHERE}[{number}]")
            pixels = decode(place, None, None, _content(row[self.image], place))
            yield torch.from_numpy(np.array(pixels)), int(row[self.label])

    @property
    def undecoded(self) -> Any:
        """The labels alone, from which examples are counted."""
        return self.rows.select_columns([self.label])

    def set_epoch(self, epoch: int) -> None:
        """Shuffle in another order, if the data set is shuffled."""
        self.rows.set_epoch(epoch)


def is_hugging_face(data: Any) -> bool:
    """Whether an object is a data set, or a dict of them, of the library `datasets`; it is not imported for that."""
    return type(data).__module__.partition(".")[0] == "datasets"


def is_saved_dataset(path: Path) -> bool:
    """Whether `save_to_disk` has written this folder."""
    return (path / OF_ONE).is_file() or (path / OF_SEVERAL).is_file()


def list_rows(rows: Any, where: str = WHERE) -> EncodedListing:
    """List the images of a datasets.Dataset.

    Args:
        rows: one column must hold images. The classes are those of a ClassLabel, or a column called label.
        where: what messages call it.
    """
    (datasets,) = import_extra(EXTRA, "datasets")
    if isinstance(rows, datasets.DatasetDict | datasets.IterableDatasetDict):
        raise UserError(f"{where} has several splits, {abbreviate(rows)}: give one of them, data['train']")
    if rows.format["type"] is not None:
        raise UserError(
            f"{where} has the format {rows.format['type']!r}, which would be lost: use with_format(None) or a "
            "DataLoader"
        )
    image, label = _columns(rows.features)
    labels = rows.with_format(None)[label]
    names = getattr(rows.features[label], "names", None)
    if any(each is None for each in labels) or (names is not None and any(each < 0 for each in labels)):
        raise UserError(f"{where}: some images have no label: remove them with filter()")
    targets, class_names = as_targets(list(labels), None if names is None else tuple(names), where)
    return EncodedListing.of(
        RowImages(rows.cast_column(image, datasets.Image(decode=False)), image, where), targets, class_names
    )


def open_hugging_face(
    rows: Any, image_size: int | tuple[int, int] | None = None, channels: int | None = None
) -> EncodedDataset:
    """Open a data set of the library `datasets` as a torch Dataset of pairs (image, class id), for `torchcaps.fit`.

    Args:
        rows: a datasets.Dataset. One column must hold images; the classes are those of a ClassLabel, or a column called
            label.
        image_size: pixels a side, or (H, W); None keeps the size of the first image, which all others must have.
        channels: 1 or 3; None takes those of the first image.
    """
    return EncodedDataset(list_rows(rows), image_size, channels)


def list_saved(path: Path) -> dict[str, EncodedListing]:
    """List the images of each part of a folder that `save_to_disk` has written: "train", and others if it has any."""
    (datasets,) = import_extra(EXTRA, "datasets")
    if not is_saved_dataset(path):
        raise UserError(f"{path} was not written by save_to_disk: it has neither {OF_ONE} nor {OF_SEVERAL}")
    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:  # of Arrow, JSON or the file system
        raise UserError(f"{path} cannot be read as a data set: {error}") from error
    if not isinstance(found, datasets.DatasetDict):
        return {"train": list_rows(found, str(path))}
    unknown = sorted(set(found) - set(SPLIT_NAMES))
    if unknown or "train" not in found:
        raise UserError(f"{path} has the splits {abbreviate(found)}: call them train, validation and test")
    listings = {SPLIT_NAMES[name]: list_rows(rows, f"{path}/{name}") for name, rows in found.items()}
    if len({listing.class_names for listing in listings.values()}) > 1:
        raise UserError(f"the splits of {path} have different classes: cast their labels to one ClassLabel")
    return listings


def _columns(features: Any) -> tuple[str, str]:
    """The names of the columns of images and labels."""
    (datasets,) = import_extra(EXTRA, "datasets")
    images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    labels = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    labels = labels or [name for name in LABEL_COLUMNS if name in features]
    for what, found in (("images", images), ("labels", labels)):
        if len(found) != 1:
            raise UserError(
                f"{WHERE}: one column must hold {what}, and {abbreviate(found) or 'none'} of {abbreviate(features)} "
                "do: use select_columns, or cast_column with datasets.Image() or datasets.ClassLabel()"
            )
    return images[0], labels[0]


def _content(cell: Any, place: Path) -> bytes:
    """The content of an image that `datasets` has not decoded."""
    if cell is None:
        raise UserError(f"{place} has no image: remove it with filter()")
    if cell.get("bytes") is not None:
        return cell["bytes"]
    if not isinstance(cell.get("path"), str):
        raise UserError(f"{place} has neither content nor a path: write the data set again")
    size_of(path := Path(cell["path"]), f"it is the image {place}")  # a pipe would block
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{place}: cannot read {path}: {error.strerror or error}") from error
