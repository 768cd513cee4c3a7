"""Affine jitter goes where its description says, in pixels, whatever the precision."""

import pytest
import torch

from torchcaps.data import augment


def seeded(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dot(height=11, width=11, y=5, x=5, batch=64) -> torch.Tensor:
    images = torch.zeros(batch, 1, height, width)
    images[:, :, y, x] = 1
    return images


def test_rotation_turns_about_the_centre_by_at_most_the_angle():
    images = dot(y=1)  # straight above the centre, 4 pixels away
    far = augment(images, seeded(), rotate=90.0)
    centre = augment(dot(), seeded(), rotate=90.0)
    torch.testing.assert_close(centre[:, :, 5, 5], torch.ones(64, 1), atol=1e-5, rtol=0)
    assert (far[:, :, 7:] < 1e-6).all()  # never below the centre
    assert (far[:, :, :, :5].sum((1, 2, 3)) > 0.5).any()
    assert (far[:, :, :, 6:].sum((1, 2, 3)) > 0.5).any()


def test_affine_works_in_pixels_of_an_image_that_is_not_square():
    images = dot(height=9, width=21, y=4, x=7)  # 3 left of the centre
    turned = augment(images, seeded(), rotate=180.0)
    y, x = torch.meshgrid(torch.arange(9.0) - 4, torch.arange(21.0) - 10, indexing="ij")
    mass = turned.sum((1, 2, 3))
    distance = ((turned[:, 0] * y).sum((1, 2)) ** 2 + (turned[:, 0] * x).sum((1, 2)) ** 2).sqrt() / mass
    torch.testing.assert_close(distance, torch.full((64,), 3.0), atol=0.2, rtol=0)


def test_scale_and_shear_and_shift_move_as_documented():
    wide = augment(dot(21, 21, 10, 16, batch=300), seeded(), scale=0.5)
    columns = (wide[:, 0].sum(1) * torch.arange(21.0)).sum(1) / wide.sum((1, 2, 3))
    assert columns.min() < 14
    assert columns.max() > 18
    sheared = augment(dot(21, 21, 5, 10), seeded(), shear=0.4)
    assert (sheared[:, :, [*range(4), *range(7, 21)]] < 1e-5).all()  # y stays
    assert (sheared[:, :, :, 10] < 0.5).any()
    shifted = augment(dot(), seeded(), shift=2, rotate=1e-6)
    assert shifted.sum((1, 2, 3)).allclose(torch.ones(64), atol=1e-4)
    assert len({int(i) for i in shifted.flatten(1).argmax(1)}) > 15


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_precisions(dtype):
    images = dot().to(dtype)
    assert augment(images, seeded(), shift=1, rotate=10.0, crop=9, flip=True).dtype == dtype
