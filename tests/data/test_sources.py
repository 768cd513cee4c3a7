import gzip
import struct

import pytest
import torch

from torchcaps.data import SOURCES, download, draw_axons, load_data, mask_sources, named_data
from torchcaps.data import sources as sources_module
from torchcaps.errors import UserError


def idx(shape: tuple[int, ...], body: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


NAMES = [remote.name for remote in download.REMOTES["mnist"]]
LABELS = bytes([0, 1, 2] * 4)
FILES = [idx((12, 4, 4), bytes(192)), idx((12,), LABELS), idx((6, 4, 4), bytes(96)), idx((6,), LABELS[:6])]


def write_mnist(folder, zipped=True, skip=()):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in zip(NAMES, FILES):
        if name not in skip:
            path = folder / (name if zipped else name.removesuffix(".gz"))
            path.write_bytes(gzip.compress(data) if zipped else data)


def test_digits_are_embedded_and_split_the_same_every_time():
    once, again = load_data(), load_data("digits", split_seed=5)
    assert once.source == "digits"
    assert sum(map(len, (once.train, once.validation, once.test))) == 1797
    assert len(once.test) == pytest.approx(0.2 * 1797, abs=1)
    assert once.train.image_shape == (1, 8, 8)
    assert (int(once.train.images.min()), int(once.train.images.max())) == (0, 255)
    assert torch.equal(once.test.images, again.test.images)
    assert not torch.equal(once.validation.images, again.validation.images)


def test_digits_take_another_size_and_colour():
    splits = load_data("digits", image_size=(12, 16), channels=3, limit=50, validation=0)
    assert splits.train.image_shape == splits.test.image_shape == (3, 12, 16)
    assert (len(splits.train), splits.validation) == (50, None)
    assert torch.equal(splits.train.images[:, 0], splits.train.images[:, 2])


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_files_in_the_data_folder_are_used_without_network(tmp_path, monkeypatch, name, zipped):
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    monkeypatch.setattr(sources_module, "fetch", lambda *_: pytest.fail("went to the network"))
    write_mnist(tmp_path / name, zipped)
    splits = load_data(name, validation=3)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (9, 3, 6)
    assert splits.train.class_names[9] == {"mnist": "9", "fashion-mnist": "Ankle boot"}[name]


def test_only_the_missing_file_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    write_mnist(tmp_path / "mnist", skip=NAMES[1])
    fetched = []

    def fetch(remote, folder):
        fetched.append(remote.name)
        (folder / remote.name).write_bytes(FILES[1])
        return folder / remote.name

    monkeypatch.setattr(sources_module, "fetch", fetch)
    assert load_data("mnist", validation=0).train.targets.tolist() == list(LABELS)
    assert fetched == [NAMES[1]]


def test_a_path_means_the_folder_with_the_files(tmp_path):
    write_mnist(tmp_path, skip=NAMES[3])
    with pytest.raises(UserError, match=f"does not hold {NAMES[3]}"):
        load_data("mnist", path=tmp_path)
    (tmp_path / "t10k-labels.idx1-ubyte").write_bytes(FILES[3])
    assert len(load_data("mnist", path=str(tmp_path)).test) == 6


def test_cifar10_is_downloaded_when_absent(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    asked = []
    monkeypatch.setattr(sources_module, "fetch", lambda remote, folder: asked.append(folder) or tmp_path / "absent")
    with pytest.raises(UserError, match="absent"):
        load_data("cifar10")
    assert asked == [tmp_path / "cifar10"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "minst"}, "did you mean 'mnist'"),
        ({"source": "zzz"}, "choose one of: affnist, affnist-like"),
        ({"source": "."}, "use source='folder'"),
        ({"path": "somewhere"}, "use source='folder'"),
        ({"source": "folder"}, "needs path="),
        ({"image_size": 0}, "image_size=0"),
        ({"image_size": (28, 28, 1)}, "image_size="),
        ({"image_size": 28.5}, "image_size=28.5"),
        ({"channels": 2}, "channels=2"),
        ({"validation": 1.5}, "validation=1.5"),
        ({"test": -1}, "test=-1"),
        ({"limit": 0}, "limit=0"),
        ({"positive": 1}, "are for images with masks, not for digits"),
        ({"test": "last:6"}, "are for images with masks"),
        ({"source": "axon"}, "did you mean 'axons'"),
        ({"source": "axons", "per_class": 3}, "use limit"),
        ({"source": "axons", "path": "somewhere"}, "axons are drawn"),
        ({"source": "axons", "test": "last:6"}, "axons are drawn"),
        ({"source": "axons", "image_size": (16, 24)}, "drawn as squares"),
        ({"source": "shapes", "path": "somewhere"}, "shapes are drawn"),
        ({"source": "pairs"}, "needs path="),
        ({"source": "pairs", "path": ".", "image_size": 32}, "keep their size"),
        ({"source": "isbi2012"}, "register at the ISBI 2012 challenge"),
    ],
)
def test_a_mistake_is_answered_with_what_to_do(arguments, message):
    with pytest.raises(UserError, match=message):
        load_data(**arguments)


def test_the_sources_are_those_that_recipes_name():
    made = {"shapes", "shapes-turned", "faces", "faces-turned"}
    made |= {"multimnist", "multimnist-shift6", "mnist-expanded", "affnist-like", "affnist"}
    made |= {"shapes-objects", "faces-objects", "harbours", "scenes", "scattered-digits", "scattered-mnist"}
    made |= {"smallnorb"} | {f"smallnorb-{by}{kind}" for by in ("azimuth", "elevation") for kind in ("", "-familiar")}
    made |= {"folder", "shards", "hugging-face"}
    assert set(SOURCES) == {"digits", "mnist", "fashion-mnist", "cifar10"} | made


def test_axons_to_test_on_are_others_than_those_to_train_on(monkeypatch):
    monkeypatch.setattr(mask_sources, "AXONS", 10)
    monkeypatch.setattr(mask_sources, "TEST_AXONS", 3)
    once, again = (load_data("axons", image_size=16, channels=3, split_seed=seed) for seed in (0, 1))
    assert [len(part) for part in (once.train, once.validation, once.test)] == [9, 1, 3]
    assert once.train.images[0].shape == (3, 16, 16)
    assert all(torch.equal(one, other) for one, other in zip(once.test.images, again.test.images))
    assert once.validation.names != again.validation.names
    assert not any(torch.equal(image, other) for image in once.test.images for other in once.train.images)


def test_data_is_known_by_its_folders(tmp_path, monkeypatch, write_pairs, write_classes):
    pairs = write_pairs(tmp_path / "pairs", draw_axons(4, 16))
    parts = write_pairs(tmp_path / "parts" / "Train", draw_axons(4, 16)).parent
    classes = write_classes(tmp_path / "classes", {"a": 3, "b": 3})
    assert [named_data(str(each)) for each in (pairs, parts, classes)] == [
        ("pairs", str(pairs)),
        ("pairs", str(parts)),
        ("folder", str(classes)),
    ]
    assert named_data("axons") == ("axons", None)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    pairs.rename(tmp_path / "isbi2012")
    assert len(load_data("isbi2012", test="last:2", validation=0).train) == 2
