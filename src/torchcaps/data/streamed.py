"""Images of files that are read when they are needed, and a loader that reads the next batches ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.augment import MIXING, augment_classes
from torchcaps.data.dataset import Dataset
from torchcaps.data.loader import Batch, as_float, make_loader, plain_loader

MAX_AHEAD = 8  # batches that are read ahead,
MAX_AHEAD_BYTES = 1 << 28  # but no more than this


class Reader(Protocol):
    """A source of images by number, which may be read by several threads at once."""

    @property
    def shape(self) -> tuple[int, int, int]: ...
    def read_into(self, number: int, out: np.ndarray) -> None: ...


class FileImages:
    """Images (N, C, H, W) uint8 of which only those are read that are indexed.

    Args:
        reader: of the images.
        numbers: (N,) the number of each in the reader.
    """

    dtype, device, ndim = torch.uint8, torch.device("cpu"), 4

    def __init__(self, reader: Reader, numbers: np.ndarray) -> None:
        self.reader, self.numbers = reader, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def shape(self) -> torch.Size:
        """(N, C, H, W)"""
        return torch.Size((len(self), *self.reader.shape))

    def __getitem__(self, index: Any) -> Tensor:
        """Read what a tensor of the images would give for this index; of further axes numbers and slices."""
        if isinstance(index, tuple):
            chosen = self[index[0]]
            return chosen[(slice(None),) * (chosen.ndim - self.ndim + 1) + index[1:]]
        positions = torch.arange(len(self))[index]
        images = torch.empty((positions.numel(), *self.reader.shape), dtype=torch.uint8)
        self.read_into(positions.flatten(), images)
        return images.view(*positions.shape, *self.reader.shape)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[position] for position in range(len(self)))

    def split(self, size: int) -> Iterator[Tensor]:
        """Read all images in batches."""
        return (self[start : start + size] for start in range(0, len(self), size))

    def narrow(self, axis: int, start: int, length: int) -> FileImages:
        """Return a range of the images, as `Tensor.narrow` does for axis 0; none is read."""
        if axis != 0:
            raise ValueError(f"narrow: only axis 0 can be narrowed without reading, not {axis}")
        return FileImages(self.reader, self.numbers[start : start + length])

    def subset(self, indices: Tensor) -> FileImages:
        """Return the images at the positions `indices` (M,), in that order; none is read."""
        return FileImages(self.reader, self.numbers[indices.cpu().numpy()])

    def read_into(self, positions: Tensor, out: Tensor) -> None:
        """Read images.

        Args:
            positions: (M,) of the images.
            out: (M, C, H, W) uint8, which is filled.
        """
        rows = out.numpy()
        for row, number in enumerate(self.numbers[positions.cpu().numpy()].tolist()):
            self.reader.read_into(number, rows[row])


@dataclass(frozen=True, eq=False)
class StreamedDataset(Dataset):
    """A Dataset whose images are read when they are needed: `images` are FileImages.

    Args:
        workers: threads that read ahead.
    """

    workers: int = 1

    def _images_at(self, indices: Tensor) -> Tensor:
        return cast(Tensor, self.file_images.subset(indices))

    @property
    def file_images(self) -> FileImages:
        """The images."""
        return cast(FileImages, self.images)

    def in_memory(self) -> Dataset:
        """Read all images into a Dataset."""
        return Dataset(self.images[:], self.targets, self.class_names, self.files, self.labels_each, self.digests)


class _Read(NamedTuple):
    """Images (B, C, H, W) uint8 on the device; on CUDA the event after which their copy is complete."""

    images: Tensor
    copied: torch.cuda.Event | None


class StreamedLoader:
    """Makes batches of a StreamedDataset; the interface is that of `DeviceLoader`.

    Once `plan` has told it the order of an epoch, threads read the next batches ahead.

    Args:
        dataset: the images and targets.
        device: where batches are made.
        **options: options of `augment_classes`.
    """

    on_device = False
    index_device = torch.device("cpu")

    def __init__(self, dataset: StreamedDataset, device: torch.device | str, **options: Any) -> None:
        self.device, self.options = torch.device(device), options
        self.images, self.targets = dataset.file_images, dataset.targets.to(self.device)
        self.num_classes = dataset.num_classes
        self._pool = ThreadPoolExecutor(dataset.workers, thread_name_prefix="torchcaps-reader")
        self._copies = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._planned: Iterator[Tensor] = iter(())
        self._ahead: deque[tuple[Tensor, Future[_Read]]] = deque()
        self._share: Callable[[int], tuple[int, int]] = _everything

    def __len__(self) -> int:
        return len(self.images)

    def plan(
        self, batches: Iterator[Tensor], batch_size: int, share: Callable[[int], tuple[int, int]] | None = None
    ) -> None:
        """Start to read the batches that `take` will be asked for.

        Args:
            batches: the indices (B,) of each, in order.
            batch_size: the largest B.
            share: the half-open range of a batch of B that this process needs; the other images are not read and are
                black. By default all of them, and always where images are mixed.
        """
        for _, waiting in self._ahead:
            waiting.cancel()
        self._ahead.clear()
        # Images that are mixed need others of the batch.
        mixed = any(self.options.get(name) for name in MIXING)
        self._planned, self._share = batches, _everything if mixed or share is None else share
        batch_bytes = batch_size * int(np.prod(self.images.reader.shape))
        for _ in range(max(1, min(MAX_AHEAD, MAX_AHEAD_BYTES // max(1, batch_bytes)))):
            self._read_next()

    def take(self, indices: Tensor, generator: torch.Generator | None = None) -> Batch:
        """Return the augmented examples at these positions.

        Args:
            indices: (B,) positions on the CPU; those of the next planned batch have been read ahead.
            generator: of the random changes.
        """
        if self._ahead and torch.equal(self._ahead[0][0], indices):
            images, copied = self._ahead.popleft()[1].result()
            self._read_next()
        else:
            images, copied = self._read(indices, _everything)
        if copied is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(copied)
            images.record_stream(stream)  # its memory was allocated for the stream of the copies
        targets = self.targets[indices.to(self.device)]
        return Batch(*augment_classes(as_float(images), targets, self.num_classes, generator, **self.options))

    def _read_next(self) -> None:
        for indices in self._planned:
            self._ahead.append((indices, self._pool.submit(self._read, indices, self._share)))
            return

    def _read(self, indices: Tensor, share: Callable[[int], tuple[int, int]]) -> _Read:
        start, end = share(len(indices))
        shape = (len(indices), *self.images.reader.shape)
        make = torch.empty if end - start == len(indices) else torch.zeros
        images = make(shape, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        self.images.read_into(indices[start:end], images[start:end])
        if self._copies is None:
            return _Read(images, None)
        with torch.cuda.stream(self._copies):
            return _Read(images.to(self.device, non_blocking=True), self._copies.record_event())


def _everything(size: int) -> tuple[int, int]:
    return 0, size


@make_loader.register(StreamedDataset)
def _(data: StreamedDataset, device: torch.device | str, *, crop: int = 0, **options: Any) -> StreamedLoader:
    return StreamedLoader(data, device, crop=crop, **options)


@plain_loader.register(StreamedDataset)
def _(data: StreamedDataset, device: torch.device | str) -> StreamedLoader:
    return StreamedLoader(data, device)
