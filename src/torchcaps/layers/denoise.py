"""A first layer that keeps strokes and removes most of the noise and blur around them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAD = 0.6745  # the median of |z| for a standard normal z


def noise_level(images: Tensor) -> Tensor:
    """Estimate the standard deviation of the noise, (B, 1, 1, 1): 0 where half of an image is flat.

    Neighbouring pixels differ along both diagonals, (a − b − c + d) / 2, mostly by noise; the median of the absolute
    values ignores the edges of objects (Donoho & Johnstone 1994).

    Args:
        images: (B, C, H, W).
    """
    if min(images.shape[-2:]) < 2:
        return images.new_zeros(images.shape[0], 1, 1, 1)
    a, b = images[..., 1:, 1:], images[..., :-1, 1:]
    c, d = images[..., 1:, :-1], images[..., :-1, :-1]
    detail = ((a - b - c + d) / 2).flatten(1).abs()
    return (detail.median(dim=1).values / MAD)[:, None, None, None]


def smooth(images: Tensor, sigma: float) -> Tensor:
    """Smooth images (B, C, H, W) by a Gaussian of sigma pixels; the border pixels are repeated outwards."""
    C, reach = images.shape[1], max(1, round(3 * sigma))
    offsets = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    bell = torch.exp(-0.5 * (offsets / sigma).square())
    bell = bell / bell.sum()
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    across = F.conv2d(padded, bell.view(1, 1, 1, -1).expand(C, -1, -1, -1), groups=C)
    return F.conv2d(across, bell.view(1, 1, -1, 1).expand(C, -1, -1, -1), groups=C)


class Denoise(nn.Module):
    """Smooth an image as much as it is noisy, then keep what is brighter than a level; for bright strokes on black.

    With n the noise level of an image x, g(σ) the image smoothed by a Gaussian of σ pixels and w = min(1, n / full):

        y = (1 − w) · g(0.6) + w · relu(g(1) − threshold · n),   z = y / max(y, faintest),
        answer = sigmoid(slope · (z − level)) − sigmoid(−slope · level)

    so that the background stays 0, contrast does not matter, and a blurred stroke looks like a sharp one. slope and
    level are learned.

    Args:
        threshold: how many noise levels are subtracted from the smoothed image.
        full: the noise level from which only the smoothed image counts.
        faintest: an image whose brightest pixel is darker than this is not brightened further.
        sharp: σ of the slightly smoothed image, in pixels.
        vary: in training the level of each image is moved at random by up to this much, which makes strokes thicker
            or thinner.
    """

    def __init__(
        self, threshold: float = 1.3, full: float = 0.05, faintest: float = 0.25, sharp: float = 0.6, vary: float = 0.0
    ):
        super().__init__()
        self.threshold, self.full, self.faintest = threshold, full, faintest
        self.sharp, self.vary = sharp, vary
        self.slope = nn.Parameter(torch.tensor(12.0))
        self.level = nn.Parameter(torch.tensor(0.4))

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, C, H, W) in [0, 1] to the same shape."""
        noise = noise_level(images.detach())
        share = (noise / self.full).clamp(max=1)
        sharp, soft = smooth(images, self.sharp), (smooth(images, 1.0) - self.threshold * noise).relu()
        y = sharp + share * (soft - sharp)
        z = y / y.amax((1, 2, 3), keepdim=True).clamp_min(self.faintest)
        level: Tensor = self.level
        if self.training and self.vary:
            level = level + self.vary * (2 * torch.rand_like(noise) - 1)
        return torch.sigmoid(self.slope * (z - level)) - torch.sigmoid(-self.slope * level)
