"""Data sets of the Hugging Face library `datasets`: objects, and folders that `save_to_disk` has written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from torchcaps.data.encoded import EncodedDataset, Packed, as_targets, open_packed
from torchcaps.data.images import decode
from torchcaps.data.listing import SPLIT_NAMES, Listing, abbreviate
from torchcaps.errors import UnreadableImage, UserError
from torchcaps.extras import import_extra
from torchcaps.io.limits import size_of

EXTRA = "datasets"
LABEL_COLUMNS = ("label", "labels", "class", "target")
OF_ONE, OF_SEVERAL = "dataset_info.json", "dataset_dict.json"  # files that save_to_disk writes
WHERE = "Hugging Face data"


class RowContents:
    """The images of columns, by the paths that name their rows.

    Args:
        rows: by the name of a table: a datasets.Dataset whose image column gives the content and path of files, and the
            name of that column.
    """

    def __init__(self, rows: dict[str, tuple[Any, str]]):
        self.rows = rows

    def read(self, path: Path) -> bytes:
        """Return the content of an image."""
        rows, column = self.rows[str(path.parent)]
        return _content(rows[int(path.name)][column], path)

    def facts(self, path: Path) -> str:
        """Return the fingerprint that `datasets` gives a table."""
        return str(self.rows[str(path.parent)][0]._fingerprint)


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
            place = Path(f"{WHERE}/{number}")
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
    return open_packed(list_rows({"train": rows}, WHERE), WHERE, image_size, channels)


def list_rows(tables: dict[str, Any], where: str) -> Packed:
    """List the images of a datasets.Dataset for each part.

    Args:
        tables: one column of each must hold images. The classes are those of a ClassLabel, or a column called label.
        where: what messages call them.
    """
    parts, contents = {}, {}
    for part, rows in tables.items():
        name = where if len(tables) == 1 else f"{where}/{part}"
        image, targets, class_names = _labelled(rows, name)
        digits = len(str(len(rows)))  # so that paths sort as rows do
        paths = tuple(Path(name, str(number).zfill(digits)) for number in range(len(rows)))
        parts[part] = Listing(paths, targets, class_names)
        contents[str(Path(name))] = image
    if len({listing.class_names for listing in parts.values()}) > 1:
        raise UserError(f"the splits of {where} have different classes: cast their labels to one ClassLabel")
    return Packed(parts, RowContents(contents))


def list_saved(path: Path) -> Packed:
    """List the images of each part of a folder that `save_to_disk` has written: "train", and others if it has any."""
    (datasets,) = import_extra(EXTRA, "datasets")
    if not is_saved_dataset(path):
        raise UserError(f"{path} was not written by save_to_disk: it has neither {OF_ONE} nor {OF_SEVERAL}")
    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:  # of Arrow, JSON or the file system
        raise UserError(f"{path} cannot be read as a data set: {error}") from error
    if not isinstance(found, datasets.DatasetDict):
        return list_rows({"train": found}, str(path))
    if set(found) - set(SPLIT_NAMES) or "train" not in found:
        raise UserError(f"{path} has the splits {abbreviate(found)}: call them train, validation and test")
    return list_rows({SPLIT_NAMES[name]: rows for name, rows in found.items()}, str(path))


def _labelled(rows: Any, where: str) -> tuple[tuple[Any, str], Tensor, tuple[str, ...]]:
    """The images of a table, as `RowContents` takes them, the class ids (N,) and the class names."""
    (datasets,) = import_extra(EXTRA, "datasets")
    if isinstance(rows, datasets.DatasetDict | datasets.IterableDatasetDict):
        raise UserError(f"{where} has several splits, {abbreviate(rows)}: give one of them, data['train']")
    if rows.format["type"] is not None:
        raise UserError(
            f"{where} has the format {rows.format['type']!r}, which would be lost: use with_format(None) or a "
            "DataLoader"
        )
    image, label = _columns(rows.features)
    labels = list(rows.with_format(None)[label])
    names = getattr(rows.features[label], "names", None)
    if any(each is None for each in labels) or (names is not None and any(each < 0 for each in labels)):
        raise UserError(f"{where}: some images have no label: remove them with filter()")
    if not labels:
        raise UserError(f"{where} is empty")
    targets, class_names = as_targets(labels, None if names is None else tuple(names), where)
    return (rows.cast_column(image, datasets.Image(decode=False)), image), targets, class_names


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
        raise UnreadableImage(place, "the row has no image")
    if cell.get("bytes") is not None:
        return cell["bytes"]
    if not isinstance(cell.get("path"), str):
        raise UnreadableImage(place, "the row has neither content nor a path")
    size_of(path := Path(cell["path"]), f"it is the image {place}")  # a pipe would block
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadableImage(place, f"{path}: {error.strerror or error}") from error
