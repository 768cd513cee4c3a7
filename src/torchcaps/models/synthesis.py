"""What models that draw images from label maps have in common, and how noise comes into them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.errors import UserError
from torchcaps.losses import IGNORED
from torchcaps.models.base import ImageModel, constant_device
from torchcaps.models.segmentation import where_in
from torchcaps.ops.squash import at_least_float32, no_autocast

TOGETHER = 16  # label maps drawn at a time
SQUARES = (1, 4, 16)  # pixels a side, that are given noise of their own
PERIOD = 256  # squares after which lots are the same again
MERSENNE = 2**31 - 1  # a prime


class SynthesisModel(ImageModel):
    """Base of the models that draw: images (B, C, H, W) in [0, 1] from label maps (B, H, W) and noise (B, Z).

    image_shape  of what it was trained on; it draws other sizes too, in multiples of `multiple`, unless `fixed_size`
    num_classes  J, the background among them
    z            Z, how many numbers make an image of a label map
    mean         of the images: what is drawn first has it; with std, what a discriminator sees is brought to it
    """

    task = "synthesis"
    objective = "l1"
    multiple = 1  # height and width of a label map are multiples of this
    fixed_size = False  # whether they must be those of image_shape
    has_noise = True  # whether the noise vector decides the image; of those with dropout for noise it does not
    head: nn.Module

    def __init__(self, image_shape: Sequence[int], num_classes: int, *, z: int = 100, **kwargs: Any):
        super().__init__(image_shape, num_classes, **kwargs)
        name = type(self).__name__
        if num_classes < 2:
            raise UserError(f"{name}: num_classes counts the background too: at least 2, got {num_classes}")
        if z < 1:
            raise UserError(f"{name}: z, the numbers of noise, must be at least 1, got {z}")
        self.z = z

    def features(self, masks: Tensor, noise: Tensor) -> Tensor:
        """(B, channels, h, w): what the head makes the image of.

        masks  (B, H, W)  class ids; what is ignored (255) is drawn as background
        noise  (B, Z)     as `noise_of` draws it
        """
        raise NotImplementedError

    def forward(self, masks: Tensor, noise: Tensor) -> Tensor:
        """The image (B, C, H, W) of each label map (B, H, W), with the noise (B, Z) that makes it one of many."""
        return self.image_of(self.features(masks, noise))

    def image_of(self, features: Tensor) -> Tensor:
        """(B, C, H, W) in [0, 1], at least float32."""
        exact = at_least_float32(features)
        with no_autocast(exact):
            return self.head(exact).sigmoid()

    def labels(self, masks: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, J − 1, H, W): where each class but the background is; sizes checked, and those of the noise."""
        if masks.ndim != 3 or (noise is not None and noise.shape != (masks.shape[0], self.z)):
            shapes = tuple(masks.shape), None if noise is None else tuple(noise.shape)
            raise ValueError(f"{type(self).__name__}: expected masks (B, H, W) and noise (B, {self.z}), got {shapes}")
        self.check_size(*masks.shape[1:])
        return where_in(masks, self.num_classes)[:, 1:].float()

    def check_size(self, height: int, width: int) -> None:
        """Whether it can draw an image of this size."""
        name = type(self).__name__
        if self.fixed_size and (height, width) != self.image_shape[1:]:
            own = "×".join(map(str, self.image_shape[1:]))
            raise UserError(f"{name}: its noise is for images of {own} alone; these are {height}×{width}")
        if height % self.multiple or width % self.multiple or min(height, width) < 1:
            raise UserError(f"{name}: height and width must be multiples of {self.multiple}; they are {height}×{width}")

    def seen(self, masks: Tensor, images: Tensor) -> Tensor:
        """(B, J − 1 + C, H, W): label map and image as a discriminator sees them; what is ignored looks alike."""
        known = (masks != IGNORED)[:, None]
        return torch.cat([self.labels(masks), self._scaled(images).masked_fill(~known, 0.0)], dim=1)

    def start_at_mean(self, bias: nn.Parameter) -> None:
        """Let the head's bias (C,) draw the mean of the images before anything is learned."""
        if self.mean is not None and not self.mean.is_meta:  # a plan of a model has no values
            with torch.no_grad():
                bias.copy_(self.mean.flatten().clamp(0.01, 0.99).logit())


