import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from torchcaps.data import augment, centre_crop
from torchcaps.errors import UserError


def seeded(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dot(height=11, width=11, y=5, x=5, batch=64) -> torch.Tensor:
    images = torch.zeros(batch, 1, height, width)
    images[:, :, y, x] = 1
    return images


def test_nothing_asked_returns_the_same_tensor():
    images = dot()
    assert augment(images) is images
    assert augment(images, crop=11) is images
    assert centre_crop(images, 0) is images


def test_shift_augmentation_is_exact_integer():
    images = torch.rand(200, 2, 6, 7, generator=seeded())
    moved = augment(images, seeded(1), shift=2)
    seen = set()
    for image, result in zip(images, moved):
        fits = []
        for dy in range(-2, 3):
            for dx in range(-2, 3):
                expected = torch.zeros_like(image)
                rows, columns = slice(max(dy, 0), 6 + min(dy, 0)), slice(max(dx, 0), 7 + min(dx, 0))
                expected[:, rows, columns] = image.roll((dy, dx), (1, 2))[:, rows, columns]
                if torch.equal(result, expected):
                    fits.append((dy, dx))
        assert len(fits) == 1
        seen.add(fits[0])
    assert len(seen) == 25  # every shift occurs


@settings(deadline=None)
@given(shift=st.integers(1, 4), seed=st.integers(0, 1000))
def test_a_shift_can_be_undone_when_nothing_leaves_the_image(shift, seed):
    images = torch.zeros(3, 1, 12, 12)
    images[:, :, 4:8, 4:8] = torch.rand(3, 1, 4, 4, generator=seeded(seed)) + 0.1
    moved = augment(images, seeded(seed), shift=shift)
    for image, result in zip(images, moved):
        assert torch.equal(result[result > 0], image[image > 0])
        corner = (result[0] > 0).nonzero()[0] - 4
        assert torch.equal(result.roll((-int(corner[0]), -int(corner[1])), (1, 2)), image)


@settings(deadline=None)
@given(
    seed=st.integers(0, 1000),
    height=st.integers(5, 12),
    width=st.integers(5, 12),
    batch=st.integers(0, 3),
    options=st.fixed_dictionaries(
        {},
        optional={
            "shift": st.integers(0, 3),
            "rotate": st.floats(0, 180),
            "shear": st.floats(0, 1),
            "scale": st.floats(0, 0.9),
            "crop": st.integers(0, 5),
            "flip": st.booleans(),
        },
    ),
)
def test_augment_keeps_shape_dtype_and_range(seed, height, width, batch, options):
    images = torch.rand(batch, 3, height, width, generator=seeded(seed))
    result = augment(images, seeded(seed), **options)
    crop = options.get("crop", 0)
    assert result.shape == (batch, 3, crop or height, crop or width)
    assert result.dtype == images.dtype
    assert ((result >= 0) & (result <= 1 + 1e-5)).all()
    assert torch.equal(result, augment(images, seeded(seed), **options))


def test_crop_takes_windows_and_flip_mirrors_half():
    images = torch.arange(64.0).view(1, 1, 8, 8).expand(100, 1, 8, 8)
    crops = augment(images, seeded(), crop=5)
    assert len(crops[:, 0, 0, 0].unique()) > 10
    assert torch.equal(crops - crops[:, :, :1, :1], (images - images[:, :, :1, :1])[:, :, :5, :5])
    flipped = augment(images, seeded(), flip=True)[:, 0, 0, 0] == 7
    assert 30 < int(flipped.sum()) < 70
    assert centre_crop(images, 4)[0, 0, 0, 0] == 2 * 8 + 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shift": -1}, "shift=-1"),
        ({"scale": 1.0}, "scale=1.0"),
        ({"crop": 12}, "does not fit into images of 11×11"),
        ({"share": 1.5}, "share=1.5"),
    ],
)
def test_impossible_augmentation_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        augment(dot(), **options)
    with pytest.raises(UserError, match="crop=12"):
        centre_crop(dot(), 12)


