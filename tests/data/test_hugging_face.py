"""Data sets of the library `datasets`, made here: as objects, saved on disk, and as streams."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps
from torchcaps.data import load_data, named_data, open_hugging_face
from torchcaps.errors import UserError
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import start_run

datasets = pytest.importorskip("datasets", reason="the extra datasets is not installed")

SMALL = {"channels": 4, "types": 2, "hidden": (16,)}
NAMES = ["across", "down"]


@pytest.fixture(autouse=True)
def _caches(tmp_path, monkeypatch):
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def rows(n=24, size=(12, 12), labels=None, features=None):
    images = []
    for index in range(n):
        pixels = np.zeros(size, dtype=np.uint8)
        pixels[:, ::3] = 200 + index
        images.append(Image.fromarray(pixels if index % 2 else np.ascontiguousarray(pixels.T.reshape(size))))
    content = {"picture": images, "label": labels or [index % 2 for index in range(n)]}
    label = datasets.ClassLabel(names=NAMES) if labels is None else datasets.Value("string")
    known = features or datasets.Features({"picture": datasets.Image(), "label": label})
    return datasets.Dataset.from_dict(content, features=known)


def test_fit_reads_an_object_as_it_trains():
    data = rows()
    model, history = torchcaps.fit("capsnet_small", data, epochs=2, batch_size=8, validation=rows(6), **SMALL)
    assert model.class_names == tuple(NAMES)
    assert model.image_shape == (1, 12, 12)
    assert "val_accuracy" in history[-1]
    image, target = open_hugging_face(data)[5]
    assert torch.equal(image[0], torch.tensor(np.array(data[5]["picture"])))
    assert target == data[5]["label"]
    assert open_hugging_face(data, image_size=9, channels=3)[0][0].shape == (3, 9, 9)


def test_labels_that_are_words_are_classes_in_alphabetical_order():
    opened = open_hugging_face(rows(4, labels=["sheep", "cat", "cat", "sheep"]))
    assert opened.classes == ("cat", "sheep")
    assert [int(opened[index][1]) for index in range(4)] == [1, 0, 0, 1]


def test_a_recipe_trains_on_what_save_to_disk_has_written(tmp_path):
    rows(30).save_to_disk(tmp_path / "saved")
    assert named_data(str(tmp_path / "saved")) == ("hugging-face", str(tmp_path / "saved"))
    settings = ["data.source=hugging-face", f"data.path={tmp_path / 'saved'}", "data.image_size=12", "train.epochs=1"]
    settings += ["model.channels=4", "model.types=2", "model.hidden=[16]", "augment.shift=1"]
    run = start_run(load_recipe("digits", settings), out=tmp_path / "run", device="cpu")
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["train_n"], summary["val_n"], summary["test_n"]) == (22, 2, 6)
    assert torchcaps.load(run).class_names == tuple(NAMES)


def test_splits_of_their_own_are_kept(tmp_path):
    datasets.DatasetDict({"train": rows(20), "test": rows(6)}).save_to_disk(tmp_path / "saved")
    splits = load_data("hugging-face", path=tmp_path / "saved")
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (18, 2, 6)
    assert splits.train.image_shape == (1, 32, 32)
    with pytest.raises(UserError, match="give one of them"):
        torchcaps.fit("capsnet_small", datasets.load_from_disk(tmp_path / "saved"))


@pytest.mark.parametrize("storage", ["cache", "stream"])
def test_where_rows_are_kept_changes_nothing(storage, tmp_path):
    rows(20).save_to_disk(tmp_path / "saved")
    options = {"path": tmp_path / "saved", "image_size": 8, "cache_dir": tmp_path / "images"}
    memory, other = load_data("hugging-face", **options), load_data("hugging-face", storage=storage, **options)
    assert other.fingerprint() == memory.fingerprint()
    assert torch.equal(memory.train.images, other.train.images[:])


def test_a_stream_of_rows_is_trained_on_in_its_own_order():
    stream = rows().to_iterable_dataset(num_shards=3).shuffle(seed=0, buffer_size=4)
    model, history = torchcaps.fit("capsnet_small", stream, epochs=2, batch_size=8, **SMALL)
    assert model.class_names == tuple(NAMES)
    assert [line["step"] for line in history] == [3, 6]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: rows().with_format("torch"), r"with_format\(None\)"),
        (lambda: rows().remove_columns("label"), "one column must hold labels, and none"),
        (lambda: rows().remove_columns("picture"), "one column must hold images, and none"),
        (lambda: rows(4, labels=["cat", None, "cat", "dog"]), "some images have no label"),
        (lambda: datasets.Dataset.from_dict({"x": [1]}).to_iterable_dataset(), "one column must hold images"),
    ],
    ids=["format", "no labels", "no images", "a label missing", "a stream without images"],
)
def test_mistakes_name_the_way_out(data, message):
    with pytest.raises(UserError, match=message):
        torchcaps.fit("capsnet_small", data(), epochs=1, **SMALL)


def test_folders_that_are_no_data_sets_are_refused(tmp_path):
    with pytest.raises(UserError, match="was not written by save_to_disk"):
        load_data("hugging-face", path=tmp_path)
    (tmp_path / "dataset_info.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read as a data set"):
        load_data("hugging-face", path=tmp_path)
