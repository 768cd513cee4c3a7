"""Boat and house differ in how their parts stand to each other and in nothing else; wrong layouts are far from both."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from torchcaps.data.datasets.shapes.draws import Draws
from torchcaps.data.datasets.shapes.layouts import (
    MARGIN_DEGREES,
    MARGIN_PIXELS,
    MAX_RADIUS_PIXELS,
    distance_to_right_layouts,
    exchanges,
    layout_distance,
)
from torchcaps.data.datasets.shapes.parts import PART_KINDS, PARTS
from torchcaps.data.datasets.shapes.scenes import draw_shapes
from torchcaps.data.datasets.shapes.wholes import WHOLES, member_table, whole_of
from torchcaps.errors import UserError
from torchcaps.geometry import Affine, half_turn

BOTH = ["rectangle", "triangle"]


def layout(name):
    return member_table((name,)).poses[0]


def number(value):
    return torch.tensor(value, dtype=torch.float64)


def relative_poses(name):
    """How the triangle stands to the rectangle: x, y, angle, scale; also if that is turned by a half, or mirrored."""
    rectangle, triangle = layout(name)[0], layout(name)[1]
    seen = []
    for turn, mirror in itertools.product((0.0, 180.0), (1, -1)):
        x, y, angle, scale, *_ = ((rectangle @ Affine.of(angle=number(turn))).inverse() @ triangle).parts()
        seen.append((mirror * float(x), float(y), mirror * float(angle), float(scale)))
    return seen


def test_no_similarity_and_no_reflection_maps_a_boat_onto_a_house():
    """A similarity that did would take rectangle to rectangle, turned by a half or not, so the relative poses would be
    equal; a reflection would make them equal after mirroring. They differ by 45 degrees at least."""
    assert [member.name for member in whole_of("boat").members] == BOTH
    assert [member.name for member in whole_of("house").members] == BOTH
    house = relative_poses("house")
    for *_, angle, scale in relative_poses("boat"):
        assert scale == pytest.approx(house[0][3])  # nor do sizes tell one from the other
        assert min(float(half_turn(number(angle - other[2])).abs()) for other in house) >= 44.99
    assert float(layout_distance(BOTH, layout("boat"), layout("house"))) >= 45 / MARGIN_DEGREES - 1e-6


def test_a_house_is_its_own_mirror_image_and_a_boat_is_not():
    as_it_is, mirrored, *_ = relative_poses("house")
    assert as_it_is == pytest.approx(mirrored, abs=1e-9)
    assert len({tuple(round(value, 6) for value in pose) for pose in relative_poses("boat")}) == 4


@pytest.mark.parametrize("name", ["boat", "face", "harbour"])
@pytest.mark.parametrize("mirror", [1, -1])
def test_the_distance_of_a_layout_is_zero_however_the_whole_stands(name, mirror):
    names = [member.name for member in whole_of(name).members]
    x, y, angle, scale, *_ = layout(name).parts()
    mirrored = Affine.of(x=mirror * x, y=y, angle=mirror * angle, scale=scale)
    moved = Affine.of(x=number(3.0), y=-2.0, angle=77.0, scale=1.4) @ mirrored
    assert float(layout_distance(names, moved, layout(name))) == pytest.approx(0, abs=1e-6)


def test_a_rectangle_may_be_turned_by_a_half_and_a_triangle_may_not():
    rectangle, triangle = (layout("boat") @ Affine.of(angle=number(turned)) for turned in ([180.0, 0], [0, 180.0]))
    assert float(layout_distance(BOTH, rectangle, layout("boat"))) == pytest.approx(0, abs=1e-6)
    assert float(layout_distance(BOTH, triangle, layout("boat"))) > 1


def test_the_distance_counts_pixels_degrees_and_scale_in_margins():
    for change, expected in (({"x": MARGIN_PIXELS}, 1), ({"angle": MARGIN_DEGREES / 2}, 0.5), ({"scale": 1.25**2}, 2)):
        step = Affine.of(**{key: number([0.0 if key != "scale" else 1.0, value]) for key, value in change.items()})
        found = layout("house") @ step
        assert float(layout_distance(BOTH, found, layout("house"))) == pytest.approx(expected, rel=0.3)
    with pytest.raises(UserError, match="discs alone"):
        layout_distance(["disc", "disc"], layout("boat"), layout("boat"))


@pytest.mark.parametrize("name", WHOLES)
def test_the_origin_of_a_whole_is_its_centroid(name):
    members = whole_of(name).members
    areas = [
        (PART_KINDS[each.name].area if each.name in PARTS else whole_of(each.name).area) * each.scale**2
        for each in members
    ]
    for axis in ("x", "y"):
        assert sum(area * getattr(each, axis) for area, each in zip(areas, members)) == pytest.approx(0, abs=1e-9)
    assert whole_of(name).area == pytest.approx(sum(areas))


def relative_to_first(scenes):
    """(B, 2) layouts of the drawn rectangles and triangles, in the rectangle's frame."""
    poses = scenes.parts.poses()
    first = Affine(poses.linear[:, :1], poses.shift[:, :1])
    return first.inverse() @ poses


