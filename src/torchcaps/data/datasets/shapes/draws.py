"""Random numbers that depend on a seed, an image's number and a name alone, not on which others are drawn."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Draws:
    """Random draws for B images, in float64 on the CPU, the same on every machine.

    Each number is a hash (SplitMix64) of the seed, the name of what is drawn, the number of the image and the position
    within the draw.

    Args:
        seed: of all draws.
        images: B numbers of images, from 0.
    """

    def __init__(self, seed: int, images: Sequence[int]) -> None:
        self.seed, self.images = seed, np.asarray(images, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self.images)

    def unit(self, name: str, *shape: int) -> Tensor:
        """Draw uniform values in [0, 1): (B, *shape)."""
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        key = np.frombuffer(digest[:8], dtype="<u8").astype(np.uint64)
        count = math.prod(shape)
        image_B1 = _mix(key + GOLDEN * (self.images + np.uint64(1)))[:, None]
        bits_BK = _mix(image_B1 + GOLDEN * (np.arange(count, dtype=np.uint64) + np.uint64(1)))
        values = (bits_BK >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return torch.from_numpy(values).view(len(self), *shape)

    def between(self, name: str, low: float, high: float, *shape: int) -> Tensor:
        """Draw uniform values from low up to high: (B, *shape)."""
        return low + (high - low) * self.unit(name, *shape)

    def integers(self, name: str, low: int, high: int, *shape: int) -> Tensor:
        """Draw whole numbers from low to high, both included: (B, *shape) int64."""
        return low + ((high - low + 1) * self.unit(name, *shape)).long()

    def normal(self, name: str, *shape: int) -> Tensor:
        """Draw normal values by Box and Muller: (B, *shape)."""
        radius, turn = self.unit(name, *shape, 2).unbind(-1)
        return (-2 * (1 - radius).log()).sqrt() * (2 * math.pi * turn).cos()

    def subset(self, chosen: Tensor) -> Draws:
        """The draws of some of the images only, given by their positions (M,)."""
        return Draws(self.seed, self.images[chosen.numpy()])


def _mix(bits: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014); unsigned integers of numpy wrap around."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
