"""Tar files of images with their labels, in the layout of WebDataset: 0001.jpg beside 0001.cls or 0001.json.

The headers are read once. Then every image is read by its position in its shard, so that splits, order and resume are
those of any other data. Shards are not decompressed and nothing is unpacked.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from torchcaps.data.encoded import EncodedDataset, EncodedListing, as_targets
from torchcaps.data.listing import IMAGE_SUFFIXES, SPLIT_NAMES, abbreviate
from torchcaps.errors import UserError
from torchcaps.io.limits import size_of
from torchcaps.io.tensors import Unreadable, read_json

SUFFIX = ".tar"
CLASSES = "classes.txt"
MAX_LABEL_BYTES = 1 << 20  # of a .cls or .json
MAX_NAMES_BYTES = 1 << 24  # of classes.txt
MAX_SHARDS = 100_000
BRACES = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"(\d+)\.\.(\d+)")
PART = re.compile(rf"({'|'.join(sorted(SPLIT_NAMES, key=len, reverse=True))})(?![a-z])", re.IGNORECASE)
LAYOUT = "put 0001.jpg and 0001.cls (a class id or name) beside each other, one pair for each image"


class Sample(NamedTuple):
    """One image in a shard.

    Attributes:
        name: of the image in its shard.
        start: of its content in the shard, in bytes.
        size: of its content.
        label: a class id, or the name of a class.
    """

    name: str
    start: int
    size: int
    label: int | str


@dataclass(frozen=True, eq=False)
class ShardImages:
    """The images of several shards.

    Args:
        shards: the files.
        names: N names of images.
        places: (N, 3) int64 number of the shard, start and size of each image.
    """

    shards: tuple[Path, ...]
    names: tuple[str, ...]
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    def name(self, number: int) -> Path:
        """Return the path of an image, as if its shard were a folder."""
        return self.shards[self.places[number, 0]] / self.names[number]

    def read(self, number: int) -> bytes:
        """Read the content of an image."""
        shard, start, size = self.places[number].tolist()
        try:
            with self.shards[shard].open("rb") as file:
                file.seek(start)
                content = file.read(size)
        except OSError as error:
            raise UserError(f"cannot read {self.shards[shard]}: {error.strerror or error}") from error
        if len(content) < size:
            raise UserError(f"{self.shards[shard]} has become shorter since it was opened: restore it")
        return content


def is_shards(text: str) -> bool:
    """Whether a user names shards: a .tar file, a pattern of them, or a folder that holds some."""
    if not os.path.isdir(text):
        return text.endswith(SUFFIX)
    with os.scandir(text) as entries:
        names = {entry.name: entry.is_dir() for entry in entries if not entry.name.startswith(".")}
    return not any(names.values()) and any(name.endswith(SUFFIX) for name in names)


def open_shards(
    pattern: str, image_size: int | tuple[int, int] | None = None, channels: int | None = None
) -> EncodedDataset:
    """Open tar shards as a torch Dataset of pairs (image, class id), for `torchcaps.fit`.

    Args:
        pattern: the path of a shard; of a folder of shards; or of several, as in train-{000..009}.tar. A file
            classes.txt beside them names the classes, one in a line.
        image_size: pixels a side, or (H, W); None keeps the size of the first image, which all others must have.
        channels: 1 or 3; None takes those of the first image.
    """
    parts = list_shards(pattern)
    if len(parts) > 1:
        raise UserError(f"{pattern} has shards of {', '.join(parts)}: give those of one, such as train-*.tar")
    return EncodedDataset(parts["train"], image_size, channels)


def list_shards(pattern: str) -> dict[str, EncodedListing]:
    """List the images of each part: "train", and "validation" and "test" where shards are named so.

    Args:
        pattern: the path of a shard; of a folder of shards; or of several, as in train-{000..009}.tar,
            {train,test}-*.tar. A file classes.txt beside the shards names the classes, one in a line.
    """
    files = expand(pattern)
    parts: dict[str, list[Path]] = {}
    for file in files:
        named = PART.match(file.name)
        parts.setdefault(SPLIT_NAMES[named[1].lower()] if named else "", []).append(file)
    if len(parts) > 1 and ("" in parts or "train" not in parts):
        raise UserError(f"{pattern}: name every shard train-*.tar, val-*.tar or test-*.tar, or none of them")
    if len(parts) == 1:
        parts = {"train": files}
    read = {part: [(path, list(read_shard(path))) for path in paths] for part, paths in parts.items()}
    labels = [sample.label for shards in read.values() for _, samples in shards for sample in samples]
    targets, class_names = as_targets(labels, _class_names(files[0].with_name(CLASSES)), pattern)
    listings, start = {}, 0
    for part, shards in read.items():
        images = _images(shards)
        listings[part] = EncodedListing.of(images, targets[start : start + len(images)], class_names)
        start += len(images)
    return listings


def read_shard(path: Path) -> Iterator[Sample]:
    """Read the headers and labels of a shard."""
    size = size_of(path)
    members: dict[str, tuple[tarfile.TarInfo, bytes | None]] = {}
    key, count = "", 0
    try:
        with path.open("rb") as raw, tarfile.open(fileobj=_Bounded(raw, size), mode="r:") as tar:  # type: ignore[call-overload]
            for member in _members(tar, raw, size):
                name = PurePosixPath(member.name)
                stem, _, suffix = name.name.partition(".")
                if not stem:
                    continue  # a hidden file
                if str(name.with_name(stem)) != key:
                    if members:
                        yield _sample(key, members)
                    key, members, count = str(name.with_name(stem)), {}, count + 1
                members[suffix.lower()] = member, _content(tar, member, suffix.lower())
            if members:
                yield _sample(key, members)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # a damaged header can make the parser raise nearly anything
        packed = "; shards must not be compressed" if isinstance(error, tarfile.ReadError) else ""
        raise UserError(f"{path} is a damaged tar file ({error}){packed}: make it again") from error
    if not count:
        raise UserError(f"{path} has no images in it: {LAYOUT}")


def expand(pattern: str) -> list[Path]:
    """Return the files that a pattern stands for, in the order of their names."""
    if os.path.isdir(pattern):
        pattern = os.path.join(glob.escape(pattern), f"*{SUFFIX}")
    elif os.path.isfile(pattern):
        return [Path(pattern)]
    found: list[Path] = []
    for text in _alternatives(pattern):
        paths = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
        found += map(Path, paths)
        if len(found) > MAX_SHARDS:
            raise UserError(f"{pattern} names more than {MAX_SHARDS:,} shards; give fewer, larger ones")
    if missing := [str(path) for path in found if not path.is_file()]:
        raise UserError(f"{pattern} names shards that are not there: {abbreviate(missing)}")
    if not found:
        raise UserError(f"there are no shards {pattern}: check the path")
    return found


def _alternatives(pattern: str) -> Iterator[str]:
    """Expand {000..009} and {a,b}."""
    pieces = BRACES.split(pattern)  # every second one was between braces
    choices: list[Any] = []
    for index, piece in enumerate(pieces):
        bounds = RANGE.fullmatch(piece) if index % 2 else None
        if bounds:
            first, last = int(bounds[1]), int(bounds[2])
            choices.append(
                [str(number).zfill(len(bounds[1])) for number in range(first, min(last, first + MAX_SHARDS) + 1)]
            )
        else:
            choices.append(piece.split(",") if index % 2 else [piece])
    return map("".join, itertools.product(*choices))


class _Bounded:
    """A file that is asked for no more bytes than it has left, whatever a header says."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        return self.file.read(max(0, min(size, self.size - self.file.tell())))


