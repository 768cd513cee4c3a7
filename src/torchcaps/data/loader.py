"""Loaders: training data on the device, from which batches are taken, augmented."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.data.augment import augment_classes, augment_masks, centre_crop
from torchcaps.data.dataset import Dataset
from torchcaps.data.segmentation import SegmentationDataset, pad_by_reflection
from torchcaps.errors import UserError


class Batch(NamedTuple):
    """One batch of training examples.

    Attributes:
        images: (B, C, H, W) float32 in [0, 1].
        targets: (B,) class ids, or (B, J) multi-hot, or (B, H, W) masks of class ids.
        parts: (B, M, C, H, W) each of the M objects in an image alone, as a target for reconstruction.
        labels: (B, M) class ids of the parts.
    """

    images: Tensor
    targets: Tensor
    parts: Tensor | None = None
    labels: Tensor | None = None


class DeviceLoader:
    """Images that are moved to the device once and stay there for every epoch.

    On CUDA they stay on the host if they would take half of the free memory or more; then each batch is moved through
    pinned memory.

    Args:
        dataset: the images and targets.
        device: where batches are made.
        **options: options of `augment_classes`.

    Attributes:
        on_device: whether the images fitted on the device.
    """

    def __init__(self, dataset: Dataset, device: torch.device | str, **options: Any) -> None:
        self.device, self.options = torch.device(device), options
        self.on_device = _fits(dataset.images, self.device)
        self.images = dataset.images.to(self.device) if self.on_device else dataset.images
        self.targets, self.num_classes = dataset.targets.to(self.device), dataset.num_classes

    def __len__(self) -> int:
        return len(self.images)

    @property
    def index_device(self) -> torch.device:
        """The device that indices for `take` must be on."""
        return self.images.device

    def take(self, indices: Tensor, generator: torch.Generator | None = None) -> Batch:
        """Return the augmented examples at these positions.

        Args:
            indices: (B,) positions, on `index_device`.
            generator: of the random changes.
        """
        on_device = indices.to(self.device)
        if self.on_device:
            images = self.images[on_device]
        else:  # pin the gathered copy, which is what is transferred
            images = self.images[indices].pin_memory().to(self.device, non_blocking=True)
        targets = self.targets[on_device]
        return Batch(*augment_classes(as_float(images), targets, self.num_classes, generator, **self.options))


class CropLoader:
    """Random windows of images with masks, all on the device; taking them never waits for the device.

    An image smaller than a window is padded by reflection, and its mask with IGNORED. So is every image by as much as
    the warp of a window can bring in from outside.

    Args:
        dataset: at least one image with its mask.
        crop: side of a window.
        device: where the images are kept and batches are made.
        **options: options of `augment_masks`.
    """

    on_device = True

    def __init__(self, dataset: SegmentationDataset, crop: int, device: torch.device | str, **options: Any) -> None:
        if crop < 1:
            raise UserError(f"crop={crop}: give the side of a window in pixels, at least 1")
        if not len(dataset):
            raise UserError("there are no images to take windows from")
        self.device, self.crop, self.channels, self.options = torch.device(device), crop, dataset.channels, options
        self._border = _warp_border(crop, **options)
        pairs = zip(dataset.images, dataset.masks)
        images, masks = zip(*(pad_by_reflection(*pair, (crop, crop), self._border) for pair in pairs))
        sizes_N2 = torch.tensor([mask.shape for mask in masks])
        area_N = sizes_N2.prod(1)
        # All images flattened (C, H, W) and concatenated, and so the masks.
        self._images, self._masks = (torch.cat([t.flatten() for t in ts]).to(self.device) for ts in (images, masks))
        self._sizes_N2, self._starts_N = sizes_N2.to(self.device), (area_N.cumsum(0) - area_N).to(self.device)
        self._image_M = dataset.windows(crop).to(self.device)

    def __len__(self) -> int:
        """The number of windows in an epoch."""
        return len(self._image_M)

    @property
    def index_device(self) -> torch.device:
        """The device that indices for `take` must be on."""
        return self.device

    def take(self, indices_B: Tensor, generator: torch.Generator | None = None) -> Batch:
        """Cut and augment one window for each index, at a uniformly random position in its image.

        Args:
            indices_B: (B,) numbers of windows; each belongs to one image.
            generator: of the positions and the random changes.
        """
        images, masks = self._cut(self._image_M[indices_B], generator)
        if not self.options:
            return Batch(images, masks)
        images, masks = augment_masks(images, masks, generator, **self.options)
        return Batch(centre_crop(images, self.crop), centre_crop(masks, self.crop))

    def _cut(self, image_B: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return (B, C, H, W) and (B, H, W), including the border around a window."""
        window = self.crop + 2 * self._border
        sizes_B2, start_B111 = self._sizes_N2[image_B], self._starts_N[image_B].view(-1, 1, 1, 1)
        # An integer far larger than any image: its remainder is practically uniform, and exact on every device.
        source = self.device if generator is None else generator.device
        drawn_B2 = torch.randint(2**62, (len(image_B), 2), generator=generator, device=source).to(self.device)
        top_B, left_B = (drawn_B2 % (sizes_B2 - window + 1)).unbind(1)
        side = torch.arange(window, device=self.device)
        rows_B1H1 = (top_B[:, None] + side)[:, None, :, None]
        columns_B11W = (left_B[:, None] + side)[:, None, None, :]
        pixels_B1HW = rows_B1H1 * sizes_B2[:, 1].view(-1, 1, 1, 1) + columns_B11W
        channel_1C11 = torch.arange(self.channels, device=self.device).view(1, -1, 1, 1)
        planes_BC11 = self.channels * start_B111 + channel_1C11 * sizes_B2.prod(1).view(-1, 1, 1, 1)
        masks_BHW = self._masks[(start_B111 + pixels_B1HW).squeeze(1)]
        return as_float(self._images[planes_BC11 + pixels_B1HW]), masks_BHW.long()


