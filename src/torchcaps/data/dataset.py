"""Labelled images in memory, and their splits: what every source of data returns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from torchcaps.errors import UserError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with their targets, in memory.

    Args:
        images: (N, C, H, W) uint8, or float32 in [0, 1] where the source has more than 8 bits.
        targets: (N,) int64 class ids, or (N, J) float32 multi-hot where an image may have several labels.
        class_names: J names.
        files: N paths, if the images came from files.
        labels_each: the number of labels of every image, if known; a model then predicts that many classes.
        digests: (N, D) uint8 hashes of the images, if known; a fingerprint then covers them in place of the pixels.
    """

    images: Tensor
    targets: Tensor
    class_names: tuple[str, ...]
    files: tuple[str, ...] | None = None
    labels_each: int | None = None
    digests: Tensor | None = None

    def __post_init__(self) -> None:
        if self.images.dtype not in (torch.uint8, torch.float32) or self.images.ndim != 4:
            shape = tuple(self.images.shape)
            raise UserError(f"images must be uint8 or float32 (N, C, H, W); these are {self.images.dtype} {shape}")
        n, classes = len(self.images), len(self.class_names)
        if len(self.targets) != n or (self.files is not None and len(self.files) != n):
            raise UserError(f"{n} images need {n} targets (and files); there are {len(self.targets)} targets")
        if self.targets.ndim == 2:
            if self.targets.dtype != torch.float32 or self.targets.shape[1] != classes:
                raise UserError(f"multi-hot targets must be float32 (N, {classes}), one column for each class name")
        elif self.targets.ndim != 1 or self.targets.dtype != torch.int64:
            raise UserError(f"targets must be int64 class ids (N,) or multi-hot float32 (N, {classes})")
        elif n and not 0 <= int(self.targets.min()) <= int(self.targets.max()) < classes:
            raise UserError(f"class ids must lie in 0..{classes - 1}; these reach {int(self.targets.max())}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)"""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def num_classes(self) -> int:
        """J."""
        return len(self.class_names)

    tasks = ("classification",)  # what can be learned from it
    self_augmenting = False  # whether every batch is drawn anew by the data set itself
    batched = False  # whether each example is a whole batch

    @property
    def multi_label(self) -> bool:
        """Whether targets are multi-hot."""
        return self.targets.ndim == 2

    def subset(self, indices: Tensor) -> Dataset:
        """Return the images at the positions `indices` (M,), in that order."""
        files = None if self.files is None else tuple(self.files[i] for i in indices.tolist())
        digests = None if self.digests is None else self.digests[indices]
        images = self._images_at(indices)
        return replace(self, images=images, targets=self.targets[indices], files=files, digests=digests)

    def _images_at(self, indices: Tensor) -> Tensor:
        return self.images[indices]

    def class_counts(self) -> Tensor:
        """Count the images with each label: (J,) int64."""
        return count_classes(self.targets, self.num_classes)

    def content(self) -> Iterator[memoryview]:
        """Yield the bytes that a fingerprint covers."""
        for tensor in (self.images if self.digests is None else self.digests, self.targets):
            yield tensor.contiguous().numpy().data

    def checksum(self) -> str:
        """Return a hash of the images and targets."""
        digest = hashlib.blake2b(digest_size=16)
        for part in self.content():
            digest.update(part)
        return digest.hexdigest()


def class_weights(dataset: Dataset) -> Tensor:
    """Compute the weight of an image of each class with which all classes count equally.

    Returns:
        (J,) inverse frequencies with mean 1 over the classes that occur; 0 for the others.
    """
    counts = dataset.class_counts().float()
    inverse = torch.where(counts > 0, 1 / counts.clamp(min=1), 0)
    return inverse * ((counts > 0).sum() / inverse.sum().clamp(min=torch.finfo(torch.float32).tiny))


class Examples(Protocol):
    """The interface of a data set: images with classes (Dataset) or with masks (SegmentationDataset)."""

    def __len__(self) -> int: ...
    @property
    def tasks(self) -> tuple[str, ...]: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    @property
    def num_classes(self) -> int: ...
    def subset(self, indices: Tensor) -> Any: ...
    def content(self) -> Iterator[memoryview | bytes]: ...


Part = TypeVar("Part", bound=Examples)


@dataclass(frozen=True, eq=False)
class Splits(Generic[Part]):
    """Training, validation and test data; the test data is evaluated once, at the end of a run.

    Args:
        train: the training data.
        validation: the validation data, if any.
        test: the test data, if any.
        source: the name of the data source.
        left_out: files that could not be read and are in none of the parts.
    """

    train: Part
    validation: Part | None
    test: Part | None
    source: str
    left_out: tuple[str, ...] = ()

    def fingerprint(self) -> str:
        """Return a hash of all images and targets, and of the part they are in."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.train, self.validation, self.test):
            digest.update(b"|")
            for content in () if part is None else part.content():
                digest.update(content)
        return digest.hexdigest()


MNIST_TEST_CHECKSUM = "2143997eefd131325cb280268637e9f4"


def verified(made: Dataset, digits: Dataset, checksum: str, name: str) -> Dataset:
    """Return a test set made of `digits`; if these are MNIST's, it must have the published checksum."""
    if digits.checksum() == MNIST_TEST_CHECKSUM and made.checksum() != checksum:
        raise UserError(
            f"the {name} test set differs with PyTorch {torch.__version__} on this machine, so results would not be "
            "comparable with others: try another version of PyTorch, and please report this"
        )
    return made


def count_classes(targets: Tensor, num_classes: int) -> Tensor:
    """Count the examples with each label.

    Args:
        targets: (N,) class ids or (N, J) multi-hot.
        num_classes: J.

    Returns:
        (J,) int64.
    """
    if targets.ndim == 2:
        return targets.sum(dim=0).long()
    return torch.bincount(targets, minlength=num_classes)
