"""Digits in a larger frame: none of their ink is lost, and they go where the published ranges say."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.io import savemat
from sklearn.datasets import load_digits

from torchcaps.data import Dataset, Splits, dataset
from torchcaps.data.datasets import affnist
from torchcaps.errors import UserError

NAMES = tuple("0123456789")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """Sixty of scikit-learn's digits, enlarged to the 20×20 that MNIST's fill, in its 28×28."""
    found = load_digits()
    pixels = F.interpolate(torch.from_numpy(found.images[:60])[:, None] * (255 / 16), size=(20, 20))
    return Dataset(F.pad(pixels, (4, 4, 4, 4)).round().byte(), torch.from_numpy(found.target[:60]).long(), NAMES)


def boxes(count=1, side=20, size=28) -> Dataset:
    images = torch.zeros(count, 1, size, size, dtype=torch.uint8)
    edge = (size - side) // 2
    images[..., edge : edge + side, edge : edge + side] = 255
    return Dataset(images, torch.zeros(count, dtype=torch.long), NAMES)


def by_hand(images, angle=0.0, shear=0.0, grow_x=1.0, grow_y=1.0, shift=(0.0, 0.0), size=40):
    forward = affnist.linear(*(torch.tensor([each], dtype=torch.float64) for each in (angle, shear, grow_x, grow_y)))
    return affnist.resample(images, forward, torch.tensor([shift], dtype=torch.float64), size)


def test_expand_puts_the_image_in_the_middle_of_black(digits):
    expanded = affnist.expand(digits)
    assert expanded.image_shape == (1, 40, 40)
    assert torch.equal(expanded.images[..., 6:34, 6:34], digits.images)
    assert torch.equal(expanded.images.long().sum((1, 2, 3)), digits.images.long().sum((1, 2, 3)))
    assert torch.equal(expanded.targets, digits.targets)
    odd = affnist.expand(boxes(side=4, size=4), 7)
    assert torch.equal(odd.images[..., 1:5, 1:5], boxes(side=4, size=4).images)


def test_place_reaches_every_whole_pixel_where_the_image_fits():
    images = torch.zeros(3000, 2, 4, 3, dtype=torch.uint8)
    images[:, :, 0, 0], images[:, 1, 3, 2] = 200, 7
    placed = affnist.place(Dataset(images, torch.zeros(3000).long(), NAMES), seed=1, size=8)
    assert placed.image_shape == (2, 8, 8)
    spots = placed.images[:, 0].flatten(1).argmax(1)
    counts = spots.bincount(minlength=64).view(8, 8)
    assert (counts[5:].any(), counts[:, 6:].any()) == (False, False)
    assert (counts[:5, :6] > 60).all()  # 100 expected at each of the 5×6
    assert (placed.images.long().sum((2, 3)) == images.long().sum((2, 3))).all()
    assert (placed.images[:, 1].flatten(1).gather(1, (spots + 3 * 8 + 2)[:, None]) == 7).all()


@pytest.mark.parametrize("make", [affnist.place, lambda data, seed: affnist.transform(data, seed, 3)])
def test_the_seed_and_the_position_alone_decide(digits, monkeypatch, make):
    once, other = make(digits, 5), make(digits, 6)
    monkeypatch.setattr(affnist, "CHUNK_IMAGES", 7)
    few = make(digits.subset(torch.arange(20)), 5)
    assert torch.equal(few.images, once.images[: len(few)])
    assert (once.images != other.images).flatten(1).any(1).all()


def test_variants_follow_their_digit(digits):
    named = Dataset(digits.images, digits.targets, NAMES, tuple(f"{i}.png" for i in range(60)))
    made = affnist.transform(named, 0, copies=3)
    assert (len(made), made.image_shape, made.images.dtype) == (180, (1, 40, 40), torch.uint8)
    assert made.targets.tolist() == digits.targets.repeat_interleave(3).tolist()
    assert made.files[:4] == ("0.png", "0.png", "0.png", "1.png")


def test_pixels_come_out_as_they_were_published(digits):
    made = affnist.transform(digits, affnist.AFFNIST_LIKE_SEED, affnist.COPIES)
    assert digits.checksum() == "c8a90ff5fafdce87f22ca5de1b7e0f50"
    assert made.checksum() == "3de3a04464108046c43bc7146a835132"


def test_images_of_any_kind_are_transformed():
    floats = Dataset(torch.rand(4, 3, 10, 8), torch.zeros(4).long(), NAMES)
    made = affnist.transform(floats, 0, 2, size=24)
    assert (made.image_shape, made.images.dtype) == ((3, 24, 24), torch.float32)
    assert 0 <= made.images.min() < made.images.max() <= 1
    blank = boxes(2, side=0)
    assert not affnist.transform(blank, 0, 2).images.any()
    assert len(affnist.transform(blank.subset(torch.arange(0)), 0, 2)) == 0


def test_drawn_parameters_fill_the_published_ranges():
    drawn = affnist.draw(20_000, seed=0)
    ranges = [(drawn.angle_N, -20, 20), (drawn.shear_N, -0.2, 0.2), (drawn.grow_x_N, 0.8, 1.2)]
    ranges += [(drawn.grow_y_N, 0.8, 1.2), (drawn.position_N2[:, 0], 0, 1), (drawn.position_N2[:, 1], 0, 1)]
    for values, low, high in ranges:
        assert values.dtype == torch.float64
        assert low <= values.min() < low + (high - low) / 1000
        assert high - (high - low) / 1000 < values.max() <= high
        assert values.mean() == pytest.approx((low + high) / 2, abs=(high - low) / 50)
    unit = torch.stack([(values - low) / (high - low) for values, low, high in ranges])
    assert (unit.corrcoef() - torch.eye(6)).abs().max() < 0.03  # each drawn for itself


def test_identity_and_whole_shifts_copy_the_image(digits):
    image = digits.images[:1]
    middle = affnist.expand(digits).images[:1]
    assert torch.equal(by_hand(image).round().byte(), middle)
    assert torch.equal(by_hand(image, shift=(3, -5)).round().byte(), middle.roll((-5, 3), (2, 3)))


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_a_quarter_turn_is_counter_clockwise(digits, quarters):
    turned = by_hand(digits.images[:1], angle=90.0 * quarters, size=28)
    assert torch.equal(turned.round().byte(), digits.images[:1].rot90(quarters, (2, 3)))


def test_scale_and_shear_move_as_documented():
    wide = by_hand(boxes(side=4, size=8).images, grow_x=2.0, size=20)[0, 0]
    assert wide.sum() == pytest.approx(2 * 16 * 255)
    assert ((wide.sum(0) > 4 * 127).sum(), (wide.sum(1) > 8 * 127).sum()) == (8, 4)
    dot = torch.zeros(1, 1, 21, 21)
    dot[..., 10, 15] = 1  # 5 to the right of the centre, and y points down
    assert by_hand(dot, shear=0.4, size=21)[0, 0, 12, 15] == pytest.approx(1)
    above = dot.mT  # turned it lies to the left, sheared 2 higher, then 1 more
    assert by_hand(above.flip(-2), shear=0.4, angle=90.0, grow_y=1.5, size=21)[0, 0, 7, 5] == pytest.approx(1)


@pytest.mark.parametrize("make", ["box", "digits"])
def test_no_ink_leaves_the_frame_even_at_its_edge(digits, make):
    images = digits.images if make == "digits" else boxes(60).images
    forward = affnist.linear(*affnist.draw(60, seed=3)[:4])
    low, high = affnist.room_to_move(images, forward, 40)
    whole = affnist.resample(images, forward, low, 80).sum((1, 2, 3))
    torch.testing.assert_close(whole, images.double().sum((1, 2, 3)) * forward.det(), rtol=0.05, atol=0)
    for corner in (low, high, torch.stack([low[:, 0], high[:, 1]], dim=1)):
        everything = affnist.resample(images, forward, corner, 80)
        inside = affnist.resample(images, forward, corner, 40)
        torch.testing.assert_close(inside, everything[..., 20:60, 20:60])
        torch.testing.assert_close(inside.sum((1, 2, 3)), everything.sum((1, 2, 3)))
    for beyond in (low - 3, high + 3):  # and no further
        lost = affnist.resample(images, forward, beyond, 80).sum() - affnist.resample(images, forward, beyond, 40).sum()
        assert lost > 0


def test_the_whole_frame_is_used(digits):
    reached = affnist.transform(digits, 1, copies=8).images.any(dim=0)[0]
    assert reached[1:-1, 1:-1].float().mean() > 0.95


def test_a_set_made_of_the_mnist_test_digits_must_be_the_published_one(digits, monkeypatch):
    made = affnist.affnist_like(digits)  # other digits are not checked
    assert len(made) == 4 * 60
    monkeypatch.setattr(dataset, "MNIST_TEST_CHECKSUM", digits.checksum())
    with pytest.raises(UserError, match="would not be comparable"):
        affnist.affnist_like(digits)
    monkeypatch.setattr(affnist, "AFFNIST_LIKE_CHECKSUM", made.checksum())
    assert torch.equal(affnist.affnist_like(digits).images, made.images)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="28×28 do not fit into a frame of 20×20"):
        affnist.expand(boxes(), 20)
    with pytest.raises(UserError, match="do not fit"):
        affnist.place(boxes(), 0, 27)
    with pytest.raises(UserError, match=r"image \d+ is too large for 28×28 once transformed"):
        affnist.transform(boxes(9, side=28), 0, 4, size=28)
    with pytest.raises(UserError, match="copies=0"):
        affnist.transform(boxes(), 0, 0)


def write_mat(path, images, labels, zipped=True, **fields):
    """As published: one column an image, row after row; labels as a row."""
    data = {"image": images.flatten(1).T.numpy(), "label_int": labels.numpy()[None].astype(np.uint8)} | fields
    savemat(path, {"affNISTdata": data}, do_compression=zipped)
    return path


def test_the_original_file_is_read_upright(tmp_path, digits):
    expanded = affnist.expand(digits)
    path = write_mat(tmp_path / "test.mat", expanded.images, digits.targets, original_id=np.arange(60.0)[None])
    read = affnist.read_affnist(path)
    assert torch.equal(read.images, expanded.images)
    assert (read.images.is_contiguous(), read.class_names) == (True, NAMES)
    assert torch.equal(read.targets, digits.targets)
    top_row = np.repeat([9, 0], [40, 1560]).astype(np.uint8)[:, None]  # the first forty pixels
    write_mat(path, expanded.images, digits.targets[:1], image=top_row)
    assert affnist.read_affnist(str(path)).images[0, 0, 0].tolist() == [9] * 40


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": np.zeros((784, 60), np.uint8)}, "uint8 784×60, where affNIST's are uint8 1600×N"),
        ({"image": np.zeros((1600, 60))}, "float64 1600×60"),
        ({"image": "picture"}, "where affNIST's are"),
        ({"label_int": np.zeros((1, 59), np.uint8)}, "60 images but 59 labels"),
        ({"label_int": np.full((1, 60), 10, np.uint8)}, "other than the digits"),
        ({"label_int": np.full((1, 60), 0.5)}, "other than the digits"),
        ({"label_int": np.array([["a"] * 60], dtype=object)}, "other than the digits"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path, digits, fields, message):
    path = write_mat(tmp_path / "test.mat", affnist.expand(digits).images, digits.targets, **fields)
    with pytest.raises(UserError, match=f"test.mat.*{message}.*fetch"):
        affnist.read_affnist(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*test.mat .No such file"),
        (b"", "not a MATLAB file"),
        (b"digits, digits" * 100, "not a MATLAB file"),
        (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF\r\n\x1a\n", "7.3 file: save it again with -v7"),
        ({"other": 1}, "holds no struct affNISTdata"),
        ({"affNISTdata": np.zeros((2, 2))}, "holds no struct affNISTdata"),
        ({"affNISTdata": {"image": 1}}, "has no label_int"),
        ({"affNISTdata": {"other": 1}}, "has no image and no label_int"),
    ],
)
def test_another_file_is_refused_with_where_to_find_the_right_one(tmp_path, content, message):
    path = tmp_path / "test.mat"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        savemat(path, content)
    with pytest.raises(UserError, match=f"{message}.*affnist-like"):
        affnist.read_affnist(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_truncated_file_is_refused(tmp_path, digits, zipped):
    path = write_mat(tmp_path / "test.mat", affnist.expand(digits).images, digits.targets, zipped)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match="cannot read|damaged"):
        affnist.read_affnist(path)


def test_splits_train_on_centred_digits_and_test_on_others(tmp_path, digits):
    parts = [digits.subset(torch.arange(i, i + 20)) for i in (0, 20, 40)]
    mnist = Splits(*parts, "mnist")
    expanded, like = affnist.expanded_splits(mnist), affnist.affnist_like_splits(mnist)
    write_mat(tmp_path / "test.mat", affnist.transform(parts[2], 3, 1).images, parts[2].targets)
    original = affnist.affnist_splits(mnist, tmp_path)
    assert [each.source for each in (expanded, like, original)] == ["mnist-expanded", "affnist-like", "affnist"]
    for splits in (expanded, like, original):
        assert torch.equal(splits.train.images, affnist.expand(parts[0]).images)
        assert torch.equal(splits.validation.images, affnist.place(parts[1], affnist.PLACE_SEED).images)
    assert (len(expanded.test), len(like.test), len(original.test)) == (20, 80, 20)
    assert affnist.expanded_splits(Splits(parts[0], None, None, "mnist")).validation is None


def test_digits_that_are_only_centred_are_no_test_of_affine_robustness(tmp_path, digits):
    path = write_mat(tmp_path / "test.mat", affnist.expand(digits).images, digits.targets)
    with pytest.raises(UserError, match="only centred, not transformed"):
        affnist.affnist_splits(Splits(digits, None, digits, "mnist"), path)
