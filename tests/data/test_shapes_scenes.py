"""Drawn scenes: what the ground truth says is what is seen, and every request is met."""

from __future__ import annotations

import pytest
import torch

from torchcaps.data.datasets.shapes.parts import PARTS
from torchcaps.data.datasets.shapes.render import coverage, render
from torchcaps.data.datasets.shapes.scenes import draw_shapes
from torchcaps.data.datasets.shapes.wholes import member_table
from torchcaps.errors import UserError
from torchcaps.geometry import half_turn, view

CROWDED = {"size": 64, "turn": 180.0, "scale": (0.75, 1.25), "shift": None}
EXACT = {"dtype": torch.float64}


def assert_same(one, other):
    torch.testing.assert_close(one.images, other.images, rtol=0, atol=0)
    for level, level_too in zip(one.levels, other.levels, strict=True):
        assert level.names == level_too.names
        assert all(torch.equal(t, level_too.tensors()[name]) for name, t in level.tensors().items())


@pytest.mark.parametrize(
    "settings",
    [
        {"noise": 0.1},
        {"scrambled": True},
        {**CROWDED, "number": (0, 4), "overlap": (0.1, 0.5), "distractors": (0, 3), "visible": 0.2},
    ],
    ids=["singles", "scrambled", "crowded"],
)
def test_an_image_depends_on_the_seed_and_its_number_alone(settings):
    seven = draw_shapes(7, seed=4, **settings)
    assert_same(seven, draw_shapes(7, seed=4, **settings))
    assert_same(seven[2:5], draw_shapes(3, seed=4, start=2, **settings))
    assert not torch.equal(seven.images, draw_shapes(7, seed=5, **settings).images)


def test_images_are_the_same_however_many_are_drawn_at_a_time(monkeypatch):
    whole = draw_shapes(5, **CROWDED, number=(1, 3))
    monkeypatch.setattr("torchcaps.data.datasets.shapes.scenes.CHUNK_VALUES", 1)
    assert_same(whole, draw_shapes(5, **CROWDED, number=(1, 3)))


@pytest.mark.parametrize("label", [0, 1])
def test_seen_through_its_pose_a_whole_stands_upright_in_the_centre(label):
    """So x, y, angle and scale are those of what is drawn."""
    scenes = draw_shapes(20, seed=1, turn=180, light=(1.0, 1.0), **EXACT)[label::2]
    seen = view(scenes.images, scenes.wholes.poses((32, 32)), (32, 32))[:, 0]
    upright = draw_shapes(2, turn=0, scale=(1.0, 1.0), shift=0, light=(1.0, 1.0), **EXACT)
    assert scenes.wholes.label.unique().tolist() == [label]
    difference = (seen - upright.images[label])[..., 6:26, 6:26].abs()
    assert float(difference.mean()) < 0.04
    other = (seen - upright.images[1 - label])[..., 6:26, 6:26].abs()
    assert float(difference.mean((1, 2, 3)).amax()) < float(other.mean((1, 2, 3)).amin()) / 2


def test_centroids_and_angles_are_those_of_what_is_drawn():
    scenes = draw_shapes(50, seed=2, turn=180, light=(1.0, 1.0), **EXACT)
    pixel = torch.arange(32, dtype=torch.float64)
    mass = scenes.images[:, 0]
    x, y = ((mass.sum(dim) * pixel).sum(1) / mass.sum((1, 2)) for dim in (1, 2))
    torch.testing.assert_close(x, scenes.wholes.x[:, 0], atol=0.15, rtol=0)
    torch.testing.assert_close(y, scenes.wholes.y[:, 0], atol=0.15, rtol=0)
    # The long side of the rectangle, from its second moments.
    part = coverage(scenes.parts, (32, 32))[:, 0]
    right, down = pixel - scenes.parts.x[:, :1], pixel - scenes.parts.y[:, :1]
    both = torch.einsum("byx,bx,by->b", part, right, down)
    spread = torch.einsum("byx,bx->b", part, right**2) - torch.einsum("byx,by->b", part, down**2)
    angle = torch.atan2(-2 * both, spread).rad2deg() / 2
    assert float(half_turn(2 * (angle - scenes.parts.angle[:, 0])).abs().amax()) / 2 < 1


