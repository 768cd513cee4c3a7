"""Image files decoded at one shape by several threads, with a record of each: readable or not, and its digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from torchcaps.data.images import decode, is_grey
from torchcaps.errors import UnreadableImage

BLOCK_FILES = 64  # decoded by a thread at a time
MAX_WORKERS = 8  # by default
DIGEST_BYTES = 16
UNKNOWN, DECODED, UNREADABLE = 0, 1, 2  # states of a file
RECORD = np.dtype([("state", np.uint8), ("digest", np.uint8, DIGEST_BYTES)])


class Contents(Protocol):
    """Images inside other files, by the paths that name them; several threads may read them at once."""

    def read(self, path: Path) -> bytes:
        """Return the content of an image, or raise an UnreadableImage."""
        ...

    def facts(self, path: Path) -> str:
        """Return what changes if an image does, such as the size and time of the file that it is in."""
        ...


@dataclass(frozen=True)
class ImageFiles:
    """Files that are decoded at one shape.

    Args:
        paths: N files.
        shape: (C, H, W).
        contents: of images that are not files of their own.
    """

    paths: tuple[Path, ...]
    shape: tuple[int, int, int]
    contents: Contents | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of all images."""
        return len(self.paths) * int(np.prod(self.shape, dtype=np.int64))

    def sorted(self) -> ImageFiles:
        """The same files in the order of their paths, which no split changes."""
        return replace(self, paths=tuple(sorted(self.paths)))

    def decode_into(self, number: int, out: np.ndarray) -> None:
        """Decode one file.

        Args:
            number: of the file.
            out: (C, H, W) uint8, which is filled.
        """
        path = self.paths[number]
        content = None if self.contents is None else self.contents.read(path)
        out[...] = decode(path, self.shape[1:], self.shape[0], content)  # a grey file is repeated


def digest_of(image: np.ndarray) -> np.ndarray:
    """Hash the pixels of an image to (16,) uint8."""
    digest = hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=DIGEST_BYTES).digest()
    return np.frombuffer(digest, dtype=np.uint8)


def default_workers() -> int:
    """The number of threads that decode unless a user chooses: one for each core that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MAX_WORKERS, cores or 1)


def find_channels(paths: Sequence[Path], channels: int | None, contents: Contents | None = None) -> int:
    """Return `channels`, or if that is None 1 where all files are grey and else 3; only headers are read."""
    if channels is not None:
        return channels
    for path in paths:
        try:
            if not is_grey(path, None if contents is None else contents.read(path)):
                return 3
        except UnreadableImage:  # decoding reports it
            continue
    return 1


def decode_files(
    files: ImageFiles,
    records: np.ndarray,
    pixels: np.ndarray | None,
    workers: int,
    console: Console | None = None,
) -> dict[int, UnreadableImage]:
    """Decode all files whose state is unknown.

    A record is written after its pixels, so what a killed process leaves is complete wherever a state is known.

    Args:
        files: N files.
        records: (N,) RECORD, updated in place.
        pixels: (N, C, H, W) uint8, filled in place; None keeps only the records.
        workers: threads; the decoders release Python's lock.
        console: where a progress bar is shown.

    Returns:
        The files that cannot be read, by their number.
    """

    def decode_block(start: int) -> dict[int, UnreadableImage]:
        unreadable = {}
        scratch = np.empty(files.shape, dtype=np.uint8)
        for number in range(start, min(start + BLOCK_FILES, len(files.paths))):
            if records["state"][number] != UNKNOWN:
                continue
            image = scratch if pixels is None else pixels[number]
            try:
                files.decode_into(number, image)
            except UnreadableImage as error:
                unreadable[number] = error
                records["state"][number] = UNREADABLE
            else:
                records["digest"][number] = digest_of(image)
                records["state"][number] = DECODED
        return unreadable

    found: dict[int, UnreadableImage] = {}
    starts = range(0, len(files.paths), BLOCK_FILES)
    pool = ThreadPoolExecutor(workers)
    try:
        with _progress(console, len(files.paths)) as advance:
            for start, unreadable in zip(starts, pool.map(decode_block, starts)):
                found |= unreadable
                advance(min(BLOCK_FILES, len(files.paths) - start))
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl+C does not wait for the files that are left
    return found


@contextmanager
def _progress(console: Console | None, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar in a terminal; yields what moves it on."""
    if console is None or console.quiet or not console.is_terminal:
        yield lambda count: None
        return
    columns = TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("decoding", total=total)
        yield lambda count: bar.advance(task, count)
