"""Dynamic routing on numbers small enough to follow with a pencil, for both backends."""

from __future__ import annotations

import math

import pytest
import torch

from torchcaps.ops import dynamic_routing

# Two children, two parents, one dimension each. Child 0 votes (1, 0), child 1 votes (1, 2).
U = torch.tensor([[[2.0], [1.0]]], dtype=torch.float64)  # (1, 2, 1)
WEIGHT = torch.tensor([[[[0.5]], [[0.0]]], [[[1.0]], [[2.0]]]], dtype=torch.float64)  # (2, 2, 1, 1)


@pytest.fixture(autouse=True, params=["reference", "chunked"])
def backend(request, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_BACKEND", request.param)


def squashed(s: float) -> float:
    """squash of a number: its square over one more than its square, with its sign."""
    return math.copysign(s * s / (1 + s * s), s)


def routed(iterations, **options):
    poses, _, couplings = dynamic_routing(U, WEIGHT, iterations, return_couplings=True, **options)
    return poses.flatten().tolist(), couplings[0].tolist()


def test_first_iteration_is_uniform():
    # c = 1/2: s = ((1 + 1)/2, (0 + 2)/2) = (1, 1), and squash(1) = 1/2
    poses, couplings = routed(1)
    assert poses == pytest.approx([0.5, 0.5], abs=1e-14)
    assert couplings == [[0.5, 0.5], [0.5, 0.5]]


def test_second_iteration_follows_agreement():
    # v = (0.5, 0.5) agrees with child 0 by (0.5, 0) and with child 1 by (0.5, 1).
    # Softmax over parents: child 0 → (0.62246, 0.37754), child 1 → (0.37754, 0.62246).
    # s = (1·0.62246 + 1·0.37754, 0 + 2·0.62246) = (1, 1.24492); squash → (0.5, 0.60782)
    poses, couplings = routed(2)
    assert couplings == [pytest.approx([0.62246, 0.37754], abs=5e-6), pytest.approx([0.37754, 0.62246], abs=5e-6)]
    assert poses == pytest.approx([0.5, 0.60782], abs=5e-6)


def test_third_iteration_adds_to_the_logits():
    # The logits are votes · (v₁ + v₂), v₁ + v₂ = (1, 1.10782): child 0 (1, 0), child 1 (1, 2.21563).
    # Couplings: child 0 → (0.73106, 0.26894), child 1 → (0.22871, 0.77129)
    # s = (0.73106 + 0.22871, 2·0.77129) = (0.95976, 1.54259); squash → (0.47948, 0.70410)
    poses, couplings = routed(3)
    assert couplings == [pytest.approx([0.73106, 0.26894], abs=5e-6), pytest.approx([0.22871, 0.77129], abs=5e-6)]
    assert poses == pytest.approx([0.47948, 0.70410], abs=5e-6)


def test_bias_is_added_before_the_squash():
    # s = (1 + 1, 1 − 2) = (2, −1): squash → (4/5, −1/2); it belongs to the parent, so no child's coupling scales it
    poses, _ = routed(1, bias=torch.tensor([[1.0], [-2.0]], dtype=torch.float64))
    assert poses == pytest.approx([0.8, -0.5], abs=1e-14)


def test_leaky_children_keep_a_share():
    # One more logit, 0: c = 1/3 each, s = (2/3, 2/3), v = (4/9)/(13/9) = 4/13
    poses, couplings = routed(1, leaky=True)
    assert poses == pytest.approx([4 / 13, 4 / 13], abs=1e-14)
    assert couplings == [pytest.approx([1 / 3, 1 / 3])] * 2
    # Logits: child 0 (4/13, 0 | 0), child 1 (4/13, 8/13 | 0)
    a, b = math.exp(4 / 13), math.exp(8 / 13)
    child0, child1 = [a / (a + 2), 1 / (a + 2)], [a / (a + b + 1), b / (a + b + 1)]
    poses, couplings = routed(2, leaky=True)
    assert couplings == [pytest.approx(child0), pytest.approx(child1)]
    assert poses == pytest.approx([squashed(child0[0] + child1[0]), squashed(2 * child1[1])])
