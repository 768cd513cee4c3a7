"""Tar shards: what is in them, how they are named, and that training on them is that on a folder of the same images."""

import gzip
import io
import json
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps
from torchcaps.data import load_data, make_loader, named_data, open_shards
from torchcaps.data.tar_shards import expand, list_shards
from torchcaps.errors import UserError
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import resume_run, start_run

SMALL = {"channels": 4, "types": 2, "hidden": (16,)}


def png(index, size=(12, 12)):
    pixels = np.zeros(size, dtype=np.uint8)
    pixels[:, index % 3 :: 3] = 255 if index % 2 else 90
    pixels = pixels if index % 2 else pixels.T.reshape(size)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def write(path, members, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as tar:
        for name, content in members:
            (info := tarfile.TarInfo(name)).size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def pairs(indices, label=lambda index: index % 2):
    return [
        member
        for index in indices
        for member in ((f"{index:04}.png", png(index)), (f"{index:04}.cls", str(label(index)).encode()))
    ]


@pytest.fixture
def shards(tmp_path):
    for number in range(3):
        write(tmp_path / "shards" / f"all-{number:02}.tar", pairs(range(10 * number, 10 * number + 10)))
    return tmp_path / "shards"


def test_every_image_comes_with_its_label(shards):
    parts, contents = list_shards(str(shards / "all-{00..02}.tar"))
    (listing,) = parts.values()
    assert len(listing.paths) == 30
    assert listing.class_names == ("0", "1")
    assert listing.targets.tolist() == [index % 2 for index in range(30)]
    assert listing.paths[17] == shards / "all-01.tar" / "0017.png"
    assert contents.read(listing.paths[17]) == png(17)


def test_patterns(shards):
    names = [f"all-{number:02}.tar" for number in range(3)]
    for pattern in ("all-{00..02}.tar", "all-0{0,1,2}.tar", "all-*.tar", ""):
        assert [path.name for path in expand(str(shards / pattern))] == names
    with pytest.raises(UserError, match=r"not there: .*all-03\.tar"):
        expand(str(shards / "all-{02..03}.tar"))
    with pytest.raises(UserError, match="there are no shards"):
        expand(str(shards / "none-*.tar"))


def test_names_of_classes(tmp_path):
    words = write(tmp_path / "words.tar", pairs(range(4), lambda index: ["dog", "cat"][index % 2]))
    (listing,) = list_shards(str(words)).parts.values()
    assert listing.class_names == ("cat", "dog")
    assert listing.targets.tolist() == [1, 0, 1, 0]
    (tmp_path / "classes.txt").write_text("dog\ncat\nhorse\n")
    assert list_shards(str(words)).parts["train"].class_names == ("dog", "cat", "horse")
    members = [("a/1.x.png", png(1)), ("a/1.png", png(1)), ("a/1.json", json.dumps({"label": 2, "x": []}).encode())]
    found = list_shards(str(write(tmp_path / "json.tar", [*members[1:], (".hidden.cls", b"x")]))).parts["train"]
    assert (found.targets.tolist(), found.paths) == ([2], (tmp_path / "json.tar" / "a/1.png",))


def test_parts_are_those_that_the_names_of_shards_give(tmp_path):
    for part, indices in (("train", range(20)), ("val", range(20, 24)), ("test", range(24, 30))):
        write(tmp_path / f"{part}-000.tar", pairs(indices))
    splits = load_data("shards", path=str(tmp_path), image_size=8)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [20, 4, 6]
    assert splits.train.image_shape == (1, 8, 8)
    only_test = load_data("shards", path=str(tmp_path / "test-{000..000}.tar"), validation=0, test=0)
    assert (len(only_test.train), only_test.test) == (6, None)
    with pytest.raises(UserError, match="give those of one part"):
        open_shards(str(tmp_path))


def test_what_data_names_as_shards(shards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert named_data("shards/all-{00..02}.tar") == ("shards", str(shards / "all-{00..02}.tar"))
    assert named_data("shards") == ("shards", str(shards))
    (shards / "cat").mkdir()
    assert named_data("shards")[0] == "folder"


def test_they_are_split_and_decoded_as_a_folder_of_the_same_images(shards, tmp_path):
    for index in range(30):
        (folder := tmp_path / "folder" / str(index % 2)).mkdir(parents=True, exist_ok=True)
        (folder / f"{index:04}.png").write_bytes(png(index))
    ours, theirs = load_data("shards", path=str(shards), image_size=8), load_data("folder", path=tmp_path / "folder")
    assert (len(ours.train), len(ours.validation), len(ours.test)) == (
        len(theirs.train),
        len(theirs.validation),
        len(theirs.test),
    )
    again = load_data("shards", path=str(shards), image_size=8)
    assert again.fingerprint() == ours.fingerprint()
    assert ours.train.class_names == theirs.train.class_names


SETTINGS = ["model.channels=4", "model.types=2", "model.hidden=[16]", "augment.shift=1", "train.batch_size=8"]
SETTINGS += ["data.source=shards", "data.image_size=12", "data.validation=4", "data.test=4"]


@pytest.mark.parametrize("storage", ["cache", "stream"])
def test_where_they_are_kept_changes_nothing(storage, shards, tmp_path):
    options = {"path": str(shards), "image_size": 8, "cache_dir": tmp_path / "cache"}
    memory, other = load_data("shards", **options), load_data("shards", storage=storage, **options)
    assert other.fingerprint() == memory.fingerprint()
    for one, two in ((memory.train, other.train), (memory.test, other.test)):
        assert one.files == two.files
        assert torch.equal(one.images, two.images[:])


def test_a_run_that_streams_reports_and_resumes_exactly(shards, tmp_path):
    settings = [*SETTINGS, f"data.path={shards}"]
    whole = start_run(load_recipe("digits", [*settings, "train.epochs=2"]), out=tmp_path / "whole", device="cpu")
    settings += ["data.storage=stream", "data.workers=2", f"data.cache_dir={tmp_path / 'cache'}"]
    parted = start_run(load_recipe("digits", [*settings, "train.epochs=1"]), out=tmp_path / "parted", device="cpu")
    resume_run(parted, ["train.epochs=2"], device="cpu")
    one, two = (torchcaps.load(folder) for folder in (whole, parted))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    assert (whole / "report.html").is_file()
    assert json.loads((parted / "summary.json").read_text())["test_n"] == 4


@pytest.mark.slow
def test_two_processes_that_stream_take_the_steps_of_one(shards, tmp_path):
    settings = [*SETTINGS, f"data.path={shards}", "train.epochs=3"]
    whole = start_run(load_recipe("digits", settings), out=tmp_path / "whole", device="cpu")
    settings += ["data.storage=stream", f"data.cache_dir={tmp_path / 'cache'}"]
    command = ["train", "digits", "--device", "cpu", "--devices", "2", "--out", str(tmp_path / "two")]
    command += [f"--set={each}" for each in settings]
    subprocess.run([sys.executable, "-m", "torchcaps", *command], check=True, capture_output=True, timeout=120)
    one, two = (
        [json.loads(line)["train_loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (whole, tmp_path / "two")
    )
    assert two == pytest.approx(one, abs=1e-5)


def test_each_rank_reads_its_own_share(shards, tmp_path, monkeypatch):
    """Of every batch; the rest of it stays black, and is drawn from the same random numbers."""
    splits = load_data("shards", path=str(shards), image_size=12, storage="stream", cache_dir=tmp_path / "cache")
    train, read = splits.train, []
    real = type(train.file_images.reader).read_into
    monkeypatch.setattr(
        type(train.file_images.reader),
        "read_into",
        lambda reader, number, out: (read.append(number), real(reader, number, out)),
    )
    order, shares = torch.arange(8), []
    for rank in range(2):
        loader, share = make_loader(train, "cpu"), slice(4 * rank, 4 * rank + 4)
        read.clear()
        loader.plan(iter([order]), 8, lambda total, share=share: (share.start, share.stop))
        images = loader.take(order).images
        assert torch.equal(images[share], train.images[order[share]] / 255)
        shares.append(set(read[:4]))
    assert len(shares[0]) == len(shares[1]) == 4
    assert not shares[0] & shares[1]


def test_images_that_cannot_be_read_are_named_or_left_out(tmp_path):
    path = write(tmp_path / "a.tar", [*pairs(range(12)), ("odd.png", b"no image"), ("odd.cls", b"1")])
    with pytest.raises(UserError, match=r"1 of 13 images cannot be read: .*a\.tar/odd\.png"):
        load_data("shards", path=path, test=0, validation=0)
    with pytest.warns(UserWarning, match=r"odd\.png"):
        splits = load_data("shards", path=path, test=0, validation=0, on_error="skip")
    assert (len(splits.train), len(splits.left_out)) == (12, 1)


def test_fit_reads_them_as_it_trains(shards):
    path = str(shards / "all-{00..02}.tar")
    model, history = torchcaps.fit("capsnet_small", path, epochs=2, batch_size=8, validation=0.2, **SMALL)
    assert model.image_shape == (1, 12, 12)
    assert "val_accuracy" in history[-1]
    opened = open_shards(path, image_size=(14, 13), channels=3)
    assert opened[3][0].shape == (3, 14, 13)
    assert torchcaps.fit("capsnet_small", opened, epochs=1, **SMALL).model.image_shape == (3, 14, 13)


def test_an_image_of_another_size_is_named(tmp_path):
    path = write(tmp_path / "a.tar", [*pairs([0]), ("1.png", png(1, (9, 12))), ("1.cls", b"1")])
    with pytest.raises(UserError, match=r"1\.png has 9×12, and the first image has 12×12: give image_size"):
        open_shards(str(path))[1]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("1.png", b"")], "'1' has no label"),
        ([("1.cls", b"0")], "'1' has 0 images"),
        ([("1.png", b""), ("1.jpg", b""), ("1.cls", b"0")], "'1' has 2 images"),
        ([("1.png", b""), ("1.cls", b"")], "'1' has no label"),
        ([("1.png", b""), ("1.json", b'{"label": true}')], "'1' has no label"),
        ([("1.png", b""), ("1.json", b"{")], "cannot be read"),
        ([("1.png", b""), ("1.cls", b"\xff")], "cannot be read"),
        ([("1.png", b""), ("1.cls", b"7777777")], "at most 100,000"),
        ([("1.png", b""), ("1.cls", b"0"), ("2.png", b""), ("2.cls", b"cat")], "some labels are names"),
        ([("1.png", b""), ("1.cls", bytes(1 << 21))], "a label of 2,097,152 bytes"),
        ([], "has no images"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_in_shards(members, message, tmp_path):
    with pytest.raises(UserError, match=message) as found:
        list_shards(str(write(tmp_path / "odd.tar", members)))
    assert "odd.tar" in str(found.value)


def test_damaged_shards_are_refused(tmp_path):
    good = write(tmp_path / "good.tar", pairs(range(4))).read_bytes()
    second = good.index(b"0001.png")
    damaged = {
        "cut": (good[: second + 600], "would end after the shard|damaged"),
        "header": (good[:second] + b"\xff" * 300 + good[second + 300 :], "damaged"),
        "packed": (gzip.compress(good), "is compressed, and shards must not be"),
    }
    for name, (content, message) in damaged.items():
        (path := tmp_path / f"{name}.tar").write_bytes(content)
        with pytest.raises(UserError, match=message):
            list_shards(str(path))
    with tarfile.open(tmp_path / "link.tar", "w") as tar:
        (info := tarfile.TarInfo("1.png")).type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(UserError, match="is a link"):
        list_shards(str(tmp_path / "link.tar"))
