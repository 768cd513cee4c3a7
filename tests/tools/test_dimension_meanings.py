"""What is measured of drawn shapes is what a ruler says; a decoder of known habits is seen through."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from torchcaps.errors import UserError
from torchcaps.models import create_model, save

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import dimension_meanings
from dimension_meanings import PROPERTIES, correlations, meaning, properties, write_meanings


def measured(image):
    return dict(zip(PROPERTIES, properties(image[None])[0].tolist()))


def bar(top, left, height, width, side=28):
    image = torch.zeros(side, side)
    image[top : top + height, left : left + width] = 1
    return image


def test_a_bar_is_as_wide_and_as_high_as_it_was_drawn():
    found = measured(bar(4, 12, 20, 4))
    assert found["width"] == pytest.approx(4, abs=0.15)  # 16 / 12 less 1 / 12, of whole pixels
    assert found["height"] == pytest.approx(20, abs=0.1)
    assert found["slant"] == pytest.approx(0, abs=1e-6)
    assert found["horizontal position"] == pytest.approx(13.5 - 13.5)
    assert found["vertical position"] == pytest.approx(0)
    # 80 pixels, an outline of 2 · (20 + 4); at one corner both steps are in one pixel, and √2 of 2 is counted
    assert found["thickness"] == pytest.approx(2 * 80 / (48 - 2 + 2**0.5), rel=1e-5)


def test_positions_count_to_the_right_and_down():
    found = measured(bar(10, 20, 6, 6))
    assert found["horizontal position"] == pytest.approx(22.5 - 13.5)
    assert found["vertical position"] == pytest.approx(12.5 - 13.5)


def test_what_leans_to_the_right_has_a_positive_slant_and_the_width_of_its_stroke():
    image = torch.zeros(28, 28)
    for row in range(4, 24):
        start = 12 + (13 - row) // 2  # half a pixel to the right for each row up
        image[row, start : start + 4] = 1
    found = measured(image)
    assert found["slant"] == pytest.approx(0.5, abs=0.02)
    assert found["width"] == pytest.approx(4, abs=0.3)
    assert measured(image.flip(1))["slant"] == pytest.approx(-0.5, abs=0.02)


def test_a_thicker_stroke_is_thicker_whatever_its_length_and_its_grey():
    thin, thick = bar(2, 10, 24, 2), bar(2, 10, 24, 5)
    assert measured(thick)["thickness"] / measured(thin)["thickness"] == pytest.approx(2.2, abs=0.2)
    assert measured(thin)["thickness"] == pytest.approx(measured(bar(6, 10, 14, 2))["thickness"], rel=0.1)
    assert measured(0.3 * thick)["thickness"] == pytest.approx(measured(thick)["thickness"], rel=1e-5)


def test_no_ink_measures_as_zero_and_not_as_nan():
    assert torch.equal(properties(torch.zeros(2, 9, 9)), torch.zeros(2, 6))


class Ruler(nn.Module):
    """A decoder that draws a bar: dimension 0 moves it down, 1 to the left, 2 does nothing."""

    def forward(self, masked_BJD):
        drawn = []
        for pose in masked_BJD.sum(1):
            drawn.append(bar(int(9 + 24 * float(pose[0])), int(12 - 24 * float(pose[1])), 10, 4))
        return torch.stack(drawn)[:, None]


@pytest.fixture
def ruled():
    torch.manual_seed(0)
    model = create_model("capsnet_small", image_shape=(1, 28, 28), num_classes=2, class_dim=3, channels=4, types=2)
    model.classes.weight.data.mul_(0.1)  # poses of nearly zero: only the sweep moves the bar
    model.decoder = Ruler()
    return model


def test_each_dimension_is_known_by_what_it_does(ruled):
    images, labels = torch.rand(6, 1, 28, 28), torch.tensor([0, 1] * 3)
    found = correlations(ruled, images, labels)
    assert found.shape == (2, 3, 6)
    for row in found:
        names = [meaning(dimension)["name"] for dimension in row]
        assert names == ["vertical position", "horizontal position", None]
        assert row[0, PROPERTIES.index("vertical position")] > 0.95
        assert row[1, PROPERTIES.index("horizontal position")] < -0.95
    with pytest.raises(UserError, match="no image of class 1"):
        correlations(ruled, images, torch.zeros(6, dtype=torch.long))


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ([0.1, 0.2, -0.7, 0.3, 0.0, 0.5], "slant"),
        ([0.1, 0.2, -0.59, 0.3, 0.0, 0.1], None),  # too weak
        ([0.6, 0.2, -0.7, 0.3, 0.0, 0.1], None),  # width is too near
    ],
)
def test_a_name_is_given_only_on_clear_evidence(values, name):
    told = meaning(torch.tensor(values))
    assert told["name"] == name
    assert told["correlation"] == pytest.approx(values[2])
    assert told["others"] == pytest.approx({PROPERTIES[i]: values[i] for i in (0, 1, 3, 4, 5)})


def test_a_saved_model_gets_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(dimension_meanings, "DIGITS", 3)
    model = create_model("capsnet_small", image_shape=(1, 8, 8), kernel=3, primary_kernel=3, channels=4, types=2)
    model.trained_by = {"data": {"source": "digits"}}
    save(model, tmp_path)
    written = json.loads(write_meanings(str(tmp_path)).read_text())
    assert written["n"] == [3] * 10
    assert [len(row) for row in written["meanings"]] == [16] * 10
    model.trained_by = {}
    save(model, tmp_path / "b")
    with pytest.raises(UserError, match="does not record what it was trained on"):
        write_meanings(str(tmp_path / "b"))
