"""MATLAB files: what SciPy writes is read as SciPy reads it, and what would break its reader is refused."""

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from torchcaps.data.datasets.affnist import read_affnist
from torchcaps.data.formats.mat import DamagedMat, NotLevel5, read_struct
from torchcaps.errors import UserError

HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
FLAGS, SIZES, NAME, BYTES, MATRIX, COMPRESSED = 6, 5, 1, 2, 14, 15
CELL, STRUCT, UINT8 = 1, 2, 9


def element(kind, data, order="<"):
    return struct.pack(f"{order}II", kind, len(data)) + data + b"\0" * (-len(data) % 8)


def array(kind, shape, body, name=b"", order="<"):
    head = element(FLAGS, struct.pack(f"{order}II", kind, 0), order)
    head += element(SIZES, struct.pack(f"{order}{len(shape)}i", *shape), order) + element(NAME, name, order)
    return element(MATRIX, head + body, order)


def pixels(shape, data, order="<"):
    return array(UINT8, shape, element(BYTES, data, order), order=order)


def of_struct(fields, order="<", variable=b"affNISTdata"):
    names = b"".join(name.encode().ljust(8, b"\0") for name in fields)
    body = element(5, struct.pack(f"{order}i", 8), order) + element(1, names, order) + b"".join(fields.values())
    return array(STRUCT, (1, 1), body, variable, order)


def read(path, content, wanted=("image",)):
    path = path / "some.mat"
    path.write_bytes(content)
    return read_struct(path, "affNISTdata", wanted, "fetch it")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("code", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 4), (2, 3, 4)])
def test_numbers_are_those_that_scipy_reads(tmp_path, zipped, code, shape):
    values = (np.arange(np.prod(shape)) % 100).reshape(shape).astype(code)
    other = {"cell": np.array([1, "a"], dtype=object), "text": "x", "inner": {"image": 3.0}}
    tree = {"before": np.ones(9), "data": {**other, "image": values, "name": values.T}, "after": 1}
    savemat(tmp_path / "some.mat", tree, do_compression=zipped)
    expected = loadmat(tmp_path / "some.mat")["data"]
    found = read_struct(tmp_path / "some.mat", "data", ("image", "name"), "fetch it")
    assert set(found) == {"image", "name"}
    for name, numbers in found.items():
        assert numbers.dtype == np.dtype(code)
        np.testing.assert_array_equal(numbers, expected[name].item(), strict=True)


def test_both_orders_of_bytes_are_read(tmp_path):
    for order, header in (("<", HEADER), (">", HEADER[:124] + b"\x01\x00MI")):
        found = read(tmp_path, header + of_struct({"image": pixels((2, 3), b"abcdef", order)}, order))
        assert found["image"].T.tobytes() == b"abcdef"


def test_a_compressed_bomb_is_unpacked_no_further_than_a_file_of_its_size_can_go(tmp_path):
    blank = 1 << 28
    head = of_struct({"image": b"", "rest": b""})[8:]
    image = struct.pack("<II", MATRIX, blank + 56) + pixels((1, 1), b"")[8:-8] + struct.pack("<II", BYTES, blank)
    packer = zlib.compressobj(1)
    packed = packer.compress(struct.pack("<II", MATRIX, len(head) + len(image) + blank) + head + image)
    packed += b"".join(packer.compress(bytes(1 << 20)) for _ in range(blank >> 20)) + packer.flush()
    tracemalloc.start()
    with pytest.raises(DamagedMat):
        read(tmp_path, HEADER + struct.pack("<II", COMPRESSED, len(packed)) + packed)
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()


@pytest.mark.parametrize("name", [b"affNISTdata", b"other"])
def test_cells_in_cells_do_not_end_the_process(tmp_path, name):
    """Of twenty thousand SciPy's reader ends with a segmentation fault."""
    inner = b""
    for _ in range(2000):
        inner = array(CELL, (1, 1), inner)
    assert read(tmp_path, HEADER + array(CELL, (1, 1), inner, name)) is None
    assert read(tmp_path, HEADER + of_struct({"image": inner}))["image"].dtype == object


@pytest.mark.parametrize(
    "content",
    [
        b"",
        HEADER[:100],
        HEADER[:126] + b"XX",
        HEADER[:124] + b"\x00\x07IM",
        HEADER + element(7, b"12345678"),
        HEADER + struct.pack("<II", MATRIX, 2**32 - 1),
        HEADER + struct.pack("<II", (2 << 16) + MATRIX, 0),
        HEADER + struct.pack("<II", COMPRESSED, 8) + b"12345678",
        HEADER + struct.pack("<II", COMPRESSED, 30) + zlib.compress(b"short").ljust(30, b"\0"),
        HEADER + array(STRUCT, (-1, 1), b"", b"affNISTdata"),
        HEADER + array(STRUCT, (1, 1), b"", b"affNISTdata"),
        HEADER + array(STRUCT, (1, 1), element(5, b"\0\0\0\0") + element(1, b"image"), b"affNISTdata"),
        HEADER + of_struct({"image": pixels((2, 3), b"abcde")}),
        HEADER + of_struct({"image": pixels((2**31 - 1, 2**31 - 1, 9, 0), b"")}),
        HEADER + of_struct({"image": array(UINT8, (1, 1), element(99, b"a"))}),
        HEADER + of_struct({"image": struct.pack("<II", MATRIX, 10**6)}),
        HEADER + of_struct({"image": element(BYTES, b"abcdefgh")}),
    ],
)
def test_a_damaged_file_is_called_so(tmp_path, content):
    with pytest.raises(DamagedMat):
        read(tmp_path, content)
    with pytest.raises(UserError, match="some.mat is not a MATLAB file, or a damaged one .*fetch"):
        read_affnist(tmp_path / "some.mat")


def test_hdf5_is_told_from_damage(tmp_path):
    with pytest.raises(NotLevel5):
        read(tmp_path, HEADER[:124] + b"\x00\x02IM")


def test_what_is_not_numbers_is_an_empty_array_of_objects(tmp_path):
    savemat(tmp_path / "x.mat", {"data": {"image": "text", "name": np.array([1, 2], dtype=object), "more": {"a": 1}}})
    found = read_struct(tmp_path / "x.mat", "data", ("image", "name", "more"), "")
    assert {name: (each.dtype, each.size) for name, each in found.items()} == dict.fromkeys(found, (np.dtype("O"), 0))
    assert len(found) == 3
