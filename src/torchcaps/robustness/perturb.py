"""Perturbations of a known strength: geometric transforms, noise, blur, occlusion, shuffled quadrants.

Every function takes a batch (B, C, H, W) of values in [0, 1] and returns another of the same shape, on the same device.
Random numbers come from the generator, which may be on another device.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

Generator = torch.Generator | None
Matrix = tuple[tuple[float, float], tuple[float, float]]


def rotate(images_BCHW: Tensor, degrees: float) -> Tensor:
    """Rotate counter-clockwise about the centre, padded with black."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return _resample(images_BCHW, ((cos, -sin), (sin, cos)))


def shear(images_BCHW: Tensor, amount: float) -> Tensor:
    """Shear: x moves by `amount` times the height above the centre."""
    return _resample(images_BCHW, ((1.0, amount), (0.0, 1.0)))


def scale(images_BCHW: Tensor, factor: float) -> Tensor:
    """Scale about the centre, padded with black."""
    return _resample(images_BCHW, ((1 / factor, 0.0), (0.0, 1 / factor)))


def translate(images_BCHW: Tensor, right: float, down: float = 0.0) -> Tensor:
    """Translate by pixels, padded with black; fractions are interpolated from the two neighbours."""
    return _shift(_shift(images_BCHW, right, dim=3), down, dim=2)


def affine(
    images_BCHW: Tensor,
    *,
    rotate: float = 0.0,
    shear: float = 0.0,
    scale: float = 1.0,
    shift_x: float = 0.0,
    shift_y: float = 0.0,
) -> Tensor:
    """Scale, shear, rotate and translate, in this order, with one interpolation: each one blurs the image."""
    if (rotate, shear, scale, shift_x, shift_y) == (0, 0, 1, 0, 0):
        return images_BCHW
    cos, sin = math.cos(math.radians(rotate)), math.sin(math.radians(rotate))
    # The inverses, the last transform first: ((cos, −sin), (sin, cos)), ((1, shear), (0, 1)), 1 / scale.
    inverse = (
        ((cos + shear * sin) / scale, (shear * cos - sin) / scale),
        (sin / scale, cos / scale),
    )
    return _resample(images_BCHW, inverse, (shift_x, shift_y))


def noise(images_BCHW: Tensor, std: float, generator: Generator = None) -> Tensor:
    """Add Gaussian noise of this standard deviation, and clip to [0, 1]."""
    device = images_BCHW.device if generator is None else generator.device
    drawn = torch.randn(images_BCHW.shape, generator=generator, device=device)
    return (images_BCHW + std * drawn.to(images_BCHW)).clamp(0, 1)


def blur(images_BCHW: Tensor, sigma: float) -> Tensor:
    """Blur with a Gaussian of `sigma` pixels; the border is replicated."""
    if sigma <= 0:
        return images_BCHW
    reach = math.ceil(3 * sigma)
    places = torch.arange(-reach, reach + 1, device=images_BCHW.device, dtype=torch.float32)
    bell = torch.exp(-0.5 * (places / sigma).square())
    bell = (bell / bell.sum()).to(images_BCHW.dtype)
    channels = images_BCHW.shape[1]
    padded = F.pad(images_BCHW, (reach, reach, reach, reach), mode="replicate")
    across = F.conv2d(padded, bell.view(1, 1, 1, -1).expand(channels, -1, -1, -1), groups=channels)
    return F.conv2d(across, bell.view(1, 1, -1, 1).expand(channels, -1, -1, -1), groups=channels)


def occlude(images_BCHW: Tensor, side: int, generator: Generator = None) -> Tensor:
    """Cover a random square of side × side pixels with black in each image, never over the edge."""
    B, _, H, W = images_BCHW.shape
    top_B, left_B = (_randint(0, max(0, length - side) + 1, B, images_BCHW, generator) for length in (H, W))
    rows_BH, columns_BW = (_within(length, start_B, side) for length, start_B in ((H, top_B), (W, left_B)))
    return images_BCHW.masked_fill((rows_BH[:, :, None] & columns_BW[:, None, :])[:, None], 0.0)


def scramble(images_BCHW: Tensor, generator: Generator = None) -> Tensor:
    """Shuffle the four quadrants of each image into a random wrong order.

    If a side is odd, its middle row or column stays.
    """
    orders = torch.tensor(list(itertools.permutations(range(4)))[1:], device=images_BCHW.device)  # 23 × 4
    order_B4 = orders[_randint(0, len(orders), len(images_BCHW), images_BCHW, generator)]
    quadrants_B4CHW = _quadrants(images_BCHW)
    moved = quadrants_B4CHW.gather(1, order_B4[:, :, None, None, None].expand_as(quadrants_B4CHW))
    return _assemble(images_BCHW, moved)


