"""Simple classifiers on the same split."""

import pytest
import torch

from torchcaps.data import Dataset
from torchcaps.metrics import baselines
from torchcaps.metrics.baselines import hog_features, measure_baselines


def bars(counts, side=16, seed=0):
    """Bars down (class 0) and across (class 1), at random places."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.tensor([0] * counts[0] + [1] * counts[1])
    images = torch.randint(0, 40, (len(targets), 1, side, side), generator=generator, dtype=torch.uint8)
    for image, label in zip(images, targets.tolist()):
        place = int(torch.randint(2, side - 2, (1,), generator=generator))
        image[0, :, place] = 255 if not label else image[0, :, place]
        if label:
            image[0, place] = 255
    return Dataset(images, targets, ("down", "across"))


def test_bars_are_told_apart_and_the_majority_comes_from_training_images():
    found = measure_baselines(bars((30, 10)), bars((10, 20), seed=1))
    assert found.chance == 0.5
    assert found.majority == pytest.approx(1 / 3)
    assert found.hog_svm > 0.8
    assert "note" not in found.as_dict()


def test_a_large_set_is_measured_on_a_stratified_part(monkeypatch):
    monkeypatch.setattr(baselines, "MAX_IMAGES", 20)
    seen = []
    monkeypatch.setattr(baselines, "hog_features", lambda images: seen.append(len(images)) or hog_features(images))
    found = measure_baselines(bars((60, 20)), bars((30, 30), seed=1))
    assert seen == [20, 20]
    assert found.note == "HOG + SVM trained on 20 and tested on 20 images, stratified by class"
    assert found.hog_svm > 0.5  # 20 images to learn from


def test_what_would_take_too_long_is_left_out(monkeypatch):
    monkeypatch.setattr(baselines, "MAX_SVM_ENTRIES", 10)
    found = measure_baselines(bars((8, 8)), bars((4, 4)))
    assert found.hog_svm is None
    assert "left out" in found.note


def test_tiny_images_are_enlarged():
    assert len(hog_features(torch.randint(0, 255, (2, 3, 8, 9), dtype=torch.uint8))) == 2
