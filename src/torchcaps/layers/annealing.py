"""The inverse temperature of EM routing, and its schedule in training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchcaps.errors import UserError

EPSILON = 1e-12  # their default of `em_routing`'s epsilon, far below every sum of weights that matters
FLOOR = 3e-3  # and of its floor: votes that differ by less than 0.05 count as equal, see layers/initial.py


class Tempered(nn.Module):
    """Base of layers that can route by EM.

    Attributes:
        inverse_temperature: how sharp activations are; a tensor () if it is saved with the weights, None if it follows
            from the numbers of children and parents, see `em_routing`.
        schedule: the inverse temperature at the start and at the end of training; None if it is constant.
    """

    inverse_temperature: Tensor | float | None
    schedule: tuple[float, float] | None = None

    def set_inverse_temperature(self, value: float | Sequence[float] | None, *, saved: bool) -> None:
        """Set a constant, or the values at the start and at the end of training.

        Args:
            value: one number, or two; None for the default of `em_routing`.
            saved: save a constant with the weights, as a scheduled one always is.
        """
        if value is None:
            self.inverse_temperature = None
            return
        numbers = [*value] if isinstance(value, Sequence) else [value]
        if len(numbers) not in (1, 2) or not all(isinstance(each, (int, float)) and each > 0 for each in numbers):
            raise UserError(
                f"{type(self).__name__}: inverse_temperature must be a positive number, or two for the start and the "
                f"end of training, got {value!r}"
            )
        first, last = float(numbers[0]), float(numbers[-1])
        self.schedule = (first, last) if len(numbers) == 2 else None
        if saved or self.schedule:
            self.register_buffer("inverse_temperature", torch.tensor(first))
        else:
            self.inverse_temperature = first


def anneal(module: nn.Module, progress: float) -> None:
    """Set the inverse temperature of every layer with EM routing that has a schedule.

    Call it before each step; `ImageModel.anneal`, which the training loop calls, does so.

    Args:
        module: any module with capsule layers.
        progress: the share of training that is done, 0 to 1.
    """
    for layer in module.modules():
        if isinstance(layer, Tempered) and layer.schedule and isinstance(layer.inverse_temperature, Tensor):
            first, last = layer.schedule
            layer.inverse_temperature.fill_(first + (last - first) * progress)
