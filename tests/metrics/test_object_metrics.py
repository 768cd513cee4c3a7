"""Matching of found and true objects by hand, and average precision."""

import math

import pytest
import torch

from torchcaps.metrics.objects import boxes_of, match_objects, mean_average_precision
from torchcaps.similarity import Similarity


def row(x, y, label=0, angle=0.0, level=0, width=4.0, height=2.0):
    numbers = Similarity.of(x=torch.tensor(float(x)), y=float(y), angle=float(angle)).numbers.tolist()
    return [level, label, *numbers, width, height]


def found(*objects):
    """(label, presence, x, y, angle) of the objects of one image."""
    label, presence, x, y, angle = (torch.tensor([each], dtype=torch.float32) for each in zip(*objects))
    return label.long(), presence, Similarity.of(x=x, y=y, angle=angle).numbers


TRUTH = torch.tensor([[row(5, 5), row(20, 5, 1, 90), [-1.0, *[0.0] * 7]]])


def test_each_true_object_is_found_once():
    matches = match_objects(*found((0, 0.9, 5.5, 5, 3), (0, 0.8, 5, 5, 0), (1, 0.7, 20, 6, 88)), TRUTH, 0)
    assert matches.found.tolist() == [[0, -1, 1]]
    assert matches.known == 2
    assert matches.f1() == pytest.approx(2 * 2 / (3 + 2))
    summary = matches.summary()
    assert summary["precision"] == pytest.approx(2 / 3, abs=1e-6)
    assert summary["recall"] == 1
    assert matches.pixels[0, [0, 2]].tolist() == pytest.approx([0.5, 1.0], abs=1e-5)
    assert matches.degrees[0, [0, 2]].tolist() == pytest.approx([3, 2], abs=1e-3)
    assert matches.log_scale[0, 0].item() == pytest.approx(0, abs=1e-6)
    assert math.isnan(matches.pixels[0, 1])


@pytest.mark.parametrize(
    "other",
    [(0, 0.9, 7, 5, 0), (0, 0.9, 5, 5, 6), (1, 0.9, 5, 5, 0), (0, 0.4, 5, 5, 0)],
    ids=["too far", "turned too far", "another class", "not present"],
)
def test_what_is_no_match(other):
    matches = match_objects(*found(other), TRUTH[:, :1], 0)
    assert matches.found.tolist() == [[-1]]
    assert matches.f1() == 0


def test_angles_are_compared_around_the_circle_and_levels_apart():
    truth = torch.tensor([[row(5, 5, angle=179), row(5, 5, level=1)]])
    assert match_objects(*found((0, 0.9, 5, 5, -179)), truth, 0).found.tolist() == [[0]]
    assert match_objects(*found((0, 0.9, 5, 5, 0)), truth, 1).found.tolist() == [[1]]


def test_nothing_to_find_and_nothing_found():
    empty = torch.tensor([[[-1.0, *[0.0] * 7]]])
    nothing = torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 0), torch.zeros(1, 0, 4)
    assert match_objects(*nothing, empty, 0).f1() == 1
    assert match_objects(*nothing, TRUTH, 0).f1() == 0
    assert match_objects(*found((0, 0.9, 5, 5, 0)), empty, 0).f1() == 0


def test_boxes_of_turned_objects():
    pose = Similarity.of(x=torch.tensor([5.0, 5.0]), y=5.0, angle=torch.tensor([0.0, 90.0]), scale=2.0).numbers
    boxes = boxes_of(pose, torch.tensor([4.0, 2.0]))
    torch.testing.assert_close(boxes, torch.tensor([[1.0, 3, 9, 7], [3.0, 1, 7, 9]]))


def test_average_precision_by_hand():
    truth = torch.tensor([[row(5, 5), row(20, 5)]])
    boxes = boxes_of(torch.tensor([[[5.0, 5, 1, 0], [40, 40, 1, 0], [20.5, 5, 1, 0]]]), torch.tensor([4.0, 2.0]))
    label = torch.zeros(1, 3, dtype=torch.long)
    # Right, wrong, right: precisions 1 and 2/3 at recalls 1/2 and 1.
    presence = torch.tensor([[0.9, 0.8, 0.7]])
    assert mean_average_precision(label, presence, boxes, truth, 1) == pytest.approx((1 + 2 / 3) / 2, abs=1e-6)
    presence = torch.tensor([[0.9, 0.1, 0.7]])
    assert mean_average_precision(label, presence, boxes, truth, 1) == 1
    assert mean_average_precision(label, presence * 0, boxes, truth, 1) == 0
    assert mean_average_precision(label, presence, boxes + 2, truth, 2) == 0  # and class 1 does not occur
