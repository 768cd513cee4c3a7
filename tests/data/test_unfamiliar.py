import struct

import pytest
import torch

from torchcaps.data import download
from torchcaps.data.datasets import unfamiliar
from torchcaps.data.datasets.unfamiliar import LETTERS, LOOK_ALIKES, UNFAMILIAR, fashion_mnist, ink_height, letters
from torchcaps.errors import UserError

SIZES = [(1, 28, 28), (3, 16, 20), (2, 40, 40), (1, 8, 8)]


def boxes(images: torch.Tensor) -> list[tuple[int, int, int, int]]:
    """First and last row, first and last column of what is brighter than 0.3."""
    found = []
    for image in (images > 0.3).any(1):
        rows, columns = image.any(1).nonzero().flatten(), image.any(0).nonzero().flatten()
        found.append((int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])))
    return found


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", sorted(UNFAMILIAR))
def test_images_are_as_asked_for_and_depend_on_the_seed_alone(kind, size):
    images = UNFAMILIAR[kind](12, size, 3)
    assert images.shape == (12, *size)
    assert images.dtype == torch.float32
    assert 0 <= images.min() < images.max() <= 1
    torch.manual_seed(99)
    assert torch.equal(images, UNFAMILIAR[kind](12, size, 3))
    assert not torch.equal(images, UNFAMILIAR[kind](12, size, 4))
    if "noise" in kind and size[0] > 1:
        assert not torch.equal(images[:, 0], images[:, 1])
    elif kind != "constants":
        assert torch.equal(images[:, 0], images[:, -1])
    with pytest.raises(UserError, match="at least one image"):
        UNFAMILIAR[kind](0, size, 3)


@pytest.mark.parametrize(("side", "height"), [(28, 20), (40, 20), (16, 20 * 16 / 28), (8, 20 * 8 / 28)])
@pytest.mark.parametrize("alphabet", [LETTERS, "mw"], ids=["all", "wide"])
def test_letters_are_as_large_as_digits_of_mnist_and_in_the_middle(side, height, alphabet):
    images, _ = letters(150, (1, side, side), 0, alphabet=alphabet)
    longer = []
    for top, bottom, left, right in boxes(images):
        longer.append(max(bottom - top, right - left) + 1)
        middle = torch.tensor([top + bottom, left + right]) / 2 - (side - 1) / 2
        assert middle.abs().max() <= 0.1 * height + 1
    assert min(longer) >= 0.9 * height - 2.5
    assert max(longer) <= 1.1 * height + 1
    assert len(set(longer)) > 1
    assert sum(longer) / 150 == pytest.approx(height, abs=0.6)


def test_letters_are_named_and_drawn_in_several_faces():
    images, names = letters(400, (1, 28, 28), 0)
    assert len(names) == 400
    assert set(names) == set(LETTERS)
    wide, narrow = (
        {box[3] - box[2] for box, name in zip(boxes(images), names) if name in some} for some in ("mMW", "l")
    )
    assert min(wide) > max(narrow)
    same, names = letters(30, (1, 28, 28), 0, alphabet="H")
    assert names == "H" * 30
    ink = same.sum((1, 2, 3))
    assert ink.max() > 1.4 * ink.min()  # bold and plain
    assert ((same > 0.05) & (same < 0.95)).any()  # edges are smooth


@pytest.mark.parametrize("alphabet", ["Hl", "Wm"])  # high, and wide
def test_letters_that_fill_the_frame_are_not_cut(alphabet):
    tight, free = (letters(60, (1, side, side), 0, height=14, alphabet=alphabet)[0].sum((1, 2, 3)) for side in (16, 40))
    torch.testing.assert_close(tight, free, rtol=0.01, atol=0)
    full, _ = letters(60, (1, 16, 16), 0, alphabet="H", height=16)  # a tenth more would not fit
    assert max(bottom - top + 1 for top, bottom, _, _ in boxes(full)) == 16


def test_look_alikes_are_apart():
    drawn = {kind: UNFAMILIAR[kind].keywords["alphabet"] for kind in ("letters", "look-alikes")}
    assert drawn["look-alikes"] == LOOK_ALIKES
    assert set("OIlSZBqg") <= set(LOOK_ALIKES)
    assert sorted(drawn["letters"] + drawn["look-alikes"]) == sorted(LETTERS)


@pytest.mark.parametrize("height", [None, 10.0])
def test_splines_fill_their_box_with_a_pen_like_that_of_mnist(height):
    images = unfamiliar.splines(60, (1, 28, 28), 0, height=height)
    for top, bottom, left, right in boxes(images):
        assert max(bottom - top, right - left) + 1 == pytest.approx(height or 20, abs=1)
        assert abs(top + bottom - 27) <= 2
        assert abs(left + right - 27) <= 2
    if height is None:
        assert 0.08 < images.mean() < 0.2  # MNIST has 0.12 to 0.13
    assert ((images > 0.05) & (images < 0.95)).any()


