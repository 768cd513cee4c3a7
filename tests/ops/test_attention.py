"""Routing by attention: the papers' equations by hand, against their literal form, and what holds for every routing."""

from __future__ import annotations

import math

import pytest
import torch

from torchcaps import testing
from torchcaps.ops import inverted_attention_routing, self_attention_routing
from torchcaps.ops.attention import presence, reference, squash_exponential

# Two children, two parents, one dimension each. Child 0 votes (1, 0), child 1 votes (1, 2).
U = torch.tensor([[[2.0], [1.0]]], dtype=torch.float64)  # (1, 2, 1)
WEIGHT = torch.tensor([[[[0.5]], [[0.0]]], [[[1.0]], [[2.0]]]], dtype=torch.float64)  # (2, 2, 1, 1)

SHAPES = [(3, 7, 4, 5, 2), (2, 1, 3, 4, 4), (2, 6, 1, 3, 5), (1, 40, 10, 16, 8)]  # B, I, J, D, K
ROUTINGS = {
    "self": lambda u, weight: both(self_attention_routing(u, weight, return_couplings=True)),
    "inverted": lambda u, weight: both(inverted_attention_routing(u, weight, *norm(weight), 3, return_couplings=True)),
}
BOTH = pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def norm(weight):
    """A scale and a shift (D,) that are not those of the start."""
    steps = torch.linspace(-1, 1, weight.shape[2], dtype=weight.dtype)
    return 1 + 0.5 * steps, 0.3 * steps.flip(0)


def both(routed):
    """Poses and couplings."""
    return routed.poses, routed.couplings


def random(B, I, J, D, K, dtype=torch.float64):
    return torch.randn(B, I, K, dtype=dtype), torch.randn(I, J, D, K, dtype=dtype)


def test_self_attention_by_hand():
    # The votes sum to (2, 2). Logits: child 0 (1·2, 0·2), child 1 (1·2, 2·2).
    # Softmax over parents: child 0 → (0.88080, 0.11920), child 1 → (0.11920, 0.88080)
    # s = (1, 2·0.88080) = (1, 1.76159), lengths 1 − e^−1 and 1 − e^−1.76159
    poses, _, couplings = self_attention_routing(U, WEIGHT, return_couplings=True)
    assert couplings[0].tolist() == [
        pytest.approx([0.88080, 0.11920], abs=5e-6),
        pytest.approx([0.11920, 0.88080], abs=5e-6),
    ]
    assert poses.flatten().tolist() == pytest.approx([1 - math.exp(-1), 1 - math.exp(-1.7615942)], abs=1e-7)


def test_the_prior_is_added_to_the_couplings():
    # Child 1 counts one more for parent 0, one less for parent 1: s = (1 + 1, 1.76159 − 2)
    prior = torch.tensor([[0.0, 0.0], [1.0, -1.0]], dtype=torch.float64)
    poses, _, couplings = self_attention_routing(U, WEIGHT, prior, return_couplings=True)
    assert poses.flatten().tolist() == pytest.approx([1 - math.exp(-2), math.exp(-0.2384058) - 1], abs=1e-7)
    assert torch.equal(couplings, self_attention_routing(U, WEIGHT, return_couplings=True).couplings)


def test_attention_is_divided_by_the_root_of_the_parents_dimension():
    # One child that votes (1, 1, 1, 1) for parent 0 and 0 for parent 1: its logits are 4/√4 and 0
    weight = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 4, 1)
    couplings = self_attention_routing(torch.ones(1, 1, 1), weight, return_couplings=True).couplings
    assert couplings.flatten().tolist() == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))])


