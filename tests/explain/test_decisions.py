"""What routing decides, in numbers and in words, on votes that can be followed by hand."""

import pytest
import torch

from torchcaps.explain.decisions import decide, describe_decision
from torchcaps.explain.vote_plane import MAX_CLASSES, MAX_PARTS, ink_at_parts, vote_plane
from torchcaps.explain.votes import RoutingTrace, routing_trace
from torchcaps.models import create_model


def trace(couplings, lengths):
    """Three parts, two classes and as many iterations as lengths; all votes are (1, 0) but the last part's, three
    times as long."""
    votes = torch.tensor([[[1.0, 0.0]] * 2, [[1.0, 0.0]] * 2, [[3.0, 0.0]] * 2])
    poses = torch.tensor([[[0.5, 0.0], [0.5, 0.0]]] * len(lengths))
    return RoutingTrace(torch.ones(3), votes, torch.tensor(couplings), poses, torch.tensor(lengths))


EQUAL = [[0.5, 0.5]] * 3
FIRST = [[1.0, 0.0], [0.9, 0.1], [0.4, 0.6]]


def test_couplings_that_change_nothing_are_said_to_decide_little():
    found = decide(trace([EQUAL, EQUAL], [[0.6, 0.2], [0.7, 0.1]]))
    assert (found.kind, found.winners, found.decided, found.changed_at) == ("none", [0, 0], 0, None)
    assert found.undecided == pytest.approx(1)
    assert found.share == pytest.approx(0.6)  # 3 of 5
    words = describe_decision(found, ["cat", "dog"])
    assert "The couplings decide little here: cat is longest already at iteration 1, where all couplings are" in words
    assert "100.0 % undecided" in words
    assert "0 of 3 parts give more than half" in words
    assert "60 % of the support for cat" in words


def test_parts_that_decide_without_changing_the_answer():
    found = decide(trace([EQUAL, FIRST], [[0.6, 0.2], [0.7, 0.1]]))
    assert (found.kind, found.decided) == ("parts", 3)
    assert "Most parts decide, but not the answer: cat" in describe_decision(found, ["cat", "dog"])


def test_a_class_that_is_present_only_after_routing():
    found = decide(trace([EQUAL, FIRST, FIRST], [[0.2, 0.1], [0.6, 0.1], [0.9, 0.1]]))
    assert (found.kind, found.present_at) == ("present", 2)
    words = describe_decision(found, ["cat", "dog"])
    assert words.startswith("Routing decides that there is a cat: with equal couplings, at iteration 1, its capsule is")
    assert "only 0.20 long and no class is present. As votes that agree are coupled more, it grows to 0.90." in words
    assert decide(trace([EQUAL, FIRST], [[0.2, 0.1], [0.4, 0.1]])).kind == "parts"  # never present
    assert decide(trace([EQUAL, EQUAL], [[0.2, 0.1], [0.9, 0.1]])).kind == "none"  # by equal couplings


def test_an_answer_that_changes_is_told_with_the_iteration_that_changed_it():
    found = decide(trace([EQUAL, EQUAL, FIRST], [[0.6, 0.7], [0.6, 0.7], [0.7, 0.1]]))
    assert (found.kind, found.changed_at) == ("changed", 3)
    words = describe_decision(found, ["cat", "dog"])
    assert words.startswith(
        "Routing changes the answer: dog is longest at iteration 1, where all couplings are equal, "
    )
    assert "cat from iteration 3 on." in words


def test_without_equal_couplings_at_the_start_none_are_claimed():
    found = decide(trace([FIRST], [[0.6, 0.2]]))
    assert not found.starts_uniform
    assert "equal, " not in describe_decision(found, ["cat", "dog"]).split(".")[0]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    network = create_model("capsnet_small", image_shape=(1, 20, 20), channels=4, types=24, class_dim=6).eval()
    network.classes.weight.data.mul_(30)
    return network


def test_parts_that_see_ink_come_first(model):
    image = torch.zeros(1, 20, 20)
    image[:, 4:9, 10:17] = 1
    ink = ink_at_parts(model, image)
    assert ink.max() == 1
    row, column = divmod(int(ink.argmax()), ink.shape[1])
    assert 4 <= 2 * row + 4 < 9  # the middle of its receptive field, 2·row + 4, has ink
    assert 10 <= 2 * column + 4 < 17
    assert ink[-1].max() == 0
    plane = vote_plane(model, image, routing_trace(model, image))
    assert len(plane.parts) == MAX_PARTS < 24 * ink.numel()
    assert (plane.ink.diff() <= 0).all()
    assert (plane.ink > 0).all()
    torch.testing.assert_close(plane.ink, ink.flatten()[plane.parts % ink.numel()])


def test_dark_ink_on_light_paper_is_ink(model):
    image = torch.zeros(1, 20, 20)
    image[:, 4:9, 10:17] = 1
    torch.testing.assert_close(ink_at_parts(model, 1 - image), ink_at_parts(model, image))


def test_the_plane_has_the_class_capsule_on_its_x_axis_and_keeps_lengths(model):
    image = torch.rand(1, 20, 20)
    traced = routing_trace(model, image, 5)
    plane = vote_plane(model, image, traced)
    assert (
        plane.classes.tolist() == traced.lengths[2].argsort(descending=True)[:MAX_CLASSES].tolist()
    )  # of 3 iterations
    torch.testing.assert_close(plane.capsules[2, :, 0], traced.lengths[2, plane.classes])
    assert plane.capsules[2, :, 1].abs().max() < 1e-5
    votes = traced.votes[plane.parts][:, plane.classes]
    assert (plane.votes.norm(dim=-1) <= votes.norm(dim=-1) + 1e-5).all()
    kept = plane.votes.square().sum((0, 2)) / votes.square().sum((0, 2))
    torch.testing.assert_close(plane.kept, kept)
    support = traced.couplings[2][plane.parts][:, plane.classes] * plane.votes[..., 0]
    torch.testing.assert_close(support, traced.support[2][plane.parts][:, plane.classes], atol=1e-5, rtol=1e-4)
    assert plane.agreement.abs().max() <= 1
