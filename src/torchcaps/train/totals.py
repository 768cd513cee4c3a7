"""Sums of losses and of the task's measure over an epoch."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.train.distributed import Distributed


class Totals:
    """Sums over the examples of an epoch, kept on the device until they are read.

    Args:
        device: where the sums are.
        measure: the name of the task's measure.
    """

    def __init__(self, device: torch.device | str, measure: str):
        self._device, self.measure = device, measure
        self._sums: dict[str, Tensor] = {}  # updated in place: a CUDA graph knows them by their address
        self._examples = torch.zeros((), device=device)
        self.start({})

    def start(self, before: dict[str, float]) -> None:
        """Begin an epoch with the sums of its part that ran before a resume, so that rounding is the same as in an
        uninterrupted epoch."""
        self._resumed_at = int(before.get("examples", 0))
        for name in before:  # in the same order on every rank
            if name not in (*self._sums, "examples"):
                self._sums[name] = torch.zeros((), device=self._device)
        for name, value in self._sums.items():
            value.fill_(before.get(name, 0.0))
        self._examples.fill_(self._resumed_at)

    def add(self, loss: Tensor, terms: dict[str, Tensor], correct: Tensor, skipped: Tensor | None = None) -> None:
        """Add one batch. Where `skipped` is 1 the step was skipped, and nothing is added."""
        sums = {"loss": loss.detach() * len(correct), self.measure: correct.sum()}
        sums |= {name: term.detach().sum() for name, term in terms.items()}
        if skipped is not None:
            sums = {name: torch.where(skipped > 0, 0.0, value) for name, value in sums.items()}
        for name, value in sums.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros((), device=self._device)
            self._sums[name] += value
        self._examples += len(correct) if skipped is None else len(correct) * (1 - skipped)

    @property
    def new_examples(self) -> int:
        """Examples since the epoch began or was resumed."""
        return int(self._examples) - self._resumed_at

    def read(self, dist: Distributed | None = None) -> dict[str, float]:
        """The sums so far: of this rank, or with `dist` of all ranks."""
        sums = {name: float(value) for name, value in self._sums.items()} | {"examples": int(self._examples)}
        return sums if dist is None else dict(zip(sums, dist.sum(list(sums.values()))))

    def means(self, prefix: str = "", dist: Distributed | None = None) -> dict[str, float]:
        """The sums divided by the number of examples."""
        sums = self.read(dist)
        examples = max(1, sums.pop("examples"))
        return {prefix + name: value / examples for name, value in sums.items()}
