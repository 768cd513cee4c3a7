"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019): pairs of images become one, and so do their targets."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.data.draws import Draws
from torchcaps.errors import UserError
from torchcaps.losses import multi_hot


def mix(
    images: Tensor,
    targets: Tensor,
    num_classes: int,
    generator: torch.Generator | None = None,
    *,
    mixup: float = 0.0,
    cutmix: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Mix each image with another of the batch, and their targets by the same share.

    The share λ of an image is drawn from Beta(α, α). Mixup adds λ of it and 1 − λ of the other; CutMix pastes a
    rectangle of the other, and λ is what is left of the area. With both, a coin decides for each image. The targets are
    presences for the margin loss, or soft labels for the cross-entropy.

    Args:
        images: (B, C, H, W) floating point.
        targets: (B,) class ids, or (B, J) multi-hot.
        num_classes: J.
        generator: of the draws.
        mixup: α of mixup; 0 for none. With 0.2 most images hardly change, with 1 all shares are equally likely.
        cutmix: α of CutMix; 0 for none.

    Returns:
        Images (B, C, H, W) and targets (B, J) in [0, 1].
    """
    check_mixing(mixup=mixup, cutmix=cutmix)
    hot_BJ = multi_hot(targets, num_classes)
    if not (mixup or cutmix):
        return images, hot_BJ
    draws = Draws(images, generator)
    partner_B = draws.partners()
    others = images[partner_B]
    share_B = torch.ones(len(images), device=images.device)
    mixed = images
    if mixup:
        share_B = draws.beta(mixup)
        mixed = torch.lerp(others, images, share_B[:, None, None, None].to(images.dtype))
    if cutmix:
        inside_B1HW, left_B = _rectangles(images, draws, cutmix)
        pasted = torch.where(inside_B1HW, others, images)
        cut_B = draws.unit() < 0.5 if mixup else torch.ones_like(left_B, dtype=torch.bool)
        mixed = torch.where(cut_B[:, None, None, None], pasted, mixed)
        share_B = torch.where(cut_B, left_B, share_B)
    return mixed, torch.lerp(hot_BJ[partner_B], hot_BJ, share_B[:, None].to(hot_BJ.dtype))


def cut_with_masks(
    images: Tensor, masks: Tensor, generator: torch.Generator | None = None, cutmix: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Paste a rectangle of another image of the batch into each, and the same rectangle of its mask.

    Args:
        images: (B, C, H, W) floating point.
        masks: (B, H, W) class ids.
        generator: of the draws.
        cutmix: α of CutMix; 0 for none.
    """
    check_mixing(cutmix=cutmix)
    if not cutmix:
        return images, masks
    draws = Draws(images, generator)
    partner_B = draws.partners()
    inside_B1HW, _ = _rectangles(images, draws, cutmix)
    pasted = torch.where(inside_B1HW, images[partner_B], images)
    return pasted, torch.where(inside_B1HW[:, 0], masks[partner_B], masks)


def check_mixing(**alphas: float) -> None:
    """Raise a UserError for a negative α."""
    for name, alpha in alphas.items():
        if alpha < 0:
            raise UserError(f"augmentation {name}={alpha}: give 0 or more; 0 for none")


def check_masks_unmixed(mixup: float) -> None:
    """Raise a UserError if masks were to be mixed."""
    if mixup:
        raise UserError("augment.mixup: a pixel of a mask has one class, so masks cannot be mixed; use augment.cutmix")


def _rectangles(images_BCHW: Tensor, draws: Draws, alpha: float) -> tuple[Tensor, Tensor]:
    """Return (B, 1, H, W) where a rectangle of the image's proportions is, and (B,) the share of the area outside.

    Its centre is anywhere in the image, so part of it may be outside.
    """
    height, width = images_BCHW.shape[2:]
    side_B = (1 - draws.beta(alpha)).sqrt()
    spans = []
    for length in (height, width):
        centre_B1, half_B1 = (draws.unit() * length)[:, None], (side_B * length / 2)[:, None]
        position = torch.arange(length, device=images_BCHW.device) + 0.5
        spans.append((position >= centre_B1 - half_B1) & (position < centre_B1 + half_B1))
    inside_BHW = spans[0][:, :, None] & spans[1][:, None, :]
    return inside_BHW[:, None], 1 - inside_BHW.float().mean((1, 2))
