"""Wholes that overlap as much as asked for, and identical neighbours at a given distance."""

from __future__ import annotations

import pytest
import torch

from torchcaps.data.datasets.shapes.render import coverage
from torchcaps.data.datasets.shapes.scenes import draw_shapes
from torchcaps.data.datasets.shapes.wholes import whole_of

CROWDED = {"size": 64, "turn": 180.0, "scale": (0.75, 1.25), "shift": None}
EXACT = {"dtype": torch.float64}


def test_wholes_overlap_as_asked():
    scenes = draw_shapes(60, number=(2, 4), overlap=(0.2, 0.4), visible=0.3, **CROWDED)
    assert float(scenes.overlap.amin()) >= 0.2
    assert float(scenes.overlap.amax()) <= 0.4
    assert float(scenes.visible[scenes.parts.present].amin()) >= 0.3 - 1e-6
    assert scenes.wholes.present.sum(1).unique().tolist() == [2, 3, 4]
    apart = draw_shapes(60, number=(1, 4), overlap=(0.0, 0.0), **CROWDED)
    assert float(apart.overlap.amax()) == 0
    radius = torch.tensor([whole_of(name).radius for name in apart.wholes.names])[apart.wholes.label]
    inside = apart.wholes.x.minimum(63 - apart.wholes.x) - radius * apart.wholes.scale
    assert float(inside[apart.wholes.present].amin()) >= -1e-4


def test_the_overlap_of_two_equal_squares_is_the_share_that_both_cover():
    twins = draw_shapes(20, wholes=("house",), twin=4, turn=0, scale=(1.0, 1.0), shift=0, size=48, **EXACT)
    parts = coverage(twins.parts, (48, 48))
    one, other = parts[:, :2].amax(1), parts[:, 2:].amax(1)
    torch.testing.assert_close(
        twins.overlap, torch.minimum(one, other).sum((1, 2)) / one.sum((1, 2)), atol=0.02, rtol=0
    )


@pytest.mark.parametrize("distance", [3.0, 6.0, 12.0])
def test_twins_are_alike_and_as_far_apart_as_asked(distance):
    scenes = draw_shapes(25, twin=distance, **CROWDED | {"scale": (0.75, 0.75)}, **EXACT)
    wholes = scenes.wholes
    assert wholes.present.all()
    for tensor in (wholes.label, wholes.angle, wholes.scale):
        torch.testing.assert_close(tensor[:, 0], tensor[:, 1])
    torch.testing.assert_close(scenes.light[:, :2], scenes.light[:, 2:])
    between = torch.hypot(wholes.x[:, 0] - wholes.x[:, 1], wholes.y[:, 0] - wholes.y[:, 1])
    torch.testing.assert_close(between, torch.full_like(between, distance))
