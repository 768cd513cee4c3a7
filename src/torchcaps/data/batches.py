"""Batches on the device, in an order that a seed and an epoch decide."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.data.augment import augment
from torchcaps.data.dataset import Dataset
from torchcaps.errors import UserError


class Batch(NamedTuple):
    """What a step learns from.

    images   (B, C, H, W)     float32 in [0, 1]
    targets  (B,)             class ids, or (B, J) multi-hot, or (B, H, W) masks: see Crops
    parts    (B, M, C, H, W)  where images are made of several, each of them by itself, to be reconstructed
    labels   (B, M)           and its class
    """

    images: Tensor
    targets: Tensor
    parts: Tensor | None = None
    labels: Tensor | None = None


class Resident:
    """A data set moved to the device once, where it fits, and used for every epoch.

    On CUDA it fits when it takes less than half of the free memory; otherwise the images stay on the host and
    each batch is moved through pinned memory.

    changes  to images, options of `augment`
    """

    def __init__(self, dataset: Dataset, device: torch.device | str, **changes: Any) -> None:
        self.device, self.changes = torch.device(device), changes
        self.on_device = _fits(dataset.images, self.device)
        self.images = dataset.images.to(self.device) if self.on_device else dataset.images
        self.targets = dataset.targets.to(self.device)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def home(self) -> torch.device:
        """Where `take` wants its indices."""
        return self.images.device

    def take(self, indices: Tensor, generator: torch.Generator | None = None) -> Batch:
        """The batch at these positions (B,), its images changed at random."""
        places = indices.to(self.device)
        if self.on_device:
            images = self.images[places]
        else:
            # the gathered copy is what travels, so it is the copy that is pinned
            images = self.images[indices].pin_memory().to(self.device, non_blocking=True)
        return Batch(augment(as_float(images), generator, **self.changes), self.targets[places])


def batches(
    dataset: Dataset | Resident,
    batch_size: int,
    *,
    device: torch.device | str,
    seed: int,
    epoch: int,
    start: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of batches on the device; `start` skips so many of them, for a run that goes on where it stopped.

    yields  images (B, C, H, W) float32 in [0, 1], targets (B,) or (B, J)
    """
    count = num_batches(len(dataset), batch_size, drop_last=drop_last)
    if start < 0:
        raise UserError(f"start={start}: give the number of batches to skip, 0 or more")
    resident = dataset if isinstance(dataset, Resident) else Resident(dataset, device)
    order = epoch_order(len(dataset), seed, epoch) if shuffle else torch.arange(len(dataset))
    if resident.on_device:
        order = order.to(resident.device)  # once an epoch, not once a batch
    return (resident.take(order[i * batch_size : (i + 1) * batch_size])[:2] for i in range(start, count))


def num_batches(images: int, batch_size: int, *, drop_last: bool = False) -> int:
    """How many batches an epoch has."""
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size}: give 1 or more")
    return images // batch_size if drop_last else -(-images // batch_size)


def epoch_order(images: int, seed: int, epoch: int) -> Tensor:
    """A permutation that depends on the seed and the epoch alone, not on the device or the history.

    returns  (N,)
    """
    # hashed, since seed + epoch would give seed 0 in epoch 1 the order of seed 1 in epoch 0
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randperm(images, generator=generator)


def as_float(images: Tensor) -> Tensor:
    """uint8 images as float32 in [0, 1]; float images as they are."""
    return images if images.is_floating_point() else images.float().div_(255)


def class_weights(dataset: Dataset) -> Tensor:
    """How much an image of each class should count so that every class counts alike.

    returns  (J,)  inverse frequencies with mean 1 over the classes that occur; 0 for those that do not
    """
    counts = dataset.class_counts().float()
    inverse = torch.where(counts > 0, 1 / counts.clamp(min=1), 0)
    return inverse * ((counts > 0).sum() / inverse.sum().clamp(min=torch.finfo(torch.float32).tiny))


def _fits(images: Tensor, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.nbytes < free // 2
