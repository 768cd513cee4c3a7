"""Images with the objects in them, each with class, position, angle and scale, on one or several levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchcaps.data.augment import GEOMETRIC, MIXING
from torchcaps.data.loader import DeviceLoader, make_loader
from torchcaps.errors import UserError
from torchcaps.layers.part import LABEL, LEVEL

COLUMNS = ("level", "label", "x", "y", "scale · cos", "scale · sin", "width", "height")
NOTHING = -1.0  # the level of padding


@dataclass(frozen=True, eq=False)
class ObjectDataset:
    """Images with objects, in memory.

    Objects are rows of COLUMNS. x and y are in pixels from the middle of the upper left one, y downwards; scale and
    angle, counter-clockwise as the image is seen, are given by `scale · cos` and `scale · sin`; width and height are
    those at scale 1, before the object is turned.

    Args:
        images: (N, C, H, W) uint8.
        objects: (N, M, 8) float32; padding has level -1.
        levels: names of the objects of each level, parts first; the last are the classes.
        members: for each level above the parts, and each of its objects, the types of its members.
        symmetry: turns within a full circle that map each part onto itself; 0 for every turn.
    """

    images: Tensor
    objects: Tensor
    levels: tuple[tuple[str, ...], ...]
    members: tuple[tuple[tuple[int, ...], ...], ...]
    symmetry: tuple[int, ...]

    tasks = ("detection",)  # what can be learned from it
    self_augmenting = False
    batched = False
    files = None

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise UserError(
                f"images must be uint8 (N, C, H, W); these are {self.images.dtype} {tuple(self.images.shape)}"
            )
        if self.objects.ndim != 3 or self.objects.shape[-1] != len(COLUMNS) or len(self.objects) != len(self.images):
            raise UserError(
                f"objects must be ({len(self.images)}, M, {len(COLUMNS)}): {', '.join(COLUMNS)} of each; these are "
                f"{tuple(self.objects.shape)}"
            )
        if not self.levels or len(self.members) != len(self.levels) - 1 or len(self.symmetry) != len(self.levels[0]):
            raise UserError("objects need names of each level, members of each level above the parts, and symmetries")
        level, label = self.objects[..., LEVEL], self.objects[..., LABEL]
        if not bool(self.objects.isfinite().all()):
            raise UserError("objects must be finite; use level -1 for padding")
        for number, names in enumerate(self.levels):
            ids = label[level == number]
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(names):
                raise UserError(f"labels of level {number} must lie in 0..{len(names) - 1}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)"""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the last level."""
        return self.levels[-1]

    @property
    def num_classes(self) -> int:
        """J."""
        return len(self.class_names)

    @property
    def targets(self) -> Tensor:
        """(N, J) float32: which classes occur in each image."""
        level, label = self.objects[..., LEVEL], self.objects[..., LABEL].long()
        hot = torch.nn.functional.one_hot(label.clamp(0, self.num_classes - 1), self.num_classes)
        return (hot * (level == len(self.levels) - 1)[..., None]).amax(1).float()

    def subset(self, indices: Tensor) -> ObjectDataset:
        """Return the images at the positions `indices` (M,), in that order."""
        return replace(self, images=self.images[indices], objects=self.objects[indices])

    def content(self) -> Iterator[memoryview]:
        """Yield the bytes that a fingerprint covers."""
        for tensor in (self.images, self.objects):
            yield tensor.contiguous().numpy().data


class ObjectLoader(DeviceLoader):
    """A loader whose targets are objects; they would not follow images that are moved."""

    def __init__(self, dataset: ObjectDataset, device: torch.device | str, **options: Any) -> None:
        for name in (*GEOMETRIC, *MIXING):
            if options.get(name):
                raise UserError(f"augment.{name}: objects would not follow; model.turn turns images with their objects")
        super().__init__(dataset, device, **options)  # type: ignore[arg-type]
        self.targets = dataset.objects.to(self.device)


@make_loader.register(ObjectDataset)
def _(data: ObjectDataset, device: torch.device | str, **options: Any) -> ObjectLoader:
    return ObjectLoader(data, device, **options)


def pack_objects(rows: Sequence[Sequence[Sequence[float]]]) -> Tensor:
    """Make (N, M, 8) of the rows of each image, padded to the longest."""
    most = max([1, *map(len, rows)])
    packed = torch.zeros(len(rows), most, len(COLUMNS))
    packed[..., LEVEL] = NOTHING
    for at, each in enumerate(rows):
        if each:
            packed[at, : len(each)] = torch.tensor(each)
    return packed
