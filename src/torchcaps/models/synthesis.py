"""The base class of models that generate images from label maps, and their noise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.checks import check_floats, check_tensor, check_whole
from torchcaps.errors import UserError
from torchcaps.losses import IGNORED, check_masks
from torchcaps.models.base import ImageModel, constant_device
from torchcaps.models.segmentation import class_masks
from torchcaps.ops.squash import at_least_float32, no_autocast

MAX_BATCH_IMAGES = 16
CELL_SIZES = (1, 4, 16)  # side in pixels of the cells that share one component of the noise
PERIOD = 256  # cells after which the assignment of components repeats
MERSENNE_PRIME = 2**31 - 1


class SynthesisModel(ImageModel):
    """Base class of models that generate images from label maps and noise.

    Args:
        image_shape: (C, H, W) of the training images. Other sizes can be generated, too, in multiples of `multiple`,
            unless the model has `fixed_size`.
        num_classes: J, including the background.
        z: Z, dimensions of the noise vector.
        **kwargs: arguments of `ImageModel`. Of untrained models the mean is that of the generated images; mean and std
            also normalise the images that the discriminator is given.
    """

    task = "synthesis"
    any_size = True
    objective = "l1"
    multiple = 1  # height and width of a label map must be multiples of this
    fixed_size = False  # whether they must be those of image_shape
    has_noise = True  # whether the model uses the noise vector; with dropout as noise it does not
    head: nn.Module

    def __init__(self, image_shape: Sequence[int], num_classes: int, *, z: int = 100, **kwargs: Any):
        super().__init__(image_shape, num_classes, **kwargs)
        name = type(self).__name__
        if num_classes < 2:
            raise UserError(f"{name}: num_classes includes the background: it must be at least 2, got {num_classes}")
        check_whole(name, z=z)
        self.z = z

    def features(self, masks: Tensor, noise: Tensor) -> Tensor:
        """Compute the input of the head.

        Args:
            masks: (B, H, W) class ids; ignored pixels (255) are generated as background.
            noise: (B, Z), from `noise_vectors`.

        Returns:
            (B, channels, h, w).
        """
        raise NotImplementedError

    def forward(self, masks: Tensor, noise: Tensor) -> Tensor:
        """Generate images.

        Args:
            masks: (B, H, W) class ids.
            noise: (B, Z).

        Returns:
            (B, C, H, W) in [0, 1].
        """
        return self.to_image(self.features(masks, noise))

    def to_image(self, features: Tensor) -> Tensor:
        """Apply the head.

        Args:
            features: (B, channels, h, w), from `features`.

        Returns:
            (B, C, H, W) in [0, 1], in float32 or float64.
        """
        exact = at_least_float32(features)
        with no_autocast(exact):
            return self.head(exact).sigmoid()

    def one_hot(self, masks: Tensor, noise: Tensor | None = None) -> Tensor:
        """Check the shapes of label maps, and of the noise if it is given, and encode the label maps.

        Args:
            masks: (B, H, W) class ids.
            noise: (B, Z).

        Returns:
            (B, J − 1, H, W) of 0 and 1, without the background.
        """
        check_tensor(type(self).__name__, masks=masks)
        check_floats(type(self).__name__, noise=noise)
        if masks.ndim != 3 or (noise is not None and noise.shape != (masks.shape[0], self.z)):
            shapes = tuple(masks.shape), None if noise is None else tuple(noise.shape)
            raise ValueError(f"{type(self).__name__}: expected masks (B, H, W) and noise (B, {self.z}), got {shapes}")
        self.check_size(*masks.shape[1:])
        return class_masks(masks, self.num_classes)[:, 1:].float()

    def check_size(self, height: int, width: int) -> None:
        """Raise a UserError if the model cannot generate images of this size."""
        name = type(self).__name__
        if self.fixed_size and (height, width) != self.image_shape[1:]:
            own = "×".join(map(str, self.image_shape[1:]))
            raise UserError(f"{name}: its noise layer is for {own} images only; these are {height}×{width}")
        if height % self.multiple or width % self.multiple or min(height, width) < 1:
            raise UserError(f"{name}: height and width must be multiples of {self.multiple}; they are {height}×{width}")

    def discriminator_input(self, masks: Tensor, images: Tensor) -> Tensor:
        """Concatenate label map and image for the discriminator; ignored pixels (255) are 0 in both.

        Args:
            masks: (B, H, W) class ids.
            images: (B, C, H, W) in [0, 1].

        Returns:
            (B, J − 1 + C, H, W).
        """
        self.check_images(images)
        check_masks(type(self).__name__, images, masks)
        known = (masks != IGNORED)[:, None]
        return torch.cat([self.one_hot(masks), self._scaled(images).masked_fill(~known, 0.0)], dim=1)

    def init_bias_to_mean(self, bias: nn.Parameter) -> None:
        """Initialise the head's bias so that generated images start at the mean of the training images.

        Args:
            bias: (C,) is changed in place.
        """
        if self.mean is not None:
            with torch.no_grad():
                bias.copy_(self.mean.flatten().clamp(0.01, 0.99).logit())


class SpatialNoise(nn.Module):
    """Spread a noise vector over an image of any size, without parameters.

    A vector that is the same at every pixel would only change the shade of a convolution's output. Therefore each pixel
    gets a fixed pseudo-random component of the vector, with a fixed random sign: white noise that differs between
    vectors. Cells of 4×4 and of 16×16 pixels get components in the same way, interpolated between their centres, so
    that structures of the size of a cell and its parts can vary as well as the grain.

    Args:
        z: Z, dimensions of the noise vector.
    """

    components: Tensor  # (cell sizes, PERIOD, PERIOD) indices below 2 Z

    def __init__(self, z: int):
        super().__init__()
        self.register_buffer("components", _components(2 * z).to(constant_device()), False)

    def forward(self, noise_BZ: Tensor, height: int, width: int) -> Tensor:
        """Return (B, 1, height, width)."""
        layers = []
        for index, side in enumerate(CELL_SIZES):
            cells = self.cells(noise_BZ, index, (height + side - 1) // side, (width + side - 1) // side)
            with no_autocast(noise_BZ):
                larger = functional.interpolate(cells, scale_factor=side, mode="bilinear") if side > 1 else cells
            layers.append(larger[..., :height, :width])
        return torch.stack(layers).sum(0) / math.sqrt(len(CELL_SIZES))

    def cells(self, noise_BZ: Tensor, index: int, rows: int, columns: int) -> Tensor:
        """The components of the cells of size CELL_SIZES[index]: (B, 1, rows + 1, columns + 1).

        The last row and column are repeated, so that there are at least two: exported models take any size.
        """
        row_H, column_W = (self._indices(size, noise_BZ.device) for size in (rows, columns))
        index_HW = self.components[index][row_H[:, None], column_W]
        return torch.cat([noise_BZ, -noise_BZ], 1)[:, index_HW][:, None]

    @staticmethod
    def _indices(size: int, device: torch.device) -> Tensor:
        return torch.arange(size + 1, device=device).clamp(max=size - 1) % PERIOD


def _components(below: int) -> Tensor:
    """(cell sizes, PERIOD, PERIOD) pseudo-random integers, the same on every machine."""
    row, column = torch.arange(PERIOD, device="cpu")[:, None], torch.arange(PERIOD, device="cpu")
    cell = torch.tensor(CELL_SIZES, device="cpu")[:, None, None]
    number = row * 73_856_093 + column * 19_349_663 + cell * 83_492_791
    for _ in range(3):  # squaring breaks up the regular steps between neighbours
        number = (number % MERSENNE_PRIME + 1_299_709) ** 2 % MERSENNE_PRIME
    return number % below


def noise_vectors(seed: int, numbers: Sequence[int], z: int) -> Tensor:
    """Draw normal noise on the CPU; vector `number` of a seed does not depend on the other numbers.

    Args:
        seed: of all vectors.
        numbers: N numbers of vectors.
        z: Z, dimensions of a vector.

    Returns:
        (N, Z).
    """
    vectors = [torch.randn(z, generator=torch.Generator().manual_seed(_hash(seed, number))) for number in numbers]
    return torch.stack(vectors) if vectors else torch.zeros(0, z)


@torch.no_grad()
def generate_images(
    model: SynthesisModel, masks: Sequence[Tensor], seed: int = 0, numbers: Sequence[int] | None = None
) -> list[Tensor]:
    """Generate an image of each label map in evaluation mode.

    Args:
        model: the generator.
        masks: (H, W) label maps, all of one size.
        seed: of the noise.
        numbers: of the noise vectors of the seed, one for each mask; by default 0, 1, …

    Returns:
        (C, H, W) images in [0, 1], on the CPU.
    """
    numbers = range(len(masks)) if numbers is None else numbers
    was_training, devices = model.training, [model.device] if model.device.type == "cuda" else []
    batch = MAX_BATCH_IMAGES if model.has_noise else 1
    deterministic = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    model.eval()
    images: list[Tensor] = []
    try:
        with torch.random.fork_rng(devices=devices), deterministic:
            for first in range(0, len(masks), batch):
                some = torch.stack(list(masks[first : first + batch])).long().to(model.device)
                noise = noise_vectors(seed, numbers[first : first + batch], model.z).to(model.device)
                if not model.has_noise:
                    torch.manual_seed(_hash(seed, numbers[first]))  # for dropout
                images += model(some, noise).cpu().unbind()
    finally:
        model.train(was_training)
    return images


def slerp(first_Z: Tensor, last_Z: Tensor, steps: int) -> Tensor:
    """Interpolate on the sphere between two noise vectors; vectors in between are as likely as the two.

    Returns:
        (steps, Z), from the first to the last vector.
    """
    angle = functional.cosine_similarity(first_Z, last_Z, dim=0).clamp(-1, 1).acos()
    share_N1 = torch.linspace(0, 1, steps)[:, None]
    if angle.sin() < 1e-4:
        return torch.lerp(first_Z[None], last_Z[None], share_N1)
    return (((1 - share_N1) * angle).sin() * first_Z + (share_N1 * angle).sin() * last_Z) / angle.sin()


def _hash(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:7], "big")
