"""torchcaps.testing itself: what is right passes, and every kind of wrong is told by name."""

from __future__ import annotations

import pytest
import torch

from torchcaps import testing
from torchcaps.layers import DenseCaps
from torchcaps.ops import route_votes, squash

U, WEIGHT = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0)), torch.randn(6, 3, 5, 4)


def votes_of(u, weight):
    return torch.einsum("ijdk,bik->bijd", weight, u)


def right(u, weight):
    routed = route_votes(votes_of(u, weight), return_couplings=True)
    return routed.poses, routed.couplings


def favours_the_first_child(u, weight):
    order = torch.arange(u.shape[1], 0, -1, dtype=u.dtype)
    return right(u * order[:, None], weight)


def couplings_stay_when_children_move(u, weight):
    poses, couplings = right(u, weight)
    return poses, couplings.sort(dim=1).values


def averages_over_the_batch(u, weight):
    return right(u + u.mean(0), weight) if len(u) else right(u, weight)


def squeezes_the_batch(u, weight):
    poses, couplings = right(u, weight)
    return poses.squeeze(), couplings


def fails_when_empty(u, weight):
    poses, couplings = right(u, weight)
    return (poses, couplings) if len(u) else (poses.flatten(1), couplings)


def softmax_over_children(u, weight):
    return right(u, weight)[0], votes_of(u, weight).sum(-1).softmax(1)


def negative_couplings(u, weight):
    return right(u, weight)[0], torch.cat([torch.full((3, 6, 1), -1.0), torch.ones(3, 6, 2)], -1)


def not_squashed(u, weight):
    return votes_of(u, weight).sum(1), None


def divides_by_zero(u, weight):
    s = votes_of(u, weight).sum(1)
    return s * s.norm(dim=-1, keepdim=True) / (1 + s.square().sum(-1, keepdim=True)), None


def naive_norm(u, weight):
    s = votes_of(u, weight).sum(1)
    return squash(s) * (s.square().sum(-1, keepdim=True).sqrt() + 1).log1p().clamp_max(1), None


def stops_a_gradient(u, weight):
    return squash(votes_of(u, weight).sum(1) + u.detach().sum()), None


@pytest.mark.parametrize(
    ("assertion", "routing", "message"),
    [
        (testing.assert_children_permute, favours_the_first_child, "poses changed when the children were permuted"),
        (testing.assert_children_permute, couplings_stay_when_children_move, "couplings did not follow"),
        (testing.assert_batch_independent, averages_over_the_batch, "poses of example 0 alone differ"),
        (testing.assert_batch_independent, squeezes_the_batch, r"example 0 alone .* shape \(3, 5\), not \(1, 3, 5\)"),
        (
            testing.assert_batch_independent,
            fails_when_empty,
            r"empty batch gave poses of shape \(0, 15\), not \(0, 3, 5\)",
        ),
        (testing.assert_couplings_normalised, softmax_over_children, "sum over its parents to .*, not to 1"),
        (testing.assert_couplings_normalised, negative_couplings, "negative or NaN: the smallest is -1"),
        (testing.assert_couplings_normalised, not_squashed, "returned no couplings"),
        (testing.assert_lengths_bounded, not_squashed, "with the children scaled by 1, more than 1"),
        (testing.assert_finite_gradients, divides_by_zero, "when the children are huge"),
        (
            testing.assert_finite_gradients,
            naive_norm,
            "gradient of the children is not finite when the children are zero",
        ),
        (testing.assert_gradcheck, stops_a_gradient, "do not agree with finite differences"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_routing_is_told(assertion, routing, message):
    with pytest.raises(AssertionError, match=message):
        assertion(routing, U, WEIGHT)
    assertion(right, U, WEIGHT)


def test_leaky_couplings_leak():
    with pytest.raises(AssertionError, match="no child keeps any coupling"):
        testing.assert_couplings_normalised(right, U, WEIGHT, leaky=True)
    leaky = lambda u, weight: route_votes(votes_of(u, weight), leaky=True, return_couplings=True)  # noqa: E731
    testing.assert_couplings_normalised(leaky, U, WEIGHT, leaky=True)
    with pytest.raises(AssertionError, match="not to 1"):
        testing.assert_couplings_normalised(leaky, U, WEIGHT)


def test_layers_are_taken_too():
    layer = DenseCaps(6, 4, 3, 5, bias=True)
    for assertion in (
        testing.assert_batch_independent,
        testing.assert_lengths_bounded,
        testing.assert_finite_gradients,
    ):
        assertion(layer, U)
    testing.assert_gradcheck(layer, U)
    routing = testing.routing_of(layer, return_couplings=True)
    testing.assert_children_permute(routing, U, layer.weight)
    testing.assert_couplings_normalised(routing, U, layer.weight)


def test_gradcheck_sees_a_layers_parameters():
    class Stuck(DenseCaps):
        def forward(self, children):
            return squash(votes_of(children, self.weight).sum(1) + self.bias + self.bias.detach())

    with pytest.raises(AssertionError, match="finite differences"):
        testing.assert_gradcheck(Stuck(6, 4, 3, 5, bias=True), U)
