"""What each dimension of a class capsule encodes (figure 4 of Sabour et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchcaps.explain.require import require_decoder
from torchcaps.layers import mask_capsules
from torchcaps.models.evaluating import evaluating

SWEEP = tuple(step / 20 for step in range(-5, 6))  # −0.25 … 0.25 in steps of 0.05, as in the paper


def shifts(values: Sequence[float], dimensions: int) -> Tensor:
    """Return (D, V, D): the vectors that change dimension d, and no other, by value v when added to a pose."""
    steps = torch.as_tensor(values, dtype=torch.float64)
    return steps[:, None] * torch.eye(dimensions, dtype=steps.dtype)[:, None]


def sweep(
    model: nn.Module, images: Tensor, values: Sequence[float] = SWEEP, target: int | Tensor | None = None
) -> Tensor:
    """Change one dimension of a class capsule at a time, and decode.

    Args:
        model: routes a grid of primary capsules and has a decoder.
        images: (C, H, W) or (B, C, H, W), in [0, 1].
        values: V numbers, each added to each of the D dimensions in turn.
        target: the class to decode, one for all images or (B,); by default the class of the longest capsule.

    Returns:
        (D, V, C, H, W), or (B, D, V, C, H, W) for a batch.
    """
    capsnet = require_decoder(model, "sweep")
    single = images.ndim == 3
    batch = (images[None] if single else images).to(capsnet.device)
    with evaluating(model):
        parents = capsnet.classes(capsnet.children_of(batch))
        B, _, D = parents.pose.shape
        classes = parents.activation.argmax(-1)
        if target is not None:
            classes = torch.as_tensor(target, device=batch.device).expand(B)
        shifts_DVD = shifts(values, D).to(parents.pose)
        V = len(values)
        poses_BDVJD = parents.pose[:, None, None] + shifts_DVD[:, :, None]
        # Every capsule is shifted, but the decoder sees the target's alone.
        masked = mask_capsules(poses_BDVJD.flatten(0, 2), classes.repeat_interleave(D * V))
        decoded = capsnet.decoder(masked)  # type: ignore[misc]
        swept = decoded.view(B, D, V, *decoded.shape[1:])
    return swept[0] if single else swept
