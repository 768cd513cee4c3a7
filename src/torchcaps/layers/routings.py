"""The family of routings that a layer of capsules can be given by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.ops import dynamic_routing


class Route(Protocol):
    """Children and the layer's weights in; parents and, when asked for, couplings (B, I, J) out.

    weights  "weight" (I, J, D, K), or (I, J, P, P) for matrix capsules; "bias" (J, D) if the layer has one; and what
             else the routing learns
    """

    def __call__(
        self, children: Capsules, weights: Mapping[str, Tensor], iterations: int, leaky: bool, couplings: bool
    ) -> tuple[Capsules, Tensor | None]: ...


@dataclass(frozen=True)
class Routing:
    """One way to decide whose votes count.

    route    the forward pass
    learns   (I, J, D) → what the routing learns beside the weight, by name, with its values at first
    matrix   poses are P×P matrices, and votes products of them with P×P weights
    biased   takes a bias, and may leak
    """

    route: Route
    learns: Callable[[int, int, int], dict[str, Tensor]] = lambda *sizes: {}
    matrix: bool = False
    biased: bool = False


def _dynamic(
    children: Capsules, weights: Mapping[str, Tensor], iterations: int, leaky: bool, couplings: bool
) -> tuple[Capsules, Tensor | None]:
    weight, bias = weights["weight"], weights.get("bias")
    if couplings:
        poses, coupled = dynamic_routing(
            children.pose, weight, iterations, bias=bias, leaky=leaky, return_couplings=True
        )
        return Capsules(poses), coupled
    return Capsules(dynamic_routing(children.pose, weight, iterations, bias=bias, leaky=leaky)), None


def _uniform(
    children: Capsules, weights: Mapping[str, Tensor], iterations: int, leaky: bool, couplings: bool
) -> tuple[Capsules, Tensor | None]:
    """No routing: every child counts for every parent alike, which is the first iteration of dynamic routing."""
    return _dynamic(children, weights, 1, leaky, couplings)


ROUTINGS: dict[str, Routing] = {
    "dynamic": Routing(_dynamic, biased=True),
    "uniform": Routing(_uniform, biased=True),
}
