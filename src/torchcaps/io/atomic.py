"""Atomic writes: a reader, or a crash, finds the old file or the new one, never half of either."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path


@contextmanager
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """Write a file beside `path`, then flush it to the disk and move it to `path`.

    Args:
        path: the file to write; its folder must exist.
        previous: where to move the file that is replaced; by default it is deleted.

    Yields:
        The temporary path to write to. It is named after the process, and removed if anything fails.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        flush(temporary)
        if previous is not None and path.is_file():
            os.replace(path, previous)
        os.replace(temporary, path)
        flush(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file in UTF-8 atomically, and its folder where it is missing; return its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def flush(path: Path) -> None:
    """Wait until a file, or the list of files in a folder, is on the disk."""
    is_folder = path.is_dir()
    with suppress(OSError) if is_folder else nullcontext():  # some systems cannot flush folders
        handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # Windows refuses to flush a read-only handle
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
