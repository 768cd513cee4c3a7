import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from torchcaps.data import (
    SegmentationDataset,
    Splits,
    load_mask_folder,
    read_label,
    read_mask_folder,
    split_segmentation,
)
from torchcaps.data.mask_folder import LAYOUT
from torchcaps.errors import UserError

RNG = np.random.default_rng(0)


def save(path, values, **options):
    """An array as the file that its name asks for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.asarray(values)
    if path.suffix == ".npy":
        np.save(path, values)
    else:
        Image.fromarray(values).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path):
    """folder(a=mask, b=mask) writes each mask, with noise of its size for an image."""

    def write(root=tmp_path, **masks):
        for name, mask in masks.items():
            mask = np.asarray(mask, dtype=np.uint8)
            save(root / "images" / f"{name}.png", RNG.integers(0, 256, mask.shape, dtype=np.uint8))
            save(root / "masks" / f"{name}.png", mask)
        return root

    return write


def alike(names: str) -> dict[str, list[list[int]]]:
    """The same small mask under each of these letters."""
    return {name: [[0, 255]] for name in names}


def several(*sizes, channels=1, classes=2) -> SegmentationDataset:
    """Noise of these sizes; a pixel's class is its brightness modulo the number of classes."""
    images = [torch.from_numpy(RNG.integers(0, 256, (channels, *size), dtype=np.uint8)) for size in sizes]
    names = tuple(f"{i:02d}" for i in range(len(sizes)))
    return SegmentationDataset(images, [image[0] % classes for image in images], tuple("abcdef"[:classes]), names)


def test_pairs_of_any_size_are_read_by_name(folder):
    root = folder(b=[[0, 1], [2, 1]], a=[[0, 0, 2]], c=[[1]])
    (root / "images" / ".hidden.png").write_text("not an image")
    (root / "masks" / "notes.txt").write_text("ignored")
    found = read_mask_folder(root)
    assert (found.names, len(found), found.num_classes, found.channels) == (("a", "b", "c"), 3, 3, 1)
    assert [mask.tolist() for mask in found.masks] == [[[0, 0, 2]], [[0, 1], [2, 1]], [[1]]]
    for name, image in zip(found.names, found.images):
        assert np.array_equal(image[0], np.asarray(Image.open(root / "images" / f"{name}.png")))
    assert found.class_counts().tolist() == [3, 3, 2]
    assert found.absent == ()
    few = found.subset(torch.tensor([2, 0]))
    assert (few.names, few.masks[1].tolist()) == (("c", "a"), [[0, 0, 2]])


@pytest.mark.parametrize(
    ("values", "options", "expected", "classes"),
    [
        ([0, 255, 255], {}, [0, 1, 1], 2),
        ([255, 255, 255], {}, [1, 1, 1], 2),
        ([0, 1, 0], {}, [0, 1, 0], 2),
        ([0, 0, 0], {}, [0, 0, 0], 2),
        ([0, 1, 255], {}, [0, 1, 255], 2),
        ([2, 1, 0], {}, [2, 1, 0], 3),
        ([0, 255, 255], {"positive": 0}, [1, 0, 0], 2),
        ([3, 7, 200], {"positive": 7}, [0, 1, 0], 2),
        ([0, 3, 255], {"num_classes": 5}, [0, 3, 255], 5),
        ([0, 255, 0], {"num_classes": 3}, [0, 255, 0], 3),
    ],
)
def test_what_the_values_of_masks_mean(folder, values, options, expected, classes):
    found = read_mask_folder(folder(a=[values]), **options)
    assert found.masks[0].tolist() == [expected]
    assert (found.masks[0].dtype, found.num_classes) == (torch.uint8, classes)


def test_the_values_of_all_masks_decide_together(folder):
    root = folder(a=[[0, 0]], b=[[255, 0]])
    assert [mask.tolist() for mask in read_mask_folder(root).masks] == [[[0, 0]], [[1, 0]]]
    parts = root.parent / "parts"
    folder(parts / "train", a=[[2, 0]], b=[[1, 0]])
    folder(parts / "test", a=[[0, 255]])
    assert load_mask_folder(parts, validation=0).test.masks[0].tolist() == [
        [0, 255]
    ]  # ignored: there are ids in training


