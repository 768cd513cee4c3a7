"""Routing traced iteration by iteration, on votes that can be followed by hand. Its agreement with the reference of
routing, iteration by iteration, is tested where it is served."""

import math

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.explain.receptive_field import receptive_field
from torchcaps.explain.votes import RoutingTrace, routing_trace
from torchcaps.models import create_model


def two_parts(couplings):
    """Part 0 votes (1, 0) for class 0 and (0, 2) for class 1; part 1, three times as long, (0, 1) and (0, −2)."""
    votes = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 1.0], [0.0, -2.0]]])
    poses = torch.tensor([[[0.5, 0.0], [0.0, 0.25]]])
    return RoutingTrace(torch.tensor([0.2, 0.6]), votes, torch.tensor([couplings]), poses, torch.tensor([[0.5, 0.25]]))


def test_support_is_coupling_times_what_goes_the_classs_way():
    said = two_parts([[0.75, 0.25], [0.5, 0.5]])
    torch.testing.assert_close(said.support, torch.tensor([[[0.75, 0.5], [0.0, -1.0]]]))
    torch.testing.assert_close(said.agreement, torch.tensor([[[1.0, 1.0], [0.0, -1.0]]]))


def test_long_parts_count_more_in_the_entropy():
    assert two_parts([[0.5, 0.5], [0.5, 0.5]]).entropy.item() == pytest.approx(1)
    assert two_parts([[1.0, 0.0], [0.0, 1.0]]).entropy.item() == 0
    assert two_parts([[1.0, 0.0], [0.5, 0.5]]).entropy.item() == pytest.approx(0.75)  # 0.6 of 0.8
    assert two_parts([[0.5, 0.5], [1.0, 0.0]]).entropy.item() == pytest.approx(0.25)


def test_what_leaks_counts_as_one_more_class():
    third = 1 / 3
    assert two_parts([[third, third], [third, third]]).entropy.item() == pytest.approx(1)
    kept = two_parts([[0.0, 0.0], [0.5, 0.0]]).entropy.item()
    assert kept == pytest.approx(0.75 * math.log(2) / math.log(3))


def test_parts_of_no_length_have_no_say():
    silent = two_parts([[0.5, 0.5], [0.5, 0.5]])._replace(parts=torch.zeros(2))
    assert silent.entropy.item() == 0


def test_the_last_step_is_what_the_model_answers():
    torch.manual_seed(0)
    model = create_model("capsnet_small", image_shape=(1, 20, 20), channels=4, types=2, variant="authors")
    image = torch.rand(1, 20, 20)
    said, output = routing_trace(model, image), model.eval()(image[None])
    torch.testing.assert_close(said.poses[-1], output.poses[0])
    torch.testing.assert_close(said.lengths[-1], output.lengths[0])
    assert len(said.couplings) == 3
    assert len(routing_trace(model, image, 5).couplings) == 5


def test_views_of_strides_and_padding():
    paper = create_model("capsnet")
    assert receptive_field(paper, 0) == (0, 2, 17)
    assert receptive_field(paper, 0).pixels(5, 28) == (10, 27)
    padded = create_model("capsnet_small", image_shape=(1, 20, 20), padding=2)
    assert receptive_field(padded, 1) == (-4, 2, 9)
    assert receptive_field(padded, 1).pixels(0, 20) == (0, 5)


def test_matrices_cannot_be_shown():
    model = create_model("capsnet_small", image_shape=(1, 20, 20), routing="em", dim=16)
    with pytest.raises(UserError, match="routing=dynamic"):
        routing_trace(model, torch.rand(1, 20, 20))