def test_parts_stand_in_their_wholes_as_the_tables_say():
    scenes = draw_shapes(30, number=(0, 5), **CROWDED, **EXACT, distractors=(1, 2))
    parts, wholes = scenes.levels
    assert parts.names == PARTS
    assert wholes.names == ("boat", "house")
    assert (wholes.owner == -1).all()
    owned = parts.present & (parts.owner >= 0)
    assert owned.sum() == 2 * wholes.present.sum()
    assert (parts.present & ~owned)[:, :2].sum() == (parts.present & ~owned).sum()  # distractors come first, behind
    assert {PARTS[label] for label in parts.label[parts.present & ~owned].tolist()} == {"disc", "bar"}
    table = member_table(wholes.names)
    image, part = owned.nonzero(as_tuple=True)
    owner = parts.owner[image, part]
    inside = wholes.poses()[image, owner].inverse() @ parts.poses()[image, part]
    known = table.poses[wholes.label[image, owner], (parts.label[image, part] == PARTS.index("triangle")).long()]
    torch.testing.assert_close(inside.linear, known.linear)
    torch.testing.assert_close(inside.shift, known.shift, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(scenes.images, render(parts, scenes.light, (64, 64)))  # no more and no less is drawn
    assert parts.symmetry[image, part].unique().tolist() == [1, 2]


@pytest.mark.parametrize(("name", "below"), [("face", ("eye", "nose", "mouth")), ("harbour", ("house", "boat"))])
def test_a_parse_tree_has_three_levels(name, below):
    scenes = draw_shapes(4, wholes=(name,), size=64, number=(1, 2))
    strokes, parts, wholes = scenes.levels
    assert (strokes.names, parts.names, wholes.names) == (PARTS, below, (name,))
    assert parts.present.sum() == 4 * wholes.present.sum()
    for lower, upper in ((strokes, parts), (parts, wholes)):
        image, which = lower.present.nonzero(as_tuple=True)
        assert upper.present[image, lower.owner[image, which]].all()
    assert scenes.parts is strokes
    assert scenes.wholes is wholes
    assert (strokes.owner[~strokes.present] == -1).all()
    assert (strokes.scale[~strokes.present] == 1).all()


def test_types_noise_orientation_and_sizes_are_those_asked_for():
    scenes = draw_shapes(200, turn=15, scale=(0.9, 1.1), shift=2, noise=0.05, size=(24, 40))
    assert scenes.images.shape == (200, 1, 24, 40)
    assert scenes.images.dtype == scenes.wholes.x.dtype == scenes.light.dtype == torch.float32
    assert 0 <= float(scenes.images.amin()) < float(scenes.images.amax()) <= 1
    assert float(scenes.wholes.angle.abs().amax()) == pytest.approx(15, abs=1)
    assert float((scenes.wholes.x - 19.5).abs().amax()) == pytest.approx(2, abs=0.1)
    assert float(scenes.wholes.scale.amin()) >= 0.9
    assert draw_shapes(2, **EXACT).images.dtype == torch.float64


def test_no_images_no_wholes_and_one_pixel():
    none = draw_shapes(0, number=(1, 3), overlap=(0.1, 0.2))
    assert none.images.shape == (0, 1, 32, 32)
    assert none.wholes.x.shape == (0, 3)
    assert len(none) == 0
    empty = draw_shapes(3, number=(0, 0))
    assert empty.images.count_nonzero() == 0
    assert not empty.wholes.present.any()
    assert draw_shapes(2, size=1, shift=None, number=(1, 2)).images.shape == (2, 1, 1, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"whole": ("boat",)}, "no parameter 'whole': did you mean 'wholes'"),
        ({"wholes": ("baot",)}, "no whole called 'baot': did you mean 'boat'"),
        ({"wholes": "boat"}, "give a tuple of names"),
        ({"wholes": ("boat", "face")}, "draw them separately"),
        ({"wholes": ("eye",), "scrambled": True}, "use 'boat', 'house' or 'face'"),
        ({"scrambled": True, "twin": 3}, "give one of them"),
        ({"distractor_parts": ("circle",)}, "no part called 'circle'"),
        ({"number": 3}, "give a pair"),
        ({"number": [2, 1]}, "least, most"),
        ({"overlap": (0, 1.5)}, "within 0 to 1"),
        ({"turn": 200}, "within 0 to 180"),
        ({"noise": float("nan")}, "noise=nan"),
        ({"shift": -1}, "None for anywhere"),
        ({"size": 0}, "at least 1 pixel"),
        ({"count": -1}, "count=-1"),
        ({"number": (2, 2), "overlap": (0.99, 1.0)}, "was not reached in 300 attempts"),
    ],
)
def test_a_mistake_is_answered_with_what_to_do(settings, message):
    with pytest.raises(UserError, match=message):
        draw_shapes(**{"count": 2, **settings})