def test_scrambled_parts_are_far_from_every_right_layout_and_touch():
    scenes = draw_shapes(300, seed=5, dtype=torch.float64, turn=180, scrambled=True)
    assert float(distance_to_right_layouts(BOTH, relative_to_first(scenes)).amin()) >= 1 - 1e-9
    right = draw_shapes(50, seed=5, dtype=torch.float64, turn=180)
    assert float(distance_to_right_layouts(BOTH, relative_to_first(right)).amax()) < 1e-6
    assert not scenes.wholes.present.any()
    assert (scenes.parts.owner == -1).all()
    assert scenes.parts.present.all()
    # Parts that touch without overlapping have one outline, whose area is the sum of theirs.
    lit = draw_shapes(300, seed=5, dtype=torch.float64, turn=180, scrambled=True, light=(1.0, 1.0), scale=(1.0, 1.0))
    area = sum(PART_KINDS[name].area for name in BOTH)
    assert float((lit.images.sum((1, 2, 3)) / area - 1).abs().amax()) < 0.06
    away = relative_to_first(lit).shift[:, 1].square().sum(-1).sqrt()
    assert float(away.amax()) <= 2 * MAX_RADIUS_PIXELS
    assert len({round(value) for value in scenes.parts.angle[:, 1].tolist()}) > 150


def test_a_picasso_has_the_parts_of_a_face_at_each_others_places():
    assert len(exchanges("face")) == 11  # 4! / 2! orders of two eyes, nose and mouth, without the right one
    assert len(exchanges("harbour")) == 5
    settings = {"wholes": ("face", "sad face"), "dtype": torch.float64}
    faces, picassos = (draw_shapes(60, **settings, scrambled=wrong) for wrong in (False, True))
    eyes, wrong = faces.levels[1], picassos.levels[1]
    assert torch.equal(eyes.label, wrong.label)
    torch.testing.assert_close(eyes.angle, wrong.angle)
    for axis in ("x", "y"):
        torch.testing.assert_close(getattr(eyes, axis).sort(1).values, getattr(wrong, axis).sort(1).values)
    assert not torch.isclose(eyes.x, wrong.x).logical_and(torch.isclose(eyes.y, wrong.y)).all(1).any()
    assert (wrong.owner == -1).all()
    assert (picassos.parts.owner >= 0).all()  # eyes are still eyes
    names = [member.name for member in whole_of("face").members]
    assert float(distance_to_right_layouts(names, wrong.poses()).amin()) >= 1 - 1e-6


def test_draws_depend_on_seed_name_image_and_position_alone():
    all_three, last = Draws(3, range(3)), Draws(3, [2])
    assert torch.equal(all_three.unit("a", 4)[2:], last.unit("a", 4))
    assert torch.equal(all_three.unit("a", 6)[:, :4], all_three.unit("a", 4))
    assert not torch.equal(all_three.unit("a", 4), all_three.unit("b", 4))
    assert not torch.equal(last.unit("a", 4), Draws(4, [2]).unit("a", 4))
    many = Draws(0, range(400))
    assert many.unit("x", 50).mean() == pytest.approx(0.5, abs=0.01)
    assert many.normal("x", 50).std() == pytest.approx(1, abs=0.02)
    assert many.integers("x", 2, 4, 50).unique(return_counts=True)[1].tolist() == pytest.approx([6667] * 3, rel=0.05)
    assert math.prod(Draws(0, []).unit("x", 3).shape) == 0
