"""Where the images of files are kept: in memory, in a cache on disk, or nowhere, to be decoded when needed."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from torchcaps.data.decoding import ImageFiles, default_workers
from torchcaps.data.download import dataset_folder
from torchcaps.data.image_cache import is_cached
from torchcaps.errors import UserError

Storage = Literal["memory", "cache", "stream"]
STORAGES = ("auto", "memory", "cache", "stream")
ON_ERROR = ("stop", "skip")
MEMORY_SHARE = 0.25  # of the available memory that the images of all processes may take
DISK_SHARE = 0.8  # of the free disk that a cache may take
# Of a container: its limit, what it uses, and the name of that part of it which is a cache of files and can be freed.
CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
)


@dataclass(frozen=True)
class StorageOptions:
    """How to keep the images of files; results never depend on it.

    Args:
        storage: memory, cache or stream; auto takes the first of them for which there is room.
        workers: threads that decode and read; by default one for each core, at most 8.
        cache_dir: the folder of caches; by default one in the user's cache folder.
        on_error: stop, or skip: leave out files that cannot be read.
        processes: that train together on this machine; each needs the memory.
        console: where to report; by default nowhere.
    """

    storage: str = "memory"
    workers: int | None = None
    cache_dir: str | Path | None = None
    on_error: str = "stop"
    processes: int = 1
    console: Console | None = None

    def __post_init__(self) -> None:
        for name, value, choices in (("storage", self.storage, STORAGES), ("on_error", self.on_error, ON_ERROR)):
            if value not in choices:
                raise UserError(f"{name}={value}: choose one of {', '.join(choices)}")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers={self.workers}: give the number of threads, 1 or more")

    @property
    def threads(self) -> int:
        """The number of threads that decode and read."""
        return self.workers or default_workers()

    @property
    def root(self) -> Path:
        """The folder of all caches."""
        return dataset_folder("images") if self.cache_dir is None else Path(self.cache_dir).expanduser()


def choose_storage(files: ImageFiles, options: StorageOptions) -> Storage:
    """Decide where the images are kept, and report what they need and why."""
    needed, memory, disk = files.nbytes, available_memory(), free_disk(options.root)
    channels, height, width = files.shape
    room = f"{size_text(memory)} of memory are available" if memory is not None else "the available memory is unknown"
    room += f", and {size_text(disk)} of disk"
    storage, why = _choose(files, options, memory, disk)
    if options.console is not None:
        times = f" in each of {options.processes} processes" if storage == "memory" and options.processes > 1 else ""
        place = {
            "memory": f"they are kept in memory{times}",
            "cache": f"they are kept in a cache on disk, {options.root}",
            "stream": "each is decoded whenever it is needed",
        }[storage]
        options.console.print(
            f"{len(files.paths):,} images of {height}×{width}×{channels} take {size_text(needed)}; {room}: {place} "
            f"({why})",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    return storage


def _choose(files: ImageFiles, options: StorageOptions, memory: int | None, disk: int) -> tuple[Storage, str]:
    """The storage, and why."""
    if options.storage != "auto":
        return options.storage, f"data.storage={options.storage}"  # type: ignore[return-value]
    if memory is None or files.nbytes * options.processes <= MEMORY_SHARE * memory:
        return "memory", f"up to {MEMORY_SHARE:.0%} of the available memory is used"
    if is_cached(files.sorted(), options.root):
        return "cache", "it is filled already"
    if files.nbytes <= DISK_SHARE * disk:
        return "cache", f"more than {MEMORY_SHARE:.0%} of the available memory"
    return "stream", f"more than {DISK_SHARE:.0%} of the free disk: data.cache_dir names another folder"


def available_memory() -> int | None:
    """The bytes of memory that this process may still take; None where the system does not say."""
    found = []
    with suppress(OSError, ValueError, StopIteration), open("/proc/meminfo", encoding="ascii") as lines:
        found.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    for folder, limit, use, freeable in CGROUPS:
        with suppress(OSError, ValueError, KeyError):  # a limit "max" is no number
            parts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            used = int((folder / use).read_text()) - int(parts[freeable])
            found.append(max(0, int((folder / limit).read_text()) - used))
    if not found:
        with suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(found) if found else None


def free_disk(folder: Path) -> int:
    """The free bytes of the disk on which a folder is, or would be."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return 0


def size_text(size: int) -> str:
    """A size in KiB, MiB or GiB."""
    unit = next((number for number in (30, 20) if size >= 1 << number), 10)
    return f"{size / (1 << unit):.1f} {'KMG'[unit // 10 - 1]}iB"
