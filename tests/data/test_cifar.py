import gzip
import io
import tarfile

import pytest
import torch

from torchcaps.data import load_data
from torchcaps.data.datasets import cifar
from torchcaps.data.datasets.cifar import ARCHIVE, FOLDER, RECORD, TEST_FILES, TRAIN_FILES
from torchcaps.errors import UserError


def records(first_label: int, count: int = 10) -> bytes:
    return b"".join(bytes([(first_label + i) % 10]) + bytes([i]) * (RECORD - 1) for i in range(count))


CONTENTS = {name: records(j) for j, name in enumerate(TRAIN_FILES + TEST_FILES)}


def write_folder(folder, contents=CONTENTS):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)


def write_archive(path, contents=CONTENTS, prefix=f"{FOLDER}/"):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in contents.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("place", ["folder", "inside", "archive", "archive itself"])
def test_cifar10_is_found_as_folder_or_archive(tmp_path, place):
    if place.startswith("archive"):
        write_archive(tmp_path / ARCHIVE)
    else:
        write_folder(tmp_path / FOLDER if place == "inside" else tmp_path)
    splits = load_data("cifar10", path=tmp_path / ARCHIVE if place == "archive itself" else tmp_path, validation=0)
    assert (len(splits.train), len(splits.test), splits.train.image_shape) == (50, 10, (3, 32, 32))
    assert splits.train.targets[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    assert splits.train.images[3].unique().tolist() == [3]
    assert splits.train.class_names[0] == "airplane"


def test_pixels_are_stored_channel_by_channel(tmp_path):
    planes = bytes([5]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes(range(256)) * 4
    write_folder(tmp_path, CONTENTS | {"test_batch.bin": planes})
    image = load_data("cifar10", path=tmp_path).test.images[0]
    assert image[0].unique().tolist() == [1]
    assert image[1].unique().tolist() == [2]
    assert torch.equal(image[2, 0], torch.arange(32, dtype=torch.uint8))


def link(name, kind, target="/etc/passwd"):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (tarfile.TarInfo("../../escaped"), r"outside of its folder, ../../escaped"),
        (tarfile.TarInfo(f"{FOLDER}/../../escaped"), "outside of its folder"),
        (tarfile.TarInfo("/tmp/escaped"), "outside of its folder, /tmp/escaped"),
        (link(f"{FOLDER}/test_batch.bin", tarfile.SYMTYPE), "a link or a device in it, .*test_batch.bin"),
        (link(f"{FOLDER}/test_batch.bin", tarfile.LNKTYPE, "data_batch_1.bin"), "a link or a device"),
        (link("elsewhere", tarfile.SYMTYPE), "a link or a device in it, elsewhere"),
        (link(f"{FOLDER}/test_batch.bin", tarfile.CHRTYPE), "a link or a device"),
        (link(f"{FOLDER}/test_batch.bin", tarfile.BLKTYPE), "a link or a device"),
        (link(f"{FOLDER}/test_batch.bin", tarfile.FIFOTYPE), "a link or a device"),
        (link(f"{FOLDER}/test_batch.bin", tarfile.GNUTYPE_SPARSE), "a link or a device|damaged"),
    ],
    ids=["up", "down and up", "absolute", "symlink", "hard link", "symlink beside", "tty", "disk", "pipe", "sparse"],
)
def test_an_archive_cannot_leave_its_folder(tmp_path, member, message):
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as tar:
        tar.addfile(member, io.BytesIO())
    with pytest.raises(UserError, match=message) as caught:
        load_data("cifar10", path=tmp_path)
    assert ARCHIVE in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == [ARCHIVE]


def test_nothing_of_a_good_archive_is_written_to_disk_either(tmp_path):
    write_archive(tmp_path / ARCHIVE)
    load_data("cifar10", path=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [ARCHIVE]


def test_no_more_of_an_archive_is_unpacked_than_it_can_have(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "MAX_BYTES", 1 << 20)
    write_archive(tmp_path / ARCHIVE, {"readme.html": bytes(1 << 21)} | CONTENTS)
    with pytest.raises(UserError, match="damaged archive .more than 1,048,576 bytes"):
        load_data("cifar10", path=tmp_path)


def test_a_file_larger_than_any_of_cifar10_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "MAX_RECORDS", 9)
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda self: pytest.fail("read"))
    write_folder(tmp_path / "folder")
    write_archive(tmp_path / ARCHIVE)
    for place in (tmp_path / "folder", tmp_path / ARCHIVE):
        with pytest.raises(UserError, match="data_batch_1.bin in .* has 30,730 bytes"):
            load_data("cifar10", path=place)


def negative_size(data: bytes) -> bytes:
    """The size of the first member as a negative number in base 256, with the checksum that goes with it."""
    head = data[:124] + b"\xff" * 10 + b"\xfe\x00" + data[136:148] + b" " * 8 + data[156:512]
    return head[:148] + f"{sum(head):06o}\0 ".encode() + head[156:] + data[512:]


@pytest.mark.parametrize("zipped", [False, True])
def test_an_archive_that_leads_backwards_is_no_endless_loop(tmp_path, zipped):
    write_archive(tmp_path / "plain.tar.gz")
    data = negative_size(gzip.decompress((tmp_path / "plain.tar.gz").read_bytes()))
    (tmp_path / ARCHIVE).write_bytes(gzip.compress(data) if zipped else data)
    with pytest.raises(UserError, match="damaged archive|has -|does not contain"):
        load_data("cifar10", path=tmp_path / ARCHIVE)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"", "not a whole number"),
        (records(0)[:-1], "not a whole number of 3073-byte records, 1 to 10,000"),
        (b"\x0a" + records(0)[1:], "label 10"),
    ],
)
def test_damaged_records_are_refused_by_name(tmp_path, bad, message):
    write_folder(tmp_path, CONTENTS | {"data_batch_3.bin": bad})
    with pytest.raises(UserError, match=f"data_batch_3.bin.*{message}"):
        load_data("cifar10", path=tmp_path)


def test_missing_and_truncated_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="holds neither"):
        load_data("cifar10", path=tmp_path)
    write_folder(tmp_path / "few", {TRAIN_FILES[0]: records(0)})
    with pytest.raises(UserError, match=r"cannot read .*data_batch_2"):
        load_data("cifar10", path=tmp_path / "few")
    write_archive(tmp_path / ARCHIVE)
    (tmp_path / ARCHIVE).write_bytes((tmp_path / ARCHIVE).read_bytes()[:200])
    with pytest.raises(UserError, match="damaged gzip file|damaged archive"):
        load_data("cifar10", path=tmp_path)
