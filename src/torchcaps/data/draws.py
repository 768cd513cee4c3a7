"""Random draws for a batch, one for each image, and images sampled at other positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

TINIEST = 1e-30  # of a gamma draw: one of a small shape may be rounded to zero, and two of them would have no ratio


class Draws:
    """Random draws, one for each image: made on the device of the generator, copied to that of the images.

    Args:
        images_BCHW: whose number and device count.
        generator: of the draws; by default that of the images' device.
    """

    def __init__(self, images_BCHW: Tensor, generator: torch.Generator | None) -> None:
        self.batch, self.target, self.generator = len(images_BCHW), images_BCHW.device, generator
        self.source = generator.device if generator is not None else images_BCHW.device

    def unit(self) -> Tensor:
        """Return (B,) values in [0, 1)."""
        return torch.rand(self.batch, generator=self.generator, device=self.source).to(self.target)

    def uniform(self, reach: float) -> Tensor:
        """Return (B,) values in [-reach, reach)."""
        unit_B = torch.rand(self.batch, generator=self.generator, device=self.source)
        return ((2 * unit_B - 1) * reach).to(self.target)

    def normal(self, *shape: int) -> Tensor:
        """Return (B, *shape) standard normal values."""
        return torch.randn(self.batch, *shape, generator=self.generator, device=self.source).to(self.target)

    def integers(self, highest: int) -> Tensor:
        """Return (B,) integers in 0..highest."""
        drawn_B = torch.randint(highest + 1, (self.batch,), generator=self.generator, device=self.source)
        return drawn_B.to(self.target)

    def beta(self, alpha: float) -> Tensor:
        """Return (B,) values of the distribution Beta(alpha, alpha), in [0, 1]."""
        if alpha == 1:
            return self.unit()
        shapes_2B = torch.full((2, self.batch), alpha, device=self.source)
        one_B, other_B = torch._standard_gamma(shapes_2B, generator=self.generator).clamp_min(TINIEST)
        return (one_B / (one_B + other_B)).to(self.target)

    def partners(self) -> Tensor:
        """Return (B,) a permutation of the images."""
        return self.unit().argsort()

    def choose(self, share: float, chosen: list[Tensor], others: list[Tensor]) -> list[Tensor]:
        """Take each image, and its mask, from `chosen` with probability `share`, else from `others`."""
        chosen_B111 = (self.uniform(1.0) < 2 * share - 1)[:, None, None, None]
        return [torch.where(chosen_B111, one, other) for one, other in zip(chosen, others)]


def sample(layers: list[Tensor], grid_BHW2: Tensor, padding: str = "zeros") -> list[Tensor]:
    """Sample images, and masks if there are any, at the positions of a grid, as `grid_sample` takes them.

    Images are sampled once, by cubic interpolation: bilinear sampling would blur them, and those that a model is tested
    on are sharp. Cubic overshoot is clamped to the range of the image. A mask takes the nearest pixel.

    Args:
        layers: images (B, C, H, W), and encoded masks (B, 1, H, W), whose 0 is what enters from outside.
        grid_BHW2: in float32 or wider, since half precision cannot address a pixel of a large image.
        padding: of the images: "zeros", or "border" where the grid does not leave the image.
    """
    images_BCHW, *masks = layers
    images = images_BCHW.to(grid_BHW2.dtype)
    moved = F.grid_sample(images, grid_BHW2, mode="bicubic", padding_mode=padding, align_corners=False)
    low, high = torch.aminmax(images.flatten(1), dim=1)
    if padding == "zeros":  # they enter from outside
        low, high = low.clamp(max=0), high.clamp(min=0)
    low, high = (bound[:, None, None, None] for bound in (low, high))
    return [moved.clamp(low, high).to(images_BCHW.dtype), *(_nearest(mask, grid_BHW2) for mask in masks)]


def grid_dtype(images_BCHW: Tensor) -> torch.dtype:
    """The type of a grid for these images."""
    return torch.promote_types(images_BCHW.dtype, torch.float32)


def _nearest(mask_B1HW: Tensor, grid_BHW2: Tensor) -> Tensor:
    values = mask_B1HW.to(grid_BHW2.dtype)  # whole numbers up to 255, so exact
    moved = F.grid_sample(values, grid_BHW2, mode="nearest", padding_mode="zeros", align_corners=False)
    return moved.to(mask_B1HW.dtype)
