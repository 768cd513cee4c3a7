"""What a user gives as data: arrays, a torch Dataset, a DataLoader or another source; and what of it is held out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from torchcaps.data.arrays import make_dataset
from torchcaps.data.checks import StreamCheck, check_channels, check_images, looks_channels_last
from torchcaps.data.dataset import Dataset
from torchcaps.data.hugging_face import RowStream, is_hugging_face, open_hugging_face
from torchcaps.data.loader import as_float
from torchcaps.data.split import SplitOptions, split_dataset
from torchcaps.data.streamed import StreamedDataset
from torchcaps.data.streams import SAMPLE, Passes, Stream, make_stream
from torchcaps.data.tar_shards import is_shards, open_shards
from torchcaps.errors import UserError

HELD_OUT = 0.1  # of arrays and of a Dataset, for validation
MAX_RATIO = 8.0  # of the largest values of training and validation images, without a warning


@dataclass(frozen=True)
class Given:
    """What a user gave as data.

    Args:
        data: a Dataset in memory, or a Stream.
        sample: batches of images as the user gives them, with targets.
        scaled: whether floats must be in [0, 1].
    """

    data: Any
    sample: list[tuple[Tensor, Tensor]]
    scaled: bool

    @property
    def example(self) -> Tensor:
        """(B, …) a few images as a model sees them."""
        return as_float(self.sample[0][0][:2]).float()

    def extremes(self) -> tuple[float, float]:
        """The least and the largest value that a model sees, of a stream those in the sample."""
        bounds = [as_float(torch.stack(images.aminmax())) for images, _ in self.sample if images.numel()]
        return float(min(each[0] for each in bounds)), float(max(each[1] for each in bounds))

    def checked(self, data: Any, where: str = "fit") -> Any:
        """The data with class names; of a stream the sample is checked, and then what passes by in the first epoch."""
        if not isinstance(data, Stream):
            return data
        options = {"scaled": self.scaled, "batched": data.batched, "trained": where == "fit"}
        check = StreamCheck(len(data), data.num_classes, where, **options)
        for images, targets in self.sample:
            check.note(images, targets, sample=True)
        return replace(data, check=check)


def open_data(data: Any, batch_size: int) -> Any:
    """Open tar shards and Hugging Face data as a torch Dataset, and an iterable data set as a DataLoader.

    Args:
        data: what a user gave; anything else is returned as it is.
        batch_size: of the DataLoader.
    """
    if isinstance(data, str | Path) and is_shards(str(data)):
        return open_shards(str(data))
    if is_hugging_face(data):
        data = open_hugging_face(data) if hasattr(data, "__len__") else RowStream(data)
    return DataLoader(Passes(data), batch_size) if isinstance(data, IterableDataset) else data


def read_data(images: Any, labels: Any, class_names: Sequence[str] | None, scaled: bool, where: str = "fit") -> Given:
    """Read what a user gave as data; of a Dataset or DataLoader only a sample.

    Args:
        images: arrays, a torch Dataset or DataLoader, or a Dataset of this package.
        labels: of arrays.
        class_names: J names, or None.
        scaled: whether floats must be in [0, 1], as models of this package need them.
        where: with what messages begin.
    """
    if labels is None and isinstance(images, (TorchDataset, DataLoader)):
        stream, sample = make_stream(images, class_names, where)
        _check_shape(stream.image_shape, scaled, where)
        return Given(stream, sample, scaled)
    if isinstance(images, (TorchDataset, DataLoader, Dataset)) and labels is not None:
        raise UserError("fit: a Dataset or DataLoader has labels of its own; omit labels")
    if labels is None and not isinstance(images, Dataset):
        raise UserError(
            "fit: give labels with the images, or a Dataset or DataLoader of both, or the path of tar shards"
        )
    if isinstance(images, StreamedDataset):  # uint8, so nothing but their shape can be wrong
        return Given(images, [(images.images[:SAMPLE], images.targets[:SAMPLE])], scaled)
    if isinstance(images, Dataset):
        check_images(images.images, where, scaled)
    data = images if isinstance(images, Dataset) else make_dataset(images, labels, class_names, scaled)
    return Given(data, [(data.images, data.targets)], scaled)


def _check_shape(shape: Sequence[int], scaled: bool, where: str) -> None:
    """Of the images of a stream."""
    if scaled and len(shape) != 3:
        channel = ": add the channel, image[None]" if len(shape) == 2 else ""
        raise UserError(f"{where}: images must be (C, H, W), these are {tuple(shape)}{channel}")
    if looks_channels_last(shape):
        check_channels(("N", *shape), where, scaled)


def hold_out(given: Given, data: Any, validation: Any, seed: int) -> tuple[Any, Any]:
    """What is trained on, and what is held out or None; both checked.

    Args:
        given: what the user gave.
        data: its data, with class names.
        validation: a share or number, a pair of arrays, a Dataset or a DataLoader; by default HELD_OUT.
        seed: of what is held out.
    """
    if validation is None:
        validation = 0 if data.batched else HELD_OUT
    pair = isinstance(validation, (tuple, list)) and len(validation) == 2
    if pair or isinstance(validation, (TorchDataset, DataLoader, Dataset)):
        images, labels = validation if pair else (validation, None)
        other = read_data(images, labels, data.class_names, given.scaled, "fit: validation")
        parts = given.checked(data), other.checked(other.data, "fit: validation")
        _compare(given, other)
        return parts
    if not isinstance(validation, (int, float)):
        raise UserError("fit: validation must be a number, a pair (images, labels), a Dataset or a DataLoader")
    if not isinstance(data, Stream):
        return split_dataset(data, None, None, SplitOptions(validation, test=0, seed=seed))[:2]
    count = round(validation * len(data)) if validation < 1 else int(validation)
    if count and (data.batched or count >= len(data)):
        raise UserError("fit: a DataLoader holds nothing out, and a Dataset less than all of it: give validation data")
    data = given.checked(data)
    if not count:
        return data, None
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return data.subset(order[count:]), data.subset(order[:count])


def _compare(given: Given, other: Given) -> None:
    """Warn if validation images are not scaled like those for training; where they have to be, errors name both."""
    one, two = given.extremes(), other.extremes()
    least, most = sorted(max(map(abs, each)) for each in (one, two))
    if not given.scaled and 0 < least * MAX_RATIO <= most:
        (low, high), (from_, to) = one, two
        warnings.warn(
            f"fit: the validation images range from {from_:.4g} to {to:.4g}, those for training from {low:.4g} to "
            f"{high:.4g}: scale both alike",
            stacklevel=5,
        )
