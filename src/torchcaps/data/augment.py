"""Random shifts, warps, erasing, crops, flips, turns, lighting and noise for a batch, on its own device.

Nothing here waits for the device or makes a shape depend on data, so a CUDA graph can capture it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypedDict, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.losses import IGNORED

if TYPE_CHECKING:
    from typing_extensions import Unpack

KNOT_SPACING_PIXELS = 7  # of the elastic field: a quarter of a digit
MASK_DTYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)  # which can hold IGNORED


class AugmentOptions(TypedDict, total=False):
    """The options of `augment`."""

    shift: int
    rotate: float
    shear: float
    scale: float
    elastic: float
    share: float
    erase: int
    crop: int
    flip: bool
    flip_vertical: bool
    turn: bool
    brightness: float
    contrast: float
    noise: float


# Those that move what is in an image.
GEOMETRIC = ("shift", "rotate", "shear", "scale", "elastic", "crop", "flip", "flip_vertical", "turn")


@overload
def augment(
    images_BCHW: Tensor,
    generator: torch.Generator | None = None,
    *,
    masks: None = None,
    **options: Unpack[AugmentOptions],
) -> Tensor: ...
@overload
def augment(
    images_BCHW: Tensor, generator: torch.Generator | None = None, *, masks: Tensor, **options: Unpack[AugmentOptions]
) -> tuple[Tensor, Tensor]: ...
def augment(
    images_BCHW: Tensor,
    generator: torch.Generator | None = None,
    *,
    masks: Tensor | None = None,
    shift: int = 0,
    rotate: float = 0.0,
    shear: float = 0.0,
    scale: float = 0.0,
    elastic: float = 0.0,
    share: float = 1.0,
    erase: int = 0,
    crop: int = 0,
    flip: bool = False,
    flip_vertical: bool = False,
    turn: bool = False,
    brightness: float = 0.0,
    contrast: float = 0.0,
    noise: float = 0.0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Change every image a little at random; return the same tensor where no change is given.

    Masks move with their images, with nearest-pixel sampling; what enters from outside is IGNORED (255). Erasing,
    lighting and noise do not change them.

    Args:
        images_BCHW: (B, C, H, W) floating point.
        generator: of the draws; if it is on another device, they are copied to the images.
        masks: (B, H, W) class ids below 255, or IGNORED; uint8 or a wider integer.
        shift: up to this many whole pixels in each direction; exact unless the images are also warped.
        rotate: up to this many degrees either way.
        shear: x moves by up to this many times y.
        scale: each axis grows or shrinks by up to this fraction.
        elastic: pixels move by a smooth random field with this standard deviation, in pixels.
        share: fraction of the images that are rotated, sheared, scaled and bent; the others are only shifted.
        erase: a rectangle at a random position, with sides of up to this many pixels, becomes black.
        crop: side of a random window; 0 for the whole image.
        flip: mirror half of the images left to right.
        flip_vertical: mirror half of the images top to bottom.
        turn: rotate by 0, 90, 180 or 270 degrees, equally likely; for square images.
        brightness: add up to this much, or subtract it; clipped to [0, 1].
        contrast: scale the distances from an image's mean by up to this fraction either way; clipped.
        noise: add normal noise with a random standard deviation per image, up to this; clipped.

    Returns:
        (B, C, H, W), or (B, C, crop, crop); with masks a pair, (B, H, W) or (B, crop, crop) of the same dtype.
    """
    moves: dict[str, Any] = {"shift": shift, "rotate": rotate, "shear": shear, "scale": scale, "elastic": elastic}
    lighting = {"brightness": brightness, "contrast": contrast, "noise": noise}
    _check(images_BCHW, turn, **moves, **lighting, share=share, erase=erase, crop=crop)
    random = _Random(images_BCHW, generator)
    layers = [images_BCHW] if masks is None else [images_BCHW, _encode_masks(masks, images_BCHW)]
    layers = _crop(_move(layers, random, share, **moves), random, crop)
    layers[0] = _change_values(layers[0], random, erase, **lighting)
    layers = _flip(layers, random, flip, flip_vertical, turn)
    return layers[0] if masks is None else (layers[0], _decode_masks(layers[1], masks.dtype))


