"""A look at a folder of images before training: what is ignored, occurs twice, is rare, or cannot be read."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from torchcaps.data.dataset import count_classes
from torchcaps.data.images import upright_size
from torchcaps.data.listing import IMAGE_SUFFIXES, LABELS_CSV, Listing, abbreviate, list_folder
from torchcaps.data.split import SplitOptions, split_dataset
from torchcaps.errors import UnreadableImage

MAX_HEADERS = 2000  # files whose header is read; of more files, as many at even steps
RARE = 20  # images of a class to train on: below, its recall is little more than luck
UNEVEN = 10  # times as many images of the most frequent class as of the rarest
TINY = 16  # pixels a side
CHUNK_BYTES = 1 << 20  # read at a time
CONVERT = "this decoder does not read them; convert them to JPEG or PNG"
# Why image files are ignored, by suffix; files of other kinds are only counted.
REASONS = {
    **dict.fromkeys(
        (".heic", ".heif", ".avif", ".jxl", ".jp2", ".psd", ".svg", ".dng", ".cr2", ".nef", ".arw"), CONVERT
    ),
    ".jfif": "rename them to .jpg",
    "": "no suffix; add .jpg or .png if they are images",
}
PARTS = {"train": "training", "validation": "validation", "test": "test"}


@dataclass(frozen=True)
class Ignored:
    """Files of one suffix that are not read.

    Attributes:
        suffix: in lower case, with its dot; empty for none.
        count: files.
        example: one of them.
        reason: why, and what to do.
    """

    suffix: str
    count: int
    example: str
    reason: str


@dataclass(frozen=True)
class Checkup:
    """What a user should know about a folder before training.

    Attributes:
        images: files in all parts.
        ignored: files that are not read.
        unreadable: (path, reason) of files with a damaged header.
        conflicting: groups of identical files with different classes.
        shared: groups of identical files in different parts of the split.
        repeated: identical files beyond the first of each group.
        rare: (class, images) with few training images.
        uneven: (most frequent class, images, rarest class, images) where they differ much.
        sizes: smallest, median and largest (height, width).
        headers: files whose header was read.
    """

    images: int
    ignored: tuple[Ignored, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    conflicting: tuple[tuple[str, ...], ...] = ()
    shared: tuple[tuple[str, ...], ...] = ()
    repeated: int = 0
    rare: tuple[tuple[str, int], ...] = ()
    uneven: tuple[str, int, str, int] | None = None
    sizes: tuple[tuple[int, int], ...] = field(default=())
    headers: int = 0

    @property
    def median_size(self) -> tuple[int, int] | None:
        """(H, W); None if no file could be read."""
        return self.sizes[1] if self.sizes else None

    def lines(self) -> list[str]:
        """Return one sentence for each finding; none if there is nothing to say."""
        found = [
            f"ignored: {each.count:,} {each.suffix or 'files without a suffix'} ({each.example}): {each.reason}"
            for each in self.ignored
        ]
        if self.unreadable:
            named = "; ".join(f"{path} ({reason})" for path, reason in self.unreadable[:3])
            found.append(f"unreadable: {len(self.unreadable):,} files: {named}")
        if self.conflicting:
            named = abbreviate(" = ".join(group) for group in self.conflicting[:3])
            found.append(
                f"duplicates with different classes: {len(self.conflicting):,}: {named}; remove the wrong ones"
            )
        if self.shared:
            named = " = ".join(self.shared[0])
            found.append(
                f"duplicates across training, validation and test images: {len(self.shared):,}, such as {named}; "
                "remove them, or the accuracy is too high"
            )
        if self.repeated and not self.shared and not self.conflicting:
            found.append(f"duplicates: {self.repeated:,} files repeat another one")
        if self.rare:
            named = abbreviate(f"{name} ({count})" for name, count in self.rare)
            found.append(f"rare: fewer than {RARE} training images of {named}")
        if self.uneven:
            most, many, least, few = self.uneven
            found.append(f"uneven: {many:,} training images of {most}, {few:,} of {least}")
        if self.sizes and min(self.sizes[0]) < TINY:
            found.append(f"tiny: the smallest image has {self.sizes[0][0]}×{self.sizes[0][1]} pixels")
        return found


def check_folder(path: str | Path, options: SplitOptions | None = None) -> Checkup:
    """Look at a folder, or at a CSV file of images, without decoding.

    Only files of equal length are compared, by hash. Headers are read of at most MAX_HEADERS files.

    Args:
        path: of the folder or the CSV file.
        options: how the images will be split; by default as `load_data` splits them.
    """
    root = Path(path)
    listings = list_folder(root)
    parts = split_listing(listings, options or SplitOptions())
    files = [file for listing in parts.values() for file in listing.paths]
    sizes, unreadable = _headers(files)
    conflicting, shared, repeated = _duplicates(root, parts)
    rare, uneven = _rare(parts["train"])
    return Checkup(
        images=len(files),
        ignored=_ignored(root, {file for listing in listings.values() for file in listing.paths}),
        unreadable=tuple((_relative(file, root), reason) for file, reason in unreadable),
        conflicting=conflicting,
        shared=shared,
        repeated=repeated,
        rare=rare,
        uneven=uneven,
        sizes=sizes,
        headers=min(len(files), MAX_HEADERS),
    )


def split_listing(parts: dict[str, Listing], options: SplitOptions) -> dict[str, Listing]:
    """Split listed files exactly as `load_data` splits their images.

    Args:
        parts: what `list_folder` returned.
        options: of the split.
    """
    train, validation, test = parts["train"], parts.get("validation"), parts.get("test")
    if validation is not None and options.validation == 0:
        train, validation = train.joined(validation), None  # for a final fit on all but the test images
    split = split_dataset(train, validation, test, options)
    return {name: part for name, part in zip(PARTS, split) if part is not None}


def _ignored(root: Path, used: set[Path]) -> tuple[Ignored, ...]:
    """Files that are not read, by suffix: all below a folder, or those beside the files that a table names."""
    table = root if root.is_file() else root / LABELS_CSV
    by_table = table.is_file()
    top = table.parent if by_table else root
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for file in _files_beside(used) if by_table else _files_below(root):
        suffix = file.suffix.lower()
        if file in used or file == table:
            continue
        reason = REASONS.get(suffix, "not an image")
        if suffix in IMAGE_SUFFIXES:
            reason = f"not listed in {table.name}" if by_table else "not in the folder of a class"
        counts[suffix, reason] += 1
        examples.setdefault((suffix, reason), _relative(file, top))
    return tuple(Ignored(suffix, count, examples[suffix, reason], reason) for (suffix, reason), count in counts.items())


def _files_below(root: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__MACOSX")
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))


def _files_beside(used: set[Path]) -> Iterator[Path]:
    for folder in sorted({file.parent for file in used}):
        yield from sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith("."))


def _headers(files: list[Path]) -> tuple[tuple[tuple[int, int], ...], list[tuple[Path, str]]]:
    """The smallest, median and largest size, and the files whose header cannot be read."""
    chosen = files if len(files) <= MAX_HEADERS else [files[i * len(files) // MAX_HEADERS] for i in range(MAX_HEADERS)]
    sizes, unreadable = [], []
    for file in chosen:
        try:
            sizes.append(upright_size(file))
        except UnreadableImage as error:
            unreadable.append((file, error.reason))
    if not sizes:
        return (), unreadable
    by_area = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    height, width = (int(np.median([size[axis] for size in sizes])) for axis in (0, 1))
    return (by_area[0], (height, width), by_area[-1]), unreadable


def _duplicates(
    root: Path, parts: dict[str, Listing]
) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...], int]:
    """Identical files: groups with different classes, groups in different parts, and how many repeat another."""
    by_size: dict[int, list[tuple[Path, str, str]]] = defaultdict(list)
    for name, listing in parts.items():
        for file, target in zip(listing.paths, listing.targets):
            with_size = _size(file)
            if with_size is not None:
                by_size[with_size].append((file, str(target.tolist()), name))
    conflicting, shared, repeated = [], [], 0
    for candidates in by_size.values():
        if len(candidates) < 2:
            continue
        groups: dict[bytes, list[tuple[Path, str, str]]] = defaultdict(list)
        for each in candidates:
            groups[_digest(each[0])].append(each)
        for group in groups.values():
            if len(group) < 2:
                continue
            repeated += len(group) - 1
            group.sort()
            names = tuple(_relative(file, root) for file, _, _ in group)
            if len({target for _, target, _ in group}) > 1:
                conflicting.append(names)
            if len({part for _, _, part in group}) > 1:
                shared.append(tuple(f"{name} ({PARTS[part]})" for name, (_, _, part) in zip(names, group)))
    return tuple(sorted(conflicting)), tuple(sorted(shared)), repeated


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:  # decoding will report it
        return None


def _digest(file: Path) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    try:
        with file.open("rb") as content:
            while chunk := content.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return str(file).encode()  # like no other; decoding will report it
    return digest.digest()


def _rare(train: Listing) -> tuple[tuple[tuple[str, int], ...], tuple[str, int, str, int] | None]:
    counts = dict(zip(train.class_names, count_classes(train.targets, len(train.class_names)).tolist()))
    rare = tuple((name, count) for name, count in counts.items() if count < RARE)
    most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    uneven = counts[most] > UNEVEN * max(1, counts[least])
    return rare, (most, counts[most], least, counts[least]) if uneven else None


def _relative(file: Path, root: Path) -> str:
    top = root if root.is_dir() else root.parent
    return file.relative_to(top).as_posix() if file.is_relative_to(top) else str(file)


__all__ = ["Checkup", "Ignored", "check_folder"]
