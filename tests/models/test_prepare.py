"""From what an image file holds to what a model takes."""

from __future__ import annotations

import pytest
import torch

from torchcaps.models import create_model


@pytest.fixture
def model():
    return create_model("capsnet_small", image_shape=(2, 10, 12), num_classes=2, mean=(0.5, 0.5), std=(0.1, 0.1))


def test_bytes_become_0_to_1(model):
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 2, 10, 12)
    assert model.prepare(images)[:, 0, 0, 0].tolist() == pytest.approx([0.0, 0.2, 1.0])


def test_floats_are_taken_as_they_are(model):
    images = torch.rand(3, 2, 10, 12, dtype=torch.float64)
    assert torch.equal(model.prepare(images), images.float())


def test_the_centre_is_cut_out(model):
    images = torch.zeros(1, 2, 14, 17)
    images[..., 2:12, 2:14] = 1  # 2 of 4 rows above, 2 of 5 columns to the left
    prepared = model.prepare(images)
    assert prepared.shape == (1, 2, 10, 12)
    assert prepared.min() == 1
    model(prepared)


def test_too_small_an_image_is_told(model):
    with pytest.raises(ValueError, match="2, 9, 12"):
        model.prepare(torch.zeros(1, 2, 9, 12, dtype=torch.uint8))
