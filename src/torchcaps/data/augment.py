"""Random shifts, warps, erasing, crops, flips, turns, lighting and noise for a batch, on its own device.

Nothing here waits for the device or makes a shape depend on data, so a CUDA graph can capture it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data.colours import change_hue, change_saturation
from torchcaps.data.draws import Draws, grid_dtype, sample
from torchcaps.data.mixing import check_masks_unmixed, check_mixing, cut_with_masks, mix
from torchcaps.data.randaugment import MAX_MAGNITUDE, randaugment
from torchcaps.errors import UserError, did_you_mean
from torchcaps.losses import IGNORED

if TYPE_CHECKING:
    from typing_extensions import Unpack

KNOT_SPACING_PIXELS = 7  # of the elastic field: a quarter of a digit
MASK_DTYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)  # which can hold IGNORED


class AugmentOptions(TypedDict, total=False):
    """The options of `augment`, each of which leaves images as they are by default.

    Attributes:
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
        resized_crop: a random window of at least this share of the area, its sides at most 4 : 3, is resized to the
            whole image, or to `crop`; 0 for none.
        saturation: scale the distances of colours from grey by up to this fraction either way; of colour images.
        hue: turn colours by up to this share of the colour circle either way; of colour images.
        randaugment: number of RandAugment operations for each image (Cubuk et al. 2020); 0 for none.
        magnitude: of those operations, 0 to 10.
    """

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
    resized_crop: float
    saturation: float
    hue: float
    randaugment: int
    magnitude: float


DEFAULTS: AugmentOptions = {
    "shift": 0,
    "rotate": 0.0,
    "shear": 0.0,
    "scale": 0.0,
    "elastic": 0.0,
    "share": 1.0,
    "erase": 0,
    "crop": 0,
    "flip": False,
    "flip_vertical": False,
    "turn": False,
    "brightness": 0.0,
    "contrast": 0.0,
    "noise": 0.0,
    "resized_crop": 0.0,
    "saturation": 0.0,
    "hue": 0.0,
    "randaugment": 0,
    "magnitude": 9.0,
}
MOVES = ("shift", "rotate", "shear", "scale", "elastic")  # by one resampling
VALUES = ("erase", "brightness", "contrast", "noise", "saturation", "hue")  # which leave pixels where they are
# Those that move what is in an image.
GEOMETRIC: tuple[str, ...] = ("shift", "rotate", "shear", "scale", "elastic", "crop", "flip", "flip_vertical", "turn")
GEOMETRIC += ("resized_crop", "randaugment")
LIGHTING = ("brightness", "contrast", "noise", "saturation", "hue", "randaugment")  # which need images in [0, 1]
MIXING = ("mixup", "cutmix")  # which change the targets, too
AMOUNTS = ("share", "magnitude")  # which change nothing by themselves
RATIO = 4 / 3  # of the sides of a resized crop, at most


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
    **options: Unpack[AugmentOptions],
) -> Tensor | tuple[Tensor, Tensor]:
    """Change every image a little at random; return the same tensor where no change is given.

    Masks move with their images, with nearest-pixel sampling; what enters from outside is IGNORED (255). Erasing,
    lighting and noise do not change them.

    Args:
        images_BCHW: (B, C, H, W) floating point.
        generator: of the draws; if it is on another device, they are copied to the images.
        masks: (B, H, W) class ids below 255, or IGNORED; uint8 or a wider integer.
        **options: those of `AugmentOptions`.

    Returns:
        (B, C, H, W), or (B, C, crop, crop); with masks a pair, (B, H, W) or (B, crop, crop) of the same dtype.
    """
    chosen = _with_defaults(options)
    _check(images_BCHW, **chosen)
    random = Draws(images_BCHW, generator)
    layers = [images_BCHW] if masks is None else [images_BCHW, _encode_masks(masks, images_BCHW)]
    layers = _move(layers, random, chosen["share"], **{name: chosen[name] for name in MOVES})
    crop, least = chosen["crop"], chosen["resized_crop"]
    layers = _resized_crop(layers, random, crop, least) if least else _crop(layers, random, crop)
    layers = randaugment(layers, random, chosen["randaugment"], chosen["magnitude"])
    layers[0] = _change_values(layers[0], random, **{name: chosen[name] for name in VALUES})
    layers = _flip(layers, random, chosen["flip"], chosen["flip_vertical"], chosen["turn"])
    return layers[0] if masks is None else (layers[0], _decode_masks(layers[1], masks.dtype))


def _with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in DEFAULTS:
            raise TypeError(f"augment() got an unexpected keyword argument {name!r}: {did_you_mean(name, DEFAULTS)}")
    return {**DEFAULTS, **options}


def augment_classes(
    images_BCHW: Tensor,
    targets: Tensor,
    num_classes: int,
    generator: torch.Generator | None = None,
    *,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    **options: Unpack[AugmentOptions],
) -> tuple[Tensor, Tensor]:
    """Change a batch of images with classes: `augment`, then `mix`.

    Args:
        images_BCHW: (B, C, H, W) floating point.
        targets: (B,) class ids, or (B, J) multi-hot.
        num_classes: J.
        generator: of the draws.
        mixup: as of `mix`, like cutmix.
        cutmix: as of `mix`.
        **options: of `augment`.

    Returns:
        The images, and the targets as they are, or (B, J) where images are mixed.
    """
    check_mixing(mixup=mixup, cutmix=cutmix)
    images = augment(images_BCHW, generator, **options)
    if not (mixup or cutmix):
        return images, targets
    return mix(images, targets, num_classes, generator, mixup=mixup, cutmix=cutmix)


def augment_masks(
    images_BCHW: Tensor,
    masks_BHW: Tensor,
    generator: torch.Generator | None = None,
    *,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    **options: Unpack[AugmentOptions],
) -> tuple[Tensor, Tensor]:
    """Change a batch of images with masks: `augment`, then CutMix of both.

    Args:
        images_BCHW: (B, C, H, W) floating point.
        masks_BHW: (B, H, W) class ids.
        generator: of the draws.
        mixup: must be 0: a pixel cannot have a share of two classes.
        cutmix: as of `mix`; the masks follow.
        **options: of `augment`.
    """
    check_masks_unmixed(mixup)
    images, masks = augment(images_BCHW, generator, masks=masks_BHW, **options)
    return cut_with_masks(images, masks, generator, cutmix)


def _move(
    layers: list[Tensor],
    random: Draws,
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


def _crop(layers: list[Tensor], random: Draws, crop: int) -> list[Tensor]:
    height, width = layers[0].shape[2:]
    if not crop or (crop, crop) == (height, width):
        return layers
    top_B, left_B = random.integers(height - crop), random.integers(width - crop)
    return [_windows(layer, top_B, left_B, crop, crop) for layer in layers]


def _resized_crop(layers: list[Tensor], random: Draws, crop: int, least: float) -> list[Tensor]:
    """Resize a random window to the size of the crop, or of the image."""
    images_BCHW = layers[0]
    batch, channels, height, width = images_BCHW.shape
    if not batch:
        return _crop(layers, random, crop)
    area_B = height * width * (least + (1 - least) * random.unit())
    ratio_B = random.uniform(math.log(RATIO)).exp()
    high_B, wide_B = (area_B / ratio_B).sqrt().clamp(max=height), (area_B * ratio_B).sqrt().clamp(max=width)
    top_B, left_B = random.unit() * (height - high_B), random.unit() * (width - wide_B)
    zero_B = torch.zeros_like(area_B)
    across_B3 = torch.stack([wide_B / width, zero_B, (2 * left_B + wide_B) / width - 1], dim=-1)
    down_B3 = torch.stack([zero_B, high_B / height, (2 * top_B + high_B) / height - 1], dim=-1)
    inverse_B23 = torch.stack([across_B3, down_B3], dim=1).to(grid_dtype(images_BCHW))
    size = [batch, channels, crop or height, crop or width]
    return sample(layers, F.affine_grid(inverse_B23, size, align_corners=False), padding="border")


def _flip(layers: list[Tensor], random: Draws, flip: bool, flip_vertical: bool, turn: bool) -> list[Tensor]:
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


def _shift(layers: list[Tensor], random: Draws, shift: int) -> list[Tensor]:
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
    layers: list[Tensor], random: Draws, shift: int, rotate: float, shear: float, scale: float, elastic: float
) -> list[Tensor]:
    """Scale, shear, rotate about the centre, shift and bend, with one resampling."""
    images_BCHW = layers[0]
    dtype = grid_dtype(images_BCHW)
    inverse_B23 = _affine(images_BCHW, random, shift, rotate, shear, scale).to(dtype)
    grid_BHW2 = F.affine_grid(inverse_B23, list(images_BCHW.shape), align_corners=False)
    if elastic:
        grid_BHW2 = grid_BHW2 + _elastic_field(images_BCHW, random, elastic).to(dtype)
    return sample(layers, grid_BHW2)


def _affine(images_BCHW: Tensor, random: Draws, shift: int, rotate: float, shear: float, scale: float) -> Tensor:
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


def _elastic_field(images_BCHW: Tensor, random: Draws, elastic: float) -> Tensor:
    """Return (B, H, W, 2) shifts in units of half the image: normal draws on a coarse grid, cubic in between."""
    height, width = images_BCHW.shape[2:]
    knots = (max(2, round(height / KNOT_SPACING_PIXELS)) + 1, max(2, round(width / KNOT_SPACING_PIXELS)) + 1)
    bends_B2HW = F.interpolate(random.normal(2, *knots), (height, width), mode="bicubic", align_corners=True)
    x_BHW, y_BHW = (bends_B2HW * elastic).unbind(1)
    return torch.stack([x_BHW * (2 / width), y_BHW * (2 / height)], dim=-1)


def _change_values(
    images_BCHW: Tensor,
    random: Draws,
    erase: int,
    brightness: float,
    contrast: float,
    noise: float,
    saturation: float,
    hue: float,
) -> Tensor:
    """Lighting comes after the crop, for the mean of what is left, and before erasing, which leaves black."""
    if brightness or contrast:
        images_BCHW = _change_lighting(images_BCHW, random, brightness, contrast)
    if saturation or hue:
        images_BCHW = _change_colours(images_BCHW, random, saturation, hue)
    if noise:
        images_BCHW = _add_noise(images_BCHW, random, noise)
    return _erase(images_BCHW, random, erase) if erase and len(images_BCHW) else images_BCHW


def _change_lighting(images_BCHW: Tensor, random: Draws, brightness: float, contrast: float) -> Tensor:
    """Change brightness and contrast, by the same amounts in all channels of an image."""
    values = images_BCHW.to(torch.promote_types(images_BCHW.dtype, torch.float32))
    mean_B111 = values.mean((1, 2, 3), keepdim=True)
    add_B111 = random.uniform(brightness)[:, None, None, None]
    factor_B111 = 1 + random.uniform(contrast)[:, None, None, None]
    lit = mean_B111 + (values - mean_B111) * factor_B111 + add_B111
    return lit.clamp(0, 1).to(images_BCHW.dtype)


def _change_colours(images_BCHW: Tensor, random: Draws, saturation: float, hue: float) -> Tensor:
    """Change saturation and hue."""
    values = images_BCHW.to(grid_dtype(images_BCHW)).clamp(0, 1)
    if saturation:
        values = change_saturation(values, 1 + random.uniform(saturation))
    if hue:
        values = change_hue(values, random.uniform(hue))
    return values.to(images_BCHW.dtype)


def _add_noise(images_BCHW: Tensor, random: Draws, noise: float) -> Tensor:
    strength_B111 = random.uniform(noise).abs()[:, None, None, None]
    noisy = images_BCHW + strength_B111 * random.normal(*images_BCHW.shape[1:])
    return noisy.clamp(0, 1).to(images_BCHW.dtype)


def _erase(images_BCHW: Tensor, random: Draws, erase: int) -> Tensor:
    height, width = images_BCHW.shape[2:]
    rows_BH, columns_BW = (_random_span(random, erase, side, images_BCHW.device) for side in (height, width))
    return images_BCHW.masked_fill((rows_BH[:, :, None] & columns_BW[:, None, :])[:, None], 0)


def _random_span(random: Draws, longest: int, side: int, device: torch.device) -> Tensor:
    """Return (B, side) masks of a span of 0 to `longest` pixels at a random position."""
    position = torch.arange(side, device=device)
    start_B, length_B = random.integers(side - 1), random.integers(longest)
    return (position >= start_B[:, None]) & (position < (start_B + length_B)[:, None])


def _check(images_BCHW: Tensor, **amounts: float) -> None:
    for name, amount in amounts.items():
        if amount < 0:
            raise UserError(f"augmentation {name}={amount}: give 0 or more")
    if amounts["scale"] >= 1:
        raise UserError(f"augmentation scale={amounts['scale']}: 0.1 is 10 % either way, so it must stay below 1")
    if amounts["share"] > 1:
        raise UserError(f"augmentation share={amounts['share']}: 0.5 is every second image, so it must not exceed 1")
    for name in ("contrast", "saturation"):
        if amounts[name] > 1:
            raise UserError(f"augmentation {name}={amounts[name]}: 0.5 is 50 % either way, so it must not exceed 1")
    if amounts["resized_crop"] > 1:
        raise UserError(f"augmentation resized_crop={amounts['resized_crop']}: it is a share of the area, at most 1")
    if amounts["hue"] > 0.5:
        raise UserError(f"augmentation hue={amounts['hue']}: 0.5 is half of the circle either way, which is all of it")
    if amounts["magnitude"] > MAX_MAGNITUDE:
        raise UserError(f"augmentation magnitude={amounts['magnitude']}: give 0 to {MAX_MAGNITUDE:g}")
    if (amounts["saturation"] or amounts["hue"]) and images_BCHW.shape[1] != 3:
        raise UserError(
            f"augmentation saturation and hue: these images have {images_BCHW.shape[1]} channels and no colours; use "
            "brightness and contrast"
        )
    height, width = images_BCHW.shape[2:]
    if amounts["crop"] > min(height, width):
        raise UserError(f"augmentation crop={amounts['crop']} does not fit into images of {height}×{width}")
    if amounts["turn"] and not amounts["crop"] and height != width:
        raise UserError(f"augmentation turn: images of {height}×{width} are not square; give a crop, or turn=no")
