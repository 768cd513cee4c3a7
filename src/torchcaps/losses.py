"""Losses, each with one value per example; `combine` adds them up with weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.capsules import Capsules
from torchcaps.checks import check_floats, check_tensor

IGNORED = 255  # in a mask: pixels that do not count
_TINY = 1e-6  # keeps log p and its gradient finite at p = 0
_NO_ID = -(2**62)  # PyTorch ignores an id of −100, unless another one is to be ignored


def margin_loss(
    lengths: Tensor | Capsules,
    targets: Tensor,
    *,
    present: float = 0.9,
    absent: float = 0.1,
    down_weight: float = 0.5,
    squared_lengths: bool = False,
) -> Tensor:
    """Penalise short capsules of present classes and long capsules of absent ones (Eq. 4), summed over classes.

    The paper squares the hinge, max(0, m⁺ − |v|)². The slides of Aurélien Géron (2017), which many ports follow, square
    length and margin, max(0, m⁺² − |v|²). The gradient 2|v| then is largest at the margin, instead of zero, and it is
    zero for a capsule of length zero, instead of largest.

    Args:
        lengths: (B, J) of the class capsules, without softmax; or the capsules.
        targets: (B,) class ids, or (B, J) multi-hot for several classes at once.
        present: margin for present classes.
        absent: margin for absent classes.
        down_weight: weight of absent classes.
        squared_lengths: compare squared lengths with squared margins, and do not square the hinge.

    Returns:
        (B,).
    """
    lengths = _presence("margin_loss", "lengths", lengths, targets)
    there = multi_hot(targets, lengths.shape[-1]).to(lengths.dtype)
    if squared_lengths:
        squares = lengths.square()
        too_short = functional.relu(present**2 - squares)
        too_long = functional.relu(squares - absent**2)
        return (there * too_short + down_weight * (1 - there) * too_long).sum(-1)
    too_short = functional.relu(present - lengths).square()
    too_long = functional.relu(lengths - absent).square()
    return (there * too_short + down_weight * (1 - there) * too_long).sum(-1)


def spread_loss(activations: Tensor | Capsules, targets: Tensor, margin: float | Tensor = 0.9) -> Tensor:
    """Penalise classes whose activation is within a margin of the target's (Hinton et al. 2018), summed over classes.

    Args:
        activations: (B, J); or the class capsules.
        targets: (B,) class ids.
        margin: raise it in training from 0.2 to 0.9, so that few capsules die early.

    Returns:
        (B,).
    """
    activations = _presence("spread_loss", "activations", activations, targets)
    if targets.ndim != 1:
        raise ValueError(
            f"spread_loss: targets must be class ids (B,), got {tuple(targets.shape)}; margin_loss takes "
            "several classes"
        )
    try:
        right = activations.gather(1, targets[:, None].long())
    except RuntimeError:
        check_ids("spread_loss", targets, activations.shape[-1])
        raise
    short = functional.relu(margin - (right - activations)).square()
    return short.sum(-1) - short.gather(1, targets[:, None].long())[:, 0]


def reconstruction_loss(reconstruction: Tensor, images: Tensor) -> Tensor:
    """Sum the squared error over all pixels and channels of an image (not the mean).

    Args:
        reconstruction: (B, C, H, W), or (B, M, C, H, W) for several images each.
        images: of the same shape.

    Returns:
        (B,).
    """
    if reconstruction.shape != images.shape:
        raise ValueError(f"reconstruction_loss: shapes differ, {tuple(reconstruction.shape)} and {tuple(images.shape)}")
    check_floats("reconstruction_loss", reconstruction=reconstruction, images=images)
    return (reconstruction - images).square().flatten(1).sum(-1)


def cross_entropy(logits: Tensor, targets: Tensor, *, shares: bool = False) -> Tensor:
    """Compute softmax cross-entropy for class ids, binary cross-entropy summed over classes for multi-hot targets.

    Args:
        logits: (B, J).
        targets: (B,) class ids, or (B, J) multi-hot.
        shares: whether targets (B, J) are shares of one class an image, as of mixed images: soft labels of a softmax.

    Returns:
        (B,).
    """
    _check_values("cross_entropy", "logits", logits, targets)
    if targets.ndim == 1:
        try:
            return functional.cross_entropy(logits, targets.long(), reduction="none", ignore_index=_NO_ID)
        except (RuntimeError, IndexError):
            check_ids("cross_entropy", targets, logits.shape[-1])
            raise
    _check_width("cross_entropy", targets, logits.shape[-1])
    if shares:
        return -(targets.to(logits.dtype) * logits.log_softmax(-1)).sum(-1)
    return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none").sum(-1)


def combine(terms: dict[str, Tensor], weights: dict[str, float], example_weights: Tensor | None = None) -> Tensor:
    """Compute Σ weight · term, averaged over the batch; terms without a weight do not count.

    Args:
        terms: name → (B,).
        weights: name → weight.
        example_weights: (B,) for imbalanced classes.

    Returns:
        ().
    """
    missing = [name for name, weight in weights.items() if weight and name not in terms]
    if missing:
        raise ValueError(
            f"the loss {missing[0]!r} has a weight, but the terms are {', '.join(terms)}; set its weight to 0, or "
            "use a model that computes what it needs"
        )
    total = sum(weight * terms[name] for name, weight in weights.items() if weight)
    if not isinstance(total, Tensor):
        raise ValueError(f"every loss weight is zero: {weights}")
    return (total if example_weights is None else total * example_weights).mean()


def check_batch(name: str, values: Tensor, targets: Tensor) -> None:
    """Raise an error unless values (B, ...) and targets (B, ...) have the same number of examples.

    Targets of shape (B,) are class ids, so they must not be floating-point numbers.
    """
    check_tensor(name, targets=targets)
    if not targets.ndim:
        raise ValueError(f"{name}: targets must be (B,) class ids or (B, J) multi-hot, got a single number")
    # Sizes, not len(), which torch.export takes for constants.
    if values.shape[0] != targets.shape[0]:  # a single target would be broadcast to all examples
        raise ValueError(f"{name}: {len(values)} examples, but {len(targets)} targets")
    if targets.ndim == 1 and targets.is_floating_point():
        raise ValueError(
            f"{name}: class ids must be integers, got {targets.dtype}; use targets.long(), or give multi-hot targets "
            "of shape (B, J)"
        )


def multi_hot(targets: Tensor, classes: int) -> Tensor:
    """Convert (B,) class ids, or (B, J) multi-hot, to (B, J) multi-hot, float."""
    if targets.ndim == 1:
        try:
            # Not one_hot, which torch.func cannot batch.
            absent = torch.zeros(targets.shape[0], classes, device=targets.device)
            return absent.scatter(1, targets.long()[:, None], 1.0)
        except RuntimeError:
            check_ids("multi_hot", targets, classes)
            raise
    _check_width("multi_hot", targets, classes)
    return targets


def _presence(name: str, label: str, values: Tensor | Capsules, targets: Tensor) -> Tensor:
    """(B, J) how present each class is, if it fits the targets."""
    values = values.activation if isinstance(values, Capsules) else values
    _check_values(name, label, values, targets)
    return values


def _check_values(name: str, label: str, values: Tensor, targets: Tensor) -> None:
    """Raise an error unless values are floats, (B, J) where targets are ids (B,), and both have the same B."""
    if isinstance(values, Capsules):
        raise TypeError(f"{name}: {label} must be (B, J), got Capsules; for capsules use margin_loss or spread_loss")
    check_floats(name, **{label: values})
    check_batch(name, values, targets)
    if targets.ndim == 1 and values.ndim != 2:
        raise ValueError(
            f"{name}: {label} must be (B, J), one number for each class, got {tuple(values.shape)}; of poses (B, J, D) "
            "give Capsules(poses).activation"
        )


def _check_width(name: str, targets: Tensor, classes: int) -> None:
    if targets.shape[-1] != classes:
        raise ValueError(f"{name}: targets are for {targets.shape[-1]} classes, the model has {classes}")


def check_ids(name: str, targets: Tensor, classes: int) -> None:
    """Raise a ValueError that names a class id out of range, if there is one.

    On a GPU, it would wait for the values: losses call it after PyTorch has refused the ids.
    """
    outside = targets[(targets < 0) | (targets >= classes)]
    if outside.numel():
        raise ValueError(
            f"{name}: class ids must be in 0…{classes - 1} for {classes} classes, got {int(outside[0])}; number the "
            "classes from 0, or make the model with more classes (num_classes)"
        )


def mask_cross_entropy(
    presence: Tensor, masks: Tensor, positive_weight: float = 1.0, logits: Tensor | None = None
) -> Tensor:
    """Compute binary cross-entropy of each class against the rest, averaged over classes and pixels.

    Args:
        presence: (B, K, H, W) probabilities; K = 1 is the positive class alone.
        masks: (B, H, W) class ids; 255 is ignored.
        positive_weight: weight of a pixel of the class; other pixels have weight 1.
        logits: (B, K, H, W) before the sigmoid, or before the softmax for several classes, if known; with them a
            pixel whose wrong probability is rounded to 0 or 1 still has a gradient.

    Returns:
        (B,).
    """
    there, counted = _there_and_counted("mask_cross_entropy", presence, masks)
    p = _at_least_float32(presence).clamp(0, 1)  # lengths may be a little outside, by rounding
    log_there, log_rest = _log(p), _log(1 - p)
    if logits is not None:
        known = _at_least_float32(logits)
        single = known.shape[1] == 1
        log_there = functional.logsigmoid(known) if single else known.log_softmax(1)
        log_rest = functional.logsigmoid(-known) if single else log_rest
    terms = torch.where(there, -positive_weight * log_there, -log_rest)
    return _mean_over_pixels(terms.mean(1), counted)


def dice_loss(presence: Tensor, masks: Tensor) -> Tensor:
    """Compute the Dice loss 1 − (2 Σpt + 1) / (Σp + Σt + 1) over pixels, averaged over classes.

    Args:
        presence: (B, K, H, W) probabilities; K = 1 is the positive class alone.
        masks: (B, H, W) class ids; 255 is ignored.

    Returns:
        (B,).
    """
    there, counted = _there_and_counted("dice_loss", presence, masks)
    p = _at_least_float32(presence).masked_fill(~counted[:, None], 0).flatten(2)
    t = there.to(p.dtype).flatten(2)
    return (1 - (2 * (p * t).sum(-1) + 1) / (p.sum(-1) + t.sum(-1) + 1)).mean(-1)


def mask_margin_loss(
    presence: Tensor, masks: Tensor, present: float = 0.9, absent: float = 0.1, down_weight: float = 0.5
) -> Tensor:
    """Compute the margin loss (Eq. 4) of every pixel, summed over classes and averaged over pixels.

    Args:
        presence: (B, K, H, W) lengths of the capsules; K = 1 is the positive class alone.
        masks: (B, H, W) class ids; 255 is ignored.
        present: margin for pixels of the class.
        absent: margin for other pixels.
        down_weight: weight of other pixels.

    Returns:
        (B,).
    """
    there, counted = _there_and_counted("mask_margin_loss", presence, masks)
    p = _at_least_float32(presence)
    too_short = functional.relu(present - p).square()
    too_long = functional.relu(p - absent).square()
    return _mean_over_pixels(torch.where(there, too_short, down_weight * too_long).sum(1), counted)


def masked_reconstruction_loss(reconstruction: Tensor, images: Tensor, masks: Tensor) -> Tensor:
    """Average the squared error over channels and pixels; the target is the image inside the mask and black outside.

    Args:
        reconstruction: (B, C, H, W).
        images: (B, C, H, W).
        masks: (B, H, W) class ids; above 0 is inside, 255 is ignored.

    Returns:
        (B,).
    """
    if reconstruction.shape != images.shape:
        shapes = f"{tuple(reconstruction.shape)} and {tuple(images.shape)}"
        raise ValueError(f"masked_reconstruction_loss: shapes differ, {shapes}")
    check_masks("masked_reconstruction_loss", images, masks)
    wanted = images * (masks > 0)[:, None]
    error = (_at_least_float32(reconstruction) - wanted).square()
    return _mean_over_pixels(error.mean(1), masks != IGNORED)


def adversarial_loss(logits: Tensor, real: bool, *, kind: str = "bce", smoothing: float = 0.0) -> Tensor:
    """Compare a discriminator's logits with the label real or generated, averaged over patches.

    Args:
        logits: (B, …) one for each patch.
        real: the label.
        kind: "bce", binary cross-entropy, or "least_squares", the squared distance from 1 or 0 (Mao et al. 2017).
        smoothing: one-sided label smoothing; the label real is 1 − smoothing (Salimans et al. 2016).

    Returns:
        (B,).
    """
    values = _at_least_float32(logits).flatten(1)
    wanted = torch.full_like(values, 1 - smoothing if real else 0.0)
    if kind == "least_squares":
        return (values - wanted).square().mean(1)
    if kind != "bce":
        raise ValueError(f"adversarial_loss: kind must be 'bce' or 'least_squares', got {kind!r}")
    return functional.binary_cross_entropy_with_logits(values, wanted, reduction="none").mean(1)


def l1_loss(drawn: Tensor, images: Tensor, masks: Tensor) -> Tensor:
    """Average the absolute difference over channels and pixels.

    Args:
        drawn: (B, C, H, W).
        images: (B, C, H, W).
        masks: (B, H, W) class ids; 255 is ignored.

    Returns:
        (B,).
    """
    if drawn.shape != images.shape:
        raise ValueError(f"l1_loss: shapes differ, {tuple(drawn.shape)} and {tuple(images.shape)}")
    check_masks("l1_loss", images, masks)
    return _mean_over_pixels((_at_least_float32(drawn) - images).abs().mean(1), masks != IGNORED)


def feature_loss(drawn: Sequence[Tensor], real: Sequence[Tensor]) -> Tensor:
    """Compare a discriminator's feature maps of two images (Wang et al. 2018).

    The absolute difference is averaged over each layer's maps, then over layers.

    Args:
        drawn: (B, channels, h, w) of every layer.
        real: the same of the real images.

    Returns:
        (B,).
    """
    apart = [(_at_least_float32(a) - _at_least_float32(b)).abs().flatten(1).mean(1) for a, b in zip(drawn, real)]
    return torch.stack(apart).mean(0)


def check_masks(name: str, values: Tensor, masks: Tensor) -> None:
    """Raise ValueError unless values are (B, channels, H, W) and masks (B, H, W) of the same sizes."""
    check_tensor(name, masks=masks)
    if values.ndim != 4 or values.shape[:1] + values.shape[2:] != masks.shape:
        shapes = f"{tuple(values.shape)} and {tuple(masks.shape)}"
        raise ValueError(f"{name}: expected shapes (B, channels, H, W) and (B, H, W), got {shapes}")


def _there_and_counted(name: str, presence: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """(B, K, H, W) where each class is, and (B, H, W) which pixels are not ignored."""
    check_masks(name, presence, masks)
    K = presence.shape[1]
    counted = masks != IGNORED
    if K == 1:
        return (counted & (masks > 0))[:, None], counted
    return masks[:, None] == torch.arange(K, device=masks.device).view(-1, 1, 1), counted


def _mean_over_pixels(values_BHW: Tensor, counted_BHW: Tensor) -> Tensor:
    """(B,), 0 where no pixel counts."""
    total = values_BHW.masked_fill(~counted_BHW, 0).flatten(1).sum(-1)
    return total / counted_BHW.flatten(1).sum(-1).clamp_min(1)


def _log(p: Tensor) -> Tensor:
    """log p, 0 at 1 and finite at 0, where its gradient is finite too but not zero."""
    return ((p + _TINY) / (1 + _TINY)).log()


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
