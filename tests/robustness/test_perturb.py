import math

import pytest
import torch

from torchcaps.robustness import perturb


def images(batch: int = 6, channels: int = 2, height: int = 9, width: int = 12) -> torch.Tensor:
    return torch.rand(batch, channels, height, width, generator=torch.Generator().manual_seed(3))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    "unchanged",
    [
        lambda x: perturb.rotate(x, 0),
        lambda x: perturb.shear(x, 0),
        lambda x: perturb.scale(x, 1),
        lambda x: perturb.translate(x, 0, 0),
        lambda x: perturb.noise(x, 0, seeded()),
        lambda x: perturb.blur(x, 0),
        lambda x: perturb.occlude(x, 0, seeded()),
        lambda x: perturb.thicken(x, 0),
    ],
)
def test_strength_zero_changes_nothing(unchanged):
    torch.testing.assert_close(unchanged(images()), images(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize("quarters", [-1, 1, 2, 3])
def test_quarter_turns_are_counter_clockwise(side, quarters):
    x = images(height=side, width=side)
    torch.testing.assert_close(perturb.rotate(x, 90 * quarters), torch.rot90(x, quarters, (2, 3)), atol=1e-5, rtol=0)


def test_a_turn_keeps_angles_in_images_that_are_not_square():
    x = torch.zeros(1, 1, 9, 21)
    x[..., 4, 14] = 1  # four pixels to the right of the centre
    torch.testing.assert_close(perturb.rotate(x, 90)[0, 0].argmax().item(), 0 * 21 + 10)  # … is four above it


def test_shear_moves_rows_sideways_and_leaves_the_middle_one():
    x = torch.zeros(1, 1, 7, 7)
    x[..., 3] = 1  # an upright line
    slanted = perturb.shear(x, 1.0)
    torch.testing.assert_close(slanted[0, 0], torch.eye(7).flip(1), atol=1e-5, rtol=0)


def test_scale_grows_and_shrinks_about_the_centre():
    x = torch.zeros(1, 1, 12, 12)
    x[..., 4:8, 4:8] = 1
    assert perturb.scale(x, 2)[..., 3:9, 3:9].min() > 0.99
    assert perturb.scale(x, 2).sum() == pytest.approx(4 * 16, rel=0.1)
    assert perturb.scale(x, 0.5).sum() == pytest.approx(16 / 4, rel=0.3)


def test_whole_pixels_move_exactly_and_fractions_are_mixed():
    x = images()
    moved = perturb.translate(x, 3, -2)
    assert torch.equal(moved[..., :-2, 3:], x[..., 2:, :-3])
    assert moved[..., -2:, :].abs().sum() == 0
    assert moved[..., :3].abs().sum() == 0
    assert torch.equal(perturb.translate(x, -1)[..., :-1], x[..., 1:])
    torch.testing.assert_close(perturb.translate(x, 0.25)[..., 1:], 0.75 * x[..., 1:] + 0.25 * x[..., :-1])
    torch.testing.assert_close(perturb.translate(x, -0.25)[..., :-1], 0.75 * x[..., :-1] + 0.25 * x[..., 1:])
    assert perturb.translate(x, 50).abs().sum() == 0


def test_noise_has_the_deviation_asked_for_and_stays_in_range():
    grey = torch.full((4, 1, 50, 50), 0.5)
    noisy = perturb.noise(grey, 0.1, seeded())
    assert (noisy - grey).std() == pytest.approx(0.1, rel=0.05)
    assert perturb.noise(grey, 2.0, seeded()).aminmax() == (0, 1)


def test_blur_spreads_a_point_with_the_sigma_asked_for():
    x = torch.zeros(1, 2, 31, 31)
    x[..., 15, 15] = 1
    blurred = perturb.blur(x, 1.5)
    torch.testing.assert_close(blurred.sum((2, 3)), torch.ones(1, 2))
    across = (blurred[0, 0].sum(0) * (torch.arange(31.0) - 15).square()).sum()
    assert math.sqrt(across) == pytest.approx(1.5, rel=0.03)
    torch.testing.assert_close(perturb.blur(torch.ones(1, 1, 5, 5), 3.0), torch.ones(1, 1, 5, 5))


def test_occlusion_covers_one_whole_square():
    covered = perturb.occlude(torch.ones(40, 2, 9, 12), 4, seeded()) == 0
    assert (covered.sum((2, 3)) == 16).all()
    assert (covered.any(3).sum(2) == 4).all()  # rows
    assert len(covered[:, 0].flatten(1).unique(dim=0)) > 10  # places differ
    assert perturb.occlude(torch.ones(1, 1, 5, 5), 99, seeded()).sum() == 0


@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 6), (7, 7)])
def test_scramble_keeps_the_quadrants_and_never_their_order(height, width):
    x = images(60, 1, height, width)
    mixed = perturb.scramble(x, seeded())
    before, after = perturb._quadrants(x), perturb._quadrants(mixed)
    same = (before[:, :, None] == after[:, None]).flatten(3).all(-1)  # image × piece before × place after
    assert (same.sum(1) == 1).all()
    assert (same.sum(2) == 1).all()
    assert not same.diagonal(dim1=1, dim2=2).all(-1).any()
    assert len(same.flatten(1).unique(dim=0)) > 12  # of 23 orders
    if height % 2:
        assert torch.equal(mixed[..., height // 2, :], x[..., height // 2, :])


def test_pieces_are_mirrored_in_their_place():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert perturb.mirror_quadrants(x)[0, 0, 0].tolist() == [1, 0, 3, 2]
    assert torch.equal(perturb.mirror_quadrants(perturb.mirror_quadrants(x)), x)


def test_strokes_grow_by_a_pixel_a_step_and_shrink_back():
    x = torch.zeros(1, 1, 11, 11)
    x[..., 4:7, 4:7] = 1
    assert perturb.thicken(x, 2).sum() == 49
    assert perturb.thicken(x, -1).sum() == 1
    assert torch.equal(perturb.thicken(perturb.thicken(x, 1), -1), x)
    torch.testing.assert_close(perturb.thicken(x, 1.5), (perturb.thicken(x, 1) + perturb.thicken(x, 2)) / 2)
    assert perturb.thicken(torch.ones(1, 1, 3, 3), -1).sum() == 9  # the border does not eat into the image


def test_overlay_adds_and_clips():
    assert perturb.overlay(torch.tensor([0.2, 0.8]), torch.tensor([0.3, 0.7])).tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    "chance",
    [
        lambda x, generator: perturb.noise(x, 0.3, generator),
        lambda x, generator: perturb.occlude(x, 3, generator),
        perturb.scramble,
    ],
)
def test_a_seed_decides(chance):
    x = images(20)
    assert torch.equal(chance(x, seeded(1)), chance(x, seeded(1)))
    assert not torch.equal(chance(x, seeded(1)), chance(x, seeded(2)))
    assert torch.equal(x, images(20))  # the input is left alone


@pytest.mark.parametrize(
    ("moves", "alone"),
    [
        ({}, lambda x: x),
        ({"rotate": 33.0}, lambda x: perturb.rotate(x, 33.0)),
        ({"shear": 0.4}, lambda x: perturb.shear(x, 0.4)),
        ({"scale": 1.7}, lambda x: perturb.scale(x, 1.7)),
        ({"shift_x": 2.0, "shift_y": -1.0}, lambda x: perturb.translate(x, 2, -1)),
        ({"rotate": 90.0, "shift_x": 3.0}, lambda x: perturb.translate(perturb.rotate(x, 90.0), 3)),
    ],
)
def test_all_in_one_step_is_each_by_itself(moves, alone):
    x = images(height=12)
    torch.testing.assert_close(perturb.affine(x, **moves), alone(x), atol=1e-5, rtol=0)


def test_scale_comes_before_shear_before_rotation():
    x = perturb.blur(torch.nn.functional.pad(images(height=11, width=11), (15, 15, 15, 15)), 2.0)  # smooth enough
    steps = perturb.rotate(perturb.shear(perturb.scale(x, 1.3), 0.5), 40.0)
    torch.testing.assert_close(perturb.affine(x, rotate=40.0, shear=0.5, scale=1.3), steps, atol=0.03, rtol=0)
    other = perturb.shear(perturb.rotate(perturb.scale(x, 1.3), 40.0), 0.5)
    assert (perturb.affine(x, rotate=40.0, shear=0.5, scale=1.3) - other).abs().max() > 0.1
