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
from torchcaps.models.base import ImageModel
from torchcaps.models.pixels import where_in
from torchcaps.ops.squash import at_least_float32, no_autocast

TOGETHER = 16  # label maps drawn at a time
GOLDEN = math.pi * (3 - math.sqrt(5))  # the angle by which the seeds of a sunflower follow one another


class SynthesisModel(ImageModel):
    """Base of the models that draw: images (B, C, H, W) in [0, 1] from label maps (B, H, W) and noise (B, Z).

    image_shape  of what it was trained on; it draws other sizes too, in multiples of `multiple`, unless `fixed_size`
    num_classes  J, the background among them
    z            Z, how many numbers make an image of a label map
    mean         of the images: what is drawn first has it; with std, what a discriminator sees is brought to it
    """

    objective = "l1"
    multiple = 1  # height and width of a label map are multiples of this
    fixed_size = False  # whether they must be those of image_shape
    has_noise = True  # whether the noise vector decides the image; of those with dropout for noise it does not
    head: nn.Module

    def __init__(self, image_shape: Sequence[int], num_classes: int, *, z: int = 100, **about: Any):
        super().__init__(image_shape, num_classes, **about)
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


class Waves(nn.Module):
    """Noise (B, Z) over the whole image (B, 1, H, W): each number is the strength of a wave of its own.

    Of a vector that is the same at every pixel a convolution makes nothing but one shade. So each number is given a
    wave of fixed direction and frequency, these evenly spaced up to the highest that pixels can show: some are as wide
    as an image, most as fine as its grain. Their sum is noise of deviation 1, other for each vector, at no parameters
    and for images of any size.
    """

    frequencies: Tensor
    phases: Tensor

    def __init__(self, z: int):
        super().__init__()
        number = torch.arange(z, device="cpu")  # then the same everywhere, and no cost to a model that is only planned
        radius, angle = 0.5 * (number + 0.5) / z, GOLDEN * number  # cycles a pixel
        frequencies = 2 * math.pi * radius * torch.stack([angle.sin(), angle.cos()])
        home = torch.get_default_device()
        self.register_buffer("frequencies", frequencies.to(home), False)
        self.register_buffer("phases", (2 * math.pi * ((number * math.sqrt(2)) % 1)).to(home), False)

    def forward(self, noise_BZ: Tensor, height: int, width: int) -> Tensor:
        rows_HZ = torch.arange(height, device=noise_BZ.device)[:, None] * self.frequencies[0] + self.phases
        columns_WZ = torch.arange(width, device=noise_BZ.device)[:, None] * self.frequencies[1]
        strength_B1Z = (noise_BZ * math.sqrt(2 / noise_BZ.shape[1]))[:, None]
        # cos(row + column) without a map for each wave
        with no_autocast(noise_BZ):
            cosines = (strength_B1Z * rows_HZ.cos()) @ columns_WZ.cos().T
            return (cosines - (strength_B1Z * rows_HZ.sin()) @ columns_WZ.sin().T)[:, None]


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
