import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.data import load_data, load_image
from torchcaps.errors import UserError


def load(path, **options):
    return load_data("folder", path=path, **options)


def test_class_folders_of_mixed_images_become_one_tensor(tmp_path, write_classes):
    write_classes(tmp_path, {"cat": 5}, size=(40, 30), suffix=".JPG")
    write_classes(tmp_path, {"dog/deep/er": 6}, size=(8, 50), mode="RGBA")
    write_classes(tmp_path, {"owl": 5}, mode="L", suffix=".bmp")
    (tmp_path / "cat" / ".hidden.png").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "dog" / "notes.txt").write_text("ignored")
    splits = load(tmp_path)
    parts = (splits.train, splits.validation, splits.test)
    assert {part.image_shape for part in parts} == {(3, 32, 32)}
    assert splits.train.class_names == ("cat", "dog", "owl")
    assert sum(part.class_counts() for part in parts).tolist() == [5, 6, 5]
    assert len({file for part in parts for file in part.files}) == 16


def test_the_folder_and_prediction_see_the_same_pixels(tmp_path, write_classes):
    write_classes(tmp_path, {"a": 4}, size=(50, 41), suffix=".jpg")
    write_classes(tmp_path, {"b": 4}, size=(9, 100), mode="L")
    for channels in (None, 1, 3):
        train = load(tmp_path, image_size=(20, 24), channels=channels).train
        for image, file in zip(train.images, train.files):
            assert torch.equal(image, load_image(file, train.image_shape))


def test_grey_files_make_one_channel_unless_asked_otherwise(tmp_path, write_classes):
    write_classes(tmp_path, {"a": 4, "b": 4}, mode="L")
    assert load(tmp_path).train.image_shape == (1, 32, 32)
    assert load(tmp_path, channels=3, image_size=10).train.image_shape == (3, 10, 10)


def test_a_split_does_not_depend_on_the_order_of_the_file_system(tmp_path, write_classes, monkeypatch):
    import os

    write_classes(tmp_path, {"a": 9, "b": 9})
    once = load(tmp_path)
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda top, **_: ((p, d[::-1], f[::-1]) for p, d, f in walk(top)))
    again = load(tmp_path)
    assert (once.train.files, once.test.files) == (again.train.files, again.test.files)
    assert load(tmp_path, split_seed=3).validation.files != once.validation.files


@pytest.mark.parametrize("val", ["val", "valid", "Validation"])
def test_given_parts_are_used(tmp_path, write_classes, val):
    for part, count in (("train", 5), (val, 2), ("test", 3)):
        write_classes(tmp_path / part, {"a": count, "b": count})
    splits = load(tmp_path)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (10, 4, 6)
    assert all("/test/" in file.replace("\\", "/") for file in splits.test.files)
    refit = load(tmp_path, validation=0)
    assert (len(refit.train), refit.validation, len(refit.test)) == (14, None, 6)


def test_what_is_not_given_is_held_out(tmp_path, write_classes):
    write_classes(tmp_path / "train", {"a": 10, "b": 10})
    write_classes(tmp_path / "test", {"a": 1, "b": 1})
    splits = load(tmp_path, validation=0.2)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (16, 4, 2)


def test_train_may_be_a_class_of_vehicles(tmp_path, write_classes):
    assert load(write_classes(tmp_path, {"bus": 4, "train": 4})).train.class_names == ("bus", "train")


def test_limit_decodes_only_what_it_keeps(tmp_path, write_classes):
    write_classes(tmp_path, {"a": 20, "b": 20})
    kept = set(load(tmp_path, limit=4, validation=0, test=0).train.files)
    for path in tmp_path.rglob("*.png"):
        if str(path) not in kept:
            path.write_text("broken")
    assert len(load(tmp_path, limit=4, validation=0, test=0).train) == 4


def test_every_unreadable_file_is_named_or_counted(tmp_path, write_classes):
    write_classes(tmp_path, {"a": 10, "b": 10})
    for i in range(7):
        (tmp_path / "a" / f"{i:03d}.png").write_text("not an image")
    noise = np.random.default_rng(0).integers(0, 256, (50, 50), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "b" / "cut.jpg")
    (tmp_path / "b" / "cut.jpg").write_bytes((tmp_path / "b" / "cut.jpg").read_bytes()[:900])
    with pytest.raises(UserError, match="8 of 21 images cannot be read") as caught:
        load(tmp_path)
    assert str(caught.value).count(str(tmp_path)) == 5
    assert "and 3 more" in str(caught.value)


def test_a_decompression_bomb_is_refused(tmp_path, write_classes, monkeypatch):
    write_classes(tmp_path, {"a": 4, "b": 4}, size=(40, 40))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(UserError, match=r"8 of 8 images cannot be read: .*more than 500 pixels"):
        load(tmp_path)
