import gzip
import math
import os
import struct
import tracemalloc

import pytest
import torch

from torchcaps.data import read_idx
from torchcaps.data.formats.idx import read_idx_pair
from torchcaps.errors import UserError


def idx(shape, body=None, magic=(0, 0, 8)) -> bytes:
    length = int(torch.tensor(shape).prod())
    body = bytes(i % 256 for i in range(length)) if body is None else body
    return bytes([*magic, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


def write(path, data, zipped=False):
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_is_read_gzipped_or_not(tmp_path, zipped):
    array = read_idx(write(tmp_path / "images", idx((2, 3, 4)), zipped), 3)
    assert torch.equal(array, torch.arange(24, dtype=torch.uint8).view(2, 3, 4))


def test_an_empty_array_is_legal(tmp_path):
    assert read_idx(write(tmp_path / "none", idx((0, 3, 4)))).shape == (0, 3, 4)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (idx((2, 3), magic=(1, 0, 8)), "not an IDX file"),
        (b"<html>404</html>", "not an IDX file"),
        (b"", "not an IDX file: it starts with nothing"),
        (idx((2, 3), magic=(0, 0, 13)), "type 0x0d"),
        (idx((2, 3)), "has 2 dimensions where 1"),
        (idx((7,), b"123456"), "wrong length.* holds less"),
        (idx((7,), b"12345678"), "wrong length.* holds more"),
        (b"\0\0\x08\x01\0\0", "wrong length"),
        (b"\0\0\x08\x01\xff\xff\xff\xff1", "promises 4,294,967,295"),
    ],
)
def test_each_damage_has_its_own_message_that_names_the_file(tmp_path, data, message, zipped):
    path = write(tmp_path / "labels-file", data, zipped)
    with pytest.raises(UserError, match=message) as caught:
        read_idx(path, 1)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "shape", [(0, *[2**32 - 1] * 3), (2**32 - 1,) * 4, (1,) * 9], ids=["nothing, widely spread", "too large", "axes"]
)
def test_a_shape_that_no_array_has_is_refused(tmp_path, shape):
    data = b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + b"1"
    with pytest.raises(UserError, match="odd-file has .* a damaged header"):
        read_idx(write(tmp_path / "odd-file", data))


@pytest.mark.parametrize(
    ("shape", "refused"), [((1000, 1000, 60), False), ((100_000, 28, 28), True)], ids=["small", "a bomb"]
)
def test_what_a_gzip_file_may_become_is_bounded(tmp_path, shape, refused):
    """All of either is there, as the header says; a hundred thousand blank images are in 76 kB."""
    path = write(tmp_path / "blank.gz", idx(shape, bytes(math.prod(shape))), zipped=True)
    tracemalloc.start()
    if refused:
        with pytest.raises(UserError, match="wrong length"):
            read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    else:
        assert read_idx(path).shape == shape
    tracemalloc.stop()


def test_a_pipe_is_not_waited_for_and_a_folder_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe, which is a pipe or a device"):
        read_idx(tmp_path / "pipe")
    with pytest.raises(UserError, match="which is a folder"):
        read_idx(tmp_path)
    with pytest.raises(UserError, match="cannot read"):
        read_idx(f"{tmp_path}/a\0b")


def test_a_truncated_or_corrupted_gzip_is_refused(tmp_path):
    whole = gzip.compress(idx((50, 3)))
    for damaged in (whole[:-9], whole[:20] + b"\xff" * 8 + whole[28:]):
        with pytest.raises(UserError, match=r"damaged gzip file"):
            read_idx(write(tmp_path / "x.gz", damaged))


def test_a_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*nowhere"):
        read_idx(tmp_path / "nowhere")


def test_images_and_labels_must_agree(tmp_path):
    images = write(tmp_path / "images", idx((3, 2, 2)))
    data = read_idx_pair(images, write(tmp_path / "good", idx((3,))), ("a", "b", "c"))
    assert data.image_shape == (1, 2, 2)
    assert data.targets.tolist() == [0, 1, 2]
    with pytest.raises(UserError, match=r"3 images but .* 2 labels"):
        read_idx_pair(images, write(tmp_path / "few", idx((2,))), ("a", "b", "c"))
    with pytest.raises(UserError, match="label 2, but there are only 2"):
        read_idx_pair(images, tmp_path / "good", ("a", "b"))
    with pytest.raises(UserError, match="swapped"):
        read_idx_pair(tmp_path / "good", images, ("a", "b", "c"))


@pytest.mark.parametrize("zipped", [False, True])
def test_a_header_that_promises_more_than_memory_is_not_believed(tmp_path, zipped):
    with pytest.raises(UserError, match="wrong length"):
        read_idx(write(tmp_path / "huge", b"\0\0\x08\x03" + b"\xff" * 12, zipped), 3)
