"""Parts drawn at given poses: their area, their edges, their order, and how they move with their poses."""

from __future__ import annotations

import pytest
import torch

from torchcaps.data.datasets.shapes.objects import Objects
from torchcaps.data.datasets.shapes.parts import DISC_RADIUS, PART_KINDS, PARTS
from torchcaps.data.datasets.shapes.render import composite, coverage, render
from torchcaps.errors import UserError
from torchcaps.geometry import Affine, view

FINE = 32  # points along a pixel, where areas are integrated


def part(name, x=15.5, y=15.5, angle=0.0, scale=1.0, dtype=torch.float64):
    poses = Affine.of(x=torch.full((1, 1), x, dtype=dtype), y=y, angle=angle, scale=scale)
    label = torch.full((1, 1), PARTS.index(name))
    return Objects.of(PARTS, label, poses, torch.full_like(label, -1), torch.ones_like(label) > 0)


def integrated(name, x, y, angle, scale, size):
    """The share of each pixel within a part, by counting points; an independent definition of its outline."""
    fine = (torch.arange(size * FINE, dtype=torch.float64) + 0.5) / FINE - 0.5
    places = torch.stack([fine.expand(len(fine), -1), fine[:, None].expand(-1, len(fine))], dim=-1)
    own = Affine.of(x=torch.tensor(x).double(), y=y, angle=angle, scale=scale).inverse()(places)
    corners = torch.tensor(PART_KINDS[name].corners, dtype=torch.float64)
    if len(corners):  # to the right of every edge, clockwise as seen
        edges = corners.roll(-1, 0) - corners
        away = own[..., None, :] - corners
        inside = (edges[:, 0] * away[..., 1] - edges[:, 1] * away[..., 0] >= 0).all(-1)
    else:
        inside = own.square().sum(-1).sqrt() <= DISC_RADIUS
    return torch.nn.functional.avg_pool2d(inside.double()[None, None], FINE)[0, 0]


@pytest.mark.parametrize("name", ["rectangle", "bar"])
@pytest.mark.parametrize(("x", "y", "angle"), [(15, 16, 0), (15.5, 15.5, 90), (14.2, 17.9, 180), (15.31, 15.77, -90)])
def test_upright_boxes_cover_exactly_the_area_within_each_pixel(name, x, y, angle):
    width, height = (14, 6) if name == "rectangle" else (14, 2)
    width, height = (height, width) if abs(angle) == 90 else (width, height)
    pixel = torch.arange(32, dtype=torch.float64)
    across = ((pixel + 0.5).clamp(max=x + width / 2) - (pixel - 0.5).clamp(min=x - width / 2)).clamp(min=0)
    down = ((pixel + 0.5).clamp(max=y + height / 2) - (pixel - 0.5).clamp(min=y - height / 2)).clamp(min=0)
    drawn = coverage(part(name, x, y, angle), (32, 32))[0, 0]
    torch.testing.assert_close(drawn, down[:, None] * across, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["rectangle", "triangle", "disc", "bar"])
@pytest.mark.parametrize(("x", "y", "angle", "scale"), [(15, 16, 0, 1), (15.3, 14.8, 33, 1.2), (16, 16, -135, 0.8)])
def test_a_pixel_is_covered_by_the_area_within_it_to_a_tenth(name, x, y, angle, scale):
    drawn, exact = coverage(part(name, x, y, angle, scale), (32, 32))[0, 0], integrated(name, x, y, angle, scale, 32)
    assert float((drawn - exact).abs().amax()) < 0.105
    assert float((drawn - exact).abs().mean()) < 2e-3


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize(("x", "y", "angle", "scale"), [(15, 16, 0, 1), (15.3, 14.8, 33, 1.2), (16, 16.5, -135, 0.8)])
def test_area_and_centroid_of_a_drawn_part_are_those_of_its_pose(name, x, y, angle, scale):
    drawn = coverage(part(name, x, y, angle, scale), (32, 32))[0, 0]
    pixel = torch.arange(32, dtype=torch.float64)
    assert float(drawn.sum()) == pytest.approx(PART_KINDS[name].area * scale**2, rel=0.05)
    assert float((drawn.sum(0) * pixel).sum() / drawn.sum()) == pytest.approx(x, abs=0.03)
    assert float((drawn.sum(1) * pixel).sum() / drawn.sum()) == pytest.approx(y, abs=0.03)