def test_a_class_that_no_mask_shows_is_said_and_returned(folder, caplog):
    with caplog.at_level(logging.WARNING, "torchcaps"):
        found = read_mask_folder(folder(a=[[0, 3]]), num_classes=4)
    assert found.absent == ("1", "2")
    assert caplog.messages == ["no mask shows the class '1', '2'"]
    assert read_mask_folder(folder(a=[[0, 0]])).absent == ("foreground",)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".TIFF", ".npy"])
def test_formats_keep_every_value(tmp_path, suffix):
    image, mask = RNG.integers(0, 256, (4, 5, 3), dtype=np.uint8), RNG.integers(0, 3, (4, 5), dtype=np.uint8)
    save(tmp_path / "images" / f"a{suffix.lower()}", image).rename(tmp_path / "images" / f"a{suffix}")
    save(tmp_path / "masks" / f"a{suffix.lower()}", mask).rename(tmp_path / "masks" / f"a{suffix}")
    found = read_mask_folder(tmp_path)
    assert np.array_equal(found.images[0], image.transpose(2, 0, 1))
    assert np.array_equal(found.masks[0], mask)
    assert read_mask_folder(tmp_path, channels=1).images[0].shape == (1, 4, 5)


def test_grey_and_colour_get_the_same_channels(folder):
    root = folder(a=[[0, 1]])
    save(root / "images" / "b.jpg", RNG.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    save(root / "masks" / "b.png", np.zeros((16, 16), np.uint8))
    for channels, expected in ((None, 3), (1, 1), (3, 3)):
        found = read_mask_folder(root, channels=channels)
        assert {len(image) for image in found.images} == {found.channels} == {expected}
    with pytest.raises(UserError, match="channels=2"):
        read_mask_folder(root, channels=2)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy"])
def test_sixteen_bits_are_scaled_by_their_range(tmp_path, suffix):
    save(tmp_path / "images" / f"a{suffix}", np.array([[0, 128, 129, 32768, 65535]], dtype=np.uint16))
    save(tmp_path / "masks" / f"a{suffix}", np.array([[0, 65535, 0, 0, 65535]], dtype=np.uint16))
    found = read_mask_folder(tmp_path, positive=65535)
    assert found.images[0].tolist() == [[[0, 0, 1, 128, 255]]]
    assert found.masks[0].tolist() == [[0, 1, 0, 0, 1]]


def test_arrays_of_floats_have_one_range_in_all_files(tmp_path):
    for name in "ab":
        save(tmp_path / "masks" / f"{name}.npy", np.array([[0, 1]]))
    save(tmp_path / "images" / "a.npy", np.array([[0.2, 1.0]]))
    save(tmp_path / "images" / "b.npy", np.array([[[0.5], [0.0]]], dtype=">f4"))
    assert [image.tolist() for image in read_mask_folder(tmp_path).images] == [[[[51, 255]]], [[[128, 0]]]]
    save(tmp_path / "images" / "b.npy", np.array([[[200.4, 0.0]]]))
    assert [image.tolist() for image in read_mask_folder(tmp_path).images] == [[[[0, 1]]], [[[200, 0]]]]


def test_masks_with_a_palette_or_with_equal_channels_or_bits(folder, tmp_path):
    mask = np.array([[0, 1, 2, 1]], dtype=np.uint8)
    root = folder(a=mask, b=mask, c=mask, d=mask)
    palette = Image.fromarray(mask).convert("P")
    palette.putpalette([0, 0, 0, 200, 10, 10, 5, 90, 5])
    palette.save(root / "masks" / "b.png")
    save(root / "masks" / "c.png", np.dstack([mask, mask, mask, np.full_like(mask, 255)]))
    (root / "masks" / "d.png").unlink()
    save(root / "masks" / "d.npy", mask[None].astype(np.float32))
    found = read_mask_folder(root)
    assert all(np.array_equal(each, mask) for each in found.masks)
    bits = folder(tmp_path / "bits", a=[[0, 0, 1]])
    Image.fromarray(np.array([[False, True, True]])).save(bits / "masks" / "a.png")
    assert read_mask_folder(bits).masks[0].tolist() == [[0, 1, 1]]


def test_a_turned_photograph_is_upright_like_its_mask(tmp_path):
    picture = np.zeros((8, 16), dtype=np.uint8)
    picture[:, :8] = 255  # the left half; orientation 6 turns it to the top
    exif = Image.Exif()
    exif[0x0112] = 6
    save(tmp_path / "images" / "a.png", picture, exif=exif)
    save(tmp_path / "masks" / "a.png", (np.arange(16)[:, None] < 8) * np.ones((1, 8), np.uint8))
    found = read_mask_folder(tmp_path)
    assert torch.equal(found.images[0][0] == 255, found.masks[0] == 1)


def refused(root, *words, **options):
    with pytest.raises(UserError) as caught:
        read_mask_folder(root, **options)
    for word in words:
        assert str(word) in str(caught.value)


def test_missing_folders_and_files_are_named(folder, tmp_path):
    refused(tmp_path / "nowhere", tmp_path / "nowhere", LAYOUT)
    refused(tmp_path, tmp_path / "images", LAYOUT)
    (tmp_path / "images").mkdir()
    refused(tmp_path, tmp_path / "masks")
    (tmp_path / "masks").mkdir()
    refused(tmp_path, "no images in")
    root = folder(a=[[1]], b=[[1]])
    (root / "masks" / "b.png").unlink()
    refused(root, "no mask for b", "name each like its image")
    save(root / "masks" / "b.png", np.ones((1, 1), np.uint8))
    save(root / "masks" / "c.png", np.ones((1, 1), np.uint8))
    refused(root, "no image for the masks c")
    (root / "masks" / "c.png").unlink()
    save(root / "masks" / "b.tif", np.ones((1, 1), np.uint8))
    refused(root, "both b.png and b.tif")


def test_a_mask_of_another_size_is_named(folder):
    root = folder(a=[[0, 1]])
    save(root / "masks" / "a.png", np.zeros((3, 2), np.uint8))
    refused(root, "a.png is 1×2", "is 3×2", "same size")


@pytest.mark.parametrize(
    ("mask", "options", "words"),
    [
        ([0, 128], {}, ["a.png has the values 0, 128", "--set data.positive=128"]),
        ([0, 1, 2, 9], {}, ["0, 1, 2, 9", "without a gap", "num_classes"]),
        ([1, 2], {}, ["1, 2", "without a gap"]),
        (range(0, 250, 30), {}, ["0, 30, 60, 90, 120 and 4 more"]),
        (range(256), {}, ["0, 1, 2, 3, 4 and 251 more"]),  # smoothed, not 255 classes
        ([0, 1, 2], {"num_classes": 2}, ["0, 1, 2", "0 to 1"]),
        ([0, 255], {"positive": 1}, ["positive=1", "only 0, 255"]),
        ([0, 1], {"positive": 1, "num_classes": 3}, ["omit num_classes=3"]),
        ([0, 1], {"num_classes": 1}, ["num_classes=1"]),
        ([0, 1], {"num_classes": 256}, ["num_classes=256"]),
    ],
)
def test_unexpected_values_are_listed_with_the_way_out(folder, mask, options, words):
    refused(folder(a=[list(mask)]), *words, **options)


def test_a_mask_that_lost_its_values_is_refused(folder):
    root = folder(a=np.zeros((16, 16)))
    mask = root / "masks" / "a.png"
    mask.unlink()
    for name, options in (("a.jpg", {}), ("a.tif", {"compression": "jpeg"})):
        path = save(root / "masks" / name, np.zeros((16, 16), np.uint8), **options)
        refused(root, name, "lossy", "PNG")
        path.unlink()
    save(mask, RNG.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    refused(root, "a.png", "in colour")
    save(mask, np.dstack([np.zeros((16, 16, 3), np.uint8), np.arange(256, dtype=np.uint8).reshape(16, 16)]))
    refused(root, "transparent")
    mask.unlink()
    save(root / "masks" / "a.npy", np.full((16, 16), 0.5))
    refused(root, "a.npy", "an integer")
    save(root / "masks" / "a.npy", np.zeros((16, 16, 2)))
    refused(root, "(16, 16, 2)")


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.png", b"hello", "not an image in a known format"),
        ("a.npy", b"hello", "not an array"),
        ("a.npy", np.zeros((2, 2), np.int64), "int64 has no known range"),
        ("a.npy", np.array([[0.0, 300.0]]), "floats from 0 to 300"),
        ("a.npy", np.array([[0.0, np.nan]]), "scale them to [0, 1]"),
        ("a.npy", np.zeros((2, 2, 2, 2)), "(2, 2, 2, 2)"),
        ("a.npy", np.zeros((2, 2, 2)), "1 or 3 channels"),
        ("a.npy", np.zeros((0, 2)), "(0, 2)"),
        ("a.npy", np.array([[{}]]), "not an array"),
    ],
)
def test_an_unreadable_image_is_named(folder, name, content, word):
    root = folder(a=[[0, 1]])
    (root / "images" / "a.png").unlink()
    path = root / "images" / name
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content, allow_pickle=True)
    refused(root, path, word)