def test_inverted_attention_by_hand():
    # Child 0 votes (2, 0) and (0, 1), child 1 votes (0, 1) and (0, 1). Halves of them sum to (1, ½) and (0, 1).
    weight = torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]], dtype=torch.float64)[..., None]
    u, scale, shift = torch.ones(1, 2, 1).double(), torch.tensor([1.0, 2.0]).double(), torch.tensor([0.0, 3.0]).double()

    def normalised(a, b):
        """Of two numbers each is half their difference from the mean."""
        half = (a - b) / 2
        return [half / math.sqrt(half**2 + 1e-5), 3 - 2 * half / math.sqrt(half**2 + 1e-5)]

    poses, _, couplings = inverted_attention_routing(u, weight, scale, shift, 1, return_couplings=True)
    assert torch.equal(couplings, torch.full_like(couplings, 0.5))
    one, two = normalised(1, 0.5), normalised(0, 1)
    assert poses[0].tolist() == [pytest.approx(one), pytest.approx(two)]
    # Agreement: child 0 (2·one₀, two₁), child 1 (one₁, two₁); softmax over the two parents
    first = [1 / (1 + math.exp(two[1] - 2 * one[0])), 1 / (1 + math.exp(two[1] - one[1]))]
    poses, _, couplings = inverted_attention_routing(u, weight, scale, shift, 2, return_couplings=True)
    assert couplings[0, :, 0].tolist() == pytest.approx(first)
    expected = [normalised(2 * first[0], first[1]), normalised(0, 2 - first[0] - first[1])]
    assert poses[0].tolist() == [pytest.approx(pose) for pose in expected]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", ["plain", "prior", "inverted 1", "inverted 3"])
def test_agrees_with_the_literal_form(shape, case):
    u, weight = (x.requires_grad_() for x in random(*shape))
    if case.startswith("inverted"):
        arguments, iterations = (u, weight, *(x.requires_grad_() for x in norm(weight.detach()))), int(case[-1])
        got = both(inverted_attention_routing(*arguments, iterations, return_couplings=True))
        expected = reference.inverted_attention_routing(*arguments, iterations)
    else:
        prior = torch.randn(weight.shape[:2], dtype=torch.float64, requires_grad=True) if case == "prior" else None
        arguments = (u, weight) if prior is None else (u, weight, prior)
        got = both(self_attention_routing(u, weight, prior, return_couplings=True))
        expected = reference.self_attention_routing(u, weight, prior)
    grads = [torch.randn_like(x) for x in expected]
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    pairs = zip(
        *(torch.autograd.grad(sum((x * g).sum() for x, g in zip(out, grads)), arguments) for out in (got, expected))
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_inverted_attention_goes_on_from_given_parents():
    u, weight = random(3, 7, 4, 5, 2)
    first = inverted_attention_routing(u, weight, *norm(weight), 1).poses
    third = inverted_attention_routing(u, weight, *norm(weight), 2, parents=first).poses
    torch.testing.assert_close(third, inverted_attention_routing(u, weight, *norm(weight), 3).poses)
    zero = torch.zeros_like(first)
    torch.testing.assert_close(inverted_attention_routing(u, weight, *norm(weight), 1, parents=zero).poses, first)


@BOTH
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_properties(routing, shape):
    u, weight = random(*shape)
    testing.assert_children_permute(routing, u, weight)
    testing.assert_batch_independent(routing, u, weight)
    testing.assert_couplings_normalised(routing, u, weight)


@BOTH
def test_gradcheck(routing):
    testing.assert_gradcheck(routing, torch.randn(2, 4, 3), torch.randn(4, 3, 2, 3), every_entry=True)


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 20, 4, 16, 8), (2, 1, 3, 4, 4), (2, 6, 1, 3, 5)], ids=str)
def test_finite_gradients(routing, shape, dtype):
    testing.assert_finite_gradients(routing, *random(*shape, dtype=dtype))


def test_self_attention_lengths_are_bounded():
    testing.assert_lengths_bounded(self_attention_routing, *random(3, 20, 4, 16, 8, dtype=torch.float32))


@BOTH
def test_huge_votes_choose_one_parent(routing):
    u, weight = random(3, 20, 4, 16, 8, dtype=torch.float32)
    (huge, chosen), (large, expected) = routing(u * 1e19, weight), routing(u * 1e3, weight)
    torch.testing.assert_close(chosen, expected)
    torch.testing.assert_close(huge, large)