def mirror_quadrants(images_BCHW: Tensor) -> Tensor:
    """Mirror each quadrant left to right, in its place."""
    return _assemble(images_BCHW, _quadrants(images_BCHW).flip(-1))


def thicken(images_BCHW: Tensor, steps: float) -> Tensor:
    """Widen bright strokes by `steps` pixels on each side, or thin them if negative.

    A step takes the maximum (or minimum) of each 3×3 neighbourhood; a fraction of a step is interpolated.
    """
    sign = 1.0 if steps >= 0 else -1.0
    images = sign * images_BCHW  # the minimum of x is the maximum of −x
    whole, rest = divmod(abs(steps), 1)
    for _ in range(int(whole)):
        images = F.max_pool2d(images, 3, stride=1, padding=1)
    if rest:
        images = (1 - rest) * images + rest * F.max_pool2d(images, 3, stride=1, padding=1)
    return sign * images


def overlay(first_BCHW: Tensor, second_BCHW: Tensor) -> Tensor:
    """Overlay two images: their sum, clipped at 1."""
    return (first_BCHW + second_BCHW).clamp(max=1)


def _resample(images_BCHW: Tensor, inverse: Matrix, shift: tuple[float, float] = (0.0, 0.0)) -> Tensor:
    """Sample bilinearly: pixel (x, y) of the result, from the centre, shows what was at `inverse` · (x, y); the result
    is then translated by `shift`."""
    B, _, H, W = images_BCHW.shape
    (xx, xy), (yx, yy) = inverse
    # The sampler counts in half widths and half heights.
    x, y = (-(to_x * shift[0] + to_y * shift[1]) for to_x, to_y in inverse)
    matrix = torch.tensor([[xx, xy * H / W, 2 * x / W], [yx * W / H, yy, 2 * y / H]])
    dtype = torch.promote_types(images_BCHW.dtype, torch.float32)
    matrix_B23 = matrix.to(images_BCHW.device, dtype).expand(B, 2, 3)
    grid_BHW2 = F.affine_grid(matrix_B23, list(images_BCHW.shape), align_corners=False)
    return F.grid_sample(images_BCHW.to(dtype), grid_BHW2, align_corners=False).to(images_BCHW.dtype)


def _shift(images: Tensor, pixels: float, dim: int) -> Tensor:
    """Shift towards higher positions along one axis, padded with black."""
    whole = math.floor(pixels)
    rest = pixels - whole
    near = _shift_whole(images, whole, dim)
    return near if not rest else (1 - rest) * near + rest * _shift_whole(images, whole + 1, dim)


def _shift_whole(images: Tensor, pixels: int, dim: int) -> Tensor:
    side = images.shape[dim]
    kept = max(0, side - abs(pixels))
    moved = torch.zeros_like(images)
    moved.narrow(dim, side - kept if pixels > 0 else 0, kept).copy_(
        images.narrow(dim, 0 if pixels > 0 else side - kept, kept)
    )
    return moved


def _randint(low: int, high: int, count: int, images: Tensor, generator: Generator) -> Tensor:
    """Draw (count,) integers from [low, high), on the device of the images."""
    device = images.device if generator is None else generator.device
    return torch.randint(low, high, (count,), generator=generator, device=device).to(images.device)


def _within(length: int, start_B: Tensor, side: int) -> Tensor:
    """Mark `side` positions from start on: (B, length) bool."""
    places = torch.arange(length, device=start_B.device)
    return (places >= start_B[:, None]) & (places < start_B[:, None] + side)


def _corners(images_BCHW: Tensor) -> list[tuple[slice, slice]]:
    """Return rows and columns of the quadrants: upper left, upper right, lower left, lower right."""
    halves = [(slice(0, side // 2), slice(side - side // 2, side)) for side in images_BCHW.shape[2:]]
    return list(itertools.product(*halves))


def _quadrants(images_BCHW: Tensor) -> Tensor:
    """Cut out the quadrants: (B, 4, C, H // 2, W // 2)."""
    return torch.stack([images_BCHW[..., rows, columns] for rows, columns in _corners(images_BCHW)], dim=1)


def _assemble(images_BCHW: Tensor, quadrants_B4CHW: Tensor) -> Tensor:
    result = images_BCHW.clone()
    for quadrant, (rows, columns) in enumerate(_corners(images_BCHW)):
        result[..., rows, columns] = quadrants_B4CHW[:, quadrant]
    return result
