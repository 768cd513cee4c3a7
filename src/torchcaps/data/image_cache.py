"""Decoded images on disk: filled once, memory-mapped, and shared by all runs on the same files.

A cache is a folder named after what is in it:

    pixels       (N, C, H, W) uint8, without a header; not there if only the records are kept
    records      the state of each file and the digest of its pixels
    index.json   written last and atomically: the cache is complete

A killed process leaves a cache without index.json. The next one checks what is there and decodes the rest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import PIL
from filelock import FileLock, Timeout
from rich.console import Console

from torchcaps.data.decoding import DECODED, RECORD, UNKNOWN, ImageFiles, decode_files, digest_of
from torchcaps.errors import UnreadableImage, UserError
from torchcaps.io.atomic import flush, write_text
from torchcaps.io.limits import size_of
from torchcaps.io.tensors import Unreadable, read_json

log = logging.getLogger("torchcaps")

FORMAT = 1
INDEX, PIXELS, RECORDS = "index.json", "pixels", "records"
MAX_INDEX_BYTES = 1 << 22
MAX_REASONS, MAX_REASON_CHARACTERS = 1000, 200  # why a file cannot be read; of further ones only that they cannot


class ImageCache:
    """Decoded images in a folder; `open_cache` makes it.

    Args:
        files: what was decoded.
        folder: of the cache.
        records: (N,) RECORD.
        unreadable: the files that cannot be read, by their number.
        has_pixels: whether pixels are kept. Without them each image is decoded when it is needed.
    """

    def __init__(
        self,
        files: ImageFiles,
        folder: Path,
        records: np.ndarray,
        unreadable: dict[int, UnreadableImage],
        has_pixels: bool,
    ) -> None:
        self.files, self.folder, self.records, self.unreadable = files, folder, records, unreadable
        self._pixels = _map_pixels(folder, files, "r") if has_pixels else None
        self._checked = np.zeros(len(records), dtype=bool)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)"""
        return self.files.shape

    def read_into(self, number: int, out: np.ndarray) -> None:
        """Read one image. The first time that it is read from the disk, its digest is checked.

        Args:
            number: of the file.
            out: (C, H, W) uint8, which is filled.
        """
        if self._pixels is None:
            self._decode(number, out)
            return
        out[...] = self._pixels[number]
        if not self._checked[number]:
            if not self._is_right(number, out):
                self._repair(number, out)
            self._checked[number] = True

    def damaged(self) -> list[int]:
        """Check all images that are kept; returns the numbers of those whose pixels are not what was decoded."""
        if self._pixels is None:
            return []
        known = np.flatnonzero(self.records["state"] == DECODED).tolist()
        return [number for number in known if not self._is_right(number, self._pixels[number])]

    def _is_right(self, number: int, image: np.ndarray) -> bool:
        return bool((digest_of(image) == self.records["digest"][number]).all())

    def _decode(self, number: int, out: np.ndarray) -> None:
        self.files.decode_into(number, out)
        if not self._is_right(number, out):
            raise UnreadableImage(
                self.files.paths[number], "it has changed since it was first read; restore it, or start a new run"
            )

    def _repair(self, number: int, out: np.ndarray) -> None:
        """Decode an image that is damaged on the disk once more, and write it back."""
        self._decode(number, out)
        log.warning("%s: image %d was damaged; it is decoded again", self.folder / PIXELS, number)
        with suppress(OSError):  # a cache that cannot be written to still serves
            _map_pixels(self.folder, self.files, "r+")[number] = out


def open_cache(
    files: ImageFiles, root: Path, workers: int, console: Console | None, has_pixels: bool = True
) -> ImageCache:
    """Open the cache of these files; fill it first where it is missing or incomplete.

    Several processes may call this at once: one fills it, and the others wait.

    Args:
        files: N files.
        root: the folder of all caches.
        workers: threads that decode.
        console: where to report.
        has_pixels: whether to keep pixels beside the records.
    """
    folder = root / (cache_key(files) + ("" if has_pixels else "-records"))
    try:
        if (found := _complete(files, folder, has_pixels)) is None:
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder, console):  # another process may have filled it meanwhile
                found = _complete(files, folder, has_pixels) or _fill(files, folder, workers, console, has_pixels)
    except OSError as error:
        raise UserError(
            f"cannot write to the image cache {folder}: {error.strerror or error}; choose another folder with "
            "data.cache_dir, or omit the cache with data.storage=stream or memory"
        ) from error
    return ImageCache(files, folder, *found, has_pixels)


