"""Files of every format decode to the same image; ink anywhere on a canvas is centred as in MNIST."""

import base64

import numpy as np
import pytest
import torch
from bodies import as_file, pixels_of
from PIL import Image

from torchcaps.errors import UserError
from torchcaps.serve import pictures


def decoded(text):
    return pictures.decode_picture(pictures.decode_base64(text))[0] / 255


def gradient(height=20, width=30):
    return np.linspace(0, 255, height * width).reshape(height, width).astype(np.uint8)


def test_every_format_and_mode_gives_the_same_grey():
    grey = gradient()
    expected = torch.from_numpy(grey / 255.0).float()
    rgb = np.stack([grey] * 3, axis=-1)
    for text in (
        as_file(grey),
        as_file(rgb),
        as_file(np.dstack([rgb, np.full_like(grey, 255)])),
        as_file(rgb, "webp", lossless=True),
        as_file(Image.fromarray(grey).convert("P")),
        as_file(grey.astype(np.uint16) * 257),  # 16 bits
        "data:image/png;base64," + as_file(grey),
    ):
        assert (decoded(text) - expected).abs().max() <= 1 / 255
    assert (decoded(as_file(grey, "jpeg", quality=95)) - expected).abs().max() < 0.05


def test_transparent_pixels_become_white():
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[1, 2, 3] = 255  # one opaque black dot
    seen = pictures.white_on_black(decoded(as_file(pixels)))
    assert seen[1, 2] == 1
    assert seen.sum() == 1


def test_exif_orientation_is_applied():
    upright = gradient()
    turned = Image.fromarray(np.rot90(upright).copy())  # as a camera held on its side takes it
    turned.getexif()[0x0112] = 6
    seen = decoded(as_file(turned, "png", exif=turned.getexif()))
    assert (seen - torch.from_numpy(upright / 255.0)).abs().max() < 1e-6


def test_only_light_borders_are_inverted():
    dark = torch.zeros(9, 9)
    dark[3:6, 3:6] = 1
    assert torch.equal(pictures.white_on_black(dark), dark)
    assert torch.equal(pictures.white_on_black(1 - dark), dark)


def photograph(paper, ink, noise=0.0, shade=0.0):
    """A bar of grey `ink` on `paper`, darker to the right by `shade`, all from 0 to 255."""
    grey = torch.full((300, 200), float(paper)) - shade * torch.linspace(0, 1, 200)
    grey[60:240, 80:110] = ink
    grey += noise * torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
    return grey.clamp(0, 255).round() / 255


@pytest.mark.parametrize(
    ("paper", "ink", "noise", "shade"),
    [
        (255, 0, 0, 0),
        (235, 30, 0, 0),
        (200, 40, 0, 0),
        (245, 20, 10, 0),
        (255, 130, 0, 0),
        (230, 60, 4, 30),
        (20, 180, 5, 0),
    ],
)
def test_the_background_of_a_photograph_is_removed(paper, ink, noise, shade):
    """For any paper and pen, and for chalk on a board."""
    seen = pictures.centre(pictures.ink(pictures.white_on_black(photograph(paper, ink, noise, shade))), 28, 28)
    rows, columns = (seen.sum(axis).nonzero().flatten() for axis in (1, 0))
    assert (int(rows[0]), int(rows[-1])) == (4, 23)
    assert len(columns) <= 5
    assert seen[8:20, 14].mean() > 0.75


def test_paper_without_ink_stays_empty():
    for paper, noise in ((255, 0), (200, 10), (30, 5)):
        blank = photograph(paper, paper, noise)
        assert not pictures.ink(pictures.white_on_black(blank)).any()


def test_a_black_and_white_image_is_unchanged():
    drawn = torch.zeros(50, 50)
    drawn[10:40, 20:30] = torch.rand(30, 10)
    drawn[20, 25] = 1
    assert torch.equal(pictures.ink(drawn), drawn)


def test_fit_averages_when_it_shrinks():
    board = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat(14, 14)
    small = pictures.fit(board, 7, 7)
    torch.testing.assert_close(small, torch.full((7, 7), 0.5), atol=0.05, rtol=0)
    assert pictures.fit(board, 28, 28) is board


@pytest.mark.parametrize(("top", "left", "size"), [(0, 0, 40), (150, 10, 90), (30, 170, 100)])
def test_ink_is_moved_to_the_centre(top, left, size):
    canvas = torch.zeros(280, 280)
    canvas[top : top + size, left : left + size // 2] = 1  # a bar twice as high as wide
    seen = pictures.centre(canvas, 28, 28)
    rows, columns = (seen.sum(axis).nonzero().flatten() for axis in (1, 0))
    assert (int(rows[0]), int(rows[-1])) == (4, 23)  # 20 pixels high, in the middle
    assert (int(columns[0]), int(columns[-1])) == (9, 18)
    assert seen.sum() == pytest.approx(200, rel=0.05)


def test_the_centre_of_mass_is_centred_if_there_is_room():
    canvas = torch.zeros(36, 36)
    canvas[5:25, 5:8] = 1
    canvas[22:25, 5:25] = 1  # an L: its mass is low and left
    seen = pictures.centre(canvas, 36, 36)
    places = torch.arange(36.0)
    assert abs(float((seen.sum(1) * places).sum() / seen.sum()) - 17.5) <= 0.5
    assert abs(float((seen.sum(0) * places).sum() / seen.sum()) - 17.5) <= 0.5
    assert 25 <= len(seen.sum(1).nonzero()) <= 27  # the same share of 36 as 20 of 28


def test_an_empty_canvas_stays_empty():
    assert not pictures.centre(torch.zeros(50, 50), 28, 28).any()
    assert not pictures.centre(torch.full((50, 50), 0.05), 28, 28).any()


def test_data_urls_keep_every_pixel():
    grey = torch.from_numpy(gradient() / 255.0)
    assert (pixels_of(pictures.data_url(grey)) == gradient()).all()
    assert (pixels_of(pictures.data_url(grey[None])) == gradient()).all()
    assert pixels_of(pictures.data_url(grey.expand(3, -1, -1))).shape == (20, 30, 3)


# 16383×16383 pixels in 34 bytes
HUGE_WEBP = b"RIFF\x1a\x00\x00\x00WEBPVP8L\x0e\x00\x00\x00/\xfe\xbf\xff\x0f\x07\x10\x11\xfd\x0fDD\xff\x03"


def damaged(kind, cut):
    return base64.b64encode(base64.b64decode(as_file(gradient(200, 200), kind))[:cut]).decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no PNG"),
        ("%%%", "not base64"),
        ("data:image/svg+xml,<svg/>", "must be base64"),
        ("QUJD" * 400_000, "1 MiB"),
        (as_file(gradient(), "gif"), "no PNG"),
        (as_file(gradient(), "bmp"), "no PNG"),
        (as_file(gradient(), "tiff"), "no PNG"),
        (as_file(Image.new("1", (2049, 3))), "2049×3"),
        (base64.b64encode(HUGE_WEBP).decode(), "far too many pixels"),
        (damaged("png", 300), "damaged"),
        (damaged("jpeg", 400), "damaged"),
        (damaged("webp", 60), "no PNG|damaged"),
    ],
)
def test_files_that_cannot_be_decoded_are_rejected(text, message):
    with pytest.raises(UserError, match=message):
        decoded(text)
