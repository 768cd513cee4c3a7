"""The routings that a layer of capsules can use, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.layers import initial
from torchcaps.layers.bridges import as_vectors
from torchcaps.ops import Routed, dynamic_routing, em_routing, inverted_attention_routing, self_attention_routing
from torchcaps.registry import Registry

CONSTANTS = ("inverse_temperature", "epsilon", "floor")

Weights = Mapping[str, Tensor]
Function = TypeVar("Function", bound=Callable[..., Routed])


def _by_name(children: Capsules, weights: Weights, iterations: int, leaky: bool) -> dict[str, Any]:
    return {"u": children.pose, "iterations": iterations, **weights}


@dataclass(frozen=True)
class Routing:
    """One way to route.

    Args:
        function: called with the keyword arguments of `arguments` and with return_couplings.
        arguments: (children, weights, iterations, leaky) → keyword arguments of the function; by default
            u (B, I, K), iterations and every weight by its name: weight (I, J, D, K), bias (J, D) if the layer has
            one, and what `learns` adds.
        learns: (I, J, D) → further parameters of the layer by name, with their initial values.
        matrix: poses are P×P matrices, and votes are products of them with weights (I, J, P, P).
        biased: accepts bias and leaky.
        squashed: poses are at most 1 long.
        constants: numbers that the function also takes and the layer keeps, of CONSTANTS.
        places: the function also takes `places`, the number of places that share a weight (I / places, J, D, K);
            otherwise the weight is repeated for every place.
        std: (I, K, J, D, iterations) → std of the initial weight; see `layers/initial.py`. Matrices start at the
            identity plus noise of this std.
    """

    function: Callable[..., Routed]
    arguments: Callable[[Capsules, Weights, int, bool], dict[str, Any]] = _by_name
    learns: Callable[[int, int, int], dict[str, Tensor]] = lambda *sizes: {}
    matrix: bool = False
    biased: bool = False
    squashed: bool = True
    constants: tuple[str, ...] = ()
    places: bool = False
    std: Callable[[int, int, int, int, int], float] = initial.uniform_std


def _dynamic(children: Capsules, weights: Weights, iterations: int, leaky: bool) -> dict[str, Any]:
    return {"u": as_vectors(children).pose, "iterations": iterations, "leaky": leaky, **weights}


def _uniform(children: Capsules, weights: Weights, iterations: int, leaky: bool) -> dict[str, Any]:
    """Couple all parents equally, as the first iteration of dynamic routing does."""
    return {"u": as_vectors(children).pose, "iterations": 1, "leaky": leaky, **weights}


def _self_attention(children: Capsules, weights: Weights, iterations: int, leaky: bool) -> dict[str, Any]:
    """A single pass, whatever the number of iterations."""
    return {"u": as_vectors(children).pose, **weights}


def _inverted_attention(children: Capsules, weights: Weights, iterations: int, leaky: bool) -> dict[str, Any]:
    """Normalised poses have about the same length, so a linear classifier computes the activations. Those of the
    children do not count, as in the paper."""
    rest = {name: each for name, each in weights.items() if not name.startswith("norm_")}
    scale, shift = weights["norm_scale"], weights["norm_shift"]
    return {"u": children.pose, "iterations": iterations, "scale": scale, "shift": shift, **rest}


def _inverted_attention_learns(I: int, J: int, D: int) -> dict[str, Tensor]:
    return initial.inverted_attention_weights(D)


def _em(children: Capsules, weights: Weights, iterations: int, leaky: bool) -> dict[str, Any]:
    return {"pose": children.pose, "activation": children.activation, "iterations": iterations, **weights}


def _self_attention_learns(I: int, J: int, D: int) -> dict[str, Tensor]:
    return {"prior": torch.zeros(I, J)}


_KNOWN = {
    "dynamic": Routing(
        dynamic_routing,
        _dynamic,
        biased=True,
        constants=("inverse_temperature",),
        places=True,
        std=initial.dynamic_std,
    ),
    "em": Routing(
        em_routing, _em, initial.em_betas, matrix=True, squashed=False, constants=CONSTANTS, std=initial.matrix_std
    ),
    "uniform": Routing(dynamic_routing, _uniform, biased=True, places=True),
    "self_attention": Routing(
        self_attention_routing, _self_attention, _self_attention_learns, std=initial.self_attention_std
    ),
    "inverted_attention": Routing(
        inverted_attention_routing,
        _inverted_attention,
        _inverted_attention_learns,
        squashed=False,
        std=initial.inverted_attention_std,
    ),
}
ROUTINGS: Registry[Routing] = Registry("routing", "register_routing", _KNOWN)


@overload
def register_routing(function: Function) -> Function: ...
@overload
def register_routing(*, name: str | None = None, **options: Any) -> Callable[[Function], Function]: ...
def register_routing(function: Any = None, *, name: str | None = None, **options: Any) -> Any:
    """Register a routing, so that `DenseCaps(routing=NAME)` and recipes find it; use it as a decorator.

        @register_routing
        def mean_vote(u, weight, iterations, return_couplings=False):
            return Routed(squash(torch.einsum("ijdk,bik->bjd", weight, u) / u.shape[1]))

    Args:
        function: returns `Routed`; called with u (B, I, K), weight (I, J, D, K), iterations and return_couplings.
        name: by default that of the function.
        **options: fields of `Routing`, such as `learns` for further parameters.

    Returns:
        The same function.
    """

    def register(function: Function) -> Function:
        ROUTINGS.add(name or function.__name__, Routing(function, **options), function)
        return function

    return register if function is None else register(function)
