"""Image files, arrays and tables that are made to do harm: each is refused by name, at once."""

import os
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from torchcaps.data import load_data, load_image, read_mask_folder
from torchcaps.data.images import FORMATS
from torchcaps.errors import UserError
from torchcaps.io.npy import read_npy


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes = b"") -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def npy(shape: str, body: bytes = b"", descr: str = "'<f8'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + body


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")  # as it is outside of tests
@pytest.mark.parametrize("side", [10_000, 40_000])
def test_a_bomb_of_pixels_is_refused_before_it_is_unpacked(tmp_path, side):
    """Of one between PIL's limit and twice that it only warns, and then takes the gigabyte."""
    path = tmp_path / "bomb.png"
    path.write_bytes(png(side, side))
    with pytest.raises(UserError, match="bomb.png: more than 89,478,485 pixels"):
        load_image(path, (1, 8, 8))


@pytest.mark.parametrize(
    "content",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
        b"SIMPLE  =        T".ljust(2880),
    ],
    ids=["a program for Ghostscript", "an image of the sky"],
)
def test_no_decoder_runs_but_those_that_are_promised(tmp_path, content):
    path = tmp_path / "photo.png"
    path.write_bytes(content)
    with pytest.raises(UserError, match="photo.png: not an image in a known format"):
        load_image(path, (1, 8, 8))
    assert "EPS" not in FORMATS


def test_a_pipe_among_the_images_is_not_waited_for(tmp_path, write_classes):
    write_classes(tmp_path, {"a": 4, "b": 4})
    os.mkfifo(tmp_path / "a" / "pipe.png")
    with pytest.raises(UserError, match="1 of 9 images .*pipe.png .it is not a file"):
        load_data("folder", path=tmp_path, validation=0, test=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy("(1000000, 1000000)"), "the header gives 8000000000000 bytes, the file has 0"),
        (npy("(100000, 10000)", b"12345678"), "the header gives 8000000000 bytes, the file has 8"),
        (npy("(-1, 2)", bytes(16)), "not two or three axes"),
        (npy("(True, 2)", bytes(16)), "not an array"),
        (npy("(1, 2", bytes(16)), "not an array"),
        (npy("(" * 5000), "not an array"),
        (npy("(1, 1)", bytes(8), "'|O'"), "not two or three axes of numbers"),
        (npy("(1, 1)", bytes(8), "'<c8'"), "not two or three axes of numbers"),
        (npy("(1, 1)", bytes(8), "[('a', '<f8')]"), "not two or three axes of numbers"),
        (npy("(1, 1)", bytes(8), "'nonsense'"), "not an array"),
        (npy("(1, 1)", bytes(9)), "the header gives 8 bytes, the file has 9"),
        (b"\x93NUMPY\x03\0\0\0\0\0", "not an array"),
        (b"PK\x03\x04 an archive of arrays", "not an array"),
    ],
)
def test_the_header_of_an_array_is_not_believed(tmp_path, content, message):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(UserError, match=f"a.npy.*{message}"):
        read_npy(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


@pytest.mark.parametrize("value", [np.inf, 1e300, -(2.0**40)])
def test_a_mask_of_numbers_that_are_no_class_is_refused(tmp_path, value):
    for kind, array in (("images", np.zeros((2, 2), np.uint8)), ("masks", np.full((2, 2), value))):
        (tmp_path / kind).mkdir()
        np.save(tmp_path / kind / "a.npy", array)
    with pytest.raises(UserError, match="a.npy: a mask has an integer for each pixel"):
        read_mask_folder(tmp_path)


@pytest.fixture
def table(tmp_path, write_classes):
    write_classes(tmp_path, {"pics": 2})

    def read(content: bytes):
        (tmp_path / "labels.csv").write_bytes(content)
        return load_data("folder", path=tmp_path, validation=0, test=0)

    return read


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"file,label\npics/\0.png,a\npics/000.png,b", "not there|NUL"),
        (b"file,label\n" + b"x" * 5000 + b".png,a", "names files that are not there"),
        (b"file,label\n" + b"x" * 200_000, "field larger than field limit"),
        (b'file,label\n"pics/000.png,a', "not there"),
        ("file,label\npics/000.png,a".encode("utf-16"), "not a CSV file in UTF-8"),
        (b"file,file,label\na,pics/000.png,b", "several columns 'file'"),
        (b"file,label\nodd\x1b[2J\n.png,a", r"odd\\x1b\[2J"),
        (b",".join(b"%d" % i for i in range(50_000)), "no column 'file': its columns are 0, 1, 2, 3, 4 and 49995 more"),
    ],
    ids=["NUL", "long name", "huge field", "open quote", "UTF-16", "twice", "escape", "columns"],
)
def test_a_hostile_table_is_one_line_that_names_it(table, content, message):
    with pytest.raises(UserError, match=message) as caught:
        table(content)
    assert "labels.csv" in str(caught.value)
    assert str(caught.value).isprintable()


def test_labels_that_would_fill_the_memory_are_refused(table, monkeypatch):
    monkeypatch.setattr("torchcaps.data.listing.MAX_TARGETS", 7)
    assert table(b"file,label\npics/000.png,a;b\npics/001.png,c").train.targets.tolist() == [[1, 1, 0], [0, 0, 1]]
    with pytest.raises(UserError, match=r"labels.csv has 4 different labels for 2 files: are they classes"):
        table(b"file,label\npics/000.png,a;b\npics/001.png,c;d")


def test_a_table_that_is_a_pipe_or_a_folder_that_is_closed_is_refused(tmp_path, monkeypatch, write_classes):
    os.mkfifo(tmp_path / "some.csv")
    with pytest.raises(UserError):
        load_data("folder", path=tmp_path / "some.csv")
    write_classes(tmp_path, {"a": 2, "b": 2})

    def closed(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(UserError, match="cannot list the folder .*a: Permission denied"):
        load_data("folder", path=tmp_path)


def test_a_picture_that_is_fine_still_is(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(png(3, 2, b"\0abc\0def"))
    assert load_image(path, (1, 2, 3)).flatten().tolist() == list(b"abcdef")
    Image.open(path).save(tmp_path / "x.ppm")
    assert load_image(tmp_path / "x.ppm", (1, 2, 3)).flatten().tolist() == list(b"abcdef")
