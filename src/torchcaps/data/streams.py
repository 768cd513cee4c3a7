"""A user's own torch Dataset or DataLoader: examples are read when a batch is made, and never all held in memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils import data as torch_data

from torchcaps.data.augment import AMOUNTS, augment_classes
from torchcaps.data.checks import StreamCheck
from torchcaps.data.loader import Batch, as_float, make_loader
from torchcaps.errors import UserError

SAMPLE = 32  # examples of a Dataset that are looked at before training, spread over all of it
MAX_COUNTED = 100_000_000  # examples of a data set without a length
SAMPLE_BATCHES = 2  # of a DataLoader: its first
NO_BATCHES = "fit: the DataLoader has no batches; check its data set, and drop_last"


@dataclass(frozen=True, eq=False)
class Stream:
    """Images with classes that are read when they are needed.

    Args:
        source: a map-style torch Dataset, whose items are (image, label); or a DataLoader, of which an example here is
            a whole batch.
        class_names: J names.
        image_shape: of one image.
        multi_label: whether targets are multi-hot.
        check: is shown every batch.
    """

    source: Any
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    multi_label: bool = False
    check: StreamCheck | None = None

    tasks = ("classification",)
    self_augmenting = False
    labels_each = None

    def __len__(self) -> int:
        """Examples, or batches of a DataLoader."""
        return len(self.source)

    @property
    def batched(self) -> bool:
        """Whether each example is a batch."""
        return isinstance(self.source, torch_data.DataLoader)

    @property
    def num_classes(self) -> int:
        """J."""
        return len(self.class_names)

    def subset(self, indices: Tensor) -> Stream:
        """Return the examples at these positions, in that order; not of a DataLoader."""
        return replace(self, source=torch_data.Subset(self.source, indices.tolist()))

    def class_counts(self) -> Tensor:
        """Labels are not known before they are read."""
        raise UserError("loss.class_weights: the classes of a Dataset or DataLoader are not counted; give arrays")

    def content(self) -> Iterator[memoryview | bytes]:
        """Yield nothing: a stream has no fingerprint."""
        return iter(())


class Passes(torch_data.IterableDataset):
    """An iterable data set of a user's with a length; every pass over it is an epoch of its own.

    Args:
        source: the data set. One without a length is counted by a first pass.
    """

    def __init__(self, source: Any) -> None:
        self.source, self.classes = source, getattr(source, "classes", None)
        self._length: int | None = None
        self._passes = 0

    def __len__(self) -> int:
        if self._length is None:
            try:
                self._length = len(self.source)
            except TypeError:
                examples = getattr(self.source, "undecoded", self.source)
                self._length = sum(1 for _ in islice(examples, MAX_COUNTED + 1))
                if self._length > MAX_COUNTED:
                    raise UserError(
                        f"fit: the iterable data set has more than {MAX_COUNTED:,} examples: give it a length "
                        "(__len__), the number of examples in an epoch"
                    ) from None
        return self._length

    def __iter__(self) -> Iterator[Any]:
        if callable(set_epoch := getattr(self.source, "set_epoch", None)):
            set_epoch(self._passes)
        self._passes += 1
        return iter(self.source)


class StreamLoader:
    """Makes batches of a Stream; the interface is that of `DeviceLoader`.

    Args:
        stream: of a Dataset or a DataLoader.
        device: where batches are needed.
        **options: options of `augment_classes`.
    """

    on_device = False
    index_device = torch.device("cpu")

    def __init__(self, stream: Stream, device: torch.device | str, **options: Any) -> None:
        self.stream, self.device = stream, torch.device(device)
        changes = any(value for name, value in options.items() if name not in AMOUNTS)
        self.options = options if changes else {}
        if changes and len(stream.image_shape) != 3:
            raise UserError(
                f"augment: only images (C, H, W) can be changed, these are {stream.image_shape}; omit augment"
            )
        self._batches: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return len(self.stream)

    def take(self, indices: Tensor, generator: torch.Generator | None = None) -> Batch:
        """Return the augmented examples at these positions; of a DataLoader its next batch, whatever the positions."""
        images, targets = read_batch(self._next() if self.stream.batched else self._collated(indices))
        if self.stream.check is not None:
            self.stream.check.note(images, targets)
        images, targets = (each.to(self.device, non_blocking=True) for each in (images, targets))
        images = as_float(images).float()
        if not self.options:  # examples need not be images
            return Batch(images, targets)
        return Batch(*augment_classes(images, targets, self.stream.num_classes, generator, **self.options))

    def _collated(self, indices: Tensor) -> Any:
        return collate([self.stream.source[index] for index in indices.tolist()])

    def _next(self) -> Any:
        for _ in range(2):
            for batch in self._batches:
                return batch
            self._batches = iter(self.stream.source)
        raise UserError(NO_BATCHES)


@make_loader.register(Stream)
def _(data: Stream, device: torch.device | str, **options: Any) -> StreamLoader:
    return StreamLoader(data, device, **options)


def make_stream(
    source: Any, class_names: Sequence[str] | None = None, where: str = "fit"
) -> tuple[Stream, list[tuple[Tensor, Tensor]]]:
    """Make a stream of a Dataset or a DataLoader.

    Args:
        source: the Dataset or DataLoader.
        class_names: of the classes; by default those of its attribute `classes`, else a number for each column of
            multi-hot labels, else none.
        where: with what messages begin.

    Returns:
        The stream, and a sample of its batches: SAMPLE examples of a Dataset, the first SAMPLE_BATCHES of a DataLoader.
    """
    batched = isinstance(source, torch_data.DataLoader)
    try:
        length = len(source)
    except TypeError:
        length = None
    if length is None:
        raise UserError("fit: an epoch of this DataLoader has no end: give its iterable data set a length (__len__)")
    if length == 0:
        raise UserError("fit: the data set is empty")
    with torch.random.fork_rng(devices=[]):
        if batched:
            sample = list(islice(source, SAMPLE_BATCHES))
        else:
            spread = torch.linspace(0, length - 1, min(length, SAMPLE)).long().unique().tolist()
            sample = [collate([source[index] for index in spread])]
    if not sample:
        raise UserError(NO_BATCHES)
    batches = [read_batch(each) for each in sample]
    _warn_of_float_ids(sample[0][1], where)
    images, targets = batches[0]
    columns = map(str, range(targets.shape[1])) if targets.ndim == 2 else ()
    names = class_names or getattr(source.dataset if batched else source, "classes", None) or columns
    return Stream(source, tuple(map(str, names)), tuple(images.shape[1:]), targets.ndim == 2), batches


def collate(examples: list[Any]) -> Any:
    """A batch of examples."""
    try:
        return torch_data.default_collate(examples)
    except TypeError as error:
        raise UserError(
            f"fit: the items of a Dataset must be (image, label) with tensors or arrays as images; give it a transform "
            f"such as torchvision's ToTensor: {error}"
        ) from error
    except RuntimeError as error:
        raise UserError(f"fit: the images of a Dataset must have one shape; resize them: {error}") from error


def read_batch(batch: Any) -> tuple[Tensor, Tensor]:
    """Images and targets of a batch of a user's."""
    pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    words = batch[1] if pair and isinstance(batch[1], (tuple, list)) else ()
    if words and all(isinstance(each, str) for each in words):
        raise UserError(
            f"fit: the labels of a Dataset or DataLoader must be class ids, and these are names, such as {words[0]!r}: "
            "return class_names.index(name), and give class_names"
        )
    if not (pair and all(torch.is_tensor(each) for each in batch)):
        raise UserError("fit: the items of a Dataset, and the batches of a DataLoader, must be pairs (images, labels)")
    images, targets = batch
    if images.ndim == 0 or targets.ndim == 0:
        raise UserError(
            f"fit: a batch has images of shape {tuple(images.shape)} and labels of shape {tuple(targets.shape)}: give "
            "the DataLoader a batch_size"
        )
    if len(images) != len(targets) or targets.ndim > 2:
        raise UserError(
            f"fit: a batch has {len(images)} images and labels of shape {tuple(targets.shape)}: give one class id, or "
            "one row of 0 and 1, for each image"
        )
    images = images.float() if images.dtype == torch.bool else images
    whole = not targets.is_floating_point()
    if targets.ndim == 2 and (targets.shape[1] > 1 or not whole):
        return images, targets.float()
    targets = targets.flatten()
    if not whole and targets.device.type == "cpu" and not bool((targets == targets.round()).all()):
        raise UserError("fit: labels must be whole numbers, or rows of 0 and 1, one column a class")
    return images, targets.long()


def _warn_of_float_ids(targets: Tensor, where: str) -> None:
    if targets.is_floating_point() and targets.ndim == 1:
        warnings.warn(
            f"{where}: the labels are floats and are read as class ids; convert them to integers to say so",
            stacklevel=6,
        )
