"""Images with their masks in memory, and how they are split: by whole images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchcaps.data.split import HoldOut, divide
from torchcaps.errors import UserError
from torchcaps.losses import IGNORED

MAX_WINDOW_PIXELS = 256  # side of a window where none is given: larger ones cost much memory and teach little more


@dataclass(frozen=True, eq=False)
class SegmentationDataset:
    """Images with their masks, each pair of a size of its own.

    images       N of (C, H, W)  uint8, all with as many channels
    masks        N of (H, W)     uint8 class ids; IGNORED (255) where nothing is known
    class_names  J names
    names        N, of the files without their endings
    """

    images: list[Tensor]
    masks: list[Tensor]
    class_names: tuple[str, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not len(self.images) == len(self.masks) == len(self.names):
            counts = f"{len(self.images)}, {len(self.masks)} and {len(self.names)}"
            raise UserError(f"every image needs a mask and a name; there are {counts} of them")
        for name, image, mask in zip(self.names, self.images, self.masks):
            if image.dtype != torch.uint8 or image.ndim != 3 or not image.numel():
                raise UserError(f"image {name} must be uint8 (C, H, W); it is {image.dtype} {tuple(image.shape)}")
            if mask.dtype != torch.uint8 or mask.shape != image.shape[1:]:
                fits = f"uint8 {tuple(image.shape[1:])}"
                raise UserError(f"the mask of {name} must be {fits}; it is {mask.dtype} {tuple(mask.shape)}")
            if len(image) != self.channels:
                raise UserError(f"all images must have {self.channels} channels, as the first; {name} has {len(image)}")
            if stray := _pixels_of(mask)[self.num_classes : IGNORED].nonzero().flatten().tolist():
                found, last = self.num_classes + stray[0], self.num_classes - 1
                raise UserError(f"the mask of {name} has the class id {found}; class ids must lie in 0..{last}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """Of every image; 1 where there is none."""
        return len(self.images[0]) if self.images else 1

    @property
    def absent(self) -> tuple[str, ...]:
        """The classes that no mask shows."""
        return tuple(name for name, pixels in zip(self.class_names, self.class_counts().tolist()) if not pixels)

    def window(self, crop: int = 0) -> int:
        """The side of what is seen of an image at a time: `crop`, or if that is 0 the usual side of these images."""
        shorter = sorted(min(mask.shape) for mask in self.masks)
        return crop or min(shorter[len(shorter) // 2], MAX_WINDOW_PIXELS)

    def windows(self, crop: int) -> Tensor:
        """(M,)  the image of each window of an epoch: of every image as many as it has room for, at least one."""
        counts = [max(1, round(mask.numel() / crop**2)) for mask in self.masks]
        return torch.arange(len(self)).repeat_interleave(torch.tensor(counts, dtype=torch.long))

    def class_counts(self) -> Tensor:
        """How many pixels are of each class: (J,)."""
        none = torch.zeros(IGNORED + 1, dtype=torch.long)
        return sum((_pixels_of(mask) for mask in self.masks), none)[: self.num_classes]

    def brightness(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel, over all pixels of all images; white is 1."""
        count = sum(image[0].numel() for image in self.images)
        first, second = torch.zeros(2, self.channels, dtype=torch.float64)
        for image in self.images:
            values = image.flatten(1).double() / 255
            first += values.sum(1)
            second += values.square().sum(1)
        mean = first / count
        deviation = (second / count - mean.square()).clamp(min=0).sqrt()
        return mean.tolist(), deviation.tolist()

    def subset(self, indices: Tensor) -> SegmentationDataset:
        """The pairs at these positions, in this order.

        indices  (M,)
        """
        places = indices.tolist()
        images, masks = [self.images[i] for i in places], [self.masks[i] for i in places]
        return replace(self, images=images, masks=masks, names=tuple(self.names[i] for i in places))

    def content(self) -> Iterator[memoryview | bytes]:
        """All that a fingerprint must see."""
        for tensor in (*self.images, *self.masks):
            yield f"{tuple(tensor.shape)}".encode()
            yield tensor.contiguous().numpy().data


