import errno
import io
import json
import multiprocessing
import os
import threading

import numpy as np
import pytest
import torch

from torchcaps.data import StreamedDataset, batches, load_data, make_loader
from torchcaps.data import image_cache as caches
from torchcaps.data import storage as storages
from torchcaps.data.decoding import RECORD, UNREADABLE, ImageFiles, decode_files
from torchcaps.data.loader import plan_epoch
from torchcaps.errors import UnreadableImage, UserError


@pytest.fixture
def folder(tmp_path, write_classes):
    root = write_classes(tmp_path / "images", {"a": 9, "b": 9}, size=(30, 20), suffix=".jpg")
    return write_classes(root, {"c": 9}, size=(12, 40), mode="L")


@pytest.fixture
def load(folder, tmp_path):
    def load(storage, **options):
        return load_data(
            "folder", path=folder, image_size=16, storage=storage, cache_dir=tmp_path / "caches", **options
        )

    return load


def cache_folder(tmp_path, ending=""):
    (found,) = (path for path in (tmp_path / "caches").glob(f"*{ending}") if path.is_dir())
    return found


def epoch(data, **options):
    return list(batches(data, 4, device="cpu", seed=0, epoch=2, **options))


@pytest.mark.parametrize("storage", ["cache", "stream"])
def test_every_storage_gives_the_same_images_splits_and_fingerprint(load, storage):
    memory, other = load("memory"), load(storage)
    assert isinstance(other.train, StreamedDataset)
    assert other.fingerprint() == memory.fingerprint()
    for part in ("train", "validation", "test"):
        one, two = getattr(memory, part), getattr(other, part)
        assert one.files == two.files
        assert torch.equal(one.images, two.images[:])
        assert torch.equal(one.targets, two.targets)
    for one, two in zip(epoch(memory.train, start=1), epoch(other.train, start=1), strict=True):
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])


def test_streamed_images_are_indexed_as_a_tensor_is(load):
    plain, streamed = load("memory").train, load("stream").train
    mask = plain.targets == 1
    for index in (
        3,
        -1,
        slice(2, 5),
        slice(None, None, 7),
        torch.tensor([4, 0, 4]),
        torch.tensor([[1, 2], [3, 0]]),
        mask,
    ):
        assert torch.equal(streamed.images[index], plain.images[index])
    for index in ((0, 0), (slice(3), 1), (slice(None, None, 5), slice(1), slice(2, 4), 3), (2, slice(1))):
        assert torch.equal(streamed.images[index], plain.images[index])
    chosen = torch.tensor([5, 2])
    assert torch.equal(streamed.subset(chosen).images[:], plain.subset(chosen).images)
    assert torch.equal(streamed.in_memory().images, plain.images)
    assert torch.equal(torch.cat(list(streamed.images.split(4))), plain.images)


def test_a_cache_is_filled_once_for_all_splits(load, tmp_path, monkeypatch):
    load("cache")
    monkeypatch.setattr(ImageFiles, "decode_into", None)  # whoever decodes now, fails
    assert len(load("cache", split_seed=5, test=0).train.images[:]) == 24
    assert len(list((tmp_path / "caches").glob("*.lock"))) == 1


def test_a_changed_file_is_never_served_from_an_old_cache(load, folder):
    before = load("cache")
    (folder / "a" / "003.jpg").write_bytes((folder / "b" / "001.jpg").read_bytes())
    after = load("cache")
    assert after.fingerprint() != before.fingerprint()
    assert after.fingerprint() == load("memory").fingerprint()


def test_a_cache_that_was_interrupted_is_completed(load, tmp_path, monkeypatch):
    whole = load("memory")
    decoded, original = [], ImageFiles.decode_into

    def fail_late(self, number, out):
        if len(decoded) == 20:
            raise KeyboardInterrupt
        decoded.append(number)
        original(self, number, out)

    monkeypatch.setattr(ImageFiles, "decode_into", fail_late)
    with pytest.raises(KeyboardInterrupt):
        load("cache", workers=1)
    assert not (cache_folder(tmp_path) / "index.json").exists()
    with (cache_folder(tmp_path) / "pixels").open("r+b") as pixels:
        pixels.write(b"damaged")  # of the first image, which has to be decoded again
    decoded.clear()
    cached = load("cache", workers=1)
    assert len(decoded) == 27 - 20 + 1
    assert torch.equal(cached.train.images[:], whole.train.images)
    assert cached.fingerprint() == whole.fingerprint()


