"""What counts as another answer, and what as rounding."""

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.exchange.check import TOLERANCE, compare


class Given:
    """Answers that are the inputs."""

    def __init__(self, *outputs):
        self.outputs = outputs

    def __call__(self, *values):
        return values


def classes(*lengths):
    return torch.tensor([[0.1, *lengths], [0.9, 0.2, 0.3]])


def test_another_class_is_found_even_within_the_tolerance():
    ahead, behind = classes(0.50015, 0.5), classes(0.50006, 0.50009)
    with pytest.raises(UserError, match="another class in 1 of 2 images"):
        compare(Given("lengths"), lambda _: (behind,), (ahead,))


def test_classes_that_are_alike_but_for_rounding_may_change_places():
    ahead, behind = classes(0.50001, 0.5), classes(0.5, 0.50001)
    drawn, other = torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4)
    other[0] = 1  # what the other class looks like
    answers = Given("lengths", "reconstruction")
    assert compare(answers, lambda _: (behind, other), (ahead, drawn)) == pytest.approx(1e-5, rel=0.1)
    other[1] = 2 * TOLERANCE
    with pytest.raises(UserError, match="reconstruction differs from the model's by up to 0.0002"):
        compare(answers, lambda _: (behind, other), (ahead, drawn))


@pytest.mark.parametrize("maps", [1, 3])
def test_masks_must_be_the_same_where_they_are_decided(maps):
    lengths = torch.rand(2, maps, 5, 6)
    masks = (lengths[:, 0] > 0.5).long() if maps == 1 else lengths.argmax(1)
    answers = Given("lengths", "masks")
    assert compare(answers, lambda _: (lengths, masks), (lengths, masks)) == 0
    wrong = masks.clone()
    wrong[1, 2, 3] = 1 - wrong[1, 2, 3].clamp(max=1)
    with pytest.raises(UserError, match="another class in 1 of 60 pixels"):
        compare(answers, lambda _: (lengths, wrong), (lengths, masks))
    lengths[1, :, 2, 3] = 0.5
    assert compare(answers, lambda _: (lengths, wrong), (lengths, masks)) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.1 + 1.5 * TOLERANCE])
def test_numbers_that_differ_are_told(value):
    found = classes(0.3, 0.2)
    found[0, 0] = value
    with pytest.raises(UserError, match="lengths differs .* nothing was written"):
        compare(Given("lengths"), lambda _: (found,), (classes(0.3, 0.2),))


def test_other_shapes_are_told():
    with pytest.raises(UserError, match=r"lengths has shape \(1, 3\), that of the model \(2, 3\)"):
        compare(Given("lengths"), lambda _: (torch.ones(1, 3),), (torch.ones(2, 3),))
