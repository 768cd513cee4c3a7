"""Sharpness-aware minimisation (Foret et al. 2021): the slope is taken where the loss is worst nearby."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

SMALLEST = 1e-12  # of a norm


class SAM:
    """Weights moved a way up the slope of the loss, and back to where they were, exactly.

    A minimum whose surroundings are low, too, is one that other images agree with. All of it is done in place, so that
    a step with it can be recorded.

    reach  length of the way, over all weights together
    """

    def __init__(self, weights: Iterable[nn.Parameter], reach: float):
        self._weights, self._reach = [weight for weight in weights if weight.requires_grad], reach

    @contextmanager
    def there(self) -> Iterator[None]:
        """For as long as the block runs, along the gradients that are there when it begins."""
        moved = [weight for weight in self._weights if weight.grad is not None]
        with torch.no_grad():
            before = [weight.clone() for weight in moved]
            slopes: list[Tensor] = [weight.grad for weight in moved if weight.grad is not None]
            scale = self._reach / torch.stack([slope.norm() for slope in slopes]).norm().clamp_min(SMALLEST)
            for weight, slope in zip(moved, slopes):
                weight.add_(slope * scale)
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, home in zip(moved, before):
                    weight.copy_(home)