def test_splines_have_two_to_four_strokes(monkeypatch):
    drawn, bezier = [], unfamiliar._bezier
    monkeypatch.setattr(
        unfamiliar, "_bezier", lambda control, samples: drawn.append(control) or bezier(control, samples)
    )
    unfamiliar.splines(30, (1, 28, 28), 0)
    assert {len(strokes.unique(dim=0)) for strokes in drawn[0]} == {2, 3, 4}


def test_a_bezier_curve_by_hand():
    control = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])[None, None]
    points = unfamiliar._bezier(control, 3)[0]
    torch.testing.assert_close(points, torch.tensor([[0.0, 0.0], [0.5, 0.75], [1.0, 0.0]]))


def test_noise_has_its_spread():
    flat = unfamiliar.uniform_noise(50, (1, 28, 28), 0)
    assert float(flat.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(flat.std()) == pytest.approx(12**-0.5, abs=0.01)
    bell = unfamiliar.gaussian_noise(9, (1, 40, 40), 0).flatten(1)
    torch.testing.assert_close(bell.mean(1), torch.full((9,), 0.5), atol=0.04, rtol=0)
    assert bell[[0, 3, 6]].std(1).tolist() == pytest.approx([0.1] * 3, abs=0.01)
    assert (bell[2] == 0).any()
    assert (bell[2] == 1).any()


def test_constants_are_black_white_grey_and_nearly_grey():
    black, white, grey, faint = unfamiliar.constants(8, (1, 28, 28), 0)[4:]
    assert (black == 0).all()
    assert (white == 1).all()
    assert grey.min() == grey.max()
    assert 0.1 <= grey.min() <= 0.9
    assert 0.015 < faint.std() < 0.025


def test_dots_are_single_round_and_whole():
    images = unfamiliar.dots(200, (1, 28, 28), 0)
    area = images.sum((1, 2, 3))
    assert area.min() > 0.6
    assert area.max() == pytest.approx(4 * torch.pi, rel=0.06)
    for (top, bottom, left, right), ink in zip(boxes(images), area):
        assert abs((bottom - top) - (right - left)) <= 1
        assert max(bottom - top, right - left) + 1 <= 5
        assert ink <= 4.2 * torch.pi


def test_gradients_are_straight_and_point_anywhere():
    images = unfamiliar.gradients(40, (1, 12, 20), 0)[:, 0].double()
    for axis in (1, 2):
        assert images.diff(n=2, dim=axis).abs().max() < 1e-5
        slope = images.diff(dim=axis).mean((1, 2))
        assert slope.min() < 0 < slope.max()
    assert (images.amin((1, 2)) <= 0.4 + 1e-5).all()
    assert (images.amax((1, 2)) >= 0.6 - 1e-5).all()


def test_the_size_of_what_images_show():
    images = torch.zeros(3, 2, 12, 12)
    images[0, 0, 2:7, 3:5] = 1  # 5 high
    images[1, 1, 4, 1], images[1, 1, 4, 8] = 0.5, 0.5  # 8 wide
    images[2, 0, 1:11] = 0.2  # too faint
    assert ink_height(images) == 5
    assert ink_height(images[1:2]) == 8
    assert ink_height(images[2:]) == 0


@pytest.mark.parametrize("height", [0.0, 29.0, float("nan")])
def test_heights_that_do_not_fit_are_refused(height):
    with pytest.raises(UserError, match="shorter side"):
        letters(1, (1, 28, 40), 0, height=height)


def test_a_missing_font_is_named(monkeypatch):
    monkeypatch.setattr(unfamiliar, "FACES", ("NoSuchFace",))
    with pytest.raises(UserError, match="NoSuchFace"):
        letters(1, (1, 28, 28), 0)


def test_without_its_files_fashion_mnist_is_none_and_nothing_is_downloaded(monkeypatch):
    monkeypatch.setattr("torchcaps.data.sources.fetch", lambda *_: pytest.fail("downloaded"))
    assert fashion_mnist(3, (1, 28, 28), 0) is None


@pytest.mark.parametrize("size", [(1, 40, 41), (3, 16, 16)], ids=str)
def test_fashion_mnist_stands_in_the_middle_of_the_frame(tmp_path, monkeypatch, size):
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    (tmp_path / "fashion-mnist").mkdir()
    for remote, count in zip(download.REMOTES["fashion-mnist"], (12, 12, 6, 6)):
        shape = (count, 28, 28) if "images" in remote.name else (count,)
        body = bytes([255]) * (count * 784) if "images" in remote.name else bytes(range(count))
        if "labels" in remote.name:
            body = bytes(number % 10 for number in body)
        head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
        (tmp_path / "fashion-mnist" / remote.name.removesuffix(".gz")).write_bytes(head + body)
    images = fashion_mnist(4, size, 0)
    assert images.shape == (4, *size)
    if size[1] == 40:
        assert boxes(images) == [(6, 33, 6, 33)] * 4
        assert images.sum() == 4 * 784
    else:
        assert images.min() == 1
    assert len(fashion_mnist(50, size, 0)) == 6
