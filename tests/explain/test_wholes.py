"""Routing by poses, step by step: the last iteration is what the layer returns, and hypotheses keep their places."""

import pytest
import torch
from torch.nn import functional

from torchcaps.data import draw_shapes
from torchcaps.explain.wholes import presence_near, whole_trace
from torchcaps.layers import WholeCaps
from torchcaps.similarity import Similarity

SYMMETRY = (2, 1, 0, 2, 1)


@pytest.fixture(scope="module")
def layer():
    """Random layouts, with tolerances so wide that wholes compete for parts."""
    torch.manual_seed(0)
    options = {"symmetry": SYMMETRY, "tolerance": (4.0, 40.0, 0.3)}
    return WholeCaps(5, 2, [[0, 1], [0, 1]], **options).double().requires_grad_(False)


@pytest.fixture(scope="module")
def parts():
    """Pose, presence and types of the parts of one scene."""
    parts = draw_shapes(1, 5, number=(4, 4), size=64, shift=None, dtype=torch.float64).parts
    pose = Similarity.of(x=parts.x, y=parts.y, angle=parts.angle, scale=parts.scale).numbers[0]
    presence = torch.linspace(1, 0.3, len(pose)).double()
    return pose, presence, functional.one_hot(parts.label[0], 5).double()


@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_the_last_iteration_is_that_of_the_layer(layer, parts, iterations):
    trace = whole_trace(layer, *parts, iterations)
    found = layer(*(each[None] for each in parts), iterations=iterations)
    there = found.log_odds[0].isfinite()
    order = trace.presence[-1].argsort(descending=True)
    assert trace.presence.shape == (iterations, int(there.sum()))
    assert torch.allclose(trace.presence[-1, order], found.presence[0, there], atol=1e-12)
    assert torch.allclose(trace.pose.numbers[-1, order], found.pose[0, there], atol=1e-12)
    assert torch.equal(trace.label[order], found.label[0, there])
    couplings = trace.couplings[-1][:, [*order, -1]]
    assert torch.allclose(couplings, found.couplings[0][:, [*there.nonzero()[:, 0], -1]], atol=1e-12)


def test_hypotheses_keep_their_places(layer, parts):
    """Each iteration alone: one with more of them has the same steps before."""
    long, short = whole_trace(layer, *parts, 4), whole_trace(layer, *parts, 2)
    assert torch.equal(long.label, short.label)
    assert torch.equal(long.presence[:2], short.presence)
    assert torch.equal(long.pose.numbers[:2], short.pose.numbers)
    orders = long.presence.argsort(descending=True)
    assert not torch.equal(orders[0], orders[-1])  # so places are not the order of presence
    moved = (long.pose.numbers[1:, :, :2] - long.pose.numbers[:-1, :, :2]).norm(dim=-1)
    assert moved.max() < 8  # no hypothesis turns into another one


def test_couplings_of_each_part_sum_to_one(layer, parts):
    couplings = whole_trace(layer, *parts, 3).couplings
    assert torch.allclose(couplings.sum(-1), torch.ones_like(couplings[..., 0]))
    assert couplings.min() > -1e-12


def test_without_parts_there_is_nothing(layer):
    trace = whole_trace(layer, torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, 5), 2)
    assert trace.presence.shape == (2, 0)
    assert trace.couplings.shape == (2, 0, 1)
    assert trace.pose.numbers.shape == (2, 0, 4)


def test_a_whole_alone_is_as_present_as_in_a_scene_of_its_parts():
    layer = (
        WholeCaps(5, 2, [[0, 1], [0, 1]], symmetry=SYMMETRY, tolerance=(2.0, 20.0, 0.2)).double().requires_grad_(False)
    )
    boats = Similarity.of(x=torch.tensor([[20.0], [30.0]], dtype=torch.float64), angle=40.0, y=25.0)
    pose = boats @ layer.layouts(boats.numbers).pose[:1]
    pose = Similarity(pose.numbers + torch.tensor([[0.8, -0.3, 0, 0], [0, 0, 0.05, 0]]).double())  # disturbed
    presence, types = torch.tensor([[1.0, 0.9]] * 2).double(), torch.eye(5)[:2].expand(2, -1, -1).double()
    label = torch.zeros(2, 1, dtype=torch.long)
    found = layer(pose.numbers, presence, types, iterations=1)
    best = found.presence.masked_fill(found.label != 0, 0).amax(1)
    near = presence_near(layer, pose.numbers, presence, types, boats, label)
    assert torch.allclose(near[:, 0], best, atol=1e-3)
    assert (near > 0.5).all()
    other = presence_near(layer, pose.numbers, presence, types, Similarity(boats.numbers + 20), label)
    assert (other < 0.01).all()
