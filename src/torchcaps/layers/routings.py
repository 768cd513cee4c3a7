"""The family of routings that a layer of capsules can be given by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.ops import dynamic_routing, em_routing, inverted_attention_routing, self_attention_routing
from torchcaps.ops.attention import presence

EM_INVERSE_TEMPERATURE = 0.1  # of layers whose temperature nobody changes in training


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
    squashed poses are at most 1 long
    """

    route: Route
    learns: Callable[[int, int, int], dict[str, Tensor]] = lambda *sizes: {}
    matrix: bool = False
    biased: bool = False
    squashed: bool = True


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


def _self_attention(
    children: Capsules, weights: Mapping[str, Tensor], iterations: int, leaky: bool, couplings: bool
) -> tuple[Capsules, Tensor | None]:
    """A single pass, whatever the number of iterations."""
    poses, coupled = self_attention_routing(children.pose, weights["weight"], weights["prior"], return_couplings=True)
    return Capsules(poses), coupled if couplings else None


def _inverted_attention(
    children: Capsules, weights: Mapping[str, Tensor], iterations: int, leaky: bool, couplings: bool
) -> tuple[Capsules, Tensor | None]:
    """Normalised poses all have about the same length: a linear classifier says how sure each parent is."""
    scale, shift = weights["norm_scale"], weights["norm_shift"]
    poses, coupled = inverted_attention_routing(
        children.pose, weights["weight"], scale, shift, iterations, return_couplings=True
    )
    activation = presence(poses, weights["classifier"], weights["classifier_bias"])
    return Capsules(poses, activation), coupled if couplings else None


def _inverted_attention_learns(I: int, J: int, D: int) -> dict[str, Tensor]:
    return {
        "norm_scale": torch.ones(D),
        "norm_shift": torch.zeros(D),
        "classifier": torch.randn(D) / D**0.5,  # poses are √D long, so that logits start at about 1
        "classifier_bias": torch.zeros(()),
    }


def _em(
    children: Capsules, weights: Mapping[str, Tensor], iterations: int, leaky: bool, couplings: bool
) -> tuple[Capsules, Tensor | None]:
    poses, activations, *coupled = em_routing(
        children.pose,
        children.activation,
        weights["weight"],
        weights["beta_u"],
        weights["beta_a"],
        iterations,
        inverse_temperature=EM_INVERSE_TEMPERATURE,
        return_couplings=couplings,
    )
    return Capsules(poses, activations), coupled[0] if couplings else None


def _em_learns(I: int, J: int, D: int) -> dict[str, Tensor]:
    return {"beta_u": torch.zeros(J), "beta_a": torch.zeros(J)}


ROUTINGS: dict[str, Routing] = {
    "dynamic": Routing(_dynamic, biased=True),
    "em": Routing(_em, learns=_em_learns, matrix=True, squashed=False),
    "uniform": Routing(_uniform, biased=True),
    "self_attention": Routing(_self_attention, learns=lambda I, J, D: {"prior": torch.zeros(I, J)}),
    "inverted_attention": Routing(_inverted_attention, learns=_inverted_attention_learns, squashed=False),
}
