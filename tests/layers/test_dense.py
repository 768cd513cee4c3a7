"""DenseCaps: a routing with weights of its own, to stack as deep as one likes."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from torch import nn

from torchcaps import testing
from torchcaps.capsules import Capsules
from torchcaps.layers import DenseCaps
from torchcaps.layers.routings import ROUTINGS
from torchcaps.ops import dynamic_routing, squash

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


def children_of_length(length, *shape):
    children = torch.randn(shape)
    return length * children / children.norm(dim=-1, keepdim=True)


def five_deep(leaky=False):
    sizes = [(32, 8), (16, 8), (16, 6), (12, 8), (8, 8), (4, 16)]
    return nn.Sequential(*(DenseCaps(*a, *b, leaky=leaky) for a, b in pairwise(sizes)))


@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
@pytest.mark.parametrize("children", ["half", "zero", "long"])
def test_five_deep_is_finite(children, leaky):
    stack = five_deep(leaky)
    u = children_of_length({"half": 0.5, "zero": 0, "long": 500}[children], 4, 32, 8)
    stack(u.requires_grad_()).activation.sum().backward()
    for gradient in (u.grad, *(parameter.grad for parameter in stack.parameters())):
        assert gradient.isfinite().all()
        assert (gradient.abs().max() > 0) == (children != "zero")


@pytest.mark.parametrize("routing", sorted(ROUTINGS))
@pytest.mark.parametrize("length", [0.75, 0.99])
def test_five_deep_neither_vanishes_nor_saturates(routing, length):
    """Behind a plain and behind a normalised backbone."""
    torch.manual_seed(0)
    parents = [(32, 16), (32, 16), (32, 16), (24, 16), (10, 16)]
    stack = nn.Sequential(*(DenseCaps(*a, *b, routing=routing) for a, b in pairwise([(128, 16), *parents])))
    x, spread = children_of_length(length, 4, 128, 16), []
    for layer in stack:
        x, couplings = layer(x, return_couplings=True)
        assert x.activation.mean() < 0.85
        assert couplings.max(-1).values.mean() < 0.75
        spread.append(x.pose.std(0).norm() / x.pose.norm(dim=(1, 2)).mean())
    assert x.activation.mean() > 1e-5
    assert min(spread) > 0.05  # images still differ
    x.activation.sum().backward()
    assert all(layer.weight.grad.abs().max() > 1e-9 for layer in stack)


SQUASHED = sorted(name for name, routing in ROUTINGS.items() if routing.squashed)


@pytest.mark.parametrize("routing", SQUASHED)
@pytest.mark.parametrize("iterations", [1, 3])
def test_parents_start_about_half_long(routing, iterations):
    """And shorter where far fewer children than parents already choose among them."""
    torch.manual_seed(0)
    for I, J, K, D in product((16, 128, 1152), (2, 10, 30, 100), (4, 16), (4, 8, 16, 32)):
        if I * J * K * D > 5e6:
            continue
        layer = DenseCaps(I, K, J, D, routing=routing, iterations=iterations)
        lengths = layer(children_of_length(0.7, 8, I, K)).activation
        assert (0.3 if 2 * I >= J else 0.1) < lengths.mean() < 0.65, (I, J, K, D)


@pytest.mark.parametrize(("I", "J", "expected"), [(16, 10, 10 / 16), (8, 10, 1.0), (128, 10, 10 / 128)])
def test_the_usual_inverse_temperature_follows_from_the_children_of_each_parent(I, J, expected):
    children = Capsules(torch.randn(2, I, 4), torch.rand(2, I))
    torch.manual_seed(0)
    usual = DenseCaps(I, 4, J, 4, routing="em")
    torch.manual_seed(0)
    given = DenseCaps(I, 4, J, 4, routing="em", inverse_temperature=expected)
    assert torch.equal(usual(children).activation, given(children).activation)


def test_em_parents_start_undecided():
    """However many children and parents: about a quarter, where ten classes pull as much up as down. Then activations
    have a gradient."""
    torch.manual_seed(0)
    for I, J, length in product((16, 128, 1152), (2, 10, 100), (0.5, 0.7, 1.0)):
        children = children_of_length(length, 4, I, 16)
        activation = DenseCaps(I, 16, J, 16, routing="em")(children).activation
        assert 0.12 < activation.mean() < 0.4, (I, J, length)
        assert activation.min() > 0.1, (I, J, length)
        assert activation.max() < 0.85, (I, J, length)


@pytest.mark.parametrize("J", [2, 10, 100])
def test_em_parents_start_as_active_with_silent_children(J):
    """So a loss that finds all activations too high drives the children neither to zero nor to one."""
    torch.manual_seed(0)
    children, layer = children_of_length(0.7, 4, 128, 16), DenseCaps(128, 16, J, 16, routing="em")
    loud, quiet = (
        layer(Capsules(children, torch.full((4, 128), presence))).activation.mean() for presence in (0.9, 0.1)
    )
    torch.testing.assert_close(loud, quiet, rtol=0, atol=0.05)


@pytest.mark.parametrize("length", [0.5, 1.0])
def test_poses_of_inverted_attention_start_one_long(length):
    for I, J, D in product((16, 128), (2, 10, 30), (4, 16)):
        layer = DenseCaps(I, D, J, D, routing="inverted_attention")
        parents, couplings = layer(children_of_length(length, 4, I, D), return_couplings=True)
        assert 0.9 < parents.pose.norm(dim=-1).mean() < 1.01
        assert 0.15 < parents.activation.mean() < 0.85
        assert couplings.max(-1).values.mean() < 0.75


@pytest.mark.parametrize("routing", SQUASHED)
def test_an_activation_of_the_children_is_their_length(routing):
    pose, activation = torch.randn(2, 6, 4), torch.rand(2, 6)
    layer = DenseCaps(6, 4, 3, 5, routing=routing)
    vectors = pose / pose.norm(dim=-1, keepdim=True) * activation[..., None]
    torch.testing.assert_close(layer(Capsules(pose, activation)).pose, layer(vectors).pose)


def test_a_mixed_stack_trains_every_weight():
    routings = ("em", "dynamic", "self_attention", "em", "uniform")
    stack = nn.Sequential(*(DenseCaps(6, 16, 6, 16, routing=routing) for routing in routings))
    stack(children_of_length(0.7, 3, 6, 16)).activation.square().sum().backward()
    assert all(layer.weight.grad.isfinite().all() and layer.weight.grad.abs().max() > 0 for layer in stack)


def test_the_inverse_temperature_of_dynamic_routing_multiplies_the_agreement():
    layer, children = DenseCaps(30, 4, 3, 5, inverse_temperature=20.0), children_of_length(0.9, 2, 30, 4)
    votes = torch.einsum("ijdk,bik->bijd", layer.weight, children)
    first = squash(votes.mean(1) * 30 / 3)
    couplings = (20 * torch.einsum("bijd,bjd->bij", votes, first)).softmax(-1)
    second, told = layer(children, iterations=2, return_couplings=True)
    torch.testing.assert_close(told, couplings)
    torch.testing.assert_close(second.pose, squash(torch.einsum("bij,bijd->bjd", couplings, votes)))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((6, 4, 3, 5), {"routing": "dinamic"}, "no routing is called 'dinamic': did you mean 'dynamic'"),
        ((6, 4, 3, 5), {"iterations": 0}, "iterations must be a whole number, at least 1, got 0"),
        ((6, 0, 3, 5), {}, "in_dim must be a whole number, at least 1, got 0"),
        ((6, 4, 3, 5), {"epsilon": 1e-9, "floor": 1.0}, "dynamic routing has no epsilon or floor: omit it"),
        (
            (6, 4, 3, 5),
            {"routing": "uniform", "inverse_temperature": 2.0},
            "uniform routing has no inverse_temperature",
        ),
        ((6, 4, 3, 5), {"inverse_temperature": 0.0}, "inverse_temperature must be a positive number, got 0.0"),
        ((6, 4, 3, 4), {"routing": "em", "inverse_temperature": 0}, "inverse_temperature must be a positive number"),
    ],
    ids=["routing", "iterations", "sizes", "constants", "no temperature", "zero", "temperature"],
)
def test_wrong_arguments_are_named(arguments, options, message):
    with pytest.raises(ValueError, match="DenseCaps: " + message):
        DenseCaps(*arguments, **options)


@pytest.mark.parametrize("shape", [(3, 5, 4), (3, 6, 3), (6, 4), (3, 6, 4, 2, 1)], ids=str)
def test_wrong_children_are_named(shape):
    with pytest.raises(
        ValueError, match=r"DenseCaps\(6×4 → 3×5.*expected a pose of shape \(B, 6, 4\), got .* in_capsules"
    ):
        DenseCaps(6, 4, 3, 5)(torch.zeros(shape))
