"""Operations with a hand-written gradient, called in the cheapest way that is right.

In eager mode a call runs a plain function inside a torch.autograd.Function. Where anything traces, fakes or counts
operations, it is an operator of torch.library, and its backward another one. PyTorch can call operators in eager mode
too, but that takes a large share of the time of routing one image, and the first call imports torch.compile's tracer.

Gradients that are themselves differentiated (create_graph=True), or computed for many vectors at once
(is_grads_batched=True), are those of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.dispatch import eager, transformed
from torchcaps.ops.flops import add_formula, register_formulas

Gradients = Sequence[Tensor | None]


class Operator:
    """An operation on tensors and constants, with its gradient.

    Args:
        name: of the operator, as in torch.ops; its backward is NAME_backward.
        forward: (*tensors, *constants) → results, then what the backward needs.
        fake: as forward, for tensors without values.
        backward: makes gradients, empty where none is needed; `gradients` calls it.
        fake_backward: as backward, for tensors without values.
        gradients: (backward, grads of the results, tensors, kept, constants, needs) → a gradient for each of tensors;
            `grads` are None of results that were not used, and `needs` says which gradients will be used.
        reference: (*tensors, *constants) → results, in operations that PyTorch can differentiate and transform.
        tensors: how many inputs are tensors or None; they come first.
        results: how many outputs of forward are results.
        flops: (*inputs, out_shape) → FLOPs of the matrix products of forward, with shapes in place of tensors.
        flops_backward: the same of backward.
    """

    def __init__(
        self,
        name: str,
        *,
        forward: Callable[..., Any],
        fake: Callable[..., Any],
        backward: Callable[..., Any],
        fake_backward: Callable[..., Any],
        gradients: Callable[..., Gradients],
        reference: Callable[..., tuple[Tensor, ...]],
        tensors: int,
        results: int,
        flops: Callable[..., int],
        flops_backward: Callable[..., int],
    ):
        self.forward, self.backward, self.gradients, self.reference = forward, backward, gradients, reference
        self.tensors, self.results = tensors, results
        self.operator = torch.library.custom_op(name, forward, mutates_args=())
        self.operator.register_fake(fake)
        self.operator.register_autograd(self._differentiate, setup_context=self._save)
        self.backward_operator = torch.library.custom_op(f"{name}_backward", backward, mutates_args=())
        self.backward_operator.register_fake(fake_backward)
        add_formula(name, flops)
        add_formula(f"{name}_backward", flops_backward)
        self.function = self._make_function(name.partition("::")[2])

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Compute the results of (*tensors, *constants)."""
        tensors = inputs[: self.tensors]
        if not eager(tensors):
            register_formulas()
            return _tuple(self.operator(*inputs))[: self.results]
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
            return self.function.apply(*inputs)
        return _tuple(self.forward(*inputs))[: self.results]

    def _make_function(self, name: str) -> Any:
        def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
            output = _tuple(self.forward(*inputs))
            self._save(ctx, inputs, output)
            return output[: self.results]

        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            return self._differentiate(ctx, *grads)  # compiled autograd wants a function, not a method

        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type(name, (torch.autograd.Function,), members)

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kept = _tuple(output)[self.results :]
        ctx.save_for_backward(*inputs[: self.tensors], *kept)
        ctx.constants = inputs[self.tensors :]
        ctx.set_materialize_grads(False)

    def _differentiate(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved, needs, grads = ctx.saved_tensors, ctx.needs_input_grad[: self.tensors], grads[: self.results]
        tensors, kept = saved[: self.tensors], saved[self.tensors :]
        found: Gradients
        if all(grad is None for grad in grads):
            found = [None] * self.tensors
        elif torch.is_grad_enabled() or transformed() or any(map(_batched, grads)):
            found = self._differentiate_reference(grads, tensors, ctx.constants, needs)
        else:
            backward = self.backward if eager(saved) else self.backward_operator
            found = self.gradients(backward, grads, tensors, kept, ctx.constants, needs)
        found = [grad if need else None for grad, need in zip(found, needs)]
        return *found, *[None] * len(ctx.constants)

    def _differentiate_reference(
        self, grads: Sequence[Tensor | None], tensors: Sequence[Any], constants: Any, needs: Sequence[bool]
    ) -> Gradients:
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            # Views, so that a tensor that is given twice gets a gradient for each place.
            inputs = [x.view_as(x) if need else x for x, need in zip(tensors, needs)]
            results = self.reference(*inputs, *constants)
        pairs = [(result, grad) for result, grad in zip(results, grads) if grad is not None and result.requires_grad]
        if not pairs:
            return [None] * len(inputs)
        used, given = zip(*pairs)
        wanted = [x for x, need in zip(inputs, needs) if need]
        found = iter(torch.autograd.grad(used, wanted, given, create_graph=again, allow_unused=True))
        return [next(found) if need else None for need in needs]


def _batched(grad: Tensor | None) -> bool:
    """Whether is_grads_batched=True, which is older than torch.func and not seen by `transformed`."""
    if grad is None or torch.compiler.is_compiling():
        return False
    return torch._C._functorch.is_legacy_batchedtensor(grad)


def _tuple(output: Any) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)