@BOTH
def test_zero_children_are_coupled_to_all_alike(routing):
    weight = torch.randn(6, 4, 3, 2)
    for children in (torch.zeros(2, 6, 2), torch.zeros(2, 0, 2)):
        poses, couplings = routing(children, weight[: children.shape[1]])
        assert torch.equal(couplings, torch.full((2, children.shape[1], 4), 0.25))
        resting = torch.zeros(3) if routing is ROUTINGS["self"] else norm(weight)[1]
        torch.testing.assert_close(poses, resting.expand(2, 4, 3))


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_float32(routing, dtype):
    u, weight = random(3, 7, 4, 5, 2, dtype=dtype)
    for got, expected in zip(routing(u, weight), routing(u.float(), weight.float())):
        assert got.dtype == dtype
        torch.testing.assert_close(got, expected.to(dtype), rtol=0.02, atol=0.01)  # scale and shift are rounded, too
    exact = routing(u.float(), weight.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(torch.equal, routing(u.float(), weight.float()), exact))


def test_presence_is_a_linear_classifier():
    # 1·2 + 3·(−1) + 0.5 = −0.5
    got = presence(torch.tensor([[[1.0, 3.0]]]), torch.tensor([2.0, -1.0]), torch.tensor(0.5))
    assert got.tolist() == [[pytest.approx(1 / (1 + math.exp(0.5)))]]
    assert presence(torch.zeros(2, 3, 4).bfloat16(), torch.zeros(4), torch.zeros(())).dtype == torch.float32


def test_squash_exponential_by_hand():
    # |x| = 5, so the length becomes 1 − e^−5 in the direction (0.6, 0.8)
    squashed = squash_exponential(torch.tensor([3.0, 4.0], dtype=torch.float64))
    assert squashed.tolist() == pytest.approx([0.6 * (1 - math.exp(-5)), 0.8 * (1 - math.exp(-5))], rel=1e-14)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_squash_exponential_passes_the_gradient_on_at_zero(dtype):
    x = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
    y = squash_exponential(x)
    (gradient,) = torch.autograd.grad(y, x, torch.full_like(y, 3))
    assert y.dtype == dtype
    assert torch.equal(y, torch.zeros_like(y))
    assert torch.equal(gradient, torch.full_like(y, 3))


@pytest.mark.parametrize("magnitude", [1e-42, 1e-30, 1e-8, 2e-4, 5e-4, 1e-2, 1.0, 1e3, 1e19], ids=str)
def test_squash_exponential_is_exact_at_every_length(magnitude):
    direction = torch.nn.functional.normalize(torch.randn(20, 5, dtype=torch.float64), dim=-1)
    x = (direction * magnitude).float().requires_grad_()
    grad = torch.randn_like(x)
    (gradient,) = torch.autograd.grad(squash_exponential(x), x, grad)
    exact = -math.expm1(-magnitude)
    torch.testing.assert_close(squash_exponential(x).double(), x.double() * exact / magnitude, rtol=1e-5, atol=0)
    # Along x the slope is e^−n, across it (1 − e^−n)/n.
    along = (direction * grad).sum(-1, keepdim=True) * direction
    expected = along * math.exp(-magnitude) + (grad - along) * exact / magnitude
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dim", [1, -1])
def test_squash_exponential_gradcheck(dim):
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: squash_exponential(x, dim), x)
    torch.testing.assert_close(squash_exponential(x, dim), squash_exponential(x.movedim(dim, -1)).movedim(-1, dim))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda u, w: self_attention_routing(u[0], w), r"self.*u must be \(B, I, K\)"),
        (lambda u, w: self_attention_routing(u[:, :2], w), r"got \(2, 2, 2\) and \(4, 3, 5, 2\)"),
        (lambda u, w: self_attention_routing(u, w, w[0, :, 0]), r"prior must be \(I, J\) = \(4, 3\), got \(3, 2\)"),
        (
            lambda u, w: inverted_attention_routing(u, w, *norm(w), 0),
            "iterations must be a whole number, at least 1, got 0",
        ),
        (lambda u, w: inverted_attention_routing(u, w[:, :, :1], *norm(w)), "of one dimension is always the same"),
        (lambda u, w: inverted_attention_routing(u, w, w[0, 0, :, 0], u), r"must be \(D,\) = \(5,\), got \(5,\), \(2,"),
        (
            lambda u, w: inverted_attention_routing(u, w, *norm(w), parents=u),
            r"parents must be \(B, J, D\) = \(2, 3, 5",
        ),
    ],
    ids=["rank", "children", "prior", "iterations", "one dimension", "shift", "parents"],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(2, 4, 2), torch.zeros(4, 3, 5, 2))
