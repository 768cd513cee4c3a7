"""The layers that every test here runs over: small, all from one tensor to capsules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchcaps.layers import (
    ROUTINGS,
    ConvCaps2d,
    DenseCaps,
    MatrixConvCaps2d,
    MatrixPrimaryCaps,
    PrimaryCaps,
)

MAPS = (2, 6, 6)
CASES = {
    "primary": (lambda: PrimaryCaps(2, 3, 4, kernel_size=3, stride=2), MAPS),
    **{name: (lambda name=name: DenseCaps(6, 4, 3, 4, routing=name), (6, 4)) for name in ROUTINGS},
    "conv": (lambda: ConvCaps2d(2, 4, 3, 4, kernel=3), (2, 4, 3, 3)),
    "matrix": (
        lambda: nn.Sequential(MatrixPrimaryCaps(2, 2, size=2), MatrixConvCaps2d(2, 3, size=2, kernel=2, iterations=2)),
        (2, 3, 3),
    ),
    "stack": (
        lambda: nn.Sequential(
            PrimaryCaps(2, 3, 4, kernel_size=3, stride=2, maps=True),
            ConvCaps2d(3, 4, 3, 4, kernel=3),
            MatrixConvCaps2d(3, 2, size=2, kernel=2, iterations=2),
            DenseCaps(2, 4, 5, 4),
            DenseCaps(5, 4, 3, 4, routing="em"),
        ),
        MAPS,
    ),
}
every = pytest.mark.parametrize("name", CASES)


def make(name: str, batch: int = 3, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    """A layer, and an input for it."""
    torch.manual_seed(0)
    layer, shape = CASES[name]
    return layer().to(dtype), torch.randn(batch, *shape, dtype=dtype)


class Numbers(nn.Module):
    """A user's own module with a layer inside, that returns plain tensors."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.layer(0.5 * x)
        return found.pose, found.activation


def loss(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """Something that depends on every output in its own way."""
    return sum((x.float() if x.dtype != torch.float64 else x).sin().square().sum() for x in outputs)


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Of the loss by the input and by each parameter, zero where there is none."""
    leaves = [x.clone().requires_grad_(), *module.parameters()]
    module.zero_grad()
    loss(module(leaves[0])).backward()
    return [torch.zeros_like(each) if each.grad is None else each.grad for each in leaves]


def by_parameters(module: nn.Module):
    """(parameters, x) → loss, and the parameters."""
    parameters = {name: each.detach() for name, each in module.named_parameters()}
    return lambda given, x: loss(functional_call(module, given, (x,))), parameters


def close(got, expected, **options) -> None:
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, **options)


class Together(nn.Module):
    """Every case in one module, so that one compilation serves all."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({f"of_{name}": Numbers(make(name)[0]) for name in CASES})

    def forward(self, *inputs: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [layer(x) for layer, x in zip(self.layers.values(), inputs, strict=True)]

    @staticmethod
    def inputs(batch: int) -> list[Tensor]:
        """Random, with one for each case."""
        return [torch.randn(batch, *shape) for _, shape in CASES.values()]
