"""Arrays in, model out."""

import numpy as np
import pytest
import torch

import torchcaps
from torchcaps.errors import UserError
from torchcaps.train.fit import as_dataset

SMALL = {"channels": 4, "types": 2, "hidden": (16,)}


def stripes(n=48, size=12):
    """Images of two classes that anything can tell apart: bars down or bars across."""
    labels = np.arange(n) % 2
    images = np.zeros((n, size, size), dtype=np.float32)
    images[labels == 0, :, ::3] = 1
    images[labels == 1, ::3, :] = 1
    return images, labels


def test_fit_learns_and_returns_history():
    images, labels = stripes()
    model, history = torchcaps.fit(
        "capsnet_small", images, labels, epochs=8, batch_size=8, lr=0.01, class_names=["down", "across"], **SMALL
    )
    assert len(history) == 8
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    answers = model(torch.tensor(images)[:, None]).lengths.argmax(-1)
    assert (answers == torch.tensor(labels)).float().mean() == 1
    assert model.class_names == ("down", "across")
    assert not model.training


def test_fit_is_reproducible():
    images, labels = stripes(16)
    one, two = (torchcaps.fit("capsnet_small", images, labels, epochs=1, seed=3, **SMALL).model for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))


def test_fit_takes_recipe_settings():
    images, labels = stripes(16)
    settings = {"augment": {"shift": 1}, "train": {"ema": 0.9}, "optim": {"schedule": "cosine"}}
    result = torchcaps.fit("capsnet_small", images, labels, epochs=1, settings=settings, **SMALL)
    assert result.history[0]["epoch"] == 1
    with pytest.raises(UserError, match="did you mean 'shift'"):
        torchcaps.fit("capsnet_small", images, labels, settings={"augment": {"shft": 1}})


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((6, 9, 8), (1, 9, 8)), ((6, 3, 9, 8), (3, 9, 8)), ((6, 9, 8, 3), (3, 9, 8)), ((6, 9, 8, 1), (1, 9, 8))],
)
def test_image_layouts(shape, expected):
    dataset = as_dataset(np.zeros(shape, dtype=np.uint8), np.arange(6))
    assert dataset.image_shape == expected


def test_channels_last_values_move_with_their_channel():
    images = np.zeros((2, 9, 8, 3), dtype=np.uint8)
    images[0, 4, 5, 2] = 70
    assert as_dataset(images, [0, 1]).images[0, 2, 4, 5] == 70


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.full((2, 8, 8), np.nan, dtype=np.float32), [0, 1], "image 0 holds NaN"),
        (np.full((2, 8, 8), 2.0), [0, 1], r"must be in \[0, 1\]"),
        (np.full((2, 8, 8), -1.0), [0, 1], r"must be in \[0, 1\]"),
        (np.full((2, 8, 8), 300), [0, 1], "0…255"),
        (np.zeros((2, 8)), [0, 1], "must be"),
        (np.zeros((2, 8, 8)), [0, 1, 2], "one label an image"),
        (np.zeros((0, 8, 8)), [], "one label an image"),
        (np.zeros((2, 8, 8)), [0, -1], "class ids from 0, got"),
        (np.zeros((2, 8, 8)), [0.5, 1.0], "whole numbers"),
    ],
)
def test_mistakes(images, labels, message):
    with pytest.raises(UserError, match=message):
        as_dataset(images, np.array(labels))


def test_multi_hot_labels():
    dataset = as_dataset(np.zeros((2, 8, 8), dtype=np.uint8), [[1, 0, 1], [0, 1, 0]])
    assert dataset.multi_label
    assert dataset.num_classes == 3


def test_float_images_are_kept_exactly():
    images = torch.rand(4, 8, 8)
    assert torch.equal(as_dataset(images, [0, 1, 0, 1]).images[:, 0], images)


def test_a_column_of_ids_is_not_multi_hot():
    dataset = as_dataset(np.zeros((3, 8, 8), dtype=np.uint8), np.array([[0], [2], [1]]))
    assert dataset.targets.tolist() == [0, 2, 1]
    with pytest.raises(UserError, match="must be 0 or 1"):
        as_dataset(np.zeros((2, 8, 8), dtype=np.uint8), [[0, 2], [1, 0]])


def test_array_types_people_have():
    ones = np.ones((2, 8, 8), dtype=bool)
    assert as_dataset(ones, [0, 1]).images.max() == 1.0
    assert as_dataset(np.full((2, 8, 8), 90, dtype=np.uint16), [0, 1]).images.dtype == torch.uint8
    flipped = np.arange(128, dtype=np.uint8).reshape(2, 8, 8)[:, ::-1]
    assert as_dataset(flipped, [0, 1]).images[0, 0, 0, 0] == 56
    with pytest.raises(UserError, match="labels must be numbers"):
        as_dataset(ones, ["cat", None])


def test_a_multi_label_model_stays_one_when_saved(tmp_path):
    images, labels = stripes(16)
    hot = np.stack([labels, np.ones_like(labels)], axis=1)
    model = torchcaps.fit("capsnet_small", images, hot, epochs=1, validation=0, **SMALL).model
    torchcaps.save(model, tmp_path)
    assert torchcaps.load(tmp_path).trained_by["multi_label"] is True


@pytest.mark.parametrize("settings", [{"data": {"validation": 0}}, {"train": {"select": "best"}}], ids=str)
def test_settings_that_fit_would_ignore_are_refused(settings):
    with pytest.raises(UserError, match="are for recipes only"):
        torchcaps.fit("capsnet_small", *stripes(16), settings=settings, **SMALL)