def test_elastic_bends_smoothly_and_moves_by_the_deviation_asked_for():
    ramp = torch.linspace(0, 1, 28).expand(400, 1, 28, 28).clone()  # a value says which column it came from
    bent = augment(ramp, seeded(), elastic=0.8)
    moved = (bent - ramp)[:, :, 8:-8, 8:-8] * 27
    assert moved.std() == pytest.approx(0.8, rel=0.25)  # between its knots a field is a little calmer
    assert moved.mean().abs() < 0.05
    assert moved.diff(dim=-1).abs().mean() < 0.4  # neighbours move together
    assert torch.equal(bent, augment(ramp, seeded(), elastic=0.8))
    assert (bent.flatten(1) != bent[:1].flatten(1)).any(1)[1:].all()  # each image in its own way


def test_a_share_of_the_images_is_warped_and_the_others_keep_every_pixel():
    images = torch.rand(400, 1, 9, 9, generator=seeded(1))
    warped = augment(images, seeded(), rotate=30, share=0.25)
    kept = (warped == images).flatten(1).all(1)
    assert 250 < int(kept.sum()) < 350
    assert torch.equal(augment(images, seeded(), rotate=30, share=0.0), images)
    moved = augment(images, seeded(), rotate=30, shift=1, share=0.0)
    assert set(moved.flatten().tolist()) <= {0.0, *images.flatten().tolist()}  # shifted by whole pixels


def test_warping_keeps_an_image_as_sharp_and_within_its_own_range():
    stripes = (torch.arange(28) // 2 % 2).float().expand(200, 1, 28, 28) * 0.5 + 0.25
    warped = augment(stripes, seeded(), rotate=5)
    assert warped.min() >= 0
    assert warped.max() <= 0.75
    middle = warped[:, :, 9:-9, 9:-9]
    assert middle.std() > 0.93 * stripes[:, :, 9:-9, 9:-9].std()  # bilinear sampling leaves 0.91 of it


def test_erase_blackens_one_rectangle_at_most_so_large():
    white = torch.ones(3000, 2, 12, 15)
    black = augment(white, seeded(), erase=5) == 0
    assert torch.equal(black[:, 0], black[:, 1])
    rows, columns = black[:, 0].any(2), black[:, 0].any(1)
    assert torch.equal(black[:, 0], rows[:, :, None] & columns[:, None, :])  # a rectangle
    for side in (rows, columns):
        starts = side & ~torch.roll(side, 1, 1).logical_and(torch.arange(side.shape[1]) > 0)
        assert starts.sum(1).max() == 1  # in one piece
        assert side.sum(1).max() == 5
    assert (~black.flatten(1).any(1)).any()  # and some stay whole
    assert black[:, 0].any(0).all()  # it may lie anywhere


def test_brightness_adds_one_number_to_a_whole_image():
    images = 0.3 + 0.4 * torch.rand(2000, 2, 5, 6, generator=seeded())
    added = augment(images, seeded(1), brightness=0.25) - images
    shifts = added[:, 0, 0, 0]
    torch.testing.assert_close(added, shifts[:, None, None, None].expand_as(added))
    assert (-0.25 <= shifts.min() < -0.24, 0.24 < shifts.max() <= 0.25) == (True, True)
    assert shifts.mean().abs() < 0.02


def test_noise_is_of_another_strength_for_each_image_and_of_every_pixel_by_itself():
    images = torch.full((400, 1, 20, 20), 0.5)
    away = augment(images, seeded(), noise=0.1) - images
    strength = away.flatten(1).std(1)
    assert strength.max() < 0.115  # a standard deviation of 0.1, measured on 400 pixels
    assert strength.mean() == pytest.approx(0.05, abs=0.005)  # uniform up to 0.1
    assert away.mean().abs() < 1e-3
    beside = (away[..., 1:] * away[..., :-1]).mean() / away.square().mean()
    assert beside.abs() < 0.02
    assert ((bright := augment(images + 0.5, seeded(), noise=0.5)) <= 1).all()
    assert bright.min() >= 0


def test_contrast_stretches_about_the_mean_of_the_image():
    images = 0.4 + 0.2 * torch.rand(2000, 2, 5, 6, generator=seeded())
    images[:, 1] += 0.1  # both channels by the same factor about the same mean
    changed = augment(images, seeded(1), contrast=0.5)
    mean = images.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(changed.mean((1, 2, 3), keepdim=True), mean)
    factors = (changed - mean).square().mean((1, 2, 3), keepdim=True).sqrt() / images.std(
        (1, 2, 3), False, keepdim=True
    )
    torch.testing.assert_close(changed, mean + (images - mean) * factors)
    assert (0.5 <= factors.min() < 0.52, 1.48 < factors.max() < 1.5001) == (True, True)


@settings(deadline=None)
@given(
    seed=st.integers(0, 1000),
    batch=st.integers(0, 3),
    brightness=st.floats(0, 2),
    contrast=st.floats(0, 1),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_lighting_stays_between_black_and_white(seed, batch, brightness, contrast, dtype):
    images = torch.rand(batch, 2, 7, 5, generator=seeded(seed)).to(dtype)
    result = augment(images, seeded(seed), brightness=brightness, contrast=contrast)
    assert (result.shape, result.dtype) == (images.shape, dtype)
    assert ((result >= 0) & (result <= 1)).all()
    assert torch.equal(result, augment(images, seeded(seed), brightness=brightness, contrast=contrast))


def test_lighting_sees_the_crop_and_leaves_what_is_erased_black():
    images = torch.full((50, 1, 12, 12), 0.4)
    images[..., 4:8, 4:8] = 0.6
    cropped = augment(images, seeded(), crop=5)
    assert len(cropped.mean((1, 2, 3)).unique()) > 5
    changed = augment(images, seeded(), crop=5, contrast=0.4)
    assert not torch.equal(changed, cropped)
    torch.testing.assert_close(changed.mean((1, 2, 3)), cropped.mean((1, 2, 3)))
    erased = augment(torch.full((500, 1, 9, 9), 0.5), seeded(), erase=9, brightness=0.2)
    assert (erased == 0).any()
    assert ((erased == 0) | (erased >= 0.3)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"brightness": -0.1}, "brightness=-0.1"), ({"contrast": -1}, "contrast=-1"), ({"contrast": 1.5}, "not exceed 1")],
)
def test_impossible_lighting_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        augment(dot(), **options)


