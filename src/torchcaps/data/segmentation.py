"""Images with masks in memory: splits by whole images, windows and tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchcaps.data.listing import abbreviate
from torchcaps.data.split import SplitOptions, split_dataset
from torchcaps.errors import UserError
from torchcaps.losses import IGNORED

MAX_WINDOW_PIXELS = 256  # default side of a window: larger ones cost much memory for little gain


@dataclass(frozen=True, eq=False)
class SegmentationDataset:
    """Images with masks; each pair has its own size.

    Args:
        images: N of (C, H, W) uint8; C is the same for all.
        masks: N of (H, W) uint8 class ids; IGNORED (255) where the class is unknown.
        class_names: J names.
        names: N names of the images, for files without their suffix.
    """

    tasks = ("segmentation", "synthesis")  # what can be learned from it

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
                raise UserError(
                    f"all images must have {self.channels} channels, like the first; {name} has {len(image)}"
                )
            if stray := _value_counts(mask)[self.num_classes : IGNORED].nonzero().flatten().tolist():
                found, last = self.num_classes + stray[0], self.num_classes - 1
                raise UserError(f"the mask of {name} has the class id {found}; class ids must lie in 0..{last}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int:
        """J."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """C; 1 if there are no images."""
        return len(self.images[0]) if self.images else 1

    @property
    def absent(self) -> tuple[str, ...]:
        """The classes that occur in no mask."""
        return tuple(name for name, pixels in zip(self.class_names, self.class_counts().tolist()) if not pixels)

    def window(self, crop: int = 0) -> int:
        """Return the side of a training window: `crop`, or by default the median shorter side, at most 256."""
        shorter = sorted(min(mask.shape) for mask in self.masks)
        return crop or min(shorter[len(shorter) // 2], MAX_WINDOW_PIXELS)

    def windows(self, crop: int) -> Tensor:
        """Return (M,) the image of each window in an epoch; a larger image has more windows."""
        counts = [max(1, round(mask.numel() / crop**2)) for mask in self.masks]
        return torch.arange(len(self)).repeat_interleave(torch.tensor(counts, dtype=torch.long))

    def class_counts(self) -> Tensor:
        """Count the pixels of each class: (J,) int64."""
        none = torch.zeros(IGNORED + 1, dtype=torch.long)
        return sum((_value_counts(mask) for mask in self.masks), none)[: self.num_classes]

    def brightness(self) -> tuple[list[float], list[float]]:
        """Compute the mean and standard deviation of each channel over all pixels; white is 1."""
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
        """Return the pairs at the positions `indices` (M,), in that order."""
        positions = indices.tolist()
        images, masks = [self.images[i] for i in positions], [self.masks[i] for i in positions]
        return replace(self, images=images, masks=masks, names=tuple(self.names[i] for i in positions))

    def content(self) -> Iterator[memoryview | bytes]:
        """Yield the bytes that a fingerprint covers."""
        for tensor in (*self.images, *self.masks):
            yield f"{tuple(tensor.shape)}".encode()
            yield tensor.contiguous().numpy().data


def split_segmentation(
    dataset: SegmentationDataset,
    validation: float = 0.1,
    test: float | str | Sequence[str] = 0.2,
    seed: int = 0,
    limit: int | None = None,
) -> tuple[SegmentationDataset, SegmentationDataset | None, SegmentationDataset | None]:
    """Split a data set by whole images.

    Args:
        dataset: the images and masks.
        validation: a fraction below 1, or a number of images; 0 for none.
        test: the same; or "last:6" for the last six by name; or names, in a list or separated by commas.
        seed: of the validation images; the test images do not depend on it.
        limit: the most images to train on; a larger limit includes the images of a smaller one.

    Returns:
        Training, validation and test data; None for a part of size 0.
    """
    if isinstance(test, (int, float)):
        amount, named_N = test, torch.zeros(len(dataset), dtype=torch.bool)
    else:
        amount, named_N = 0, _named(dataset.names, test)
    options = SplitOptions(validation, amount, seed, limit)
    rest, named = (_Rows(chosen_N.nonzero().flatten()) for chosen_N in (~named_N, named_N))
    needed = 1 + (options.validation > 0) + (options.test > 0)
    if len(rest.rows) < needed:
        left = f"{len(dataset)} images" if not len(named.rows) else f"the {len(rest.rows)} images not named for test"
        raise UserError(f"{left} are too few for a split into {needed}: add some, or set validation or test to 0")
    train, held_out, tested = split_dataset(rest, None, named if len(named.rows) else None, options)
    return (
        dataset.subset(train.rows),
        None if held_out is None else dataset.subset(held_out.rows),
        None if tested is None else dataset.subset(tested.rows),
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
    """Positions of pairs, all of one class, as `split_dataset` takes them."""

    rows: Tensor
    class_names: tuple[str, ...] = ("pair",)

    @property
    def targets(self) -> Tensor:
        return torch.zeros_like(self.rows)

    def subset(self, indices: Tensor) -> _Rows:
        return _Rows(self.rows[indices])


def _named(names: tuple[str, ...], test: str | Sequence[str]) -> Tensor:
    """Return (N,) whether each name is in `test`."""
    if isinstance(test, str) and test.startswith("last:"):
        count = test.removeprefix("last:")
        if not count.isdecimal() or not 0 < int(count) <= len(names):
            raise UserError(f"test={test}: give a number from 1 to {len(names)} after last:, for example last:1")
        wanted = set(sorted(names)[-int(count) :])
    else:
        wanted = {name.strip() for name in test.split(",")} if isinstance(test, str) else set(test)
        if unknown := sorted(wanted - set(names)):
            known = f"they are called {abbreviate(names)}"
            raise UserError(f"test: no image is called {abbreviate(unknown)}; {known}. Or give a fraction, or last:6")
    return torch.tensor([name in wanted for name in names])


def _value_counts(mask_HW: Tensor) -> Tensor:
    """Return (256,) the number of pixels with each value."""
    return torch.bincount(mask_HW.flatten(), minlength=IGNORED + 1)