@pytest.mark.parametrize("name", PARTS)
def test_a_drawing_moves_turns_and_grows_with_its_pose(name):
    """Seen through its pose, a part stands upright in the centre: `view` takes what `render` did back."""
    x, y, angle, scale = 13.2, 17.9, 40.0, 1.3
    # Soft edges: interpolation between pixels blurs sharp ones.
    drawn = render(part(name, x, y, angle, scale), size=(32, 32), softness=3 * scale)
    seen = view(drawn, part(name, x, y, angle, scale).poses((32, 32)), (32, 32))[:, 0]
    upright = render(part(name), size=(32, 32), softness=3)
    inner = (slice(None), slice(None), slice(8, 24), slice(8, 24))  # the corners lie outside of the image
    assert float((seen - upright)[inner].abs().amax()) < 0.12
    assert float((seen - upright)[inner].abs().mean()) < 0.012


def test_angles_are_counter_clockwise_and_y_points_down():
    tip = render(part("triangle", 16, 16, 90), size=(33, 33))[0, 0]
    assert tip[16, :12].sum() > 0  # upright it points up; turned by 90°, to the left
    assert tip[16, 19:].sum() == 0
    assert tip[:16].sum() == pytest.approx(float(tip[17:].sum()))


@pytest.mark.parametrize("name", ["rectangle", "bar"])
def test_half_a_turn_maps_boxes_onto_themselves(name):
    there, back = (render(part(name, 15, 16, angle, 1.1)) for angle in (25.0, -155.0))
    torch.testing.assert_close(there, back)
    assert PART_KINDS[name].symmetry == 2


@pytest.mark.parametrize("name", PARTS)
def test_gradients_are_those_of_the_formula(name):
    values = torch.tensor([15.3, 16.1, 21.0, 1.1], dtype=torch.float64, requires_grad=True)

    def drawn(values):
        one = torch.ones(1, 1, dtype=torch.long)
        x, y, angle, scale = values[:, None, None].unbind(0)
        return coverage(Objects(PARTS, PARTS.index(name) * one, x, y, angle, scale, -one, one > 0), (32, 32)).sum(
            (2, 3)
        )

    assert torch.autograd.gradcheck(drawn, values)


def test_later_parts_cover_earlier_ones_or_the_lightest_is_seen():
    both = Objects(PARTS, *(torch.cat([t, t], 1) for t in part("disc").tensors().values()))
    light = torch.tensor([[0.9, 0.4]], dtype=torch.float64)
    assert render(both, light)[0, 0, 16, 16] == pytest.approx(0.4)
    assert render(both, light, blend="max")[0, 0, 16, 16] == pytest.approx(0.9)
    assert render(both, light, ground=0.2)[0, 0, 0, 0] == pytest.approx(0.2)


def test_no_parts_no_images_one_pixel_and_parts_outside():
    assert coverage(part("disc")[:0], (8, 9)).shape == (0, 1, 8, 9)
    none = Objects(PARTS, *(tensor[:, :0] for tensor in part("disc").tensors().values()))
    assert render(none, size=(8, 9), ground=0.5).unique().tolist() == [0.5]
    assert render(part("rectangle", 0, 0), size=(1, 1)).tolist() == [[[[1.0]]]]
    assert render(part("disc", -100, 50)).count_nonzero() == 0
    half = render(part("rectangle", -0.5, 15.5))
    assert float(half.sum()) == pytest.approx(PART_KINDS["rectangle"].area / 2)
    assert render(part("arc", dtype=torch.float32)).dtype == torch.float32


def test_a_mistake_is_answered_with_what_to_do():
    with pytest.raises(UserError, match="at least 1 pixel"):
        render(part("disc"), size=(0, 4))
    with pytest.raises(UserError, match="more than 0"):
        render(part("disc"), softness=0)
    with pytest.raises(UserError, match="'over' or 'max'"):
        composite(coverage(part("disc"), (8, 8)), torch.ones(1, 1), blend="under")
    wholes = Objects(("boat",), *part("rectangle").tensors().values())
    with pytest.raises(UserError, match="'boat' is not a part.*levels"):
        render(wholes)
