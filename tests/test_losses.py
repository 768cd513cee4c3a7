"""Losses: Eq. 4 by hand, one value an example, ids and multi-hot alike."""

from __future__ import annotations

import pytest
import torch

from torchcaps.losses import combine, cross_entropy, margin_loss, multi_hot, reconstruction_loss

LENGTHS = torch.tensor([[0.8, 0.3, 0.05], [0.2, 0.95, 1.0]], dtype=torch.float64)


def test_margin_by_hand():
    # example 0, class 0: (0.9 − 0.8)² + ½(0.3 − 0.1)² + 0 (0.05 is below 0.1)         = 0.01 + 0.02
    # example 1, class 1: 0 (0.95 is above 0.9) + ½(0.2 − 0.1)² + ½(1.0 − 0.1)²       = 0.005 + 0.405
    assert margin_loss(LENGTHS, torch.tensor([0, 1])).tolist() == pytest.approx([0.03, 0.41])


def test_margin_of_several_classes_at_once():
    # example 0 has classes 0 and 1: (0.1)² + (0.6)² + 0; example 1 none: ½(0.1² + 0.85² + 0.9²)
    several = torch.tensor([[1, 1, 0], [0, 0, 0]])
    expected = pytest.approx([0.37, 0.5 * (0.01 + 0.7225 + 0.81)])
    assert margin_loss(LENGTHS, several).tolist() == expected
    assert margin_loss(LENGTHS, several.bool()).tolist() == expected


def test_margins_can_be_set():
    loss = margin_loss(LENGTHS[:1], torch.tensor([0]), present=1.0, absent=0.0, down_weight=1.0)
    assert loss.tolist() == pytest.approx([0.04 + 0.09 + 0.0025])


def test_reconstruction_is_one_sum_an_example():
    images = torch.zeros(2, 3, 4, 5)
    reconstruction = torch.stack([torch.full((3, 4, 5), 0.5), torch.zeros(3, 4, 5)])
    assert reconstruction_loss(reconstruction, images).tolist() == [15.0, 0.0]


def test_cross_entropy_of_ids_and_of_multi_hot():
    logits = torch.tensor([[0.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    # −log ½, and log(1 + e²)
    assert cross_entropy(logits, torch.tensor([0, 1])).tolist() == pytest.approx([0.693147, 2.126928], abs=1e-6)
    # summed over classes: 2·log 2, and log(1 + e⁻²) + log 2
    several = torch.tensor([[1, 1], [1, 0]])
    assert cross_entropy(logits, several).tolist() == pytest.approx([1.386294, 0.126928 + 0.693147], abs=1e-6)


def test_combine_weighs_terms_and_examples():
    terms = {"margin": torch.tensor([1.0, 3.0]), "reconstruction": torch.tensor([10.0, 30.0])}
    assert combine(terms, {"margin": 1.0, "reconstruction": 0.1}).item() == pytest.approx(4.0)
    assert combine(terms, {"margin": 2.0, "unused": 0.0}).item() == pytest.approx(4.0)
    assert combine(terms, {"margin": 1.0}, torch.tensor([3.0, 1.0])).item() == pytest.approx(3.0)


def test_combine_refuses_to_minimise_nothing():
    with pytest.raises(ValueError, match="every loss weight is zero"):
        combine({"margin": torch.ones(2)}, {"margin": 0.0})


def test_multi_hot():
    assert multi_hot(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    given = torch.tensor([[0.0, 1.0]])
    assert multi_hot(given, 2) is given
    assert multi_hot(torch.zeros(0, dtype=torch.long), 3).shape == (0, 3)
    with pytest.raises(ValueError, match="targets are for 4 classes, the model has 3"):
        multi_hot(torch.zeros(2, 4), 3)


@pytest.mark.parametrize("lengths", [LENGTHS, torch.zeros(2, 3, dtype=torch.float64)], ids=["some", "zero"])
def test_margin_gradient(lengths):
    assert torch.autograd.gradcheck(lambda x: margin_loss(x, torch.tensor([0, 1])), lengths.clone().requires_grad_())


def test_one_target_is_not_taken_for_every_example():
    with pytest.raises(ValueError, match="4 examples, but 1 targets"):
        margin_loss(torch.rand(4, 3), torch.tensor([1]))
    with pytest.raises(ValueError, match="shapes differ"):
        reconstruction_loss(torch.rand(2, 1, 4, 4), torch.rand(2, 3, 4, 4))
