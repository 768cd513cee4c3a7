"""Lists of image files with labels, from class folders or labels.csv; nothing is decoded here."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.io.limits import size_of

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
SPLIT_NAMES = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
LABELS_CSV = "labels.csv"
MAX_TARGETS = 1 << 27  # entries of a table of images and classes: half a gigabyte
LAYOUT = (
    "put the images into FOLDER/<class>/ or FOLDER/train|val|test/<class>/, "
    f"or list them in FOLDER/{LABELS_CSV} with the columns file,label"
)


@dataclass(frozen=True, eq=False)
class Listing:
    """Labelled files.

    Args:
        paths: N paths.
        targets: (N,) class ids, or (N, J) multi-hot.
        class_names: J names.
    """

    paths: tuple[Path, ...]
    targets: Tensor
    class_names: tuple[str, ...]

    def subset(self, indices: Tensor) -> Listing:
        """Return the files at the positions `indices` (M,), in that order."""
        return Listing(tuple(self.paths[i] for i in indices.tolist()), self.targets[indices], self.class_names)

    def joined(self, other: Listing) -> Listing:
        """Return these files, then those of `other`."""
        return Listing(self.paths + other.paths, torch.cat([self.targets, other.targets]), self.class_names)


def list_folder(root: Path) -> dict[str, Listing]:
    """List the files of each part: "train", and "validation" and "test" where the folder has them.

    A labels.csv takes precedence over class folders.
    """
    if not os.path.exists(root):  # Path.exists() raises for a name that is too long
        raise UserError(f"there is no folder {root}: check the path")
    if root.is_file() and root.suffix.lower() != ".csv":
        raise UserError(f"{root} is a file; give a folder of images or a .csv file with the columns file,label")
    table = root if root.is_file() else root / LABELS_CSV
    if table.is_file():
        return {"train": _read_table(table)}

    folders = _folders(root)
    parts = [f for f in folders if f.name.lower() in SPLIT_NAMES]
    # "train" may be a class of vehicles: it is a part of the data only if no other folder is there
    if parts and len(parts) == len(folders):
        return _list_parts(root, parts)
    if len(parts) > 1:
        others = abbreviate([f.name for f in folders if f not in parts])
        raise UserError(f"{root} mixes {abbreviate([f.name for f in parts])} with other folders ({others}): {LAYOUT}")
    return {"train": _list_classes(root, folders)}


def _list_parts(root: Path, folders: list[Path]) -> dict[str, Listing]:
    listings: dict[str, Listing] = {}
    for folder in folders:
        part = SPLIT_NAMES[folder.name.lower()]
        if part in listings:
            raise UserError(f"{root} has several folders for {part} images: keep one of them")
        listings[part] = _list_classes(folder, _folders(folder))
    if "train" not in listings:
        raise UserError(f"{root} has {abbreviate([f.name for f in folders])} but no train folder: {LAYOUT}")
    names = set(listings["train"].class_names)
    for part, listing in listings.items():
        if odd := sorted(names ^ set(listing.class_names)):
            raise UserError(
                f"the train and {part} folders of {root} must hold the same classes; only one has {abbreviate(odd)}"
            )
    return listings


def _list_classes(root: Path, folders: list[Path]) -> Listing:
    """List every image below each of these folders, labelled with the folder's name."""
    found = {folder.name: _images_below(folder) for folder in folders}
    if not any(found.values()):
        loose = any(path.suffix.lower() in IMAGE_SUFFIXES for path in entries(root) if path.is_file())
        why = "has images but no class folders" if loose else "has no images in it"
        raise UserError(f"{root} {why}: {LAYOUT}")
    if empty := [name for name, paths in found.items() if not paths]:
        raise UserError(f"no images in {abbreviate(empty)} of {root}: add some, or remove the folder")
    class_names = tuple(found)
    _check_several(class_names, root)
    ids = torch.tensor([len(paths) for paths in found.values()])
    targets = torch.arange(len(class_names)).repeat_interleave(ids)
    return Listing(tuple(path for paths in found.values() for path in paths), targets, class_names)