class Grain(nn.Module):
    """Noise (B, Z) over the whole image (B, 1, H, W), at no parameters and for images of any size.

    Of a vector that is the same at every pixel a convolution makes nothing but one shade. So every pixel is given one
    of the numbers, as it is or negated, by lot and once for all: white noise, other for each vector. Squares of 4×4 and
    of 16×16 pixels are given one in the same way, between whose middles it changes evenly: so not only the grain of an
    image can vary, but also what is as large as a cell and its parts.
    """

    lots: Tensor  # (squares, PERIOD, PERIOD), each below 2 Z

    def __init__(self, z: int):
        super().__init__()
        self.register_buffer("lots", _lots(2 * z).to(constant_device()), False)

    def forward(self, noise_BZ: Tensor, height: int, width: int) -> Tensor:
        drawn = []
        for number, side in enumerate(SQUARES):
            squares = self.squares(noise_BZ, number, (height + side - 1) // side, (width + side - 1) // side)
            with no_autocast(noise_BZ):
                larger = functional.interpolate(squares, scale_factor=side, mode="bilinear") if side > 1 else squares
            drawn.append(larger[..., :height, :width])
        return torch.stack(drawn).sum(0) / math.sqrt(len(SQUARES))

    def squares(self, noise_BZ: Tensor, number: int, rows: int, columns: int) -> Tensor:
        """(B, 1, rows + 1, columns + 1): what each square is given, of those whose side is SQUARES[number]; the last of
        them once more, so that there are two at least: of an exported model any number is asked for."""
        row_H, column_W = (self._numbers(size, noise_BZ.device) for size in (rows, columns))
        lot_HW = self.lots[number][row_H[:, None], column_W]
        return torch.cat([noise_BZ, -noise_BZ], 1)[:, lot_HW][:, None]

    @staticmethod
    def _numbers(size: int, device: torch.device) -> Tensor:
        return torch.arange(size + 1, device=device).clamp(max=size - 1) % PERIOD


def _lots(below: int) -> Tensor:
    """(squares, PERIOD, PERIOD) whole numbers that look drawn at random, and are the same everywhere."""
    row, column = torch.arange(PERIOD, device="cpu")[:, None], torch.arange(PERIOD, device="cpu")
    square = torch.tensor(SQUARES, device="cpu")[:, None, None]
    lot = row * 73_856_093 + column * 19_349_663 + square * 83_492_791
    for _ in range(3):  # squared, what lay in a row lies anywhere
        lot = (lot % MERSENNE + 1_299_709) ** 2 % MERSENNE
    return lot % below


def noise_of(seed: int, numbers: Sequence[int], z: int) -> Tensor:
    """(N, Z) normal noise, on the CPU: vector `number` of a seed is the same whichever others are asked for."""
    vectors = [torch.randn(z, generator=torch.Generator().manual_seed(_mixed(seed, number))) for number in numbers]
    return torch.stack(vectors) if vectors else torch.zeros(0, z)


@torch.no_grad()
def draw_masks(
    model: SynthesisModel, masks: Sequence[Tensor], seed: int = 0, numbers: Sequence[int] | None = None
) -> list[Tensor]:
    """An image (C, H, W) in [0, 1], on the CPU, of each label map (H, W), all of one size.

    numbers  of the noise vectors of the seed; by default 0, 1, …
    """
    numbers = range(len(masks)) if numbers is None else numbers
    was_training, devices = model.training, [model.device] if model.device.type == "cuda" else []
    together = TOGETHER if model.has_noise else 1
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)  # the same bytes every time
    model.eval()
    images: list[Tensor] = []
    try:
        with torch.random.fork_rng(devices=devices), exact:
            for first in range(0, len(masks), together):
                some = torch.stack(list(masks[first : first + together])).long().to(model.device)
                noise = noise_of(seed, numbers[first : first + together], model.z).to(model.device)
                if not model.has_noise:
                    torch.manual_seed(_mixed(seed, numbers[first]))  # for dropout
                images += model(some, noise).cpu().unbind()
    finally:
        model.train(was_training)
    return images


def between(first_Z: Tensor, last_Z: Tensor, steps: int) -> Tensor:
    """(steps, Z) from one noise vector to another on the sphere, where vectors between them are as likely as they."""
    angle = functional.cosine_similarity(first_Z, last_Z, dim=0).clamp(-1, 1).acos()
    share_N1 = torch.linspace(0, 1, steps)[:, None]
    if angle.sin() < 1e-4:
        return torch.lerp(first_Z[None], last_Z[None], share_N1)
    return (((1 - share_N1) * angle).sin() * first_Z + (share_N1 * angle).sin() * last_Z) / angle.sin()


def _mixed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:7], "big")