@singledispatch
def make_loader(data: Any, device: torch.device | str, *, crop: int = 0, **options: Any) -> Any:
    """Make the loader for a data set: of images, of random pairs of digits, or of windows of images with masks.

    `make_loader.register(MyData)` registers a function for a data set of your own.

    Args:
        data: the data set; its type decides on the loader.
        device: where batches are made.
        crop: as of `augment`; with masks 0 stands for `SegmentationDataset.window()`.
        **options: the other options of `augment`.
    """
    raise TypeError(f"no loader for {type(data).__name__}")


@make_loader.register(Dataset)
def _(data: Dataset, device: torch.device | str, *, crop: int = 0, **options: Any) -> DeviceLoader:
    return DeviceLoader(data, device, crop=crop, **options)


@make_loader.register(SegmentationDataset)
def _(data: SegmentationDataset, device: torch.device | str, *, crop: int = 0, **options: Any) -> CropLoader:
    return CropLoader(data, data.window(crop), device, **options)


def batches(
    dataset: Any,
    batch_size: int,
    *,
    device: torch.device | str,
    seed: int,
    epoch: int,
    start: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over one epoch of batches on the device.

    Args:
        dataset: a Dataset, or any loader.
        batch_size: examples in a batch.
        device: where batches are made.
        seed: of the order.
        epoch: number of the epoch, which changes the order too.
        start: number of batches to skip, to resume an epoch.
        shuffle: whether to use the order of `epoch_order`.
        drop_last: whether to drop an incomplete last batch.

    Yields:
        Images (B, C, H, W) float32 in [0, 1], and targets (B,) or (B, J).
    """
    count = num_batches(len(dataset), batch_size, drop_last=drop_last)
    if start < 0:
        raise UserError(f"start={start}: give the number of batches to skip, 0 or more")
    loader = plain_loader(dataset, device) if isinstance(dataset, Dataset) else dataset
    order = epoch_order(len(dataset), seed, epoch) if shuffle else torch.arange(len(dataset))
    if loader.on_device:
        order = order.to(loader.device)  # once an epoch, not once a batch
    plan_epoch(loader, order[: count * batch_size], batch_size, start)
    return (loader.take(order[i * batch_size : (i + 1) * batch_size])[:2] for i in range(start, count))


def plan_epoch(
    loader: Any,
    order: Tensor,
    batch_size: int,
    start: int = 0,
    share: Callable[[int], tuple[int, int]] | None = None,
) -> None:
    """Tell a loader that reads ahead which batches will be taken; others need not know.

    Args:
        loader: any loader; one that reads ahead has a method `plan`.
        order: (N,) the examples of the epoch.
        batch_size: examples in a batch.
        start: number of batches to skip.
        share: the half-open range of a batch of B that this process needs; by default all of it.
    """
    plan = getattr(loader, "plan", None)
    if plan is not None:
        plan(iter(order.split(batch_size)[start:]), batch_size, share)


@singledispatch
def plain_loader(data: Any, device: torch.device | str) -> Any:
    """The loader of a data set for evaluation: its images as they are, even of one that draws random pairs of them."""
    return make_loader(data, device)


@plain_loader.register(Dataset)
def _(data: Dataset, device: torch.device | str) -> DeviceLoader:
    return DeviceLoader(data, device)


def num_batches(images: int, batch_size: int, *, drop_last: bool = False) -> int:
    """Return the number of batches in an epoch."""
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size}: give 1 or more")
    return images // batch_size if drop_last else -(-images // batch_size)


def epoch_size(data: Dataset | SegmentationDataset, crop: int = 0) -> int:
    """Return the number of examples in one pass over the data: images, or windows of side `crop`."""
    return len(data.windows(data.window(crop))) if isinstance(data, SegmentationDataset) else len(data)


def epoch_order(images: int, seed: int, epoch: int) -> Tensor:
    """Return a (N,) permutation that depends on the seed and the epoch alone, not on the device or earlier draws."""
    # hashed, since seed + epoch would give seed 0 in epoch 1 the order of seed 1 in epoch 0
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randperm(images, generator=generator)


def as_float(images: Tensor) -> Tensor:
    """Scale uint8 images to float32 in [0, 1]; return float images unchanged."""
    return images if images.is_floating_point() else images.float().div_(255)


def _fits(images: Tensor, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.nbytes < free // 2


def _warp_border(
    crop: int,
    *,
    shift: int = 0,
    rotate: float = 0.0,
    shear: float = 0.0,
    scale: float = 0.0,
    elastic: float = 0.0,
    **others: Any,
) -> int:
    """Return how many pixels around a window these changes can bring into it."""
    angle = math.radians(min(rotate, 45.0))  # at which a corner reaches farthest
    grown = crop * (math.cos(angle) + math.sin(angle)) * (1 + shear) / (1 - scale)
    return math.ceil((grown - crop) / 2 + 3 * elastic) + shift