def test_a_damaged_image_is_decoded_again_and_written_back(load, tmp_path, caplog):
    whole = load("cache").train.images[:]
    pixels = cache_folder(tmp_path) / "pixels"
    before = pixels.read_bytes()
    pixels.write_bytes(before[:1000] + bytes(9) + before[1009:])
    again = load("cache")
    found = torch.cat([part.images[:] for part in (again.train, again.validation, again.test)])
    assert torch.equal(found[: len(whole)], whole)
    assert "was damaged" in caplog.text
    assert pixels.read_bytes() == before


@pytest.mark.parametrize("name", ["index.json", "records", "pixels"])
@pytest.mark.parametrize("content", [b"", b"{}", b'{"checksum": 3, "unreadable": []}'])
def test_a_damaged_cache_is_filled_again(load, tmp_path, name, content):
    whole = load("cache")
    (cache_folder(tmp_path) / name).write_bytes(content)
    again = load("cache")
    assert again.fingerprint() == whole.fingerprint()
    assert torch.equal(again.test.images[:], load("memory").test.images)


def test_a_file_that_changes_while_it_is_streamed_is_named(load, folder):
    images = load("stream", validation=0, test=0).train
    (folder / "a" / "003.jpg").write_bytes((folder / "b" / "001.jpg").read_bytes())
    with pytest.raises(UnreadableImage, match=r"003\.jpg: it has changed"):
        epoch(images)
    (folder / "a" / "003.jpg").unlink()
    with pytest.raises(UnreadableImage, match="no such file"):
        epoch(images)


@pytest.mark.parametrize("storage", ["memory", "cache", "stream"])
def test_unreadable_files_stop_or_are_left_out(load, folder, storage):
    complete = load(storage)
    broken = folder / "b" / "004.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    for _ in range(2):  # also where the cache is complete
        with pytest.raises(UserError, match=r"1 of 27 images cannot be read: .*b.004\.jpg .*on_error=skip"):
            load(storage)
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"1 of 27 images cannot be read and are left out: .*b.004\.jpg"):
            rest = load(storage, on_error="skip")
        assert rest.left_out == (str(broken),)
        for part in ("train", "validation", "test"):  # nothing moves to another part
            kept = tuple(file for file in getattr(complete, part).files if file != str(broken))
            assert getattr(rest, part).files == kept
            assert len(getattr(rest, part).images[:]) == len(kept)


def test_a_class_without_a_readable_image_is_refused(load, folder):
    for path in (folder / "c").iterdir():
        path.write_text("not an image")
    with pytest.warns(UserWarning, match="9 of 27"), pytest.raises(UserError, match="none of the training images of c"):
        load("memory", on_error="skip")


def test_each_rank_reads_its_own_share(load, monkeypatch):
    data = load("stream").train
    loader, order = make_loader(data, "cpu"), torch.arange(8)
    read, original = [], type(data.images.reader).read_into
    monkeypatch.setattr(
        type(data.images.reader),
        "read_into",
        lambda self, number, out: (read.append(number), original(self, number, out)),
    )
    plan_epoch(loader, order, 4, start=1, share=lambda size: (1, 3))
    images = loader.take(order[4:]).images
    assert sorted(read) == sorted(data.images.numbers[5:7].tolist())
    assert torch.equal(images[1:3], data.images[5:7] / 255)
    assert not images[[0, 3]].any()
    # what was not planned is read whole, and leaves the plan as it is
    plan_epoch(loader, order, 4)
    assert torch.equal(loader.take(order[2:5]).images, data.images[2:5] / 255)
    assert torch.equal(loader.take(order[:4]).images, data.images[:4] / 255)


