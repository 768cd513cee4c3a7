"""The learning rate as a function of the step."""

from __future__ import annotations

import math

from torchcaps.train.recipe import OptimSection


def learning_rate(step: int, total_steps: int, optim: OptimSection) -> float:
    """The learning rate of step number `step`, counted from 0, of `total_steps`."""
    warm = min(1.0, (step + 1) / optim.warmup_steps) if optim.warmup_steps else 1.0
    after = max(0, step - optim.warmup_steps)
    done = min(1.0, after / max(1, total_steps - optim.warmup_steps))
    left = {
        "constant": 1.0,
        "exponential": optim.decay_rate ** (after / optim.decay_steps),
        "linear": optim.final + (1 - optim.final) * (1 - done),
        "cosine": optim.final + (1 - optim.final) * (1 + math.cos(math.pi * done)) / 2,
    }[optim.schedule]
    return optim.lr * warm * left
