"""Assertions for your own routing or capsule layer.

Each takes a routing, `routing(u, weight)`, and tensors to try it on:

    u          (B, I, K) children
    weight     (I, J, D, K), or another tensor with the children as its first axis

A routing returns `torchcaps.ops.Routed`, a tuple (poses, couplings) or the poses alone. Poses (B, J, D) are a tensor or
Capsules; couplings are (B, I, J) or None. Where weight may be None, a layer is accepted, too: `layer(u) → poses`.
For the other assertions `routing_of` turns a layer with its own weight into a routing:

    layer = DenseCaps(6, 4, 3, 5)
    assert_children_permute(routing_of(layer), torch.randn(2, 6, 4), layer.weight)

A failed assertion names the violated property, and where and by how much it is violated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchcaps.capsules import Capsules, as_capsules, length
from torchcaps.ops import Routed

Routing = Callable[..., Any]


def routing_of(layer: nn.Module, parameter: str = "weight", **options: Any) -> Routing:
    """Turn a layer into a function of its children and one of its parameters.

    Args:
        layer: called with the children.
        parameter: name of the parameter.
        options: passed on to the layer's forward.
    """

    def routing(u: Tensor, weight: Tensor) -> Any:
        return functional_call(layer, {parameter: weight}, (u,), options)

    return routing


def assert_children_permute(routing: Routing, u: Tensor, weight: Tensor) -> None:
    """Assert that permuting the children with their weights permutes the couplings and keeps the poses.

    Args:
        routing: routing(u, weight).
        u: (B, I, K) children.
        weight: (I, J, D, K).
    """
    poses, couplings = _call(routing, u, weight)
    order = torch.arange(u.shape[1] - 1, -1, -1, device=u.device).roll(u.shape[1] // 3)
    again, coupled = _call(routing, u[:, order], weight[order])
    _assert_same(again, poses, "poses changed when the children were permuted with their weights")
    if couplings is not None and coupled is not None:
        _assert_same(coupled, couplings[:, order], "couplings did not follow their children when those were permuted")


def assert_batch_independent(routing: Routing, u: Tensor, weight: Tensor | None = None) -> None:
    """Assert that an example's result does not depend on the rest of the batch, and that an empty batch works.

    Args:
        routing: routing(u, weight), or a layer if weight is None.
        u: (B, I, K) children.
        weight: (I, J, D, K), or None.
    """
    poses, couplings = _call(routing, u, weight)
    for b in range(u.shape[0]):
        alone, coupled = _call(routing, u[b : b + 1], weight)
        _assert_same(alone, poses[b : b + 1], f"poses of example {b} alone differ from those in the batch")
        if couplings is not None and coupled is not None:
            _assert_same(
                coupled, couplings[b : b + 1], f"couplings of example {b} alone differ from those in the batch"
            )
    shape = tuple(_call(routing, u[:0], weight)[0].shape)
    assert shape == (0, *poses.shape[1:]), f"an empty batch gave poses of shape {shape}, not {(0, *poses.shape[1:])}"


def assert_couplings_normalised(routing: Routing, u: Tensor, weight: Tensor, *, leaky: bool = False) -> None:
    """Assert that a child's couplings are not negative and sum to 1 over its parents.

    Args:
        routing: routing(u, weight).
        u: (B, I, K) children.
        weight: (I, J, D, K).
        leaky: the sum is at most 1, and less for at least one child.
    """
    poses, couplings = _call(routing, u, weight)
    assert couplings is not None, "the routing returned no couplings"
    expected = (*u.shape[:2], poses.shape[1])
    assert couplings.shape == expected, f"couplings have shape {tuple(couplings.shape)}, not (B, I, J) = {expected}"
    if not couplings.numel():
        return
    assert couplings.min() >= 0, f"a coupling is negative or NaN: the smallest is {couplings.min():.3g}"
    totals, slack = couplings.double().sum(-1), _tolerance(couplings.dtype)
    if leaky:
        assert totals.max() <= 1 + slack, f"a child's couplings sum over its parents to {totals.max():.6g}, more than 1"
        assert totals.min() < 1 - slack, "no child keeps any coupling: with leaky some should sum to less than 1"
    else:
        worst = totals.flatten()[(totals - 1).abs().argmax()]
        assert (worst - 1).abs() <= slack, f"a child's couplings sum over its parents to {worst:.6g}, not to 1"


def assert_lengths_bounded(routing: Routing, u: Tensor, weight: Tensor | None = None) -> None:
    """Assert that poses are at most 1 long, for children as given, 1000 times larger and 1000 times smaller.

    Args:
        routing: routing(u, weight), or a layer if weight is None.
        u: (B, I, K) children.
        weight: (I, J, D, K), or None.
    """
    for scale in (1.0, 1e3, 1e-3):
        poses, _ = _call(routing, u * scale, weight)
        lengths = length(poses)
        assert lengths.isfinite().all(), f"a pose is not finite with the children scaled by {scale:g}"
        longest = lengths.max().item() if lengths.numel() else 0.0
        limit = 1 + _tolerance(poses.dtype)
        assert longest <= limit, f"a pose has length {longest:.6g} with the children scaled by {scale:g}, more than 1"


def assert_finite_gradients(
    routing: Routing, u: Tensor, weight: Tensor | None = None, *, largest: float | None = None
) -> None:
    """Assert that results and gradients are finite for children that are zero, all equal, huge or tiny.

    Tiny children are those whose squares the dtype of u can just hold, and just cannot.

    Args:
        routing: routing(u, weight), or a layer if weight is None.
        u: (B, I, K) children.
        weight: (I, J, D, K), or None.
        largest: magnitude of huge children; by default the largest whose squares the dtype of u can hold.
    """
    limits = torch.finfo(u.dtype)
    cases = {
        "zero": torch.zeros_like(u),
        "equal": torch.ones_like(u),
        "huge": u.sign() * (largest or 0.97 * limits.max**0.5),
        "tiny": u.sign() * limits.tiny**0.5,
        "vanishing": u.sign() * limits.tiny**0.75,
    }
    parameters = dict(routing.named_parameters()) if isinstance(routing, nn.Module) else {}
    for case, children in cases.items():
        inputs = {"the children": children.requires_grad_(), **parameters}
        if weight is not None:
            inputs["the weight"] = weight.detach().clone().requires_grad_()
        outputs = [x for x in _call(routing, children, inputs.get("the weight")) if x is not None]
        for name, output in zip(("poses", "couplings"), outputs):
            assert output.isfinite().all(), f"{name} are not finite when the children are {case}"
        # Uneven weights: the plain sum of couplings is constant, and would have no gradient at all.
        loss = sum((x * torch.linspace(-1, 1, x.numel()).to(x).view_as(x)).sum() for x in outputs)
        gradients = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)  # type: ignore[arg-type]
        for name, gradient in zip(inputs, gradients):
            finite = gradient is None or gradient.isfinite().all()
            assert finite, f"the gradient of {name} is not finite when the children are {case}"


def assert_gradcheck(routing: Routing, u: Tensor, weight: Tensor | None = None, *, every_entry: bool = False) -> None:
    """Assert that gradients of children, weight and a layer's parameters agree with finite differences, in float64.

    Args:
        routing: routing(u, weight), or a layer if weight is None.
        u: (B, I, K) children.
        weight: (I, J, D, K), or None.
        every_entry: check the Jacobian entry by entry instead of along random directions; slow beyond a few hundred
            values.
    """
    if isinstance(routing, nn.Module):
        layer = copy.deepcopy(routing).double()
        names, parameters = [*dict(layer.named_parameters())], [*layer.parameters()]
    else:
        layer, names, parameters = None, [], []
    inputs = [_leaf(x) for x in (u, *([] if weight is None else [weight]), *parameters)]

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        if layer is None:
            outputs = _call(routing, *tensors)
        else:
            outputs = _call(lambda u: functional_call(layer, dict(zip(names, tensors[1:])), (u,)), tensors[0])
        return tuple(x for x in outputs if x is not None and x.requires_grad)

    try:
        torch.autograd.gradcheck(function, inputs, fast_mode=not every_entry)
    except RuntimeError as error:
        raise AssertionError(f"gradients do not agree with finite differences: {error}") from error


def _call(routing: Routing, u: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Poses and, if the routing returns them, couplings."""
    result = routing(u) if weight is None else routing(u, weight)
    if isinstance(result, Routed):
        return result.poses, result.couplings
    pair = isinstance(result, tuple) and not isinstance(result, Capsules)
    poses, couplings = result if pair else (result, None)
    return as_capsules(poses).pose, couplings


def _assert_same(got: Tensor, expected: Tensor, violation: str) -> None:
    assert got.shape == expected.shape, f"{violation}: shape {tuple(got.shape)}, not {tuple(expected.shape)}"
    if got.numel():
        error, slack = (got - expected).abs().max().item(), _tolerance(got.dtype)
        assert error <= slack, f"{violation}: by {error:.3g}, more than rounding explains ({slack:.1g})"


def _leaf(x: Tensor) -> Tensor:
    return x.detach().double().requires_grad_()


def _tolerance(dtype: torch.dtype) -> float:
    """Allowed rounding error: half the digits of the dtype."""
    return torch.finfo(dtype).eps ** 0.5
