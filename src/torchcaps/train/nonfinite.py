"""Losses that are no numbers: noticed without waiting for the device, kept from the weights, traced to a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.train.distributed import Distributed
from torchcaps.train.dtensor import pieces

ADVICE = "lower optim.lr, set optim.clip=1, or train with --precision fp32"


class Diverged(UserError):
    """The loss of a step was no number, in words; weights are still those from before it."""


class Divergence:
    """Which step was the first whose loss was no number, and how many were: kept on the device until somebody asks.

    Such a step changes no weights: optimisers are told in the way that mixed precision has for it (`found_inf`), so
    that a recorded step needs no decision by Python.

    step   the number of steps taken before
    skips  training goes on after such steps; then a step counts as one if its gradients are no numbers, too, for which
           they are read once more
    """

    def __init__(self, device: torch.device, optimizers: Iterable[torch.optim.Optimizer], step: int, skips: bool):
        self.skips = skips
        self.bad = torch.zeros((), device=device)  # 1 in a step to be passed over
        self._step = torch.full((), step, dtype=torch.long, device=device)
        self._noted = torch.full((), -1, dtype=torch.long, device=device)  # the last step that was passed over
        self._first = torch.full((), -1, dtype=torch.long, device=device)
        self._passed_over = torch.zeros((), dtype=torch.long, device=device)
        for optimizer in optimizers:
            optimizer.found_inf = self.bad  # type: ignore[attr-defined]

    def look(self, loss: Tensor, again: bool = False) -> None:
        """At the loss of a backward pass, before its update. again: another of the same step."""
        if not again:
            self._step += 1
            self.bad.zero_()
        self._note(~loss.detach().isfinite().all())

    def look_at_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        if self.skips:
            norms = torch._foreach_norm(pieces(p.grad for p in parameters if p.grad is not None))
            self._note(~torch.stack(list(norms)).isfinite().all())

    def agree(self, team: Distributed) -> None:
        """A step that is bad in one process is bad in all, and each of them knows."""
        if team.size > 1:
            team.agree(self.bad)
            self._note(self.bad > 0)

    def _note(self, bad: Tensor) -> None:
        new = bad & (self._noted != self._step)
        self._noted.copy_(torch.where(new, self._step, self._noted))
        self._first.copy_(torch.where(new & (self._first < 0), self._step, self._first))
        self._passed_over += new
        self.bad.copy_(bad | (self.bad > 0))

    def read(self) -> tuple[int | None, int]:
        """The first bad step, if there was one, and how many; both are forgotten."""
        first, passed_over = int(self._first), int(self._passed_over)
        self._first.fill_(-1)
        self._passed_over.zero_()
        return (first if first >= 0 else None), passed_over


def find_nonfinite_layer(model: nn.Module, loss_of: Callable[[], Tensor]) -> str:
    """Where numbers stop being numbers, in words: a weight, or a layer of the forward or of the backward pass."""
    broken = [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()]
    if broken:
        return f"the weights {broken[0]} are no numbers" + (f" (and {len(broken) - 1} more)" if broken[1:] else "")
    found: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not _finite(output) and _finite(inputs):
                found.append(name)

        return hook

    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    model.zero_grad(set_to_none=True)
    try:
        loss = loss_of()
        if found:
            return f"the output of the layer {found[0]} is no number"  # of nested ones the inmost ends first
        if not loss.isfinite().all():
            return "the loss itself is no number where the model's outputs are"
        loss.backward()
        wrong = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        return f"the gradient of {wrong[-1]} is no number" if wrong else "another batch did not show it again"
    finally:
        for each in hooks:
            each.remove()
        model.zero_grad(set_to_none=True)


def _finite(value: Any) -> bool:
    """Every number of every tensor in a nest of tuples."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(value.isfinite().all())
    if isinstance(value, (tuple, list)):
        return all(map(_finite, value))
    return True
