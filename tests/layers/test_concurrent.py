"""Layers with inverted attention, one after the other and all at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchcaps import testing
from torchcaps.capsules import Capsules
from torchcaps.errors import UserError
from torchcaps.layers import DenseCaps, PrimaryCaps
from torchcaps.layers.concurrent import concurrent
from torchcaps.ops import inverted_attention_routing, self_attention_routing

CHILDREN = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(1))


def layer(*sizes, iterations=2):
    made = DenseCaps(*sizes, routing="inverted_attention", iterations=iterations, std=0.3)
    with torch.no_grad():  # as if trained: what is 1 or 0 at first would hide mistakes
        made.norm_scale.uniform_(0.5, 1.5)
        made.norm_shift.uniform_(-0.5, 0.5)
    return made


def two_layers():
    return [layer(6, 4, 5, 3), layer(5, 3, 2, 4)]


def step(made, children, parents=None):
    return inverted_attention_routing(children, made.weight, made.norm_scale, made.norm_shift, 1, parents=parents).poses


def test_self_attention_layer_is_the_routing_function():
    made = DenseCaps(6, 4, 3, 5, routing="self_attention")
    assert torch.equal(made.prior, torch.zeros(6, 3))
    with torch.no_grad():
        made.prior.normal_()
    parents, couplings = made(CHILDREN, return_couplings=True)
    poses, _, expected = self_attention_routing(CHILDREN, made.weight, made.prior, return_couplings=True)
    assert torch.equal(parents.pose, poses)
    assert torch.equal(couplings, expected)
    torch.testing.assert_close(parents.activation, parents.pose.norm(dim=-1))
    assert torch.equal(made(CHILDREN, iterations=5).pose, poses)


def test_inverted_attention_layer_is_the_routing_function():
    made = layer(6, 4, 3, 5, iterations=3)
    parents, couplings = made(CHILDREN, return_couplings=True)
    arguments = (CHILDREN, made.weight, made.norm_scale, made.norm_shift, 3)
    poses, _, expected = inverted_attention_routing(*arguments, return_couplings=True)
    assert torch.equal(parents.pose, poses)
    assert torch.equal(couplings, expected)
    logits = poses @ made.classifier + made.classifier_bias
    torch.testing.assert_close(parents.activation, logits.sigmoid())


@pytest.mark.parametrize("routing", ["self_attention", "inverted_attention"])
def test_layer_properties(routing):
    made = DenseCaps(6, 4, 3, 5, routing=routing)
    testing.assert_batch_independent(made, CHILDREN)
    testing.assert_finite_gradients(made, CHILDREN)
    testing.assert_gradcheck(made, CHILDREN)
    with pytest.raises(UserError, match=f"{routing} routing supports neither bias nor leaky"):
        DenseCaps(6, 4, 3, 5, routing=routing, bias=True)


def test_one_layer_is_that_layer():
    made = layer(6, 4, 3, 5)
    for iterations in (1, 2, 4):
        parents, expected = concurrent([made], CHILDREN, iterations), made(CHILDREN, iterations=iterations)
        torch.testing.assert_close(parents.pose, expected.pose)
        torch.testing.assert_close(parents.activation, expected.activation)


def test_one_iteration_is_a_forward_pass():
    stack = two_layers()
    for made in stack:
        made.iterations = 1
    parents, expected = concurrent(stack, Capsules(CHILDREN), 1), nn.Sequential(*stack)(CHILDREN)
    assert torch.equal(parents.pose, expected.pose)
    assert torch.equal(parents.activation, expected.activation)


def test_all_layers_take_the_iteration_before():
    lower, upper = stack = two_layers()
    low = [step(lower, CHILDREN)]
    up = [step(upper, low[0])]
    for t in range(3):
        torch.testing.assert_close(concurrent(stack, CHILDREN, t + 1).pose, up[t])
        low.append(step(lower, CHILDREN, low[t]))
        up.append(step(upper, low[t], up[t]))
    # One after the other, the upper layer would see what the lower one came to.
    assert not torch.allclose(concurrent(stack, CHILDREN, 2).pose, nn.Sequential(*stack)(CHILDREN).pose, atol=1e-3)


@pytest.mark.parametrize("iterations", [1, 3])
def test_stack_properties(iterations):
    stack = nn.Sequential(*two_layers())

    def routed(u):
        return concurrent(stack, u, iterations)

    testing.assert_batch_independent(routed, CHILDREN)
    testing.assert_finite_gradients(routed, CHILDREN)
    stack.double()
    testing.assert_gradcheck(routed, CHILDREN)


def test_gradients_reach_every_layer():
    stack = [layer(6, 4, 5, 3), layer(5, 3, 5, 3), layer(5, 3, 2, 4)]
    concurrent(stack, CHILDREN, 3).activation[:, 0].sum().backward()
    for depth, made in enumerate(stack):
        for name, parameter in made.named_parameters():
            unused = name.startswith("classifier") and depth < 2  # only the last layer is asked how sure it is
            assert unused if parameter.grad is None else parameter.grad.abs().max() > 0, (depth, name)


def test_learns_to_tell_two_kinds_of_children_apart():
    torch.manual_seed(0)
    maps, targets = torch.randn(32, 4, 5, 5), torch.arange(32) % 2
    maps[:, 0] += 2.0 * targets.view(-1, 1, 1)
    primary, stack = PrimaryCaps(4, 3, 4, kernel_size=3), nn.Sequential(layer(12, 4, 6, 8), layer(6, 8, 2, 8))
    optimizer = torch.optim.Adam([*primary.parameters(), *stack.parameters()], 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        activation = concurrent(stack, primary(maps), 2).activation
        nn.functional.binary_cross_entropy(activation, nn.functional.one_hot(targets, 2).float()).backward()
        optimizer.step()
    assert (activation.argmax(-1) == targets).float().mean() > 0.9


@pytest.mark.parametrize(
    ("layers", "iterations", "message"),
    [
        ([DenseCaps(6, 4, 3, 5)], 2, r"must be DenseCaps with routing inverted_attention, got DenseCaps\(6×4 → 3×5"),
        ([nn.ReLU()], 2, r"got ReLU\(\)"),
        ([], 2, "give at least one layer"),
        (
            [DenseCaps(6, 4, 3, 5, routing="inverted_attention")],
            0,
            "iterations must be a whole number, at least 1, got 0",
        ),
    ],
    ids=["routing", "layer", "none", "iterations"],
)
def test_wrong_arguments_are_named(layers, iterations, message):
    with pytest.raises(UserError, match="concurrent: .*" + message):
        concurrent(layers, CHILDREN, iterations)


def test_layers_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"DenseCaps\(4×3 → 2×4.*expected a pose of shape \(B, 4, 3\)"):
        concurrent([layer(6, 4, 5, 3), layer(4, 3, 2, 4)], CHILDREN)
