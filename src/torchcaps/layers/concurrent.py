"""A stack of capsule layers that are routed at the same time, instead of one after the other."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from torchcaps.capsules import Capsules, as_capsules
from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.layers.dense import DenseCaps
from torchcaps.ops.attention import inverted_attention_routing, presence


def concurrent(layers: Iterable[nn.Module], children: Capsules | Tensor, iterations: int = 2) -> Capsules:
    """Route all layers of a stack at the same time (Tsai et al. 2020).

    The first iteration is a forward pass with equal couplings. In every later one each layer takes the poses that the
    layer below and itself had after the iteration before; ops/attention/README.md says more.

    Args:
        layers: DenseCaps(…, routing="inverted_attention"), from the bottom up.
        children: pose (B, I, K) of the capsules below the first layer; they do not change.
        iterations: number of iterations of the whole stack.

    Returns:
        The capsules of the last layer, pose (B, J, D).
    """
    stack = _checked(layers, iterations)
    children_BIK = as_capsules(children, "concurrent").pose
    poses: list[Tensor] = []
    for layer in stack:
        poses.append(layer(poses[-1] if poses else children_BIK, iterations=1).pose)
    for _ in range(iterations - 1):
        poses = [_update(*each) for each in zip(stack, [children_BIK, *poses], poses)]
    weights = stack[-1].weights
    return Capsules(poses[-1], presence(poses[-1], weights["classifier"], weights["classifier_bias"]))


def _update(layer: DenseCaps, below_BIK: Tensor, own_BJD: Tensor) -> Tensor:
    """The poses (B, J, D) of a layer one iteration later."""
    weights = layer.weights
    scale, shift = weights["norm_scale"], weights["norm_shift"]
    return inverted_attention_routing(below_BIK, weights["weight"], scale, shift, 1, parents=own_BJD).poses


def _checked(layers: Iterable[nn.Module], iterations: int) -> list[DenseCaps]:
    stack = []
    for layer in layers:
        if not isinstance(layer, DenseCaps) or layer.routing != "inverted_attention":
            raise UserError(f"concurrent: every layer must be DenseCaps with routing inverted_attention, got {layer}")
        stack.append(layer)
    if not stack:
        raise UserError("concurrent: give at least one layer")
    check_whole("concurrent", iterations=iterations)
    return stack
