"""Reading files that nobody vouches for: only regular files, and never more of one than it can plausibly hold."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from torchcaps.errors import UserError

GZIP_MAGIC = b"\x1f\x8b"
PIECE = 1 << 24  # bytes read at a time
SMALL = 1 << 26  # bytes that may come out of any compressed file: deflate packs a blank image a thousandfold
PACKED = 100  # beyond that, how many times its size a compressed file of images may hold
MAX_AXES = 8


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def size_of(path: Path, remedy: str = "check the path") -> int:
    """Bytes of a regular file: to open a pipe would be to wait for ever, and a device may never end."""
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UserError(f"cannot read {path} ({getattr(error, 'strerror', None) or error}): {remedy}") from error
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
        raise UserError(f"cannot read {path}, which is {what}: {remedy}")
    return found.st_size


def unpacked(size: int) -> int:
    """The most bytes that a compressed file of this size is allowed to become."""
    return max(SMALL, PACKED * size)


@contextmanager
def opened(path: Path, remedy: str) -> Iterator[tuple[BinaryIO, int]]:
    """The content of a file, gzipped or not, and the most bytes there can be of it; what is damaged is a UserError.

    remedy  where to get a good one
    """
    size = size_of(path, remedy)
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            if not zipped:
                yield raw, size
                return
            with gzip.GzipFile(fileobj=raw) as file:
                yield file, unpacked(size)  # type: ignore[misc]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is a damaged gzip file ({error}): delete it and {remedy}") from error
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror or error}): {remedy}") from error
    except MemoryError as error:
        raise UserError(f"{path} does not fit in memory: delete it and {remedy}") from error


def read_up_to(file: Readable, size: int) -> bytearray:
    """In pieces, so that no more is allocated than is there, and there is never a second copy of it all."""
    body = bytearray()
    while piece := file.read(min(PIECE, size - len(body))):
        body += piece
    return body


def size_in_bytes(shape: tuple[int, ...], itemsize: int) -> int | None:
    """Bytes of an array; None where no array has this shape: with a 0 in it the other sizes may be anything."""
    spread = itemsize
    total = itemsize
    for side in shape:
        spread *= max(side, 1)
        total *= side
    return total if len(shape) <= MAX_AXES and min(shape, default=1) >= 0 and spread < 2**62 else None