def _members(tar: tarfile.TarFile, raw: BinaryIO, size: int) -> Iterator[tarfile.TarInfo]:
    """The regular files of a tar file, each within it and behind the one before."""
    end = 0
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # else it keeps all of them
        if member.offset < end:
            raise UserError("a header points backwards; make it again")
        end = member.offset_data
        if member.type == tarfile.DIRTYPE:
            continue
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None:
            raise UserError(f"{member.name!r} is a link, a device or a sparse file; only plain files are read")
        end += member.size
        if not 0 <= member.size <= size - member.offset_data:
            raise UserError(f"{member.name!r} would end after the shard; it was cut off: make it again")
        yield member
    raw.seek(tar.offset)
    if raw.read(tarfile.BLOCKSIZE).strip(b"\0"):  # the parser takes a damaged header for the end
        raise UserError(f"the header at byte {tar.offset:,} is damaged; make it again")


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, suffix: str) -> bytes | None:
    """The content of a label; None for other files."""
    if suffix not in ("cls", "json"):
        return None
    if member.size > MAX_LABEL_BYTES:
        raise UserError(f"{member.name!r} is a label of {member.size:,} bytes; at most {MAX_LABEL_BYTES:,} are read")
    file = tar.extractfile(member)
    return b"" if file is None else file.read()


def _sample(key: str, members: dict[str, tuple[tarfile.TarInfo, bytes | None]]) -> Sample:
    images = [member for suffix, (member, _) in members.items() if f".{suffix}" in IMAGE_SUFFIXES]
    if len(images) != 1:
        raise UserError(f"{key!r} has {len(images)} images, and needs one: {LAYOUT}")
    label: Any = None
    try:
        if "cls" in members:
            label = (members["cls"][1] or b"").decode("utf-8").strip()
        elif "json" in members:
            found = read_json((members["json"][1] or b"").decode("utf-8"))
            label = found.get("label") if isinstance(found, dict) else None
    except (UnicodeDecodeError, Unreadable) as error:
        raise UserError(f"the label of {key!r} cannot be read: {error}") from error
    if isinstance(label, str) and re.fullmatch(r"\d{1,9}", label):
        label = int(label)
    if isinstance(label, bool) or not isinstance(label, int | str) or label == "":
        raise UserError(f'{key!r} has no label: give it a .cls, or a .json with {{"label": …}}')
    return Sample(images[0].name, images[0].offset_data, images[0].size, label)


def _images(shards: list[tuple[Path, list[Sample]]]) -> ShardImages:
    places = [(index, each.start, each.size) for index, (_, samples) in enumerate(shards) for each in samples]
    names = tuple(each.name for _, samples in shards for each in samples)
    return ShardImages(tuple(path for path, _ in shards), names, np.array(places, dtype=np.int64).reshape(-1, 3))


def _class_names(path: Path) -> tuple[str, ...] | None:
    """The lines of classes.txt; None if there is no such file."""
    if not path.is_file():
        return None
    if size_of(path) > MAX_NAMES_BYTES:
        raise UserError(f"{path} has more than {MAX_NAMES_BYTES:,} bytes: give one class name in a line")
    try:
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if len(set(names)) < len(names):
        raise UserError(f"{path} names a class twice: give each once, in the order of the class ids")
    return names
