"""A user's own torch Dataset or DataLoader: examples are read when a batch is made, and never all held in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import data as torch_data

from torchcaps.data.augment import augment
from torchcaps.data.loader import Batch, as_float, make_loader
from torchcaps.errors import UserError


@dataclass(frozen=True, eq=False)
class Stream:
    """Images with classes that are read when they are needed.

    Args:
        source: a map-style torch Dataset, whose items are (image, label); or a DataLoader, of which an example here is
            a whole batch.
        class_names: J names.
        image_shape: of one image.
        multi_label: whether targets are multi-hot.
    """

    source: Any
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    multi_label: bool = False

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


class StreamLoader:
    """Makes batches of a Stream; the interface is that of `DeviceLoader`.

    Args:
        stream: of a Dataset or a DataLoader.
        device: where batches are needed.
        **options: options of `augment`.
    """

    on_device = False
    index_device = torch.device("cpu")

    def __init__(self, stream: Stream, device: torch.device | str, **options: Any) -> None:
        self.stream, self.device = stream, torch.device(device)
        self.options = {name: value for name, value in options.items() if value}
        self._batches: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return len(self.stream)

    def take(self, indices: Tensor, generator: torch.Generator | None = None) -> Batch:
        """Return the augmented examples at these positions; of a DataLoader its next batch, whatever the positions."""
        images, targets = read_batch(self._next() if self.stream.batched else self._collated(indices))
        images, targets = (each.to(self.device, non_blocking=True) for each in (images, targets))
        images = as_float(images).float()
        return Batch(augment(images, generator, **self.options) if self.options else images, targets)

    def _collated(self, indices: Tensor) -> Any:
        return collate([self.stream.source[index] for index in indices.tolist()])

    def _next(self) -> Any:
        for _ in range(2):
            for batch in self._batches:
                return batch
            self._batches = iter(self.stream.source)
        raise UserError("fit: the DataLoader has no batches; check its data set, and drop_last")


@make_loader.register(Stream)
def _(data: Stream, device: torch.device | str, **options: Any) -> StreamLoader:
    return StreamLoader(data, device, **options)


def make_stream(source: Any, class_names: Sequence[str] | None = None) -> tuple[Stream, Tensor]:
    """Make a stream of a Dataset or a DataLoader.

    Args:
        source: the Dataset or DataLoader.
        class_names: of the classes; by default those of its attribute `classes`, else none.

    Returns:
        The stream, and a few images (B, …) as its loader gives them.
    """
    batched = isinstance(source, torch_data.DataLoader)
    try:
        length = len(source)
    except TypeError:
        length = None
    if length is None or isinstance(source, torch_data.IterableDataset):
        raise UserError(
            "fit: an epoch of this data has no end: give an iterable data set a length (__len__) and a DataLoader"
        )
    if length == 0:
        raise UserError("fit: the data set is empty")
    with torch.random.fork_rng(devices=[]):
        images, targets = read_batch(next(iter(source)) if batched else collate([source[0]]))
    names = class_names or getattr(source.dataset if batched else source, "classes", None) or ()
    stream = Stream(source, tuple(map(str, names)), tuple(images.shape[1:]), targets.ndim == 2)
    return stream, as_float(images).float()


def collate(examples: list[Any]) -> Any:
    """A batch of examples."""
    try:
        return torch_data.default_collate(examples)
    except TypeError as error:
        raise UserError(
            f"fit: the items of a Dataset must be (image, label) with tensors or arrays as images; give it a transform "
            f"such as torchvision's ToTensor: {error}"
        ) from error


def read_batch(batch: Any) -> tuple[Tensor, Tensor]:
    """Images and targets of a batch of a user's."""
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2 and all(torch.is_tensor(each) for each in batch)):
        raise UserError("fit: the items of a Dataset, and the batches of a DataLoader, must be pairs (images, labels)")
    images, targets = batch
    if len(images) != len(targets):
        raise UserError(f"fit: a batch has {len(images)} images and {len(targets)} labels")
    whole = not targets.is_floating_point()
    return images, targets.long() if whole and targets.ndim == 1 else targets.float()
