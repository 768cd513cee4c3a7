"""Capsules that get a vote from every capsule below."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, as_capsules
from torchcaps.checks import check_positive, check_whole
from torchcaps.errors import UserError, did_you_mean
from torchcaps.layers.annealing import EPSILON, FLOOR, Tempered
from torchcaps.layers.bridges import flatten_maps
from torchcaps.layers.routings import CONSTANTS, ROUTINGS, Routing

TRUNCATED = 0.8796  # std of a normal distribution of std 1 without what is further than 2 from its mean


class DenseCaps(Tempered):
    """Every child votes for every parent with a matrix of its own; routing decides which votes count.

    Children may come from a layer of any kind. Maps are read as a list, by type, then row, then column. Where children
    have an activation of their own, dynamic, uniform and self-attention routing read them as vectors of that length, EM
    weighs their votes by it, and inverted attention ignores it.

    Args:
        in_capsules: I children.
        in_dim: K dimensions of a child's pose; for matrix capsules the P·P of a pose.
        out_capsules: J parents.
        out_dim: D dimensions of a parent's pose; for matrix capsules the P·P of a pose.
        routing: a name in ROUTINGS.
        iterations: number of routing iterations.
        places: of a map whose in_capsules / places types share their matrices over all places; children are numbered by
            type first. By default every child has its own.
        bias: learn a bias (J, D) inside routing, 0.1 at first, as in the authors' code.
        leaky: let a child that fits no parent keep part of its coupling.
        std: of the initial weight. By default parents of children 0.7 long start about a half long, after all
            iterations at an inverse temperature of 1; with EM, matrices start near the identity (layers/initial.py).
        inverse_temperature: of dynamic routing: factor of the agreement; 1 by default, with which many children stay
            undecided. Of EM routing: how sharp activations are; or two numbers for the start and the end of
            training, see `anneal`; the default follows from I and J, see `em_routing`.
        epsilon: of EM routing, added to sums of weights; 1e-12 by default.
        floor: of EM routing, added to variances; 3e-3 by default.
    """

    def __init__(
        self,
        in_capsules: int,
        in_dim: int,
        out_capsules: int,
        out_dim: int,
        *,
        routing: str = "dynamic",
        iterations: int = 3,
        places: int = 1,
        bias: bool = False,
        leaky: bool = False,
        std: float | None = None,
        inverse_temperature: float | Sequence[float] | None = None,
        epsilon: float | None = None,
        floor: float | None = None,
    ):
        super().__init__()
        if routing not in ROUTINGS:
            raise UserError(f"DenseCaps: no routing is called {routing!r}: {did_you_mean(routing, ROUTINGS)}")
        check_whole("DenseCaps", in_capsules=in_capsules, in_dim=in_dim, out_capsules=out_capsules, out_dim=out_dim)
        check_whole("DenseCaps", iterations=iterations, places=places)
        if in_capsules % places:
            raise UserError(
                f"DenseCaps: in_capsules must be a multiple of places, the same types at each, got {in_capsules} and "
                f"{places}"
            )
        kind = ROUTINGS[routing]
        side = math.isqrt(in_dim)
        if kind.matrix and not side * side == in_dim == out_dim:
            raise UserError(
                f"DenseCaps: {routing} routes matrices: in_dim and out_dim must be the same square number, such as 16, "
                f"got {in_dim} and {out_dim}"
            )
        if not kind.biased and (bias or leaky):
            raise UserError(f"DenseCaps: {routing} routing supports neither bias nor leaky: omit both")
        self.in_capsules, self.in_dim = in_capsules, in_dim
        self.out_capsules, self.out_dim = out_capsules, out_dim
        self.routing, self.iterations, self.leaky, self.places = routing, iterations, leaky, places
        shape = (side, side) if kind.matrix else (out_dim, in_dim)
        self.weight = nn.Parameter(torch.empty(in_capsules // places, out_capsules, *shape))
        self._initialise(kind, std)
        self._set_constants(kind, inverse_temperature, epsilon, floor)
        self.bias = nn.Parameter(torch.full((out_capsules, out_dim), 0.1)) if bias else None
        learned = kind.learns(in_capsules, out_capsules, out_dim)
        self._shared = {"weight"} | (_per_child(kind, out_capsules, out_dim) if places > 1 else set())
        for name, values in learned.items():
            once = values[::places] if name in self._shared else values
            self.register_parameter(name, nn.Parameter(once.contiguous()))
        self._names = ("weight", *(["bias"] if bias else []), *learned)

    def _initialise(self, kind: Routing, std: float | None) -> None:
        used = std
        if used is None:
            parents = self.out_capsules + self.leaky  # the leaky one gets votes of zero
            used = kind.std(self.in_capsules, self.in_dim, parents, self.out_dim, self.iterations) / TRUNCATED
        nn.init.trunc_normal_(self.weight, std=used, a=-2 * used, b=2 * used)
        if kind.matrix and std is None:
            with torch.no_grad():
                self.weight.diagonal(dim1=-2, dim2=-1).add_(1)

    def _set_constants(
        self,
        kind: Routing,
        inverse_temperature: float | Sequence[float] | None,
        epsilon: float | None,
        floor: float | None,
    ) -> None:
        given = dict(zip(CONSTANTS, (inverse_temperature, epsilon, floor)))
        unknown = [name for name, value in given.items() if value is not None and name not in kind.constants]
        if unknown:
            raise UserError(f"DenseCaps: {self.routing} routing has no {' or '.join(unknown)}: omit it")
        if "epsilon" not in kind.constants:
            if inverse_temperature is not None:
                check_positive("DenseCaps", inverse_temperature=inverse_temperature)
                assert not isinstance(inverse_temperature, Sequence)  # it was a number
                self.inverse_temperature = inverse_temperature
            return
        self.set_inverse_temperature(inverse_temperature, saved=False)
        self.epsilon = EPSILON if epsilon is None else epsilon
        self.floor = FLOOR if floor is None else floor

    def forward(
        self, children: Capsules | Tensor, *, iterations: int | None = None, return_couplings: bool = False
    ) -> Capsules | tuple[Capsules, Tensor | None]:
        """Route the children to the parents.

        Args:
            children: pose (B, I, K), or maps (B, T, K, H, W) with T·H·W = I; as Capsules or as a plain tensor, whose
                activation is the length of the pose.
            iterations: instead of the layer's own number.
            return_couplings: also return the couplings of the last iteration.

        Returns:
            pose (B, J, D); with return_couplings a tuple of that and the couplings (B, I, J).
        """
        children = as_capsules(children, "DenseCaps")
        given = tuple(children.pose.shape)
        children = flatten_maps(children)
        u = children.pose
        if u.ndim != 3 or u.shape[1:] != (self.in_capsules, self.in_dim):
            raise ValueError(
                f"DenseCaps({self.extra_repr()}): expected a pose of shape (B, {self.in_capsules}, {self.in_dim}), "
                f"got {given}; set in_capsules and in_dim to the output sizes of the layer below"
            )
        routing = ROUTINGS[self.routing]
        if iterations is not None:
            check_whole("DenseCaps", iterations=iterations)
        count = self.iterations if iterations is None else iterations
        shares = self.places > 1 and routing.places
        weights = {name: getattr(self, name) for name in self._names} if shares else self.weights
        arguments = routing.arguments(children, weights, count, self.leaky)
        if shares:
            arguments["places"] = self.places
        constants = {name: getattr(self, name, None) for name in routing.constants}
        arguments |= {name: value for name, value in constants.items() if value is not None}
        routed = routing.function(**arguments, return_couplings=return_couplings)
        parents = Capsules(routed.poses, routed.activation)
        return (parents, routed.couplings) if return_couplings else parents

    @property
    def weights(self) -> dict[str, Tensor]:
        """All learned tensors by name, as routing uses them: repeated over places, and after pruning or
        parametrisation, if there is any."""
        found: dict[str, Tensor] = {name: getattr(self, name) for name in self._names}
        if self.places == 1:
            return found
        return {n: each.repeat_interleave(self.places, 0) if n in self._shared else each for n, each in found.items()}

    def extra_repr(self) -> str:
        return (
            f"{self.in_capsules}×{self.in_dim} → {self.out_capsules}×{self.out_dim}, "
            f"routing={self.routing}, iterations={self.iterations}"
            + (f", places={self.places}" if self.places > 1 else "")
        )


def _per_child(kind: Routing, J: int, D: int) -> set[str]:
    """The parameters that a routing learns for each child: those whose first axis grows with the number of children."""
    one, two = kind.learns(1, J, D), kind.learns(2, J, D)
    return {name for name, values in one.items() if values.shape[:1] != two[name].shape[:1]}
