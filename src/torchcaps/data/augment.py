"""Shifts, affine jitter, bending, erasing, crops, flips, turns, lighting and noise of a whole batch, where that lives.

Nothing here waits for the device or makes a shape depend on data, so a CUDA graph can hold it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.losses import IGNORED

if TYPE_CHECKING:
    from typing_extensions import Unpack

BEND = 7  # pixels between two knots of an elastic field: a quarter of a digit
MASK_TYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)  # those that hold IGNORED


class Changes(TypedDict, total=False):
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


@overload
def augment(
    images_BCHW: Tensor, generator: torch.Generator | None = None, *, masks: None = None, **changes: Unpack[Changes]
) -> Tensor: ...
@overload
def augment(
    images_BCHW: Tensor, generator: torch.Generator | None = None, *, masks: Tensor, **changes: Unpack[Changes]
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
    """Each image changed a little at random; the same tensor when nothing is asked for.

    Masks move with their images, by the nearest pixel; where nothing was before they are IGNORED (255). Erasing,
    lighting and noise leave them alone.

    images_BCHW    (B, C, H, W)  floating point
    generator      on the device of the images, or else its draws are copied there
    masks          (B, H, W)     class ids below 255, or IGNORED; uint8 or a wider integer
    shift          up to so many whole pixels in each direction; exact when no affine jitter is asked for
    rotate         up to so many degrees either way
    shear          x moves by up to so many times y
    scale          each axis grows or shrinks by up to this fraction
    elastic        pixels move by a smooth random field of this standard deviation, in pixels
    share          of the images that are rotated, sheared, scaled and bent; the others are only shifted, and stay sharp
    erase          a rectangle at a random place, its sides up to so many pixels, becomes black
    crop           side of a random window; 0 for the whole image
    flip           mirror half of the images left to right
    flip_vertical  and half of them top to bottom
    turn           by 0, 90, 180 or 270 degrees, each as likely; for square images
    brightness     up to so much is added to a whole image, or taken away; what then lies outside [0, 1] is clipped
    contrast       distances from an image's mean grow or shrink by up to this fraction; clipped, too
    noise          normal, at each pixel by itself, of up to this standard deviation, another for each image; clipped
    returns        (B, C, H, W), or (B, C, crop, crop); with masks a pair, (B, H, W) or (B, crop, crop) of the same type
    """
    moves = {"shift": shift, "rotate": rotate, "shear": shear, "scale": scale, "elastic": elastic}
    looks = {"brightness": brightness, "contrast": contrast, "noise": noise}
    _check(images_BCHW, **moves, **looks, share=share, erase=erase, crop=crop)
    height, width = images_BCHW.shape[2:]
    if turn and not crop and height != width:
        raise UserError(f"augmentation turn: images of {height}×{width} are not square; give a crop, or turn=no")
    dice = _Dice(images_BCHW, generator)
    layers = [images_BCHW] if masks is None else [images_BCHW, _raised(masks, images_BCHW)]
    if not len(images_BCHW):
        pass  # the sampler refuses an empty batch; a crop below still gives it its shape
    elif rotate or shear or scale or elastic:
        warped = _warp(layers, dice, shift, rotate, shear, scale, elastic)
        layers = warped if share == 1 else dice.choose(share, warped, _shift(layers, dice, shift))
    elif shift:
        layers = _shift(layers, dice, shift)
    if crop and (crop, crop) != (height, width):
        top_B, left_B = dice.integers(height - crop), dice.integers(width - crop)
        layers = [_windows(layer, top_B, left_B, crop, crop) for layer in layers]
    if brightness or contrast:  # of what is seen: after the crop, but an erased rectangle stays black
        layers[0] = _relight(layers[0], dice, brightness, contrast)
    if noise:
        layers[0] = _disturb(layers[0], dice, noise)
    if erase and len(images_BCHW):
        layers[0] = _erase(layers[0], dice, erase)
    if flip:
        layers = dice.choose(0.5, [layer.flip(-1) for layer in layers], layers)
    if flip_vertical:
        layers = dice.choose(0.5, [layer.flip(-2) for layer in layers], layers)
    if turn:
        layers = dice.choose(0.5, [layer.rot90(1, (-2, -1)) for layer in layers], layers)
        layers = dice.choose(0.5, [layer.flip(-2, -1) for layer in layers], layers)
    return layers[0] if masks is None else (layers[0], _lowered(layers[1], masks.dtype))


def centre_crop(images: Tensor, crop: int) -> Tensor:
    """The middle of each image, for testing a model that was trained on random crops.

    images   (..., H, W)
    returns  (..., crop, crop); the same tensor for crop 0
    """
    height, width = images.shape[-2:]
    if not crop or (crop, crop) == (height, width):
        return images
    if not 0 < crop <= min(height, width):
        raise UserError(f"crop={crop} does not fit into images of {height}×{width}")
    top, left = (height - crop) // 2, (width - crop) // 2
    return images[..., top : top + crop, left : left + crop]


class _Dice:
    """One draw for each image, made where the generator lives and brought to the images."""

    def __init__(self, images_BCHW: Tensor, generator: torch.Generator | None) -> None:
        self.batch, self.target, self.generator = len(images_BCHW), images_BCHW.device, generator
        self.source = generator.device if generator is not None else images_BCHW.device

    def uniform(self, reach: float) -> Tensor:
        """(B,) in [-reach, reach)"""
        unit_B = torch.rand(self.batch, generator=self.generator, device=self.source)
        return ((2 * unit_B - 1) * reach).to(self.target)

    def normal(self, *shape: int) -> Tensor:
        """(B, *shape)"""
        return torch.randn(self.batch, *shape, generator=self.generator, device=self.source).to(self.target)

    def choose(self, share: float, some: list[Tensor], others: list[Tensor]) -> list[Tensor]:
        """Each image, and its mask, from `some` as often as `share` says, else from `others`."""
        chosen_B111 = (self.uniform(1.0) < 2 * share - 1)[:, None, None, None]
        return [torch.where(chosen_B111, one, other) for one, other in zip(some, others)]

    def integers(self, highest: int) -> Tensor:
        """(B,) in 0..highest"""
        drawn_B = torch.randint(highest + 1, (self.batch,), generator=self.generator, device=self.source)
        return drawn_B.to(self.target)


def _raised(masks_BHW: Tensor, images_BCHW: Tensor) -> Tensor:
    """(B, 1, H, W)  ids plus one, and 0 for IGNORED: then what enters a mask is what enters an image."""
    batch, _, height, width = images_BCHW.shape
    if masks_BHW.shape != (batch, height, width) or masks_BHW.dtype not in MASK_TYPES:
        found = f"{masks_BHW.dtype} {tuple(masks_BHW.shape)}"
        raise UserError(f"masks must be uint8 or int64 ({batch}, {height}, {width}) to fit the images, not {found}")
    return (masks_BHW[:, None].short() + 1) % (IGNORED + 1)


def _lowered(raised_B1HW: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, H, W)  the ids again"""
    return ((raised_B1HW[:, 0] + IGNORED) % (IGNORED + 1)).to(dtype)