def split_segmentation(
    segments: SegmentationDataset,
    validation: float = 0.1,
    test: float | str | Sequence[str] = 0.2,
    seed: int = 0,
    limit: int | None = None,
) -> tuple[SegmentationDataset, SegmentationDataset | None, SegmentationDataset | None]:
    """(train, validation, test), by whole images; None for a part that is not asked for.

    validation  a fraction below 1, or a number of images; 0 for none
    test        the same, and then it does not change with the seed; or "last:6" for the last six by name; or names,
                in a list or with commas between them
    limit       at most so many to train on; the larger ones hold the smaller ones
    """
    if isinstance(test, (int, float)):
        amount, named_N = test, torch.zeros(len(segments), dtype=torch.bool)
    else:
        amount, named_N = 0, _named(segments.names, test)
    plan = HoldOut(validation, amount, seed, limit)
    rest, named = (_Rows(chosen_N.nonzero().flatten()) for chosen_N in (~named_N, named_N))
    needed = 1 + (plan.validation > 0) + (plan.test > 0)
    if len(rest.rows) < needed:
        left = f"{len(segments)} images" if not len(named.rows) else f"the {len(rest.rows)} images not named for test"
        raise UserError(f"{left} are too few for a split into {needed}: add some, or set validation or test to 0")
    train, held_out, tested = divide(rest, None, named if len(named.rows) else None, plan)
    return (
        segments.subset(train.rows),
        None if held_out is None else segments.subset(held_out.rows),
        None if tested is None else segments.subset(tested.rows),
    )


def tiles(dataset: SegmentationDataset, height: int, width: int) -> SegmentationDataset:
    """Cut every image into as many adjacent windows as fit, centred; pad a smaller image by reflection."""
    images, masks, names = [], [], []
    for name, image, mask in zip(dataset.names, dataset.images, dataset.masks):
        larger, known = pad_by_reflection(image, mask, (height, width), 0)
        down, across = known.shape[0] // height, known.shape[1] // width
        top, left = (known.shape[0] - down * height) // 2, (known.shape[1] - across * width) // 2
        for number in range(down * across):
            y, x = top + number // across * height, left + number % across * width
            images.append(larger[:, y : y + height, x : x + width])
            masks.append(known[y : y + height, x : x + width])
            names.append(name if down * across == 1 else f"{name}-{number}")
    return SegmentationDataset(images, masks, dataset.class_names, tuple(names))


def pad_by_reflection(
    image_CHW: Tensor, mask_HW: Tensor, min_size: tuple[int, int], border: int
) -> tuple[Tensor, Tensor]:
    """Pad an image by reflection and its mask with IGNORED: to at least `min_size`, and by `border` on every side."""
    height, width = mask_HW.shape
    rows, top = _reflected(height, min_size[0], border)
    columns, left = _reflected(width, min_size[1], border)
    larger = mask_HW.new_full((len(rows), len(columns)), IGNORED)
    larger[top : top + height, left : left + width] = mask_HW
    return image_CHW[:, rows[:, None], columns], larger


def _reflected(length: int, min_length: int, border: int) -> tuple[Tensor, int]:
    """Return the source position of each padded position, and where the original begins."""
    before = max(min_length - length, 0) // 2 + border
    period = max(2 * (length - 1), 1)
    steps = (torch.arange(max(min_length, length) + 2 * border) - before) % period
    return torch.minimum(steps, period - steps), before


@dataclass(frozen=True, eq=False)
class _Rows:
    """Positions of pairs, all of one class: what `divide` can split."""

    rows: Tensor
    class_names: tuple[str, ...] = ("pair",)

    @property
    def targets(self) -> Tensor:
        return torch.zeros_like(self.rows)

    def subset(self, indices: Tensor) -> _Rows:
        return _Rows(self.rows[indices])


def _named(names: tuple[str, ...], test: str | Sequence[str]) -> Tensor:
    """(N,)  which of these are asked for"""
    if isinstance(test, str) and test.startswith("last:"):
        count = test.removeprefix("last:")
        if not count.isdecimal() or not 0 < int(count) <= len(names):
            raise UserError(f"test={test}: give a number from 1 to {len(names)} after last:, for example last:1")
        wanted = set(sorted(names)[-int(count) :])
    else:
        wanted = {name.strip() for name in test.split(",")} if isinstance(test, str) else set(test)
        if unknown := sorted(wanted - set(names)):
            known = f"they are called {some(names)}"
            raise UserError(f"test: no image is called {some(unknown)}; {known}. Or give a fraction, or last:6")
    return torch.tensor([name in wanted for name in names])


def _pixels_of(mask_HW: Tensor) -> Tensor:
    """(256,)  how many pixels have each value"""
    return torch.bincount(mask_HW.flatten(), minlength=IGNORED + 1)


def some(names: Iterable[str]) -> str:
    """The first five, and how many more there are."""
    names = list(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
