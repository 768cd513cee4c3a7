"""MultiMNIST (Sabour et al. 2017): two digits of different classes, one over the other.

Training pairs are drawn anew for every batch, on the device; validation and test pairs once, from a seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data.augment import augment
from torchcaps.data.dataset import Dataset, Splits, verified
from torchcaps.data.loader import Batch, DeviceLoader, make_loader
from torchcaps.errors import UserError

MARGIN = 4  # pixels added on each side of a digit: 28×28 becomes 36×36
SHIFT = 4  # pixels a digit moves at most; the authors' code has 6
TEST_PAIRS, VALIDATION_PAIRS = 100_000, 10_000
TEST_SEED, VALIDATION_SEED = 20171026, 20171027
TEST_CHECKSUM = "f8e8a43db9dba15321454b3466b34ea1"  # with SHIFT
CHUNK_PAIRS = 4096  # overlaid at a time


@dataclass(frozen=True, eq=False)
class Digits(Dataset):
    """Single digits that a loader overlays in pairs; its shape and labels are those of the pairs.

    Args:
        shift: the largest shift of a digit, in pixels.
    """

    self_augmenting = True

    shift: int = SHIFT
    labels_each: int | None = 2

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a pair."""
        channels, height, width = self.images.shape[1:]
        return channels, height + 2 * MARGIN, width + 2 * MARGIN

    @property
    def multi_label(self) -> bool:
        """Whether targets are multi-hot."""
        return True


class PairLoader(DeviceLoader):
    """A loader that overlays each digit of a batch with a random one of another class."""

    def __init__(self, dataset: Digits, device: torch.device | str) -> None:
        super().__init__(dataset, device)
        self.shift, self.partners = dataset.shift, Partners(dataset, self.device)

    def take(self, indices: Tensor, generator: torch.Generator | None = None) -> Batch:
        partners = self.partners.draw(self.targets[indices.to(self.device)], generator)
        first, second = super().take(indices), super().take(partners.to(self.index_device))
        labels = torch.stack([first.targets, second.targets], dim=1)
        parts = torch.stack([place(each.images, self.shift, generator) for each in (first, second)], dim=1)
        targets = torch.zeros(len(labels), self.partners.classes, device=self.device).scatter_(1, labels, 1.0)
        return Batch(parts.sum(1).clamp_(max=1), targets, parts, labels)


@make_loader.register(Digits)
def _(data: Digits, device: torch.device | str, **options: Any) -> PairLoader:
    return PairLoader(data, device)  # which shifts each digit by itself


class Partners:
    """Draws a digit of another class for each digit, all equally likely; no shape depends on the data."""

    def __init__(self, dataset: Dataset, device: torch.device | str) -> None:
        counts = dataset.class_counts()
        if int((counts > 0).sum()) < 2:
            raise UserError("pairs of digits of different classes need digits of at least two classes")
        self.classes = dataset.num_classes
        self.order = dataset.targets.argsort(stable=True).to(device)  # the digits, class by class
        self.counts, self.starts = counts.to(device), (counts.cumsum(0) - counts).to(device)

    def draw(self, labels_B: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return (B,) positions of the partners."""
        others_B = len(self.order) - self.counts[labels_B]
        unit_B = torch.rand(len(labels_B), generator=generator, device=labels_B.device, dtype=torch.float64)
        place_B = (unit_B * others_B).long().minimum(others_B - 1)
        # Skip the digit's own class, which is contiguous in `order`.
        return self.order[place_B + torch.where(place_B >= self.starts[labels_B], self.counts[labels_B], 0)]


def place(digits_BCHW: Tensor, shift: int, generator: torch.Generator | None) -> Tensor:
    """Put each digit near the middle of an image that is MARGIN pixels larger on each side."""
    return augment(F.pad(digits_BCHW, (MARGIN, MARGIN, MARGIN, MARGIN)), generator, shift=shift)


def overlay_pairs(digits: Dataset, pairs: int, seed: int, shift: int = SHIFT) -> Dataset:
    """Make a fixed set of pairs: every digit in turn, with one of another class.

    Returns:
        Images (pairs, C, H + 8, W + 8) uint8, and targets (pairs, J) with two ones.
    """
    images, targets = zip(*(_as_bytes(batch) for batch in draw_pairs(digits, pairs, seed, shift)))
    return Dataset(torch.cat(images), torch.cat(targets), digits.class_names, labels_each=2)


def draw_pairs(digits: Dataset, pairs: int, seed: int, shift: int = SHIFT) -> Iterator[Batch]:
    """Yield the pairs of `overlay_pairs` in blocks, with the single digits and their classes."""
    generator = torch.Generator().manual_seed(seed)
    source = PairLoader(Digits(digits.images, digits.targets, digits.class_names, shift=shift), "cpu")
    for block in (torch.arange(pairs) % len(digits)).split(CHUNK_PAIRS):
        yield source.take(block, generator)


def _as_bytes(batch: Batch) -> tuple[Tensor, Tensor]:
    return (batch.images * 255).round_().to(torch.uint8), batch.targets


def multimnist_splits(digits: Splits, shift: int = SHIFT) -> Splits:
    """Make splits of pairs: random pairs for training, fixed pairs of the validation and test digits."""
    validation, test = digits.validation, digits.test
    if validation is not None:
        validation = overlay_pairs(validation, VALIDATION_PAIRS, VALIDATION_SEED, shift)
    if test is not None:
        pairs = overlay_pairs(test, TEST_PAIRS, TEST_SEED, shift)
        test = verified(pairs, test, TEST_CHECKSUM, "MultiMNIST") if shift == SHIFT else pairs
    train = Digits(digits.train.images, digits.train.targets, digits.train.class_names, shift=shift)
    return Splits(train, validation, test, "multimnist" if shift == SHIFT else f"multimnist-shift{shift}")
