"""Windows of images and masks, taken at random places on the device."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchcaps.data.augment import augment, centre_crop
from torchcaps.data.batches import Batch, as_float
from torchcaps.data.segmentation import SegmentationDataset
from torchcaps.errors import UserError
from torchcaps.losses import IGNORED


class Crops:
    """Images and masks on the device, to take windows from at random places; nothing waits for the device.

    An image smaller than a window is continued by its reflection (one of a single pixel by that pixel), which its mask
    ignores. So is every image by as much as warping a window may bring into it.

    segments  at least one pair
    crop      side of a window
    changes   to windows and their masks, options of `augment`
    """

    on_device = True

    def __init__(self, segments: SegmentationDataset, crop: int, device: torch.device | str, **changes: Any) -> None:
        if crop < 1:
            raise UserError(f"crop={crop}: give the side of a window in pixels, at least 1")
        if not len(segments):
            raise UserError("there are no images to take windows from")
        self.device, self.crop, self.channels, self.changes = torch.device(device), crop, segments.channels, changes
        self._border = _border(crop, **changes)
        pairs = (_continued(*pair, (crop, crop), self._border) for pair in zip(segments.images, segments.masks))
        images, masks = zip(*pairs)
        sizes_N2 = torch.tensor([mask.shape for mask in masks])
        area_N = sizes_N2.prod(1)
        # One after another, each row by row, the channels of an image one after another.
        self._images, self._masks = (torch.cat([t.flatten() for t in ts]).to(self.device) for ts in (images, masks))
        self._sizes_N2, self._starts_N = sizes_N2.to(self.device), (area_N.cumsum(0) - area_N).to(self.device)
        self._image_M = segments.windows(crop).to(self.device)

    def __len__(self) -> int:
        """Windows of an epoch."""
        return len(self._image_M)

    @property
    def home(self) -> torch.device:
        """Where `take` wants its indices."""
        return self.device

    def take(self, indices_B: Tensor, generator: torch.Generator | None = None) -> Batch:
        """So many windows, each of the image that its number stands for; every place where it fits is as likely."""
        images, masks = self._cut(self._image_M[indices_B], generator)
        if not self.changes:
            return Batch(images, masks)
        images, masks = augment(images, generator, masks=masks, **self.changes)
        return Batch(centre_crop(images, self.crop), centre_crop(masks, self.crop))

    def _cut(self, image_B: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) and (B, H, W), the border around a window included"""
        window = self.crop + 2 * self._border
        sizes_B2, start_B111 = self._sizes_N2[image_B], self._starts_N[image_B].view(-1, 1, 1, 1)
        # A whole number far beyond any image: its remainder is as good as uniform, and exact on every device.
        where = self.device if generator is None else generator.device
        drawn_B2 = torch.randint(2**62, (len(image_B), 2), generator=generator, device=where).to(self.device)
        top_B, left_B = (drawn_B2 % (sizes_B2 - window + 1)).unbind(1)
        side = torch.arange(window, device=self.device)
        rows_B1H1 = (top_B[:, None] + side)[:, None, :, None]
        columns_B11W = (left_B[:, None] + side)[:, None, None, :]
        places_B1HW = rows_B1H1 * sizes_B2[:, 1].view(-1, 1, 1, 1) + columns_B11W
        channel_1C11 = torch.arange(self.channels, device=self.device).view(1, -1, 1, 1)
        planes_BC11 = self.channels * start_B111 + channel_1C11 * sizes_B2.prod(1).view(-1, 1, 1, 1)
        masks_BHW = self._masks[(start_B111 + places_B1HW).squeeze(1)]
        return as_float(self._images[planes_BC11 + places_B1HW]), masks_BHW.long()


def _border(
    crop: int,
    *,
    shift: int = 0,
    rotate: float = 0.0,
    shear: float = 0.0,
    scale: float = 0.0,
    elastic: float = 0.0,
    **others: Any,
) -> int:
    """How far around a window of this side lies what such changes may bring into it."""
    angle = math.radians(min(rotate, 45.0))  # at which a corner reaches farthest
    grown = crop * (math.cos(angle) + math.sin(angle)) * (1 + shear) / (1 - scale)
    return math.ceil((grown - crop) / 2 + 3 * elastic) + shift


def tiles(segments: SegmentationDataset, height: int, width: int) -> SegmentationDataset:
    """Whole windows side by side, as many as each image has room for about its middle; a smaller image is continued by
    its reflection, which its mask ignores."""
    images, masks, names = [], [], []
    for name, image, mask in zip(segments.names, segments.images, segments.masks):
        larger, known = _continued(image, mask, (height, width), 0)
        down, across = known.shape[0] // height, known.shape[1] // width
        top, left = (known.shape[0] - down * height) // 2, (known.shape[1] - across * width) // 2
        for number in range(down * across):
            y, x = top + number // across * height, left + number % across * width
            images.append(larger[:, y : y + height, x : x + width])
            masks.append(known[y : y + height, x : x + width])
            names.append(name if down * across == 1 else f"{name}-{number}")
    return SegmentationDataset(images, masks, segments.class_names, tuple(names))


def _continued(image_CHW: Tensor, mask_HW: Tensor, sides: tuple[int, int], border: int) -> tuple[Tensor, Tensor]:
    """The pair, larger by the border, and by more on every axis that is shorter than its side."""
    height, width = mask_HW.shape
    rows, top = _reflected(height, sides[0], border)
    columns, left = _reflected(width, sides[1], border)
    larger = mask_HW.new_full((len(rows), len(columns)), IGNORED)
    larger[top : top + height, left : left + width] = mask_HW
    return image_CHW[:, rows[:, None], columns], larger


def _reflected(length: int, side: int, border: int) -> tuple[Tensor, int]:
    """Where each pixel of an axis comes from, back and forth over `length` of them; and where the first of these is."""
    before = max(side - length, 0) // 2 + border
    period = max(2 * (length - 1), 1)
    steps = (torch.arange(max(side, length) + 2 * border) - before) % period
    return torch.minimum(steps, period - steps), before