def _move(
    layers: list[Tensor],
    random: _Random,
    share: float,
    shift: int,
    rotate: float,
    shear: float,
    scale: float,
    elastic: float,
) -> list[Tensor]:
    if not len(layers[0]):
        return layers  # grid_sample refuses an empty batch
    if rotate or shear or scale or elastic:
        warped = _warp(layers, random, shift, rotate, shear, scale, elastic)
        return warped if share == 1 else random.choose(share, warped, _shift(layers, random, shift))
    return _shift(layers, random, shift) if shift else layers


def _crop(layers: list[Tensor], random: _Random, crop: int) -> list[Tensor]:
    height, width = layers[0].shape[2:]
    if not crop or (crop, crop) == (height, width):
        return layers
    top_B, left_B = random.integers(height - crop), random.integers(width - crop)
    return [_windows(layer, top_B, left_B, crop, crop) for layer in layers]


def _flip(layers: list[Tensor], random: _Random, flip: bool, flip_vertical: bool, turn: bool) -> list[Tensor]:
    if flip:
        layers = random.choose(0.5, [layer.flip(-1) for layer in layers], layers)
    if flip_vertical:
        layers = random.choose(0.5, [layer.flip(-2) for layer in layers], layers)
    if turn:
        layers = random.choose(0.5, [layer.rot90(1, (-2, -1)) for layer in layers], layers)
        layers = random.choose(0.5, [layer.flip(-2, -1) for layer in layers], layers)
    return layers


def centre_crop(images: Tensor, crop: int) -> Tensor:
    """Cut the middle out of each image, to test a model that was trained on random crops.

    Args:
        images: (..., H, W).
        crop: side of the window; 0 returns the same tensor.

    Returns:
        (..., crop, crop).
    """
    height, width = images.shape[-2:]
    if not crop or (crop, crop) == (height, width):
        return images
    if not 0 < crop <= min(height, width):
        raise UserError(f"crop={crop} does not fit into images of {height}×{width}")
    top, left = (height - crop) // 2, (width - crop) // 2
    return images[..., top : top + crop, left : left + crop]


class _Random:
    """Random draws, one for each image: made on the device of the generator, copied to that of the images."""

    def __init__(self, images_BCHW: Tensor, generator: torch.Generator | None) -> None:
        self.batch, self.target, self.generator = len(images_BCHW), images_BCHW.device, generator
        self.source = generator.device if generator is not None else images_BCHW.device

    def uniform(self, reach: float) -> Tensor:
        """Return (B,) values in [-reach, reach)."""
        unit_B = torch.rand(self.batch, generator=self.generator, device=self.source)
        return ((2 * unit_B - 1) * reach).to(self.target)

    def normal(self, *shape: int) -> Tensor:
        """Return (B, *shape) standard normal values."""
        return torch.randn(self.batch, *shape, generator=self.generator, device=self.source).to(self.target)

    def choose(self, share: float, chosen: list[Tensor], others: list[Tensor]) -> list[Tensor]:
        """Take each image, and its mask, from `chosen` with probability `share`, else from `others`."""
        chosen_B111 = (self.uniform(1.0) < 2 * share - 1)[:, None, None, None]
        return [torch.where(chosen_B111, one, other) for one, other in zip(chosen, others)]

    def integers(self, highest: int) -> Tensor:
        """Return (B,) integers in 0..highest."""
        drawn_B = torch.randint(highest + 1, (self.batch,), generator=self.generator, device=self.source)
        return drawn_B.to(self.target)


def _encode_masks(masks_BHW: Tensor, images_BCHW: Tensor) -> Tensor:
    """Return (B, 1, H, W) ids plus one, and 0 for IGNORED: then zeros may enter a mask as they enter an image."""
    batch, _, height, width = images_BCHW.shape
    if masks_BHW.shape != (batch, height, width) or masks_BHW.dtype not in MASK_DTYPES:
        found = f"{masks_BHW.dtype} {tuple(masks_BHW.shape)}"
        raise UserError(f"masks must be uint8 or int64 ({batch}, {height}, {width}) to fit the images, not {found}")
    return (masks_BHW[:, None].short() + 1) % (IGNORED + 1)


