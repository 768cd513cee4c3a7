"""Safe reading of untrusted files: regular files only, and never more bytes than a file can plausibly hold."""

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
CHUNK_BYTES = 1 << 24  # read at a time
# A compressed file may unpack to the larger of these: one blank image shrinks a thousandfold, a set of images does not.
MIN_UNPACKED_LIMIT_BYTES = 1 << 26
MAX_COMPRESSION_RATIO = 100
MAX_AXES = 8


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes: ...


def size_of(path: Path, remedy: str = "check the path") -> int:
    """Return the size of a regular file in bytes; opening a pipe would block, and a device may never end."""
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UserError(f"cannot read {path} ({getattr(error, 'strerror', None) or error}): {remedy}") from error
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
        raise UserError(f"cannot read {path}, which is {what}: {remedy}")
    return found.st_size


def max_unpacked_bytes(size: int) -> int:
    """Return how many bytes a compressed file of this size may unpack to."""
    return max(MIN_UNPACKED_LIMIT_BYTES, MAX_COMPRESSION_RATIO * size)


@contextmanager
def open_untrusted(path: Path, remedy: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file, gzipped or not; damage is a UserError.

    Args:
        path: the file.
        remedy: where to get a good copy, for the error message.

    Yields:
        The unpacked content, and the largest number of bytes it may have.
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
                yield file, max_unpacked_bytes(size)  # type: ignore[misc]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is a damaged gzip file ({error}): delete it and {remedy}") from error
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror or error}): {remedy}") from error
    except MemoryError as error:
        raise UserError(f"{path} does not fit in memory: delete it and {remedy}") from error


def read_up_to(file: Readable, size: int) -> bytearray:
    """Read up to `size` bytes in chunks, so that memory grows with what the file really holds."""
    body = bytearray()
    while chunk := file.read(min(CHUNK_BYTES, size - len(body))):
        body += chunk
    return body


def read_body(
    file: Readable, path: Path, shape: tuple[int, ...], expected: int, max_bytes: int, remedy: str
) -> bytearray:
    """Read the rest of a file, which must have exactly the size that its header gives.

    Args:
        file: the file, after its header.
        path: its path, for the error message.
        shape: the shape in the header.
        expected: the bytes of an array of that shape.
        max_bytes: the most that the file can have; nothing is allocated for a header that exceeds it.
        remedy: what to do about a damaged file, for the error message.
    """
    body = read_up_to(file, expected + 1) if expected <= max_bytes else bytearray()
    if len(body) != expected:
        held = "more" if len(body) > expected else "less"
        raise UserError(
            f"{path} has the wrong length: its header promises {expected:,} bytes {shape} and it holds {held}; {remedy}"
        )
    return body


def size_in_bytes(shape: tuple[int, ...], itemsize: int) -> int | None:
    """Return the bytes of an array; None where the shape is not valid, as (0, 2**63) is not."""
    nonzero = itemsize  # the product without zeros, which would hide an overflow
    total = itemsize
    for side in shape:
        nonzero *= max(side, 1)
        total *= side
    return total if len(shape) <= MAX_AXES and min(shape, default=1) >= 0 and nonzero < 2**62 else None
