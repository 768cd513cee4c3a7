"""Measures of a classifier: per class, calibration, intervals."""

import numpy as np
import pytest
import torch

from torchcaps.metrics.summary import accuracy_interval, class_measures, reliability, summary_measures


def lengths(answers, classes, confidence=0.9):
    found = torch.full((len(answers), classes), 0.05)
    found[torch.arange(len(answers)), torch.tensor(answers)] = confidence
    return found


def test_wilson_interval_of_a_textbook_example():
    low, high = accuracy_interval(0.9, 10)  # (10·0.9 + 1.96²/2 ± …) / (10 + 1.96²)
    assert (low, high) == pytest.approx((0.5958, 0.9821), abs=1e-4)
    assert accuracy_interval(1.0, 5)[1] == 1.0


def test_classes_that_never_occur_or_were_never_predicted_have_no_measure():
    found = class_measures(lengths([0, 0, 1], 4), torch.tensor([0, 1, 1])).named(("a", "b", "c", "d"))
    assert found["a"] == {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "n": 1}
    assert found["b"] == {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "n": 2}
    assert found["c"]["precision"] is None
    assert found["c"]["recall"] is None
    assert found["c"]["n"] == 0


def test_balanced_accuracy_and_macro_f1_weigh_classes_equally():
    found = summary_measures(lengths([0] * 9 + [0], 2), torch.tensor([0] * 9 + [1]), ("a", "b"), None)
    assert found["balanced_accuracy"] == 0.5  # though nine in ten are right
    assert found["macro_f1"] == pytest.approx((18 / 19 + 0) / 2)
    assert "top5_accuracy" not in found


def test_top_five_counts_from_ten_classes_on():
    ranked = torch.linspace(1, 0.1, 10).repeat(2, 1)
    found = summary_measures(ranked, torch.tensor([4, 5]), tuple("abcdefghij"), None)
    assert found["top5_accuracy"] == 0.5


def test_calibration_error_is_the_gap_of_confidence_and_accuracy():
    right_half = reliability(lengths([0, 0, 0, 0], 2, 0.9), torch.tensor([0, 0, 1, 1]))
    assert right_half.error == pytest.approx(0.4)
    assert right_half.images.sum() == 4
    assert np.isnan(right_half.accuracy[0])
    assert reliability(lengths([0, 1], 2, 1.0), torch.tensor([0, 1])).error == 0.0


def test_several_labels_have_no_interval():
    several = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    found = summary_measures(torch.tensor([[0.9, 0.9, 0.1], [0.1, 0.2, 0.1]]), several, ("a", "b", "c"), None)
    assert set(found) == {"macro_f1", "per_class"}
    assert found["per_class"]["b"]["recall"] == 0.5
