"""Affine maps as values, what is seen through them, and lattices of them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchcaps.errors import UserError
from torchcaps.geometry import (
    MAX_POSES,
    Affine,
    Lattice,
    half_turn,
    mean_angle,
    pixel_places,
    random_bend,
    sampling_grid,
    view,
)
from torchcaps.robustness import perturb


def number(low, high):
    return st.floats(low, high).map(lambda value: torch.tensor(value, dtype=torch.float64))


PARTS = st.fixed_dictionaries(
    {
        "x": number(-20, 20),
        "y": number(-20, 20),
        "angle": number(-179, 179),
        "scale": number(0.2, 5),
        "stretch": number(0.2, 5),
        "shear": number(-2, 2),
    }
)
MAPS = PARTS.map(lambda parts: Affine.of(**parts))


def assert_same(a: Affine, b: Affine, atol: float = 1e-8) -> None:
    torch.testing.assert_close(a.linear, b.linear, atol=atol, rtol=1e-8)
    torch.testing.assert_close(a.shift, b.shift, atol=atol, rtol=1e-8)


def pose(**parts: float) -> Affine:
    return Affine.of(**{name: torch.tensor([value], dtype=torch.float64) for name, value in parts.items()})


def images(height=11, width=11):
    return torch.rand(2, 3, height, width, dtype=torch.float64)


@given(PARTS)
def test_parts_are_what_a_map_was_made_of(parts):
    found = Affine.of(**parts).parts()._asdict()
    for name, value in parts.items():
        torch.testing.assert_close(found[name], value, atol=1e-8, rtol=1e-9)


@given(MAPS)
def test_a_map_is_what_its_parts_make(map):
    assert map.linear.det() > 0
    assert_same(Affine.of(**map.parts()._asdict()), map)


@given(MAPS, MAPS, MAPS)
def test_composition(a, b, c):
    place = torch.tensor([3.0, -2.0], dtype=torch.float64)
    torch.testing.assert_close((a @ b)(place), a(b(place)), rtol=1e-8, atol=1e-8)
    assert_same((a @ b) @ c, a @ (b @ c), atol=1e-7)


@given(MAPS)
def test_inverse(map):
    nothing = Affine.of(x=torch.zeros((), dtype=torch.float64))
    assert_same(map @ map.inverse(), nothing)
    assert_same(map.inverse() @ map, nothing)


@given(MAPS, MAPS)
def test_interpolation_begins_and_ends_at_its_maps(a, b):
    assert_same(a.interpolate(b, 0.0), a)
    assert_same(a.interpolate(b, 1.0), b, atol=1e-6)


@given(MAPS, MAPS, MAPS, st.floats(0, 1))
def test_interpolation_depends_only_on_how_two_maps_stand_to_each_other(a, b, c, share):
    if abs(abs((a.inverse() @ b).parts().angle) - 180) > 1e-3:  # half a turn is as short to the left as to the right
        assert_same((c @ a).interpolate(c @ b, share), c @ a.interpolate(b, share), atol=1e-5)


def test_halfway():
    half = pose(x=2.0, angle=10.0, scale=0.5).interpolate(pose(x=4.0, angle=50.0, scale=2.0), 0.5).parts()
    assert half.angle.item() == pytest.approx(30)
    assert half.scale.item() == pytest.approx(1)  # by equal factors
    straight = pose(x=2.0, y=-1.0).interpolate(pose(x=4.0, y=3.0), 0.25)
    torch.testing.assert_close(straight.shift, torch.tensor([[2.5, 0.0]], dtype=torch.float64))


@pytest.mark.parametrize(("start", "end", "half"), [(170.0, -170.0, 180), (-160.0, 150.0, 175), (-80.0, 80.0, 0)])
def test_interpolation_turns_the_shorter_way(start, end, half):
    found = pose(angle=start).interpolate(pose(angle=end), 0.5).parts().angle.item()
    assert math.remainder(found - half, 360) == pytest.approx(0, abs=1e-9)


CHANGES = {  # the parts of a pose, and the same change to an image
    "rotate": ({"angle": 25.0}, lambda x: perturb.rotate(x, 25)),
    "rotate-right": ({"angle": -115.0}, lambda x: perturb.rotate(x, -115)),
    "shear": ({"shear": 0.4}, lambda x: perturb.shear(x, 0.4)),
    "enlarge": ({"scale": 1.3}, lambda x: perturb.scale(x, 1.3)),
    "shrink": ({"scale": 0.7}, lambda x: perturb.scale(x, 0.7)),
    "move": ({"x": 2.0, "y": -1.5}, lambda x: perturb.translate(x, 2, -1.5)),
    "all": (
        {"x": 1.3, "y": -0.6, "angle": 20.0, "scale": 0.8, "shear": 0.3},
        lambda x: perturb.affine(x, rotate=20, shear=0.3, scale=0.8, shift_x=1.3, shift_y=-0.6),
    ),
}
changes = pytest.mark.parametrize(("parts", "change"), CHANGES.values(), ids=CHANGES)


@changes
@pytest.mark.parametrize("size", [(11, 11), (8, 13)], ids=["square", "wide"])
def test_a_change_of_an_image_is_a_view_through_the_inverse_pose(parts, change, size):
    x = images(*size)
    torch.testing.assert_close(view(x, pose(**parts).inverse(), size)[:, 0], change(x), atol=1e-5, rtol=0)


@changes
def test_what_stands_by_a_pose_is_seen_upright(parts, change):
    right, down = pixel_places((61, 61), torch.zeros(())).unbind(-1)
    blob = torch.exp(-((right - 6).square() + (down + 8).square()) / 60)[None, None]
    assert (change(blob) - blob).abs().max() > 0.25
    torch.testing.assert_close(view(change(blob), pose(**parts), (61, 61))[:, 0], blob, atol=0.04, rtol=0)


@pytest.mark.parametrize("size", [(11, 11), (8, 8), (8, 13), (1, 1), (1, 4)], ids=str)
@pytest.mark.parametrize("quarters", [-1, 0, 1, 2])
def test_quarter_turns_are_seen_exactly(quarters, size):
    x = images(*size)
    turned = torch.rot90(x, quarters, (2, 3))
    torch.testing.assert_close(view(turned, pose(angle=90.0 * quarters), size)[:, 0], x, atol=1e-12, rtol=0)


def test_a_larger_view_shows_black_around_the_image():
    x = images(5, 6)
    torch.testing.assert_close(view(x, pose(x=0.0), (9, 8))[:, 0], torch.nn.functional.pad(x, (1, 1, 2, 2)))
    grid = sampling_grid(pose(x=0.0), (5, 6), (5, 6))
    expected = torch.nn.functional.affine_grid(torch.eye(2, 3, dtype=torch.float64)[None], [1, 1, 5, 6], False)
    torch.testing.assert_close(grid, expected)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels-last"])
@pytest.mark.parametrize("lattice", [Lattice((30.0,)), Lattice.regular(30, 15, (0.8, 1.0))], ids=len)
def test_poses_of_all_images_and_of_each_give_the_same(lattice, layout):
    x, poses = images(7, 9).to(memory_format=layout), lattice.poses()
    each = Affine(poses.linear.expand(2, -1, -1, -1), poses.shift.expand(2, -1, -1))
    seen = view(x, poses, (6, 5))
    assert seen.shape == (2, len(lattice), 3, 6, 5)
    torch.testing.assert_close(view(x, each, (6, 5)), seen)
    torch.testing.assert_close(view(x, poses[-1:], (6, 5))[:, 0], seen[:, -1])
    assert view(x[:0], poses, (6, 5)).shape == (0, len(lattice), 3, 6, 5)


def test_gradients():
    def looked(x, linear, shift):
        return view(x, Affine(linear, shift), (3, 4))

    def taken_apart(linear, shift):
        return tuple(Affine(linear, shift).parts())

    poses = pose(x=0.3, y=-0.4, angle=13.0, scale=0.9, stretch=1.2, shear=0.2)
    linear, shift = poses.linear.requires_grad_(), poses.shift.requires_grad_()
    assert torch.autograd.gradcheck(looked, (images(4, 5).requires_grad_(), linear, shift))
    assert torch.autograd.gradcheck(taken_apart, (linear, shift))


LATTICE = Lattice.regular(30, 15, (0.8, 1.0), (0.9, 1.0, 1.1), (-0.2, 0.0))


def test_order_of_a_lattice():
    expected = [
        (angle, scale, stretch, shear)
        for angle in (-30.0, -15.0, 0.0, 15.0, 30.0)
        for scale in (0.8, 1.0)
        for stretch in (0.9, 1.0, 1.1)
        for shear in (-0.2, 0.0)
    ]
    parts = LATTICE.poses().parts()
    found = torch.stack([parts.angle, parts.scale, parts.stretch, parts.shear], dim=-1)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert LATTICE.shape == (5, 2, 3, 2)
    assert len(LATTICE) == 60
    assert not LATTICE.poses().shift.any()


@pytest.mark.parametrize("lattice", [LATTICE, Lattice(), Lattice.regular(180, 60)], ids=len)
def test_identity_of_a_lattice(lattice):
    torch.testing.assert_close(lattice.poses().linear[lattice.identity], torch.eye(2, dtype=torch.float64))


def test_identity_is_the_nearest_where_there_is_none():
    lattice = Lattice((-50.0, 20.0, 70.0), (0.5, 1.6), (1.5, 2.0), (-0.1, 0.3))
    nearest = lattice.poses()[lattice.identity].parts()
    assert [round(part.item(), 6) for part in nearest] == [0, 0, 20, 1.6, 1.5, -0.1]  # 1.6 is nearer than 1 / 2


@pytest.mark.parametrize(
    ("turn", "step", "angles"),
    [(180, 90, (-90, 0, 90, 180)), (180, 180, (0, 180)), (90, 90, (-90, 0, 90)), (0, 15, (0,))],
)
def test_full_circle(turn, step, angles):
    lattice = Lattice.regular(turn, step)
    assert lattice.angles == angles
    assert lattice.full_circle == (turn == 180)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lattice(()), r"lattice angles: give one or more increasing numbers, got \(\)"),
        (lambda: Lattice(scales=(1.0, 0.8)), r"lattice scales: give one or more increasing.* got \(1.0, 0.8\)"),
        (lambda: Lattice(stretches=(1.0, 1.0)), "lattice stretches: give one or more increasing"),
        (lambda: Lattice(shears=(math.nan,)), r"lattice shears: give one or more increasing.* got \(nan,\)"),
        (lambda: Lattice(scales=(1.0, math.inf)), "lattice scales: give one or more increasing"),
        (lambda: Lattice(scales=(0.0, 1.0)), "lattice scales: factors must be greater than 0, got 0.0"),
        (lambda: Lattice(stretches=(-1.0,)), "lattice stretches: factors must be greater than 0, got -1.0"),
        (lambda: Lattice((-180.0, 180.0)), "-180.0 and 180.0 are a full circle or more apart"),
        (lambda: Lattice(shears=tuple(range(MAX_POSES + 1))), "1001 poses are more than 1000"),
        (lambda: Lattice.regular(181), "turn must lie in 0 to 180 and turn_step above 0, got 181 and 15"),
        (lambda: Lattice.regular(-1), "turn must lie in 0 to 180"),
        (lambda: Lattice.regular(math.nan), "turn must lie in 0 to 180"),
        (lambda: Lattice.regular(60, 0), "turn_step above 0, got 60 and 0"),
        (lambda: Lattice.regular(60, math.nan), "turn_step above 0, got 60 and nan"),
        (lambda: Lattice.regular(60, math.inf), "turn_step above 0, got 60 and inf"),
        (lambda: Lattice.regular(60, 1e-9), "make more than 1000 poses; give a larger turn_step"),
        (lambda: Lattice.regular(60, 7), "60 degrees are not a whole number of steps of 7"),
        (lambda: Lattice.regular(180, 120), "180 degrees are not a whole number of steps of 120"),
    ],
)
def test_what_is_no_lattice_is_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_a_bend_moves_what_a_view_shows():
    images = torch.zeros(2, 1, 7, 7, dtype=torch.float64)
    images[:, 0, 3, 3] = 1
    poses = Affine.of(angle=torch.zeros(2, 3, dtype=torch.float64))
    right = torch.zeros(2, 3, 7, 7, 2, dtype=torch.float64)
    right[..., 0] = 2  # every place of the view shows what lies two pixels to its right
    seen = view(images, poses, (7, 7), right)
    torch.testing.assert_close(seen[..., 1], images[:, None].expand_as(seen)[..., 3])
    torch.testing.assert_close(view(images, poses, (7, 7), 0 * right), view(images, poses, (7, 7)))


def test_random_bends_are_smooth_and_as_large_as_asked():
    torch.manual_seed(0)
    bend = random_bend((50, 3), (33, 33), 2.0, torch.device("cpu"))
    assert bend.shape == (50, 3, 33, 33, 2)
    knots = bend[:, :, ::8, ::8]
    assert knots.std() == pytest.approx(2.0, rel=0.05)
    assert (bend[:, :, 1:] - bend[:, :, :-1]).std() < 0.5
    assert not torch.equal(bend[:, 0], bend[:, 1])


def test_the_mean_angle_goes_the_short_way_round():
    angles = torch.tensor([[170.0, -170.0], [10.0, 30.0]], dtype=torch.float64)
    even = torch.full_like(angles, 0.5)
    found = half_turn(mean_angle(angles, even))
    torch.testing.assert_close(found.abs(), torch.tensor([180.0, 20.0], dtype=torch.float64))
    assert half_turn(torch.tensor([-180.0, 180.0, 540.0, 0.0])).tolist() == [-180, -180, -180, 0]


@pytest.mark.parametrize(
    ("turn", "expected"), [(60, (-40, 0, 40)), (0, (0,)), (15, (0,)), (180, tuple(range(-135, 181, 45)))]
)
def test_a_coarse_lattice_has_few_angles(turn, expected):
    assert Lattice.regular(turn, 15).coarse(45).angles == pytest.approx(expected)