def _shift(layers: list[Tensor], dice: _Dice, shift: int) -> list[Tensor]:
    """Moved by whole pixels, what enters being 0."""
    height, width = layers[0].shape[2:]
    top_B, left_B = dice.integers(2 * shift), dice.integers(2 * shift)
    padded = [F.pad(layer, (shift, shift, shift, shift)) for layer in layers]
    return [_windows(layer, top_B, left_B, height, width) for layer in padded]


def _windows(images_BCHW: Tensor, top_B: Tensor, left_B: Tensor, height: int, width: int) -> Tensor:
    """A window of each image at a place of its own, copied pixel by pixel.

    returns  (B, C, height, width)
    """
    batch, channels, _, stride = images_BCHW.shape
    rows_BH = top_B[:, None] + torch.arange(height, device=images_BCHW.device)
    columns_BW = left_B[:, None] + torch.arange(width, device=images_BCHW.device)
    places_B1P = (rows_BH[:, :, None] * stride + columns_BW[:, None, :]).view(batch, 1, height * width)
    pixels_BCP = images_BCHW.flatten(2).gather(2, places_B1P.expand(-1, channels, -1))
    return pixels_BCP.view(batch, channels, height, width)


def _warp(
    layers: list[Tensor], dice: _Dice, shift: int, rotate: float, shear: float, scale: float, elastic: float
) -> list[Tensor]:
    """Scale, then shear, then rotate about the centre, then shift, then bend: one bicubic resampling of all.

    Bilinear would leave every image softer than those that the model is tested on. Where cubic curves overshoot, they
    are cut off at the darkest and the brightest of the image. A mask gets the nearest pixel of the same places.
    """
    images_BCHW, *masks = layers
    dtype = torch.promote_types(images_BCHW.dtype, torch.float32)  # half precision cannot name a pixel of a large image
    inverse_B23 = _affine(images_BCHW, dice, shift, rotate, shear, scale).to(dtype)
    grid_BHW2 = F.affine_grid(inverse_B23, list(images_BCHW.shape), align_corners=False)
    if elastic:
        grid_BHW2 = grid_BHW2 + _field(images_BCHW, dice, elastic).to(dtype)
    images = images_BCHW.to(dtype)
    moved = F.grid_sample(images, grid_BHW2, mode="bicubic", padding_mode="zeros", align_corners=False)
    low, high = torch.aminmax(images.flatten(1), dim=1)  # and 0, which enters from outside
    low, high = (bound[:, None, None, None] for bound in (low.clamp(max=0), high.clamp(min=0)))
    return [moved.clamp(low, high).to(images_BCHW.dtype), *(_nearest(mask, grid_BHW2) for mask in masks)]


