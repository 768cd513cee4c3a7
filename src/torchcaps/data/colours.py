"""Changes of the colours of a batch in [0, 1], each image by an amount of its own."""

from __future__ import annotations

import torch
from torch import Tensor

LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R BT.601), as Pillow weighs them


def grey(images_BCHW: Tensor) -> Tensor:
    """(B, 1, H, W) the luminance of colour images; of others the mean over channels."""
    if images_BCHW.shape[1] != 3:
        return images_BCHW.mean(1, keepdim=True)
    red, green, blue = (weight * channel for weight, channel in zip(LUMINANCE, images_BCHW.unbind(1)))
    return (red + green + blue)[:, None]


def change_saturation(images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Scale the distances of colours from grey.

    Args:
        images_BCHW: in [0, 1].
        factor_B: 0 makes an image grey, 1 leaves it.

    Returns:
        (B, C, H, W) in [0, 1].
    """
    return blend(grey(images_BCHW), images_BCHW, factor_B)


def change_hue(images_B3HW: Tensor, turns_B: Tensor) -> Tensor:
    """Turn the hue of every pixel round the colour circle (HSV); brightness and saturation stay.

    Args:
        images_B3HW: in [0, 1].
        turns_B: 1 is the whole circle, 1/3 makes green of red.

    Returns:
        (B, 3, H, W) in [0, 1].
    """
    high, low = images_B3HW.amax(1), images_B3HW.amin(1)
    chroma = high - low
    divisor = torch.where(chroma > 0, chroma, 1)
    red, green, blue = images_B3HW.unbind(1)
    sector = torch.where(
        high == red,
        (green - blue) / divisor,
        torch.where(high == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    sector = sector + 6 * turns_B[:, None, None]
    # A channel falls from the maximum by the chroma where its own hue is at least two sixths of the circle away.
    offsets_3 = 5 - 2 * torch.arange(3, device=sector.device)  # made on the device, so a CUDA graph can record it
    away = (offsets_3[None, :, None, None] + sector[:, None]) % 6
    share = torch.minimum(away, 4 - away).clamp(0, 1)
    return high[:, None] - chroma[:, None] * share


def blend(one: Tensor, other: Tensor, factor_B: Tensor) -> Tensor:
    """one + factor · (other − one), clipped to [0, 1]."""
    return (one + factor_B[:, None, None, None].to(other.dtype) * (other - one)).clamp(0, 1)
