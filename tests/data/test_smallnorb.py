"""smallNORB's files, written by the test: read exactly or refused, and split by where the camera stood."""

import gzip
import hashlib
import struct
from itertools import product

import numpy as np
import pytest
import torch

from torchcaps.data.datasets import smallnorb
from torchcaps.data.datasets.smallnorb import FILES, is_familiar, read_matrix, read_smallnorb, shrink, smallnorb_splits
from torchcaps.errors import UserError

BYTES, INTEGERS = 0x1E3D4C55, 0x1E3D4C54
VIEWS = [*product(range(9), range(0, 36, 2))]  # every elevation with every azimuth


def matrix(values, magic=INTEGERS, code="<i4", shape=None) -> bytes:
    values = np.asarray(values)
    shape = values.shape if shape is None else shape
    sizes = [*shape, 1, 1, 1][: max(3, len(shape))]
    return struct.pack(f"<{2 + len(sizes)}i", magic, len(shape), *sizes) + values.astype(code).tobytes()


def write(path, data, zipped=False):
    path.write_bytes(gzip.compress(data, 1) if zipped else data)
    return path


def make_set(toy):
    """Images, labels and info of one set; the upper left pixels of an image tell its row."""
    images = np.random.default_rng(toy).integers(0, 256, (len(VIEWS), 2, 96, 96), dtype=np.uint8)
    images[:, :, :2, :2] = np.arange(len(VIEWS))[:, None, None, None]
    info = [(toy, elevation, azimuth, row % 6) for row, (elevation, azimuth) in enumerate(VIEWS)]
    return images, np.arange(len(VIEWS)) % 5, np.array(info)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("norb")
    for names, toy in ((FILES[:3], 8), (FILES[3:], 5)):
        images, labels, info = make_set(toy)
        write(folder / names[0], matrix(images, BYTES, "u1"))
        write(folder / f"{names[1]}.gz", matrix(labels), zipped=True)
        write(folder / names[2], matrix(info))
    return folder


@pytest.fixture
def folder(original, tmp_path):
    """A copy to be damaged."""
    for path in original.iterdir():
        (tmp_path / path.name).hardlink_to(path)
    return tmp_path


def damage(folder, name, data):
    for path in (folder / name, folder / f"{name}.gz"):
        path.unlink(missing_ok=True)
    return write(folder / name, data)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("magic", "code", "dtype"),
    [
        (0x1E3D4C51, "<f4", torch.float32),
        (0x1E3D4C53, "<f8", torch.float64),
        (0x1E3D4C54, "<i4", torch.int32),
        (0x1E3D4C55, "u1", torch.uint8),
        (0x1E3D4C56, "<i2", torch.int16),
    ],
)
@pytest.mark.parametrize("shape", [(6,), (3, 2), (1, 2, 3), (3, 1, 2, 1), (0, 4)])
def test_a_matrix_reads_back(tmp_path, zipped, magic, code, dtype, shape):
    values = np.arange(np.prod(shape)).reshape(shape)
    read = read_matrix(write(tmp_path / "some.mat", matrix(values, magic, code), zipped))
    assert read.dtype == dtype
    assert read.shape == shape
    assert read.tolist() == values.tolist()


def test_the_format_written_here_is_the_published_one():
    """Checksums of the unpacked originals: the labels, and the test set's info, which is in order."""
    assert hashlib.md5(matrix(np.tile(np.arange(5), 4860))).hexdigest() == "fd5120d3f770ad57ebe620eb61a0b633"
    rows = [view for *view, _ in product(smallnorb.TEST_TOYS, range(9), range(0, 36, 2), range(6), range(5))]
    assert hashlib.md5(matrix(rows)).hexdigest() == "7c5b871cc69dcadec1bf6a18141f5edc"
    for viewpoint in ("azimuth", "elevation"):
        assert int(is_familiar(torch.tensor(rows), viewpoint).sum()) == 24300 // 3


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (matrix([1, 2], magic=0x1E3D4C52), "not a binary matrix .* 52 4c 3d 1e"),
        (b"MATLAB 5.0 MAT-file", "not a binary matrix"),
        (b"", "it starts with nothing"),
        (matrix([1, 2])[:6], "ends within its header"),
        (matrix([1, 2])[:15], "ends within its header"),
        (struct.pack("<5i", INTEGERS, 0, 1, 1, 1), "promises 0 dimensions"),
        (struct.pack("<5i", INTEGERS, 2**30, 1, 1, 1), "promises 1073741824 dimensions"),
        (matrix([1, 2], shape=(-2, -1)), r"the shape \(-2, -1\)"),
        (matrix([1, 2])[:-1], "wrong length.* promises 8 bytes .* holds less"),
        (matrix([1, 2]) + b"\0", "wrong length.* holds more"),
        (matrix([1, 2], shape=(2**31 - 1,) * 4), r"damaged header, which promises the shape \(2147483647, 2147"),
        (matrix([], shape=(0, *(2**31 - 1,) * 7)), r"damaged header, which promises the shape \(0, 2147483647"),
    ],
)
def test_each_damage_has_a_message_with_the_file_and_a_way_out(tmp_path, data, message, zipped):
    path = write(tmp_path / "info.mat", data, zipped)
    with pytest.raises(UserError, match=f"info.mat .*{message}.*fetch it again from https") as caught:
        read_matrix(path)
    assert str(path) in str(caught.value)