def blocks(batch=200, side=24, classes=3) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of large flat rectangles whose brightness says the class of a pixel, and the masks of these classes."""
    coarse = torch.randint(classes, (batch, 1, 3, 3), generator=seeded(5))
    masks = coarse.repeat_interleave(side // 3, 2).repeat_interleave(side // 3, 3)
    return (masks + 1.0) / classes, masks[:, 0]


EXACT = [{"shift": 3}, {"crop": 11}, {"flip": True}, {"flip_vertical": True}, {"turn": True}]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
@pytest.mark.parametrize("options", [*EXACT, {key: value for each in EXACT for key, value in each.items()}], ids=str)
def test_a_mask_moves_with_its_image_pixel_by_pixel(options, dtype):
    images, masks = blocks()
    moved, moved_masks = augment(images, seeded(), masks=masks.to(dtype), **options)
    assert torch.equal(moved, augment(images, seeded(), **options))  # the masks change nothing for the images
    assert (moved_masks.dtype, moved_masks.shape) == (dtype, moved[:, 0].shape)
    expected = (moved[:, 0] * 3).round().long() - 1  # -1 where black has entered
    assert torch.equal(moved_masks.long(), expected.masked_fill(expected < 0, 255))
    assert not torch.equal(moved_masks, masks[:, : moved.shape[2], : moved.shape[3]].to(dtype))


@settings(deadline=None)
@given(
    seed=st.integers(0, 1000),
    options=st.fixed_dictionaries(
        {},
        optional={
            "shift": st.integers(0, 3),
            "rotate": st.floats(0, 180),
            "shear": st.floats(0, 0.3),
            "scale": st.floats(0, 0.3),
            "elastic": st.floats(0, 1),
            "share": st.floats(0, 1),
            "turn": st.booleans(),
        },
    ),
)
def test_a_warped_mask_agrees_with_its_image_away_from_edges(seed, options):
    images, masks = blocks(8)
    moved, moved_masks = augment(images, seeded(seed), masks=masks, **options)
    assert torch.equal(moved, augment(images, seeded(seed), **options))
    assert set(moved_masks.unique().tolist()) <= {0, 1, 2, 255}
    # where all nine pixels around have one brightness there is no edge, and the brightness says the class
    patches = torch.nn.functional.unfold(moved, 3, padding=1).view(8, 9, 24, 24)
    flat = patches.amax(1) - patches.amin(1) < 1e-4
    expected = (moved[:, 0] * 3).round().long() - 1
    assert flat.float().mean() > 0.05
    assert torch.equal(moved_masks[flat], expected.masked_fill(expected < 0, 255)[flat])


def test_pixels_that_were_ignored_stay_so_and_lighting_leaves_masks_alone():
    images, masks = blocks()
    masks[masks == 2] = 255
    moved, moved_masks = augment(images, seeded(), masks=masks, flip=True)
    assert torch.equal(moved_masks == 255, moved[:, 0] == 1)
    changed, same = augment(images, seeded(), masks=masks, brightness=0.3, contrast=0.3, noise=0.3, erase=9)
    assert not torch.equal(changed, images)
    assert torch.equal(same, masks)


def test_quarter_turns_and_vertical_flips_are_each_as_likely():
    corners = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).expand(4000, 1, 2, 2)
    for options, kinds in (
        ({"turn": True}, 4),
        ({"flip_vertical": True}, 2),
        ({"flip_vertical": True, "turn": True}, 8),
    ):
        changed, counts = augment(corners, seeded(), **options).flatten(1).unique(dim=0, return_counts=True)
        assert len(changed) == kinds
        assert (counts - 4000 / kinds).abs().max() < 150
    turned = augment(corners, seeded(), turn=True).flatten(1).unique(dim=0).tolist()
    assert turned == [[1, 2, 3, 4], [2, 4, 1, 3], [3, 1, 4, 2], [4, 3, 2, 1]]  # turned, never mirrored
    upside_down = augment(corners, seeded(), flip_vertical=True).flatten(1).unique(dim=0).tolist()
    assert upside_down == [[1, 2, 3, 4], [3, 4, 1, 2]]
    oblong = torch.rand(5, 1, 6, 4)
    assert augment(oblong, seeded(), turn=True, crop=4).shape == (5, 1, 4, 4)
    with pytest.raises(UserError, match="6×4 are not square"):
        augment(oblong, turn=True)


@pytest.mark.parametrize(
    "masks", [torch.zeros(64, 11, 10).long(), torch.zeros(64, 11, 11), torch.zeros(64, 11, 11).bool()]
)
def test_masks_that_do_not_fit_are_refused(masks):
    with pytest.raises(UserError, match=r"uint8 or int64 \(64, 11, 11\)"):
        augment(dot(), masks=masks, flip=True)


def test_masks_need_no_value_to_be_read_and_no_image():
    options = {"shift": 2, "rotate": 9.0, "elastic": 0.5, "share": 0.5, "crop": 9, "turn": True, "flip_vertical": True}
    with FakeTensorMode():  # tensors without values, as while a CUDA graph is recorded
        images, masks = augment(torch.rand(4, 1, 11, 11), masks=torch.zeros(4, 11, 11).long(), **options)
    assert (images.shape, masks.shape) == ((4, 1, 9, 9), (4, 9, 9))
    images, masks = augment(torch.rand(0, 1, 11, 11), masks=torch.zeros(0, 11, 11).long(), **options)
    assert (images.shape, masks.shape) == ((0, 1, 9, 9), (0, 9, 9))
