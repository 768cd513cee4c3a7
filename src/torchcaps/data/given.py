"""What a user gives as data: arrays, a torch Dataset or a DataLoader; and what of it is held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from torchcaps.data.arrays import as_dataset, check_range
from torchcaps.data.dataset import Dataset
from torchcaps.data.loader import as_float
from torchcaps.data.split import SplitOptions, split_dataset
from torchcaps.data.streams import Stream, make_stream
from torchcaps.errors import UserError

HELD_OUT = 0.1  # of arrays and of a Dataset, for validation


def read_data(images: Any, labels: Any, class_names: Sequence[str] | None) -> tuple[Any, Tensor]:
    """The data, and a few images as a model sees them.

    Args:
        images: arrays, a torch Dataset or DataLoader, or a Dataset of this package.
        labels: of arrays.
        class_names: J names, or None.
    """
    if labels is None and isinstance(images, (TorchDataset, DataLoader)):
        return make_stream(images, class_names)
    if isinstance(images, (TorchDataset, DataLoader)):
        raise UserError("fit: a Dataset or DataLoader has labels of its own; omit labels")
    if labels is None and not isinstance(images, Dataset):
        raise UserError("fit: give labels with the images, or a Dataset or DataLoader of both")
    data = images if isinstance(images, Dataset) else as_dataset(images, labels, class_names)
    return data, as_float(data.images[:2])


def hold_out(data: Any, validation: Any, seed: int) -> tuple[Any, Any]:
    """What is trained on, and what is held out or None.

    Args:
        data: as `read_data` returns it.
        validation: a share or number, a pair of arrays, a Dataset or a DataLoader; by default HELD_OUT.
        seed: of what is held out.
    """
    if validation is None:
        validation = 0 if data.batched else HELD_OUT
    if isinstance(validation, (TorchDataset, DataLoader, Dataset)):
        return data, read_data(validation, None, data.class_names)[0]
    if isinstance(validation, (tuple, list)) and len(validation) == 2:
        return data, as_dataset(validation[0], validation[1], data.class_names)
    if not isinstance(validation, (int, float)):
        raise UserError("fit: validation must be a number, a pair (images, labels), a Dataset or a DataLoader")
    if not isinstance(data, Stream):
        return split_dataset(data, None, None, SplitOptions(validation, test=0, seed=seed))[:2]
    count = round(validation * len(data)) if validation < 1 else int(validation)
    if count and (data.batched or count >= len(data)):
        raise UserError("fit: a DataLoader holds nothing out, and a Dataset less than all of it: give validation data")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return (data.subset(order[count:]), data.subset(order[:count])) if count else (data, None)


def check_stream_range(data: Any, example: Tensor) -> None:
    """Raise a UserError unless the images of a stream are in [0, 1], as arrays have to be."""
    if isinstance(data, Stream):
        check_range(example)