def test_a_truncated_mask_and_a_stack_of_pages_are_named(folder):
    root = folder(a=RNG.integers(0, 2, (64, 64)))
    path = root / "masks" / "a.png"
    path.write_bytes(path.read_bytes()[:200])
    refused(root, path)
    path.unlink()
    page = Image.fromarray(np.zeros((64, 64), np.uint8))
    page.save(root / "masks" / "a.tif", save_all=True, append_images=[page, page])
    refused(root, "a.tif", "3 images in one file")


def test_pairs_made_by_hand_are_checked():
    image, mask = torch.zeros(1, 2, 3, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8)
    for images, masks, word in (
        ([image], [], "needs a mask"),
        ([image.float()], [mask], "must be uint8"),
        ([image[:, :0]], [mask[:0]], "must be uint8"),
        ([image], [mask.T], r"must be uint8 \(2, 3\)"),
        ([image], [mask + 2], "class id 2.*0..1"),
        ([image, image.expand(3, 2, 3)], [mask, mask], "1 channels.*b has 3"),
    ):
        with pytest.raises(UserError, match=word):
            SegmentationDataset(images, masks, ("x", "y"), tuple("ab"[: len(images)]))
    assert SegmentationDataset([image], [mask + 255], ("x", "y"), ("a",)).absent == ("x", "y")
    assert SegmentationDataset([], [], ("x", "y"), ()).class_counts().tolist() == [0, 0]


