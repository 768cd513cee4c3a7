import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.data import load_image
from torchcaps.data.images import decode, resize_images, set_channels
from torchcaps.errors import UserError

RNG = np.random.default_rng(3)
COLOUR = RNG.integers(0, 256, (7, 9, 3), dtype=np.uint8)
GREY = RNG.integers(0, 256, (7, 9), dtype=np.uint8)


def saved(path, image, **options):
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".tiff", ".webp", ".PNG"])
def test_lossless_formats_come_back_exactly(tmp_path, suffix):
    options = {"lossless": True} if suffix == ".webp" else {}
    path = saved(tmp_path / f"x{suffix}", Image.fromarray(COLOUR), **options)
    assert torch.equal(load_image(path, (3, 7, 9)), torch.from_numpy(COLOUR).permute(2, 0, 1))


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".gif"])
def test_lossy_formats_come_back_nearly(tmp_path, suffix):
    smooth = np.linspace(0, 255, 63).astype(np.uint8).reshape(7, 9)
    path = saved(tmp_path / f"x{suffix}", Image.fromarray(smooth))
    assert np.abs(load_image(path, (1, 7, 9))[0].int().numpy() - smooth).max() < 12


def test_grey_becomes_three_equal_channels_and_colour_becomes_luma(tmp_path):
    grey = load_image(saved(tmp_path / "g.png", Image.fromarray(GREY)), (3, 7, 9))
    assert torch.equal(grey, torch.from_numpy(GREY).expand(3, 7, 9))
    one = load_image(saved(tmp_path / "c.png", Image.fromarray(COLOUR)), (1, 7, 9))
    assert torch.equal(one, set_channels(torch.from_numpy(COLOUR).permute(2, 0, 1)[None], 1)[0])


def test_transparency_is_laid_over_black(tmp_path):
    alpha = np.full((7, 9, 1), 0, dtype=np.uint8)
    alpha[0] = 255
    path = saved(tmp_path / "rgba.png", Image.fromarray(np.concatenate([COLOUR, alpha], axis=2)))
    image = load_image(path, (3, 7, 9))
    assert torch.equal(image[:, 0], torch.from_numpy(COLOUR[0]).T)
    assert not image[:, 1:].any()
    path = saved(tmp_path / "la.png", Image.fromarray(np.stack([GREY, alpha[..., 0]], axis=2)))
    image = decode(path, (7, 9), None)
    assert image.shape == (1, 7, 9)
    assert np.array_equal(image[0, 0], GREY[0])
    assert not image[0, 1:].any()


def test_palettes_are_looked_up_and_a_grey_palette_is_grey(tmp_path):
    indices = Image.fromarray(GREY % 4).convert("P")
    indices.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 10, 20, 30])
    image = decode(saved(tmp_path / "p.png", indices), (7, 9), None)
    assert image.shape == (3, 7, 9)
    assert np.array_equal(image[0] == 255, GREY % 4 == 1)
    assert decode(saved(tmp_path / "t.png", indices, transparency=1), (7, 9), 3)[0].max() < 255
    indices.putpalette([v for v in (0, 50, 100, 150) for _ in range(3)])
    assert np.array_equal(decode(saved(tmp_path / "pg.png", indices), (7, 9), None)[0], GREY % 4 * 50)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, suffix):
    values = np.array([[0, 128, 257, 32768, 65535]], dtype=np.uint16)
    path = saved(tmp_path / f"deep{suffix}", Image.fromarray(values))
    assert decode(path, (1, 5), None)[0, 0].tolist() == [0, 0, 1, 128, 255]


def test_cmyk_and_bilevel_are_handled(tmp_path):
    red = load_image(saved(tmp_path / "k.jpg", Image.new("CMYK", (8, 8), (0, 255, 255, 0)), quality=95), (3, 8, 8))
    assert red[0].min() > 240
    assert red[1:].max() < 15
    assert decode(saved(tmp_path / "b.png", Image.new("1", (3, 3), 1)), (3, 3), None).tolist() == [[[255] * 3] * 3]


@pytest.mark.parametrize(
    ("suffix", "options"), [(".jpg", {}), (".png", {}), (".tif", {}), (".tif", {"compression": "tiff_lzw"})]
)
def test_exif_orientation_is_respected(tmp_path, suffix, options):
    picture = np.zeros((8, 16), dtype=np.uint8)
    picture[:, :8] = 255  # the left half; orientation 6 turns it to the top
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(tmp_path / f"x{suffix}", Image.fromarray(picture), exif=exif, **options)
    image = load_image(path, (1, 16, 8))[0]
    assert image[:7].min() > 240
    assert image[9:].max() < 15


def test_files_and_tensors_are_resized_alike(tmp_path):
    big = RNG.integers(0, 256, (60, 45), dtype=np.uint8)
    for size in ((20, 15), (90, 50)):
        of_file = load_image(saved(tmp_path / "big.png", Image.fromarray(big)), (1, *size))
        of_tensor = resize_images(torch.from_numpy(big)[None, None], size)[0]
        assert (of_file.int() - of_tensor.int()).abs().max() <= 1


def test_a_large_photograph_keeps_its_mean(tmp_path):
    path = saved(tmp_path / "photo.jpg", Image.fromarray(np.repeat(np.repeat(GREY, 100, 0), 100, 1)), quality=95)
    assert load_image(path, (1, 7, 9)).float().mean() == pytest.approx(GREY.mean(), abs=3)


@pytest.mark.parametrize("damage", ["truncated", "text", "empty", "missing", "folder", "float", "bomb"])
def test_an_unreadable_image_is_named(tmp_path, monkeypatch, damage):
    path = tmp_path / f"{damage}.jpg"
    noise = Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    if damage == "truncated":
        saved(path, noise).write_bytes(saved(path, noise).read_bytes()[:2000])
    elif damage in ("text", "empty"):
        path.write_text("hello" if damage == "text" else "")
    elif damage == "folder":
        path.mkdir()
    elif damage == "float":
        path = saved(tmp_path / "float.tif", Image.new("F", (3, 3), 0.5))
    elif damage == "bomb":
        saved(path, noise)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    expected = {"missing": "no such file", "text": "not an image", "float": "floating-point", "bomb": "100 pixels"}
    with pytest.raises(UserError, match=expected.get(damage, "cannot read the image")) as caught:
        load_image(path, (3, 8, 8))
    assert str(path) in str(caught.value)
