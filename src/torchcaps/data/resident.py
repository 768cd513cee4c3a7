"""Training data on the device, ready to be asked for batches."""

from __future__ import annotations

from typing import Any

import torch

from torchcaps.data.batches import Resident
from torchcaps.data.crops import Crops
from torchcaps.data.dataset import Dataset
from torchcaps.data.datasets.multimnist import Digits, ResidentPairs
from torchcaps.data.segmentation import SegmentationDataset


def epoch_size(data: Dataset | SegmentationDataset, crop: int = 0) -> int:
    """Examples that one pass over the data has: images, or windows of them."""
    return len(data.windows(data.window(crop))) if isinstance(data, SegmentationDataset) else len(data)


def resident(
    data: Dataset | SegmentationDataset, device: torch.device | str, *, crop: int = 0, **changes: Any
) -> Resident | Crops:
    """Images as they are, pairs of digits drawn anew for every batch, or windows of images with masks.

    crop, changes  options of `augment`; with masks a crop of 0 is that of `SegmentationDataset.window`
    """
    if isinstance(data, SegmentationDataset):
        return Crops(data, data.window(crop), device, **changes)
    if isinstance(data, Digits):
        return ResidentPairs(data, device)  # which moves each digit by itself
    return Resident(data, device, crop=crop, **changes)