def test_a_header_that_promises_more_than_the_file_can_hold_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr("torchcaps.io.limits.read_up_to", lambda *_: pytest.fail("read on"))
    for zipped in (False, True):
        path = write(tmp_path / "huge.mat", matrix([1, 2], shape=(24300, 2, 960, 960)), zipped)
        with pytest.raises(UserError, match="wrong length.* holds less"):
            read_matrix(path)


def test_a_damaged_gzip_is_refused(tmp_path):
    whole = gzip.compress(matrix(np.arange(500)))
    for broken in (whole[:-9], whole[:40] + b"\xff" * 8 + whole[48:], whole + b"more"):
        with pytest.raises(UserError, match="damaged gzip file .*fetch it again"):
            read_matrix(write(tmp_path / "x.mat.gz", broken))
    with pytest.raises(UserError, match="cannot read .*nowhere.*fetch it again from"):
        read_matrix(tmp_path / "nowhere")


def test_both_sets_come_with_their_cameras_as_channels(original):
    train, test, infos = read_smallnorb(original, size=96)
    for part, info, toy in ((train, infos[0], 8), (test, infos[1], 5)):
        images, labels, rows = make_set(toy)
        assert torch.equal(part.images, torch.from_numpy(images))  # camera 0 first
        assert part.targets.tolist() == labels.tolist()
        assert torch.equal(info, torch.from_numpy(rows))
        assert part.class_names == ("animal", "human", "airplane", "truck", "car")
    in_order = [path for name in FILES for path in original.glob(f"{name}*")]
    assert torch.equal(read_smallnorb(in_order).test.images, read_smallnorb(str(original)).test.images)


def test_shrinking_is_the_mean_of_each_block(original):
    full, half = read_smallnorb(original, 96).train.images, read_smallnorb(original).train.images
    assert half.shape == (len(VIEWS), 2, 48, 48)
    mean = full.double().view(-1, 2, 48, 2, 48, 2).mean((3, 5))
    assert torch.equal(half, (mean + 0.5).floor().byte())
    by_hand = torch.tensor([[0, 1, 7, 7], [0, 1, 7, 8], [255, 255, 3, 3], [255, 255, 3, 2]], dtype=torch.uint8)
    assert shrink(by_hand[None, None], 2)[0, 0].tolist() == [[1, 7], [255, 3]]
    thirds = full.double().view(-1, 2, 32, 3, 32, 3).mean((3, 5)).round().byte()
    assert torch.equal(read_smallnorb(original, 32).train.images, thirds)


@pytest.mark.parametrize(("viewpoint", "column"), [("azimuth", 1), ("elevation", 0)])
def test_novel_viewpoints_are_tested_but_never_trained_on(original, viewpoint, column):
    novel = smallnorb_splits(original, viewpoint)
    known = smallnorb_splits(original, viewpoint, familiar=True)
    assert (novel.source, known.source) == (f"smallnorb-{viewpoint}", f"smallnorb-{viewpoint}-familiar")
    assert torch.equal(novel.train.images, known.train.images)
    train, test, familiar = (part.images[:, 0, 0, 0].tolist() for part in (novel.train, novel.test, known.test))
    assert train == familiar
    assert sorted(train + test) == [*range(len(VIEWS))]  # each in one of them, none in both
    expected = {"azimuth": {0, 2, 4, 30, 32, 34}, "elevation": {0, 1, 2}}[viewpoint]
    assert {VIEWS[row][column] for row in train} == expected
    assert not {VIEWS[row][column] for row in test} & expected
    assert novel.test.targets.tolist() == [row % 5 for row in test]
    toys = [torch.from_numpy(make_set(toy)[0]) for toy in (8, 5)]
    assert torch.equal(novel.train.images, shrink(toys[0][train], 2))
    assert torch.equal(novel.test.images, shrink(toys[1][test], 2))