@given(st.integers(3, 40), st.sampled_from([0, 0.1, 0.3, 1]), st.sampled_from([0, 0.2, 1]), st.integers(0, 3))
def test_a_split_takes_whole_images_each_once(count, validation, test, seed):
    data = several(*[(1, 1)] * count)
    parts = split_segmentation(data, validation, test, seed)
    assert sorted(name for part in parts if part is not None for name in part.names) == list(data.names)
    assert [part is not None for part in parts] == [True, validation > 0, test > 0]
    for part, amount in zip(parts[1:], (validation, test)):
        if amount == 1:
            assert len(part) == 1
    again = split_segmentation(data, validation, test, seed)
    assert [part and part.names for part in parts] == [part and part.names for part in again]


def test_test_images_may_be_named_and_do_not_change_with_the_seed():
    data = several(*[(1, 1)] * 30)
    assert len({split_segmentation(data, 0.1, 0.2, seed)[2].names for seed in range(4)}) == 1
    assert len({split_segmentation(data, 0.1, 0.2, seed)[1].names for seed in range(4)}) > 1
    last = tuple(f"{i}" for i in range(24, 30))
    for test in ("last:6", "24, 25,26,27,28,29", list(last)):
        train, validation, held_back = split_segmentation(data, 4, test)
        assert (held_back.names, len(train), len(validation)) == (last, 20, 4)
    backwards = split_segmentation(data.subset(torch.arange(29, -1, -1)), 0, "last:2")
    assert set(backwards[2].names) == {"28", "29"}  # by name, whatever the order


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((0, "last:0"), "1 to 3"),
        ((0, "last:four"), "1 to 3"),
        ((0, "last:4"), "1 to 3"),
        ((0, "last:3"), "the 0 images not named for test are too few"),
        ((0.5, "last:2"), "the 1 images not named"),
        ((0, ["00", "07"]), "no image is called 07; they are called 00, 01, 02"),
        ((-1, 0), "validation=-1"),
        ((0, 3), "at most"),
    ],
)
def test_an_impossible_split_is_refused(arguments, word):
    with pytest.raises(UserError, match=word):
        split_segmentation(several(*[(1, 1)] * 3), *arguments)
    with pytest.raises(UserError, match="2 images are too few for a split into 3"):
        split_segmentation(several((1, 1), (1, 1)), 0.1, 0.2)


