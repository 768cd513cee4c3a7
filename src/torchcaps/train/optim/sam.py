"""Sharpness-aware minimisation (Foret et al. 2021): gradients where the loss is worst nearby."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

MIN_NORM = 1e-12


class SAM:
    """Perturbs the weights by rho along the gradient, and restores them exactly.

    A minimum whose surroundings are low as well generalises better. All operations are in place, so that a step with
    SAM can be recorded as a CUDA graph.

    Args:
        weights: the parameters to perturb.
        rho: norm of the perturbation, over all weights together.
    """

    def __init__(self, weights: Iterable[nn.Parameter], rho: float):
        self._weights, self._rho = [weight for weight in weights if weight.requires_grad], rho

    @contextmanager
    def perturbed(self) -> Iterator[None]:
        """Inside the block the weights are perturbed along the gradients that they have when it begins."""
        moved = [weight for weight in self._weights if weight.grad is not None]
        with torch.no_grad():
            before = [weight.clone() for weight in moved]
            gradients: list[Tensor] = [weight.grad for weight in moved if weight.grad is not None]
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            scale = self._rho / norm.clamp_min(MIN_NORM)
            for weight, gradient in zip(moved, gradients):
                weight.add_(gradient * scale)
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, original in zip(moved, before):
                    weight.copy_(original)
