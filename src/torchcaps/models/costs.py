"""What training a model takes: parameters, and memory for them and for the images of a batch."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.models.base import ImageModel

COPIES = 4  # of a parameter in training: itself, its gradient and two moments of Adam
SAMPLE = 2  # images: batch normalisation needs more than one


class Costs(NamedTuple):
    """What training a model takes.

    Attributes:
        parameters: their number.
        weight_bytes: of parameters, gradients and the moments of Adam, in float32.
        image_bytes: of what the forward pass keeps of one image for the backward pass, in float32.
    """

    parameters: int
    weight_bytes: int
    image_bytes: int

    def describe(self, batch_size: int) -> str:
        """One line for a batch of this size; the memory of a backward pass comes on top."""
        weights, images = _size(self.weight_bytes), _size(batch_size * self.image_bytes)
        return f"memory in float32: about {weights} for weights and moments, {images} for a batch of {batch_size}"


def training_costs(model: ImageModel) -> Costs | None:
    """Work out what training a model takes, on the meta device: nothing is computed, and the model is not changed.

    Args:
        model: a classifier.

    Returns:
        The costs; None for a model whose forward pass needs values.
    """
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    try:
        twin = copy.deepcopy(model).to("meta").train()
        images = torch.empty(SAMPLE, *model.image_shape, device="meta")
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            output = twin(images)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError):
        return None
    own = {each.untyped_storage()._cdata for each in (*twin.parameters(), *twin.buffers())}
    image_bytes = sum(size for storage, size in kept.items() if storage not in own) // SAMPLE
    del output  # until now what it keeps was alive, so no storage was counted in place of another
    parameters = model.parameter_count()
    return Costs(parameters, COPIES * 4 * parameters, image_bytes)


def _size(number: float) -> str:
    """Bytes in MiB or GiB."""
    mib = number / 2**20
    return f"{mib / 1024:.1f} GiB" if mib >= 1000 else f"{mib:.0f} MiB" if mib >= 10 else f"{mib:.1f} MiB"
