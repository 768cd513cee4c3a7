"""Dice, IoU and distance of masks, by hand."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.metrics import segmentation
from torchcaps.metrics.segmentation import mask_metrics, pixel_error, summarise

DIAGONAL = math.hypot(5, 5)


def mask(*rows):
    return torch.tensor([[255 if mark == "x" else int(mark) for mark in row] for row in rows], dtype=torch.uint8)


SQUARE = mask("00000", "01110", "01110", "01110", "00000")
MOVED = mask("00000", "00111", "00111", "00111", "00000")


def values(dice, iou, distance):
    return pytest.approx({"dice": dice, "iou": iou, "hausdorff95": distance}, abs=1e-6)


def test_by_hand():
    found = mask_metrics(MOVED, SQUARE, 2)
    # 6 of 9 and 9 pixels are shared. Of the 8 pixels of either outline 4 lie on the other and 4 next to it.
    assert found[1] == values(12 / 18, 6 / 12, 1.0)
    # Of 16 background pixels each 13 are shared.
    assert (found[0]["dice"], found[0]["iou"]) == pytest.approx((26 / 32, 13 / 19))
    assert pixel_error(MOVED, SQUARE) == 6 / 25


def test_perfect():
    assert mask_metrics(SQUARE, SQUARE, 2) == {0: values(1, 1, 0), 1: values(1, 1, 0)}
    assert pixel_error(SQUARE, SQUARE) == 0


def test_the_distance_of_single_pixels():
    one, other = mask("10000", "00000", "00000", "00000", "00000"), mask("00000", "00000", "00000", "00010", "00000")
    assert mask_metrics(one, other, 2)[1] == values(0, 0, math.hypot(3, 3))


def test_a_straggler_counts_for_5_percent_only():
    true = torch.zeros(40, 40, dtype=torch.long)
    true[0, :30] = 1
    predicted = true.clone()
    predicted[39, 0] = 1  # one of 31
    assert mask_metrics(predicted, true, 2)[1]["hausdorff95"] == 0
    predicted[39, :4] = 1  # four of 34
    assert mask_metrics(predicted, true, 2)[1]["hausdorff95"] == pytest.approx(39)


def test_absent_classes():
    empty = torch.zeros(5, 5, dtype=torch.long)
    found = mask_metrics(SQUARE, SQUARE, 3)
    assert found[2] == values(1, 1, 0)  # neither has it
    assert mask_metrics(empty, SQUARE, 2)[1] == values(0, 0, DIAGONAL)
    assert mask_metrics(SQUARE, empty, 2)[1] == values(0, 0, DIAGONAL)
    full = torch.ones(5, 5, dtype=torch.long)
    assert mask_metrics(full, full, 2) == {0: values(1, 1, 0), 1: values(1, 1, 0)}
    assert mask_metrics(full, empty, 2) == {0: values(0, 0, DIAGONAL), 1: values(0, 0, DIAGONAL)}


def test_ignored_pixels():
    # The third column of the moved square does not count: 6 of 9 and 6 pixels are shared.
    partly = mask("00000", "0111x", "0111x", "0111x", "00000")
    found = mask_metrics(MOVED, partly, 2)
    # For the distance the square is 3×3 and the prediction 3×2, all of it on the outline. Of the former's 8 pixels
    # the three on the left lie next to the latter; of the latter's 6 the middle one of the square lies inside it.
    assert found[1] == values(12 / 15, 6 / 9, 1.0)
    assert pixel_error(MOVED, partly) == 3 / 22
    other = MOVED.clone()
    other[1:4, 4] = torch.tensor([1, 0, 7])  # whatever is predicted there
    assert mask_metrics(other, partly, 2) == found
    assert pixel_error(other, partly) == 3 / 22


def test_an_image_of_which_nothing_counts():
    assert mask_metrics(SQUARE, torch.full((5, 5), 255), 2) == {0: values(1, 1, 0), 1: values(1, 1, 0)}
    assert pixel_error(SQUARE, torch.full((5, 5), 255)) == 0


def test_several_classes():
    true = mask("11000", "11000", "00000", "00022", "00022")
    predicted = mask("11000", "11000", "00000", "00000", "00022")
    found = mask_metrics(predicted, true, 3)
    assert found[1] == values(1, 1, 0)
    assert found[2] == values(2 * 2 / 6, 2 / 4, 1.0)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (33, 2)], ids="{0[0]}x{0[1]}".format)
def test_any_size(size):
    ids = torch.randint(3, size)
    assert all(found == values(1, 1, 0) for found in mask_metrics(ids, ids, 3).values())


def test_dice_of_a_batch_is_that_of_each_mask():
    found, true = torch.randint(3, (4, 9, 7)), torch.randint(3, (4, 9, 7))
    true[:, 2:5, 3] = 255
    expected = [[mask_metrics(*pair, 4)[index]["dice"] for pair in zip(found, true)] for index in range(4)]
    assert segmentation.dice(found, true, 4).tolist() == expected


def test_summary():
    images = [mask_metrics(SQUARE, SQUARE, 3), mask_metrics(torch.zeros(5, 5), SQUARE, 3)]
    summary = summarise(images)
    assert summary.per_class[1] == values(0.5, 0.5, DIAGONAL / 2)
    assert summary.per_class[2] == values(1, 1, 0)
    assert summary.mean == values(0.75, 0.75, DIAGONAL / 4)  # without the background
    with pytest.raises(ValueError, match="at least one image"):
        summarise([])
    with pytest.raises(ValueError, match="the same classes"):
        summarise([*images, mask_metrics(SQUARE, SQUARE, 2)])


def test_mistakes_are_told():
    with pytest.raises(ValueError, match=r"two masks of the same shape \(H, W\), got \(5, 5\) and \(4, 5\)"):
        mask_metrics(SQUARE, SQUARE[1:], 2)
    with pytest.raises(ValueError, match=r"got \(1, 5, 5\) and \(1, 5, 5\)"):
        pixel_error(SQUARE[None], SQUARE[None])
    with pytest.raises(UserError, match="a true class id is 3, but there are 2 classes, 0 to 1; .* the id 255"):
        mask_metrics(SQUARE, SQUARE * 3, 2)
    with pytest.raises(UserError, match="a predicted class id is -1"):
        mask_metrics(-SQUARE.long(), SQUARE, 2)
    with pytest.raises(UserError, match="num_classes=1"):
        mask_metrics(SQUARE, SQUARE, 1)


def test_monai_is_loaded_when_first_used():
    code = "import sys, torchcaps.metrics.segmentation; print('monai' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
