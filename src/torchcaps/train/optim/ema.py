"""The exponential moving average of a model's weights."""

from __future__ import annotations

import torch

from torchcaps.models import ImageModel
from torchcaps.train.dtensor import local_shards

UPDATE_EVERY = 8  # steps between two updates: weights move too little in one step to matter


@torch.no_grad()
def update_average(average: ImageModel, model: ImageModel, decay: float, step: int) -> None:
    """Move the averaged weights towards the model's: faster in the first steps, when there is little to average.

    Args:
        average: the averaged model, changed in place.
        model: the model that is trained.
        decay: of one step. After the first steps one update in UPDATE_EVERY stands for all of them.
        step: finished steps.
    """
    span = 1 if step <= 8 * UPDATE_EVERY else UPDATE_EVERY
    if step % span:
        return
    decay = min(decay, (1 + step) / (10 + step)) ** span
    torch._foreach_lerp_(local_shards(average.parameters()), local_shards(model.parameters()), 1 - decay)
    for (name, kept), current in zip(average.named_buffers(), model.buffers()):
        if name.endswith(("running_mean", "running_var")):  # of batch normalisation: they belong to the weights
            kept.lerp_(current, 1 - decay)
        else:
            kept.copy_(current)
