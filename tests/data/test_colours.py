"""Colours, random resized crops and RandAugment, compared with colorsys, Pillow and values by hand."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch._subclasses.fake_tensor import FakeTensorMode

from torchcaps.data import augment
from torchcaps.data.colours import change_hue, change_saturation, grey
from torchcaps.data.randaugment import VALUES
from torchcaps.errors import UserError


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("turns", [-0.5, -0.1, 0, 1 / 3, 0.45])
def test_hue_is_that_of_colorsys(turns):
    images = torch.rand(2, 3, 4, 5, generator=seeded())
    images[0, :, 0] = 0.25  # grey has no hue
    images[0, :, 1, 0] = torch.tensor([1.0, 0, 1])
    turned = change_hue(images, torch.tensor([turns, 0.0]))
    torch.testing.assert_close(turned[1], images[1])
    for y in range(4):
        for x in range(5):
            h, s, v = colorsys.rgb_to_hsv(*images[0, :, y, x].tolist())
            expected = colorsys.hsv_to_rgb((h + turns) % 1, s, v)
            torch.testing.assert_close(turned[0, :, y, x], torch.tensor(expected), atol=1e-5, rtol=0)


def test_saturation_by_hand():
    red = torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1).expand(3, -1, -1, -1)
    changed = change_saturation(red, torch.tensor([0.0, 0.5, 2.0]))[:, :, 0, 0]
    assert changed.tolist()[0] == pytest.approx([0.299] * 3)
    assert changed.tolist()[1] == pytest.approx([0.6495, 0.1495, 0.1495])
    assert changed.tolist()[2] == pytest.approx([1, 0, 0])  # clipped


def test_jitter_differs_between_images_and_needs_colours():
    images = torch.rand(1, 3, 4, 4, generator=seeded()).expand(50, -1, -1, -1)
    for options in ({"hue": 0.5}, {"saturation": 1.0}):
        changed = augment(images, seeded(), **options)
        assert len(changed.flatten(1).unique(dim=0)) == 50
        assert torch.equal(changed, augment(images, seeded(), **options))
        assert ((changed >= 0) & (changed <= 1)).all()
        with pytest.raises(UserError, match="have 1 channels and no colours"):
            augment(images[:, :1], **options)
    torch.testing.assert_close(grey(augment(images, seeded(), saturation=0.2)), grey(images), atol=1e-2, rtol=0)
    for name, value, message in (("hue", 0.6, "half of the circle"), ("saturation", 1.5, "must not exceed 1")):
        with pytest.raises(UserError, match=message):
            augment(images, **{name: value})


def test_a_resized_crop_is_a_window_of_the_area_asked_for():
    """Of an image whose two channels are the coordinates, the corners say which window was taken."""
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(48.0), indexing="ij")
    images = torch.stack([y, x]).expand(300, -1, -1, -1)
    cut = augment(images, seeded(), resized_crop=0.25)
    assert cut.shape == images.shape
    high, wide = ((cut[:, axis].amax((1, 2)) - cut[:, axis].amin((1, 2))) for axis in (0, 1))
    share, ratio = (high + 1) * (wide + 1) / (32 * 48), wide / high
    assert share.min() > 0.2
    assert share.max() <= 1.0
    assert 0.45 < share.mean() < 0.7
    assert ratio.min() > 0.7
    assert ratio.max() < 1.6  # 3 : 2 where the window is the whole image
    small = augment(images, seeded(), resized_crop=0.25, crop=8)
    assert small.shape == (300, 2, 8, 8)
    whole = augment(images[:2], seeded(), resized_crop=1.0)
    assert (whole - images[:2]).abs().mean() < 5  # the whole area, at another ratio of the sides
    with pytest.raises(UserError, match="at most 1"):
        augment(images, resized_crop=2.0)


def test_masks_follow_a_resized_crop():
    masks = torch.zeros(40, 16, 16, dtype=torch.uint8)
    masks[:, :, 8:], masks[:, 8:, :8] = 1, 2
    images = masks[:, None].float() / 2
    moved, moved_masks = augment(images, seeded(), masks=masks, resized_crop=0.3)
    agree = (moved[:, 0] * 2).round().to(torch.uint8) == moved_masks
    assert agree.float().mean() > 0.9  # all but edges
    assert moved_masks.float().std(0).mean() > 0.1
    assert not (moved_masks == 255).any()


def pillow(name, image, strength, sign):
    """What Pillow makes of an image (H, W, 3) uint8 by the operation of this name."""
    picture, factor = Image.fromarray(image), 1 + 0.9 * strength * sign
    enhance = {
        "brightness": ImageEnhance.Brightness,
        "colour": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "sharpness": ImageEnhance.Sharpness,
    }
    if name in enhance:
        return enhance[name](picture).enhance(factor)
    if name == "posterize":
        return ImageOps.posterize(picture, 8 - round(4 * strength))
    if name == "solarize":
        return ImageOps.solarize(picture, round(255 * (1 - strength)))
    return {"autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize}[name](picture)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", VALUES)
def test_every_operation_is_that_of_pillow(name, strength, sign):
    bytes_ = torch.randint(20, 200, (1, 3, 24, 16), dtype=torch.uint8, generator=seeded(1))
    found = VALUES[name](bytes_.float() / 255, strength, torch.tensor([sign]))[0].permute(1, 2, 0) * 255
    expected = np.asarray(pillow(name, bytes_[0].permute(1, 2, 0).numpy(), strength, sign)).astype(np.float32)
    assert (found - torch.from_numpy(expected)).abs().max() < 1.6  # Pillow rounds between its steps


def test_geometry_moves_as_named():
    """Of the images of a dot that hold still or move, each kind occurs, both ways."""
    images = torch.zeros(700, 1, 21, 21)
    images[:, :, 10, 14] = 1
    moved = augment(images, seeded(), randaugment=1, magnitude=10)
    weight = moved.sum((1, 2, 3)).clamp_min(1e-6)
    rows, columns = torch.arange(21.0)[:, None], torch.arange(21.0)
    y, x = ((moved[:, 0] * axis).sum((1, 2)) / weight for axis in (rows, columns))
    seen = weight > 0.5
    assert ((y - 12).abs() < 0.6)[seen & (x < 14)].any()  # turned by 30°: 4 pixels become 2 down, and 0.5 to the left
    assert ((y - 8).abs() < 0.6)[seen & (x < 14)].any()
    assert ((y - 10 - 1.2).abs() < 0.3)[seen].any()  # sheared by 0.3: 4 pixels to the right become 1.2 down
    assert ((x - 14 + 9.45).abs() < 0.3)[seen].any()  # shifted by 0.45 of the side
    assert ((y - 10).abs() < 0.01).float().mean() > 0.4  # operations on values


def test_randaugment_is_reproducible_bounded_and_leaves_some_alone():
    images = torch.rand(60, 3, 12, 12, generator=seeded())
    changed = augment(images, seeded(2), randaugment=2, magnitude=5.0)
    assert torch.equal(changed, augment(images, seeded(2), randaugment=2, magnitude=5.0))
    assert not torch.equal(changed, augment(images, seeded(3), randaugment=2, magnitude=5.0))
    assert ((changed >= 0) & (changed <= 1)).all()
    once = augment(images, seeded(2), randaugment=1, magnitude=5.0)
    kept = (once == images).flatten(1).all(1).float().mean()
    assert 0 <= kept < 0.3
    assert augment(images[:0], randaugment=2).shape == (0, 3, 12, 12)
    assert augment(images[:, :1], seeded(), randaugment=2).shape == (60, 1, 12, 12)
    with pytest.raises(UserError, match="magnitude=11: give 0 to 10"):
        augment(images, randaugment=1, magnitude=11)


def test_nothing_needs_a_value_to_be_read():
    options = {"resized_crop": 0.3, "hue": 0.1, "saturation": 0.5, "randaugment": 2}
    with FakeTensorMode():  # tensors without values, as while a CUDA graph is recorded
        images, masks = augment(torch.rand(4, 3, 11, 9), masks=torch.zeros(4, 11, 9).long(), **options)
    assert (images.shape, masks.shape) == ((4, 3, 11, 9), (4, 11, 9))