def test_folders_of_parts_are_the_splits(folder, tmp_path):
    for part, names in (("train", "abcd"), ("Val", "ab"), ("test", "xyz")):
        folder(tmp_path / part, **alike(names))
    splits = load_mask_folder(tmp_path)
    parts = (splits.train, splits.validation, splits.test)
    assert [part.names for part in parts] == [tuple("abcd"), tuple("ab"), tuple("xyz")]
    refit = load_mask_folder(tmp_path, validation=0)
    assert (refit.train.names, refit.validation, refit.test.names) == (tuple("abcdab"), None, tuple("xyz"))
    assert refit.fingerprint() != splits.fingerprint() == load_mask_folder(tmp_path).fingerprint()
    with pytest.raises(UserError, match="has a test folder; omit test"):
        load_mask_folder(tmp_path, test="last:1")
    folder(tmp_path, a=[[0, 255]])
    with pytest.raises(UserError, match="both images and"):
        load_mask_folder(tmp_path)


def test_what_a_folder_does_not_divide_is_held_out(folder, tmp_path):
    whole = load_mask_folder(folder(**alike("abcdefghij")), validation=2, test="last:3")
    assert (len(whole.train), len(whole.validation), whole.test.names) == (5, 2, tuple("hij"))
    half = tmp_path / "half"
    folder(half / "test", x=[[0, 255]])
    with pytest.raises(UserError, match="no train folder"):
        load_mask_folder(half)
    folder(half / "train", **alike("abcd"))
    divided = load_mask_folder(half, validation=1)
    assert (len(divided.train), len(divided.validation), divided.test.names) == (3, 1, ("x",))
    folder(half / "val", y=[[0, 255]])
    folder(half / "valid", y=[[0, 255]])
    with pytest.raises(UserError, match="several folders for validation"):
        load_mask_folder(half)


def test_the_fingerprint_sees_shapes():
    flat, tall = several((2, 3)), several((2, 3))
    flat = SegmentationDataset([torch.zeros(1, 2, 3).byte()], [torch.zeros(2, 3).byte()], flat.class_names, flat.names)
    tall = SegmentationDataset([torch.zeros(1, 3, 2).byte()], [torch.zeros(3, 2).byte()], flat.class_names, flat.names)
    first, second = (Splits(part, None, None, "pairs") for part in (flat, tall))
    assert first.fingerprint() != second.fingerprint()


@pytest.mark.parametrize(
    ("values", "classes", "positive", "expected"),
    [
        ([[0, 255]], 2, None, [[0, 1]]),
        ([[0, 0]], 2, None, [[0, 0]]),
        ([[0, 1]], 2, None, [[0, 1]]),
        ([[0, 1, 255]], 2, None, [[0, 1, 255]]),
        ([[0, 255]], 2, 0, [[1, 0]]),
        ([[2, 255]], 3, None, [[2, 255]]),
        ([[0, 255]], 3, None, [[0, 255]]),
        ([[7, 9]], 2, 7, [[1, 0]]),
    ],
)
def test_a_label_means_what_it_does_to_a_model(tmp_path, values, classes, positive, expected):
    save(tmp_path / "a.png", np.array(values, dtype=np.uint8))
    assert read_label(tmp_path / "a.png", classes, positive).tolist() == expected


def test_a_label_of_unknown_values_is_refused(tmp_path):
    save(tmp_path / "a.png", np.array([[0, 3, 77]], dtype=np.uint8))
    with pytest.raises(UserError, match=r"a\.png has the values 0, 3, 77, 2 of which .* class ids are 0 to 1, or"):
        read_label(tmp_path / "a.png", 2)
    with pytest.raises(
        UserError, match=r"a\.png has the values 0, 3, 77: masks of this model have two values, of which 0 is"
    ):
        read_label(tmp_path / "a.png", 2, positive=0)
