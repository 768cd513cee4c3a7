"""DenseCaps: a routing with weights of its own, to stack as deep as one likes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from torchcaps import testing
from torchcaps.capsules import Capsules
from torchcaps.layers import DenseCaps
from torchcaps.layers.routings import ROUTINGS
from torchcaps.ops import dynamic_routing

CHILDREN = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(1))


def test_is_the_routing_function():
    layer = DenseCaps(6, 4, 3, 5, iterations=2, bias=True, leaky=True)
    parents, couplings = layer(CHILDREN, return_couplings=True)
    options = {"bias": layer.bias, "leaky": True, "return_couplings": True}
    poses, _, expected = dynamic_routing(CHILDREN, layer.weight, 2, **options)
    assert torch.equal(parents.pose, poses)
    assert torch.equal(couplings, expected)
    assert torch.equal(layer.bias, torch.full((3, 5), 0.1))


def test_takes_and_returns_capsules_or_a_plain_pose():
    layer = DenseCaps(6, 4, 3, 5)
    parents = layer(CHILDREN)
    assert isinstance(parents, Capsules)
    assert parents.pose.shape == (3, 3, 5)
    torch.testing.assert_close(parents.activation, parents.pose.norm(dim=-1))
    assert torch.equal(layer(Capsules(CHILDREN)).pose, parents.pose)


@pytest.mark.parametrize("routing", sorted(ROUTINGS))
def test_any_routing_by_name(routing):
    kind = ROUTINGS[routing]
    layer = DenseCaps(6, 4, 3, 4 if kind.matrix else 5, routing=routing, bias=kind.biased)
    by_weight = testing.routing_of(layer, return_couplings=True)
    testing.assert_children_permute(by_weight, CHILDREN, layer.weight)
    testing.assert_couplings_normalised(by_weight, CHILDREN, layer.weight)
    testing.assert_batch_independent(layer, CHILDREN)
    if kind.squashed:
        testing.assert_lengths_bounded(layer, CHILDREN)
    testing.assert_finite_gradients(layer, CHILDREN, largest=1e4 if kind.matrix else None)
    testing.assert_gradcheck(layer, CHILDREN)


def test_uniform_does_not_route():
    uniform = DenseCaps(6, 4, 3, 5, routing="uniform")
    parents, couplings = uniform(CHILDREN, return_couplings=True)
    assert torch.equal(couplings, torch.full((3, 6, 3), 1 / 3))
    assert torch.equal(parents.pose, dynamic_routing(CHILDREN, uniform.weight, 1).poses)
    assert not torch.allclose(parents.pose, dynamic_routing(CHILDREN, uniform.weight, 3).poses)


def test_forward_takes_another_number_of_iterations():
    layer = DenseCaps(6, 4, 3, 5, iterations=3)
    parents, couplings = layer(CHILDREN, iterations=1, return_couplings=True)
    assert torch.equal(couplings, torch.full((3, 6, 3), 1 / 3))
    assert torch.equal(parents.pose, dynamic_routing(CHILDREN, layer.weight, 1).poses)
    assert layer.iterations == 3


def half_long(*shape):
    children = torch.randn(shape)
    return children / children.norm(dim=-1, keepdim=True) / 2


def five_deep(leaky=False):
    sizes = [(32, 8), (16, 8), (16, 6), (12, 8), (8, 8), (4, 16)]
    return nn.Sequential(*(DenseCaps(*a, *b, leaky=leaky) for a, b in pairwise(sizes)))


@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
@pytest.mark.parametrize("children", ["half", "zero", "long"])
def test_five_deep_is_finite(children, leaky):
    stack = five_deep(leaky)
    u = half_long(4, 32, 8) * {"half": 1, "zero": 0, "long": 1000}[children]
    stack(u.requires_grad_()).activation.sum().backward()
    for gradient in (u.grad, *(parameter.grad for parameter in stack.parameters())):
        assert gradient.isfinite().all()
        assert (gradient.abs().max() > 0) == (children != "zero")


def test_five_deep_does_not_vanish():
    stack = five_deep()
    lengths = stack(half_long(4, 32, 8)).activation
    lengths.sum().backward()
    assert lengths.mean() > 0.05
    assert all(parameter.grad.abs().max() > 1e-4 for parameter in stack.parameters())


@pytest.mark.parametrize("sizes", [(1152, 8, 10, 16), (40, 4, 3, 5), (512, 8, 16, 8), (200, 8, 100, 4)], ids=str)
def test_parents_start_about_half_long(sizes):
    lengths = DenseCaps(*sizes, iterations=1)(half_long(8, *sizes[:2])).activation
    assert 0.3 < lengths.mean() < 0.7


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((6, 4, 3, 5), {"routing": "dinamic"}, "no routing is called 'dinamic': did you mean 'dynamic'"),
        ((6, 4, 3, 5), {"iterations": 0}, "iterations must be at least 1, got 0"),
        ((6, 0, 3, 5), {}, "sizes must be positive: 6×0 → 3×5"),
    ],
    ids=["routing", "iterations", "sizes"],
)
def test_wrong_arguments_are_named(arguments, options, message):
    with pytest.raises(ValueError, match="DenseCaps: " + message):
        DenseCaps(*arguments, **options)


@pytest.mark.parametrize("shape", [(3, 5, 4), (3, 6, 3), (6, 4), (3, 6, 4, 1, 1)], ids=str)
def test_wrong_children_are_named(shape):
    with pytest.raises(
        ValueError, match=r"DenseCaps\(6×4 → 3×5.*expected a pose of shape \(B, 6, 4\), got .* in_capsules"
    ):
        DenseCaps(6, 4, 3, 5)(torch.zeros(shape))