def _read_table(table: Path) -> Listing:
    """Read the files and labels of a CSV file; it is multi-label if any row has several labels, separated by `;`."""
    rows = _csv_rows(table)
    labels = [tuple(dict.fromkeys(word.strip() for word in row[1].split(";") if word.strip())) for row in rows]
    paths = tuple(table.parent / row[0] for row in rows)
    if missing := [str(path) for path in paths if not os.path.isfile(path)]:
        raise UserError(f"{table} names files that are not there: {abbreviate(missing)}")
    if repeated := [str(path) for path, times in Counter(paths).items() if times > 1]:
        raise UserError(f"{table} names {abbreviate(repeated)} more than once: join the labels with ; in one row")
    several = any(len(words) > 1 for words in labels)
    # in multi-label data an image may show none of the classes; otherwise an empty label is an oversight
    if not several and (blank := [row[0] for row, words in zip(rows, labels) if not words]):
        raise UserError(f"{table} gives no label for {abbreviate(blank)}")
    class_names = tuple(sorted({word for words in labels for word in words}))
    _check_several(class_names, table)
    ids = {name: j for j, name in enumerate(class_names)}
    if not several:
        return Listing(paths, torch.tensor([ids[words[0]] for words in labels]), class_names)
    if len(rows) * len(class_names) > MAX_TARGETS:
        raise UserError(f"{table} has {len(class_names):,} different labels for {len(rows):,} files: are they classes?")
    targets = torch.zeros(len(rows), len(class_names))
    for row, words in zip(targets, labels):
        row[[ids[word] for word in words]] = 1
    return Listing(paths, targets, class_names)


def _csv_rows(table: Path) -> list[tuple[str, str]]:
    """Read the (file, label) of each row."""
    size_of(table)
    try:
        with table.open(newline="", encoding="utf-8-sig") as text:  # spreadsheets write a byte-order mark
            reader = csv.DictReader(text, restval="")
            named = [(name or "").strip().lower() for name in reader.fieldnames or []]
            columns = dict(zip(named, reader.fieldnames or []))
            for needed in ("file", "label"):
                if needed not in columns:
                    has = abbreviate(columns) or "none"
                    raise UserError(f"{table} has no column {needed!r}: its columns are {has}; file,label are needed")
                if named.count(needed) > 1:
                    raise UserError(f"{table} has several columns {needed!r}: keep one of them")
            rows = [(row[columns["file"]].strip(), row[columns["label"]].strip()) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{table} is not a CSV file in UTF-8: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {table}: {error.strerror or error}") from error
    if not rows:
        raise UserError(f"{table} has a header but no rows: add a row file,label for each image")
    if nameless := [str(i) for i, (file, _) in enumerate(rows, start=1) if not file]:
        raise UserError(f"{table} has rows without a file name: row {abbreviate(nameless)}")
    return sorted(rows)


def _images_below(folder: Path) -> list[Path]:
    """List images in an order that does not depend on the file system."""
    found = []
    for parent, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not _hidden(name)]
        found += [Path(parent, name) for name in files if not _hidden(name) and _is_image(name)]
    return sorted(found, key=lambda path: path.as_posix())


def _folders(root: Path) -> list[Path]:
    return sorted((p for p in entries(root) if p.is_dir() and not _hidden(p.name)), key=lambda path: path.name)


def entries(folder: Path) -> list[Path]:
    """List a folder, in no particular order."""
    try:
        return list(folder.iterdir())
    except OSError as error:
        _refuse(error)


def _refuse(error: OSError) -> NoReturn:
    raise UserError(f"cannot list the folder {error.filename}: {error.strerror or error}") from error


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"  # added to archives by macOS


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def _check_several(class_names: tuple[str, ...], where: Path) -> None:
    if len(class_names) < 2:
        only = abbreviate(class_names) if class_names else "none"
        raise UserError(f"a classifier needs at least two classes, and {where} has only {only}: {LAYOUT}")


def abbreviate(names: Iterable[str]) -> str:
    """Join the first five names, and say how many more there are."""
    names = list(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