def _decode_masks(encoded_B1HW: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (B, H, W) the original ids."""
    return ((encoded_B1HW[:, 0] + IGNORED) % (IGNORED + 1)).to(dtype)


def _shift(layers: list[Tensor], random: _Random, shift: int) -> list[Tensor]:
    """Move by whole pixels; zeros enter."""
    height, width = layers[0].shape[2:]
    top_B, left_B = random.integers(2 * shift), random.integers(2 * shift)
    padded = [F.pad(layer, (shift, shift, shift, shift)) for layer in layers]
    return [_windows(layer, top_B, left_B, height, width) for layer in padded]


def _windows(images_BCHW: Tensor, top_B: Tensor, left_B: Tensor, height: int, width: int) -> Tensor:
    """Cut a (height, width) window out of each image, at its own position."""
    batch, channels, _, stride = images_BCHW.shape
    rows_BH = top_B[:, None] + torch.arange(height, device=images_BCHW.device)
    columns_BW = left_B[:, None] + torch.arange(width, device=images_BCHW.device)
    positions_B1P = (rows_BH[:, :, None] * stride + columns_BW[:, None, :]).view(batch, 1, height * width)
    pixels_BCP = images_BCHW.flatten(2).gather(2, positions_B1P.expand(-1, channels, -1))
    return pixels_BCP.view(batch, channels, height, width)


def _warp(
    layers: list[Tensor], random: _Random, shift: int, rotate: float, shear: float, scale: float, elastic: float
) -> list[Tensor]:
    """Scale, shear, rotate about the centre, shift and bend, with one bicubic resampling.

    Bilinear sampling would blur the images, and those that the model is tested on are sharp. Cubic overshoot is clamped
    to the range of the image. A mask takes the nearest pixel at the same positions.
    """
    images_BCHW, *masks = layers
    dtype = torch.promote_types(
        images_BCHW.dtype, torch.float32
    )  # half precision cannot address a pixel of a large image
    inverse_B23 = _affine(images_BCHW, random, shift, rotate, shear, scale).to(dtype)
    grid_BHW2 = F.affine_grid(inverse_B23, list(images_BCHW.shape), align_corners=False)
    if elastic:
        grid_BHW2 = grid_BHW2 + _elastic_field(images_BCHW, random, elastic).to(dtype)
    images = images_BCHW.to(dtype)
    moved = F.grid_sample(images, grid_BHW2, mode="bicubic", padding_mode="zeros", align_corners=False)
    low, high = torch.aminmax(images.flatten(1), dim=1)  # and 0, which enters from outside
    low, high = (bound[:, None, None, None] for bound in (low.clamp(max=0), high.clamp(min=0)))
    return [moved.clamp(low, high).to(images_BCHW.dtype), *(_nearest(mask, grid_BHW2) for mask in masks)]


def _nearest(mask_B1HW: Tensor, grid_BHW2: Tensor) -> Tensor:
    values = mask_B1HW.to(grid_BHW2.dtype)  # whole numbers up to 255, so exact
    moved = F.grid_sample(values, grid_BHW2, mode="nearest", padding_mode="zeros", align_corners=False)
    return moved.to(mask_B1HW.dtype)


def _affine(images_BCHW: Tensor, random: _Random, shift: int, rotate: float, shear: float, scale: float) -> Tensor:
    """Return (B, 2, 3) maps from output to input positions, in units of half the image as grid_sample takes them."""
    height, width = images_BCHW.shape[2:]
    angle_B = random.uniform(math.radians(rotate))
    shear_B = random.uniform(shear)
    grow_x_B, grow_y_B = 1 + random.uniform(scale), 1 + random.uniform(scale)
    move_x_B, move_y_B = random.integers(2 * shift) - shift, random.integers(2 * shift) - shift
    cos_B, sin_B = angle_B.cos(), angle_B.sin()
    xx_B, xy_B = (cos_B + shear_B * sin_B) / grow_x_B, (sin_B - shear_B * cos_B) / grow_x_B
    yx_B, yy_B = -sin_B / grow_y_B, cos_B / grow_y_B
    x_B, y_B = -(xx_B * move_x_B + xy_B * move_y_B), -(yx_B * move_x_B + yy_B * move_y_B)
    across_B = torch.stack([xx_B, xy_B * (height / width), x_B * (2 / width)], dim=-1)
    down_B = torch.stack([yx_B * (width / height), yy_B, y_B * (2 / height)], dim=-1)
    return torch.stack([across_B, down_B], dim=1)


def _elastic_field(images_BCHW: Tensor, random: _Random, elastic: float) -> Tensor:
    """Return (B, H, W, 2) shifts in units of half the image: normal draws on a coarse grid, cubic in between."""
    height, width = images_BCHW.shape[2:]
    knots = (max(2, round(height / KNOT_SPACING_PIXELS)) + 1, max(2, round(width / KNOT_SPACING_PIXELS)) + 1)
    bends_B2HW = F.interpolate(random.normal(2, *knots), (height, width), mode="bicubic", align_corners=True)
    x_BHW, y_BHW = (bends_B2HW * elastic).unbind(1)
    return torch.stack([x_BHW * (2 / width), y_BHW * (2 / height)], dim=-1)


def _change_values(
    images_BCHW: Tensor, random: _Random, erase: int, brightness: float, contrast: float, noise: float
) -> Tensor:
    """Lighting comes after the crop, for the mean of what is left, and before erasing, which leaves black."""
    if brightness or contrast:
        images_BCHW = _change_lighting(images_BCHW, random, brightness, contrast)
    if noise:
        images_BCHW = _add_noise(images_BCHW, random, noise)
    return _erase(images_BCHW, random, erase) if erase and len(images_BCHW) else images_BCHW


def _change_lighting(images_BCHW: Tensor, random: _Random, brightness: float, contrast: float) -> Tensor:
    """Change brightness and contrast, by the same amounts in all channels of an image."""
    values = images_BCHW.to(torch.promote_types(images_BCHW.dtype, torch.float32))
    mean_B111 = values.mean((1, 2, 3), keepdim=True)
    add_B111 = random.uniform(brightness)[:, None, None, None]
    factor_B111 = 1 + random.uniform(contrast)[:, None, None, None]
    lit = mean_B111 + (values - mean_B111) * factor_B111 + add_B111
    return lit.clamp(0, 1).to(images_BCHW.dtype)


def _add_noise(images_BCHW: Tensor, random: _Random, noise: float) -> Tensor:
    strength_B111 = random.uniform(noise).abs()[:, None, None, None]
    noisy = images_BCHW + strength_B111 * random.normal(*images_BCHW.shape[1:])
    return noisy.clamp(0, 1).to(images_BCHW.dtype)


def _erase(images_BCHW: Tensor, random: _Random, erase: int) -> Tensor:
    height, width = images_BCHW.shape[2:]
    rows_BH, columns_BW = (_random_span(random, erase, side, images_BCHW.device) for side in (height, width))
    return images_BCHW.masked_fill((rows_BH[:, :, None] & columns_BW[:, None, :])[:, None], 0)


def _random_span(random: _Random, longest: int, side: int, device: torch.device) -> Tensor:
    """Return (B, side) masks of a span of 0 to `longest` pixels at a random position."""
    position = torch.arange(side, device=device)
    start_B, length_B = random.integers(side - 1), random.integers(longest)
    return (position >= start_B[:, None]) & (position < (start_B + length_B)[:, None])


def _check(images_BCHW: Tensor, turn: bool, **amounts: float) -> None:
    for name, amount in amounts.items():
        if amount < 0:
            raise UserError(f"augmentation {name}={amount}: give 0 or more")
    if amounts["scale"] >= 1:
        raise UserError(f"augmentation scale={amounts['scale']}: 0.1 is 10 % either way, so it must stay below 1")
    if amounts["share"] > 1:
        raise UserError(f"augmentation share={amounts['share']}: 0.5 is every second image, so it must not exceed 1")
    if amounts["contrast"] > 1:
        raise UserError(f"augmentation contrast={amounts['contrast']}: 0.5 is 50 % either way, so it must not exceed 1")
    height, width = images_BCHW.shape[2:]
    if amounts["crop"] > min(height, width):
        raise UserError(f"augmentation crop={amounts['crop']} does not fit into images of {height}×{width}")
    if turn and not amounts["crop"] and height != width:
        raise UserError(f"augmentation turn: images of {height}×{width} are not square; give a crop, or turn=no")