def test_without_a_viewpoint_everything_is_there(original):
    splits = smallnorb_splits(original)
    assert (splits.source, len(splits.train), splits.validation, len(splits.test)) == ("smallnorb", 162, None, 162)


def test_standardised_images_have_the_published_moments(original):
    images = smallnorb.shrink(read_smallnorb(original, 96).test.images, 4)
    images[3] = 77
    values = (smallnorb.standardise(images).double() / 255 - smallnorb.MEAN) / smallnorb.STD
    assert values[3].abs().max() < 0.02
    rest = torch.cat([values[:3], values[4:]])
    assert rest.mean((1, 2, 3)).abs().max() < 0.01
    torch.testing.assert_close(rest.std((1, 2, 3)), torch.ones(161).double(), rtol=0.01, atol=0)
    darker = (images[:3].double() * 0.5 + 20).byte()
    again = smallnorb.standardise(darker).int() - smallnorb.standardise(images[:3]).int()
    assert again.abs().max() <= 1  # brightness and contrast are gone, but for the rounding of darker
    splits = smallnorb_splits(original, standard=True)
    assert torch.equal(splits.test.images, smallnorb.standardise(smallnorb_splits(original).test.images))


@pytest.mark.parametrize(
    ("number", "values", "message"),
    [
        (0, matrix(np.zeros((162, 1, 96, 96)), BYTES, "u1"), "uint8 162 × 1 × 96 × 96, where .*uint8 N × 2 × 96 × 96"),
        (1, matrix(np.zeros(24_301)), "int32 24301, where int32 N, N up to 24,300"),
        (0, matrix(np.zeros((4, 2, 96, 96)), BYTES, "u1"), "4 pairs of images, but .* 162 labels and .* 162 rows"),
        (1, matrix(np.arange(161) % 5), "162 pairs of images, but .* 161 labels"),
        (1, matrix(np.arange(162) % 5, BYTES, "u1"), "uint8 162, where int32 N, N up to 24,300, is expected"),
        (1, matrix(np.arange(162) % 6), "has the label 5, which should be one of 0, 1, 2, 3, 4"),
        (1, matrix(-np.ones(162)), "has the label -1"),
        (2, matrix(make_set(8)[2][:, :3]), "int32 162 × 3, where int32 N × 4, .*mixed up"),
        (2, matrix(make_set(8)[2][:3]), "162 labels and .* 3 rows"),
        (2, matrix(make_set(5)[2]), "has the toy 5, which should be one of 4, 6, 7, 8, 9"),
        (5, matrix(make_set(5)[2] + [0, 1, 0, 0]), "has the elevation 9"),
        (5, matrix(make_set(5)[2] + [0, 0, 1, 0]), "has the azimuth 1, which should be one of 0, 2, 4"),
        (5, matrix(make_set(5)[2] + [0, 0, 0, 1]), "has the light 6"),
    ],
)
def test_files_that_do_not_fit_are_refused(folder, number, values, message):
    path = damage(folder, FILES[number], values)
    with pytest.raises(UserError, match=f"{message}.* again from https") as caught:
        read_smallnorb(folder)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named_with_where_it_is_found(folder):
    (folder / FILES[2]).unlink()
    (folder / f"{FILES[4]}.gz").unlink()
    with pytest.raises(UserError, match=f"does not hold {FILES[2]}, {FILES[4]} .*cs.nyu.edu"):
        read_smallnorb(folder)
    with pytest.raises(UserError, match="has 6 files, 2 are given"):
        read_smallnorb([folder / FILES[0], folder / FILES[1]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"viewpoint": "azimut"}, "did you mean 'azimuth'"),
        ({"familiar": True}, "needs viewpoint="),
        ({"size": 50}, "size=50: smallNORB is 96×96"),
        ({"size": 0}, "size=0"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_read(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        smallnorb_splits(tmp_path, **options)


def test_validation_shows_toys_that_are_not_trained_on(folder):
    info = make_set(8)[2]
    info[::3, 0] = 9
    damage(folder, FILES[2], matrix(info))
    splits = smallnorb_splits(folder, "elevation", toy=9)
    rows = [int(image[0, 0, 0]) for image in splits.validation.images]
    low = [row for row in range(0, len(VIEWS), 3) if VIEWS[row][0] < 3]
    assert rows == [row % 256 for row in low]
    assert len(splits.train) + len(splits.validation) == sum(elevation < 3 for elevation, _ in VIEWS)
    with pytest.raises(UserError, match=r"show toys \[8, 9\]"):
        smallnorb_splits(folder, toy=7)
