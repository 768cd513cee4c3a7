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
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from torchcaps.data.encoded import EncodedDataset, Packed, as_targets, open_packed
from torchcaps.data.listing import IMAGE_SUFFIXES, SPLIT_NAMES, Listing, abbreviate
from torchcaps.errors import UnreadableImage, UserError
from torchcaps.io.limits import GZIP_MAGIC, size_of
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


class Place(NamedTuple):
    """Where an image is.

    Attributes:
        shard: the file.
        start, size: of its content in the shard, in bytes.
    """

    shard: Path
    start: int
    size: int


class ShardContents:
    """The images of several shards, by their path as if shards were folders.

    Args:
        places: of the images.
    """

    def __init__(self, places: dict[Path, Place]):
        self.places = places
        self._shards: dict[Path, str] = {}

    def read(self, path: Path) -> bytes:
        """Return the content of an image."""
        shard, start, size = self.places[path]
        try:
            with shard.open("rb") as file:
                file.seek(start)
                content = file.read(size)
        except OSError as error:
            raise UnreadableImage(path, error.strerror or str(error)) from error
        if len(content) < size:
            raise UnreadableImage(path, "its shard has become shorter")
        return content

    def facts(self, path: Path) -> str:
        """Return the place of an image, and the size and time of its shard."""
        shard, start, size = self.places[path]
        if shard not in self._shards:
            found = shard.stat()
            self._shards[shard] = f"{found.st_size} {found.st_mtime_ns}"
        return f"{self._shards[shard]} {start} {size}"


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
    return open_packed(list_shards(pattern), pattern, image_size, channels)


def list_shards(pattern: str) -> Packed:
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
    places: dict[Path, Place] = {}
    labels: list[int | str] = []
    paths: dict[str, list[Path]] = {part: [] for part in parts}
    for part, shards in parts.items():
        for shard in shards:
            for sample in read_shard(shard):
                path = shard / sample.name
                if path in places:
                    raise UserError(f"{shard} has two images called {sample.name!r}: make it again")
                places[path] = Place(shard, sample.start, sample.size)
                paths[part].append(path)
                labels.append(sample.label)
    targets, class_names = as_targets(labels, _class_names(files[0].with_name(CLASSES)), pattern)
    ids = iter(targets.split([len(each) for each in paths.values()]))
    return Packed(
        {part: Listing(tuple(each), next(ids), class_names) for part, each in paths.items()}, ShardContents(places)
    )


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
        if _starts_as_gzip(path):
            raise UserError(f"{path} is compressed, and shards must not be: unpack it with gzip -d") from error
        raise UserError(f"{path} is a damaged tar file ({error}): make it again") from error
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


def _starts_as_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC


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