def test_mixed_images_are_those_of_memory_on_every_rank(load):
    """Mixing needs the images of the other ranks, too."""
    found = []
    for storage in ("memory", "stream"):
        loader = make_loader(load(storage).train, "cpu", mixup=1.0, cutmix=1.0)
        order = torch.arange(len(loader))
        plan_epoch(loader, order, len(order), share=lambda total: (0, total // 2))
        found.append(loader.take(order, torch.Generator().manual_seed(0))[:2])
    for one, other in zip(*found):
        assert torch.equal(one, other)
    assert found[0][1].ndim == 2


def test_the_first_storage_with_room_is_taken(load, tmp_path, monkeypatch, capsys):
    from rich.console import Console

    need = 27 * 3 * 16 * 16
    monkeypatch.setattr(storages, "available_memory", lambda: 4 * need)
    monkeypatch.setattr(storages, "free_disk", lambda folder: 2 * need)
    console = Console(width=300)
    assert not isinstance(load("auto", console=console).train, StreamedDataset)
    assert "kept in memory" in capsys.readouterr().out
    load("auto", processes=2, console=console)
    assert "kept in a cache on disk" in capsys.readouterr().out
    assert (cache_folder(tmp_path) / "pixels").stat().st_size == need
    monkeypatch.setattr(storages, "free_disk", lambda folder: need)
    load("auto", processes=2, console=console)
    assert "(it is filled already)" in capsys.readouterr().out
    (cache_folder(tmp_path) / "index.json").unlink()
    load("auto", processes=2, console=console)
    assert "decoded whenever it is needed" in capsys.readouterr().out
    assert not (cache_folder(tmp_path, "-records") / "pixels").exists()


def test_progress_is_shown_in_a_terminal(load):
    from rich.console import Console

    shown = io.StringIO()
    load("memory", console=Console(file=shown, force_terminal=True, width=100))
    assert "27/27" in shown.getvalue()


def test_wrong_settings_are_refused(load, tmp_path):
    with pytest.raises(UserError, match="storage=disk: choose one of"):
        load("disk")
    with pytest.raises(UserError, match="workers=0"):
        load("cache", workers=0)
    with pytest.raises(UserError, match="digits is kept in memory"):
        load_data("digits", storage="cache")
    (tmp_path / "caches").write_text("a file")
    with pytest.raises(UserError, match=r"cannot write to the image cache .*data\.cache_dir"):
        load("cache")


def test_a_full_disk_is_reported_before_decoding_and_left_as_it_was(load, tmp_path, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full, raising=False)
        patch.setattr(ImageFiles, "decode_into", None)
        with pytest.raises(UserError, match=r"No space left on device; choose another folder with data\.cache_dir"):
            load("cache")
    assert list(cache_folder(tmp_path).iterdir()) == []
    assert load("cache").fingerprint() == load("memory").fingerprint()


def test_memory_of_a_container_counts(tmp_path, monkeypatch):
    for name, content in (("limit", "1000\n"), ("used", "700\n"), ("memory.stat", "anon 500\nfile 200\n")):
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(storages, "CGROUPS", ((tmp_path, "limit", "used", "file"),))
    assert storages.available_memory() == 500
    (tmp_path / "limit").write_text("max\n")
    assert storages.available_memory() > 500


def fill(paths, root):
    files = ImageFiles(tuple(paths), (3, 16, 16))
    cache = caches.open_cache(files, root, 1, None)
    out = np.empty((3, 16, 16), dtype=np.uint8)
    cache.read_into(0, out)


def test_processes_that_start_together_fill_a_cache_once(folder, tmp_path):
    paths = sorted(folder.rglob("*.*"))
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=fill, args=(paths, tmp_path / "caches")) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    index = json.loads((cache_folder(tmp_path) / "index.json").read_text())
    assert (index["files"], index["shape"], index["unreadable"]) == (27, [3, 16, 16], {})


def test_several_threads_decode(folder, monkeypatch):
    monkeypatch.setattr("torchcaps.data.decoding.BLOCK_FILES", 4)
    files = ImageFiles((*sorted(folder.rglob("*.*")), folder / "gone.png"), (3, 16, 16))
    threads, original = set(), ImageFiles.decode_into

    def note(self, number, out):
        threads.add(threading.get_ident())
        original(self, number, out)

    monkeypatch.setattr(ImageFiles, "decode_into", note)
    records = np.zeros(28, dtype=RECORD)
    found = decode_files(files, records, None, workers=3)
    assert list(found) == [27]
    assert records["state"].tolist() == [1] * 27 + [UNREADABLE]
    assert threading.get_ident() not in threads