def cache_key(files: ImageFiles) -> str:
    """Hash what decides the pixels: names, sizes and times of the files, the shape, and the version of the decoder."""
    digest = hashlib.blake2b(f"{FORMAT} {PIL.__version__} {files.shape}".encode(), digest_size=16)
    for path in files.paths:
        facts = _facts(path) if files.contents is None else files.contents.facts(path)
        digest.update(f"\0{os.path.abspath(path)}\0{facts}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _facts(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:  # decoding reports it
        return "missing"
    return f"{found.st_size} {found.st_mtime_ns}"


def is_cached(files: ImageFiles, root: Path) -> bool:
    """Whether the cache of these files is complete."""
    return (root / cache_key(files) / INDEX).is_file()


def _fill(
    files: ImageFiles, folder: Path, workers: int, console: Console | None, has_pixels: bool
) -> tuple[np.ndarray, dict[int, UnreadableImage]]:
    if (folder / INDEX).exists():
        log.warning("the image cache %s is damaged; what is wrong is decoded again", folder)
        (folder / INDEX).unlink()
    records = _map_records(folder, len(files.paths))
    pixels = None
    if has_pixels:
        _allocate(folder / PIXELS, files.nbytes)
        pixels = _map_pixels(folder, files, "r+")
    _keep_what_is_right(records, pixels, console)
    unreadable = decode_files(files, records, pixels, workers, console)
    records.flush()
    flush(folder / RECORDS)
    reasons = {
        str(number): unreadable[number].reason[:MAX_REASON_CHARACTERS] for number in sorted(unreadable)[:MAX_REASONS]
    }
    index = {"format": FORMAT, "files": len(files.paths), "shape": files.shape, "checksum": _checksum(records)}
    write_text(folder / INDEX, json.dumps({**index, "unreadable": reasons}))
    return np.array(records), unreadable


def _complete(
    files: ImageFiles, folder: Path, has_pixels: bool
) -> tuple[np.ndarray, dict[int, UnreadableImage]] | None:
    """The records of a complete and undamaged cache, and its unreadable files; None if it has to be filled."""
    try:
        if size_of(folder / INDEX) > MAX_INDEX_BYTES or size_of(folder / RECORDS) != len(files.paths) * RECORD.itemsize:
            return None
        index = read_json((folder / INDEX).read_text(encoding="utf-8"))
        records = np.fromfile(folder / RECORDS, dtype=RECORD)
        right = index["checksum"] == _checksum(records)
        if has_pixels:
            right = right and size_of(folder / PIXELS) == files.nbytes
        reasons = {int(number): str(reason) for number, reason in index["unreadable"].items()}
    except (OSError, UserError, Unreadable, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not right:
        return None
    numbers = np.flatnonzero(records["state"] != DECODED).tolist()
    return records, {
        number: UnreadableImage(files.paths[number], reasons.get(number, "not a valid image")) for number in numbers
    }


def _keep_what_is_right(records: np.ndarray, pixels: np.ndarray | None, console: Console | None) -> None:
    """Mark for decoding whatever an interrupted process has not completed; unreadable files are tried again."""
    known = records["state"] == DECODED
    records["state"][~known] = UNKNOWN
    if pixels is None or not known.any():
        return
    if console is not None:
        console.print(f"{int(known.sum()):,} images are in the cache already; they are checked", highlight=False)
    for number in np.flatnonzero(known).tolist():
        if (digest_of(pixels[number]) != records["digest"][number]).any():
            records["state"][number] = UNKNOWN


def _map_records(folder: Path, count: int) -> np.memmap:
    _allocate(folder / RECORDS, count * RECORD.itemsize)
    return np.memmap(folder / RECORDS, dtype=RECORD, mode="r+", shape=(count,))


def _map_pixels(folder: Path, files: ImageFiles, mode: str) -> np.memmap:
    shape = (len(files.paths), *files.shape)
    return np.memmap(folder / PIXELS, dtype=np.uint8, mode=mode, shape=shape)  # type: ignore[call-overload]


def _allocate(path: Path, size: int) -> None:
    """Give a file its size on the disk: writing to a memory map of a full disk would kill the process."""
    try:
        with path.open("ab") as file:
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError:
        path.unlink(missing_ok=True)  # a part of it would only fill the disk
        raise


def _checksum(records: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(records).tobytes(), digest_size=16).hexdigest()


@contextmanager
def _locked(folder: Path, console: Console | None) -> Iterator[None]:
    """Hold the lock of a cache inside the block. The system releases the lock of a process that dies."""
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if console is not None:
            console.print("another process is filling the image cache: waiting for it", highlight=False)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