def _nearest(mask_B1HW: Tensor, grid_BHW2: Tensor) -> Tensor:
    values = mask_B1HW.to(grid_BHW2.dtype)  # whole numbers up to 255, so exact
    moved = F.grid_sample(values, grid_BHW2, mode="nearest", padding_mode="zeros", align_corners=False)
    return moved.to(mask_B1HW.dtype)


def _affine(images_BCHW: Tensor, dice: _Dice, shift: int, rotate: float, shear: float, scale: float) -> Tensor:
    """(B, 2, 3), from a place in the result to its origin, in units of half the image, as the sampler wants it."""
    height, width = images_BCHW.shape[2:]
    angle_B = dice.uniform(math.radians(rotate))
    shear_B = dice.uniform(shear)
    grow_x_B, grow_y_B = 1 + dice.uniform(scale), 1 + dice.uniform(scale)
    move_x_B, move_y_B = dice.integers(2 * shift) - shift, dice.integers(2 * shift) - shift
    cos_B, sin_B = angle_B.cos(), angle_B.sin()
    xx_B, xy_B = (cos_B + shear_B * sin_B) / grow_x_B, (sin_B - shear_B * cos_B) / grow_x_B
    yx_B, yy_B = -sin_B / grow_y_B, cos_B / grow_y_B
    x_B, y_B = -(xx_B * move_x_B + xy_B * move_y_B), -(yx_B * move_x_B + yy_B * move_y_B)
    across_B = torch.stack([xx_B, xy_B * (height / width), x_B * (2 / width)], dim=-1)
    down_B = torch.stack([yx_B * (width / height), yy_B, y_B * (2 / height)], dim=-1)
    return torch.stack([across_B, down_B], dim=1)


def _field(images_BCHW: Tensor, dice: _Dice, elastic: float) -> Tensor:
    """(B, H, W, 2) in units of half the image: normal draws about every BEND pixels, cubic curves between them."""
    height, width = images_BCHW.shape[2:]
    knots = (max(2, round(height / BEND)) + 1, max(2, round(width / BEND)) + 1)
    bends_B2HW = F.interpolate(dice.normal(2, *knots), (height, width), mode="bicubic", align_corners=True)
    x_BHW, y_BHW = (bends_B2HW * elastic).unbind(1)
    return torch.stack([x_BHW * (2 / width), y_BHW * (2 / height)], dim=-1)


def _relight(images_BCHW: Tensor, dice: _Dice, brightness: float, contrast: float) -> Tensor:
    """All channels of an image alike; its mean is that of all of them."""
    values = images_BCHW.to(torch.promote_types(images_BCHW.dtype, torch.float32))
    mean_B111 = values.mean((1, 2, 3), keepdim=True)
    add_B111 = dice.uniform(brightness)[:, None, None, None]
    factor_B111 = 1 + dice.uniform(contrast)[:, None, None, None]
    lit = mean_B111 + (values - mean_B111) * factor_B111 + add_B111
    return lit.clamp(0, 1).to(images_BCHW.dtype)


def _disturb(images_BCHW: Tensor, dice: _Dice, noise: float) -> Tensor:
    strength_B111 = dice.uniform(noise).abs()[:, None, None, None]
    noisy = images_BCHW + strength_B111 * dice.normal(*images_BCHW.shape[1:])
    return noisy.clamp(0, 1).to(images_BCHW.dtype)


def _erase(images_BCHW: Tensor, dice: _Dice, erase: int) -> Tensor:
    height, width = images_BCHW.shape[2:]
    rows_BH, columns_BW = (_between(dice, erase, side, images_BCHW.device) for side in (height, width))
    return images_BCHW.masked_fill((rows_BH[:, :, None] & columns_BW[:, None, :])[:, None], 0)


def _between(dice: _Dice, longest: int, side: int, device: torch.device) -> Tensor:
    """(B, side): whether a pixel lies in a stretch of 0 to `longest` pixels, which begins anywhere."""
    place = torch.arange(side, device=device)
    start_B, length_B = dice.integers(side - 1), dice.integers(longest)
    return (place >= start_B[:, None]) & (place < (start_B + length_B)[:, None])


def _check(images_BCHW: Tensor, **asked: float) -> None:
    for name, amount in asked.items():
        if amount < 0:
            raise UserError(f"augmentation {name}={amount}: give 0 or more")
    if asked["scale"] >= 1:
        raise UserError(f"augmentation scale={asked['scale']}: 0.1 is 10 % either way, so it must stay below 1")
    if asked["share"] > 1:
        raise UserError(f"augmentation share={asked['share']}: 0.5 is every second image, so it must not exceed 1")
    if asked["contrast"] > 1:
        raise UserError(f"augmentation contrast={asked['contrast']}: 0.5 is 50 % either way, so it must not exceed 1")
    height, width = images_BCHW.shape[2:]
    if asked["crop"] > min(height, width):
        raise UserError(f"augmentation crop={asked['crop']} does not fit into images of {height}×{width}")
