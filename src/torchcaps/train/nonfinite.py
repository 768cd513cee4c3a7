"""NaN and infinity in training: detected without waiting for the device, kept out of the weights, traced to a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from torchcaps.errors import UserError
from torchcaps.train.distributed import Distributed
from torchcaps.train.dtensor import local_shards

ADVICE = "lower optim.lr, set optim.clip=1, or train with --precision fp32"


class Diverged(UserError):
    """The loss of a step was NaN or infinite; the weights are those from before that step."""


class NonfiniteGuard:
    """Counts steps with a nonfinite loss, on the device, and keeps them from changing weights.

    Optimizers skip such a step by `found_inf`, the hook that mixed precision has for it, so that a recorded step needs
    no decision in Python.

    Args:
        device: where the counters are.
        optimizers: those that have to skip nonfinite steps.
        step: the number of steps taken before.
        skips: whether training goes on after such steps. If so, a step with nonfinite gradients is skipped as well,
            for which the gradients are read once more.
    """

    def __init__(self, device: torch.device, optimizers: Iterable[torch.optim.Optimizer], step: int, skips: bool):
        self.skips = skips
        self.bad = torch.zeros((), device=device)  # 1 in a step to be skipped
        self._step = torch.full((), step, dtype=torch.long, device=device)
        self._noted = torch.full((), -1, dtype=torch.long, device=device)  # the last step that was skipped
        self._first = torch.full((), -1, dtype=torch.long, device=device)
        self._skipped = torch.zeros((), dtype=torch.long, device=device)
        for optimizer in filter(skips_on_device, optimizers):
            optimizer.found_inf = self.bad  # type: ignore[attr-defined]

    def check_loss(self, loss: Tensor, again: bool = False) -> None:
        """Check the loss of a backward pass before its update; `again` for a further loss of the same step."""
        if not again:
            self._step += 1
            self.bad.zero_()
        self._note(~loss.detach().isfinite().all())

    def check_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Check the gradients too, where nonfinite steps are skipped."""
        if self.skips:
            norms = torch._foreach_norm(local_shards(p.grad for p in parameters if p.grad is not None))
            self._note(~torch.stack(list(norms)).isfinite().all())

    def sync(self, dist: Distributed) -> None:
        """A step that is nonfinite on one rank is skipped on all of them."""
        if dist.size > 1:
            dist.max_(self.bad)
            self._note(self.bad > 0)

    def _note(self, bad: Tensor) -> None:
        new = bad & (self._noted != self._step)
        self._noted.copy_(torch.where(new, self._step, self._noted))
        self._first.copy_(torch.where(new & (self._first < 0), self._step, self._first))
        self._skipped += new
        self.bad.copy_(bad | (self.bad > 0))

    def read(self) -> tuple[int | None, int]:
        """The first nonfinite step, if there was one, and how many there were; then reset both."""
        first, skipped = int(self._first), int(self._skipped)
        self._first.fill_(-1)
        self._skipped.zero_()
        return (first if first >= 0 else None), skipped


def skips_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer reads `found_inf`, as the fused ones do; for others Python decides about a step."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def find_nonfinite_layer(model: nn.Module, loss_of: Callable[[], Tensor]) -> str:
    """Say in words which weight, or which layer of the forward or backward pass, is the first to be nonfinite."""
    broken = [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()]
    if broken:
        return f"the weight {broken[0]} is not finite" + (f" (and {len(broken) - 1} more)" if broken[1:] else "")
    found: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not _is_finite(output) and _is_finite(inputs):
                found.append(name)

        return hook

    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    model.zero_grad(set_to_none=True)
    try:
        loss = loss_of()
        if found:
            return f"layer {found[0]} produced NaN or inf"  # of nested modules the innermost finishes first
        if not loss.isfinite().all():
            return "the loss itself is not finite although the model's outputs are"
        loss.backward()
        wrong = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        return f"the gradient of {wrong[-1]} is not finite" if wrong else "it did not happen again with another batch"
    finally:
        for each in hooks:
            each.remove()
        model.zero_grad(set_to_none=True)


def _is_finite(value: Any) -> bool:
    """Whether every floating-point tensor in a tree of tuples is finite."""
    tensors = [leaf for leaf in tree_leaves(value) if torch.is_tensor(leaf) and leaf.is_floating_point()]
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
