"""Stroke width from pixels: drawn lines of known width, at any angle, and what is no stroke."""

import math

import pytest
import torch
import torch.nn.functional as F

from torchcaps.explain.strokes import euler_number, stroke_width
from torchcaps.robustness.perturb import thicken

FINE = 8  # places in a pixel, along each side


def drawn(inside, size=28):
    """(1, 1, H, W) the share of each pixel that lies inside; x and y in pixels from the centre."""
    places = (torch.arange(size * FINE) + 0.5) / FINE - size / 2
    y, x = torch.meshgrid(places, places, indexing="ij")
    return F.avg_pool2d(inside(x, y).float()[None, None], FINE)


def line(width, angle=0.0, long=16.0, off=0.3):
    """With round ends."""
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))

    def inside(x, y):
        x = x - off
        along, across = x * cos + y * sin, y * cos - x * sin
        return torch.hypot((along.abs() - long / 2).clamp_min(0), across) < width / 2

    return drawn(inside)


def ring(width, radius=8.0):
    return drawn(lambda x, y: (torch.hypot(x, y) - radius).abs() < width / 2)


@pytest.mark.parametrize("width", [2.0, 3.0, 4.0, 5.0])
def test_lines_of_known_width(width):
    lines = torch.cat([line(width, angle) for angle in (0, 15, 30, 45, 70, 90)])
    assert ((stroke_width(lines) - width).abs() < 0.07 * width).all()
    assert stroke_width(ring(width)).item() == pytest.approx(width, rel=0.05)


def test_brightness_and_place_do_not_matter():
    image = line(3.0, 20)
    moved = torch.roll(image, (3, -4), dims=(2, 3))
    assert stroke_width(torch.cat([0.4 * image, moved])).tolist() == pytest.approx([stroke_width(image).item()] * 2)
    assert stroke_width(image.expand(-1, 3, -1, -1)).item() == pytest.approx(stroke_width(image).item())


def test_a_step_of_thickening_adds_two_pixels():
    image = line(3.0, off=0.0)
    grown = [stroke_width(thicken(image, steps)).item() for steps in (0, 1, 2)]
    assert grown[1] - grown[0] == pytest.approx(2, abs=0.3)
    assert grown[2] - grown[0] == pytest.approx(4, abs=0.6)


def test_what_is_no_stroke_has_no_width():
    disc, blank = ring(10.0, 0.0), torch.zeros(1, 1, 28, 28)
    bright = 1 - line(3.0)
    assert stroke_width(torch.cat([disc, blank, torch.ones_like(blank), bright, 0.05 * line(3.0)])).isnan().all()


@pytest.mark.parametrize(("rows", "number"), [("#.# ... #.#", 4), ("### #.# ###", 0), ("#. .#", 1)])
def test_pieces_less_holes(rows, number):
    mask = torch.tensor([[each == "#" for each in row] for row in rows.split()])
    assert euler_number(mask[None]).item() == number
