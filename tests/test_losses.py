"""Losses: Eq. 4 by hand, one value an example, ids and multi-hot alike."""

from __future__ import annotations

import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.losses import (
    IGNORED,
    adversarial_loss,
    combine,
    cross_entropy,
    dice_loss,
    feature_loss,
    l1_loss,
    margin_loss,
    mask_cross_entropy,
    mask_margin_loss,
    masked_reconstruction_loss,
    multi_hot,
    reconstruction_loss,
    spread_loss,
)

WRONG_IDS = [
    pytest.param(
        torch.tensor([0, 3]), ValueError, r"must be in 0…2 for 3 classes, got 3; number the classes", id="3 of 3"
    ),
    pytest.param(torch.tensor([-1, 0]), ValueError, r"must be in 0…2 for 3 classes, got -1; number", id="negative"),
    pytest.param(
        torch.tensor([0.0, 1.0]), ValueError, r"must be integers, got torch.float32; use targets", id="floats"
    ),
    pytest.param(torch.tensor([0]), ValueError, "2 examples, but 1 targets", id="too few"),
    pytest.param([0, 1], TypeError, r"must be a tensor, got list; use torch.as_tensor", id="a list"),
]
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


def test_margin_of_squared_lengths():
    # example 0, class 0: 0.81 − 0.64 + ½(0.09 − 0.01) + 0; example 1, class 1: 0 + ½(0.04 − 0.01) + ½(1 − 0.01)
    loss = margin_loss(LENGTHS, torch.tensor([0, 1]), squared_lengths=True)
    assert loss.tolist() == pytest.approx([0.17 + 0.04, 0.015 + 0.495])


def test_reconstruction_is_one_sum_an_example():
    images = torch.zeros(2, 3, 4, 5)
    reconstruction = torch.stack([torch.full((3, 4, 5), 0.5), torch.zeros(3, 4, 5)])
    assert reconstruction_loss(reconstruction, images).tolist() == [15.0, 0.0]
    with pytest.raises(
        TypeError, match="reconstruction_loss: images must hold floating-point numbers, got torch.uint8"
    ):
        reconstruction_loss(reconstruction, images.to(torch.uint8))


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


@pytest.mark.parametrize("loss", [margin_loss, spread_loss, cross_entropy])
@pytest.mark.parametrize(("ids", "error", "message"), WRONG_IDS)
def test_wrong_ids_are_named_with_the_fix(loss, ids, error, message):
    with pytest.raises(error, match=message):
        loss(LENGTHS, ids)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.zeros(2, 4), "targets are for 4 classes, the model has 3"),
        (torch.zeros(2, 1), "targets are for 1 classes, the model has 3"),
        (torch.zeros(2, 3, 1), "targets are for 1 classes, the model has 3"),
        (torch.tensor(1), r"must be \(B,\) class ids or \(B, J\) multi-hot, got a single number"),
    ],
    ids=["too many", "too few", "three axes", "a number"],
)
@pytest.mark.parametrize("loss", [margin_loss, cross_entropy])
def test_wrong_multi_hot_targets_are_named(loss, targets, message):
    with pytest.raises(ValueError, match=message):
        loss(LENGTHS, targets)


def test_spread_loss_names_the_loss_for_several_classes():
    for classes in (3, 4):
        with pytest.raises(ValueError, match=r"must be class ids \(B,\), got \(2, .\); margin_loss takes several"):
            spread_loss(LENGTHS, torch.zeros(2, classes))


def test_no_id_is_ignored():
    with pytest.raises(ValueError, match="must be in 0…2 for 3 classes, got -100; number"):
        cross_entropy(LENGTHS, torch.tensor([0, -100]))


@pytest.mark.parametrize("loss", [margin_loss, spread_loss])
def test_capsules_are_their_activations(loss):
    pose, ids = torch.rand(2, 3, 4), torch.tensor([0, 2])
    assert torch.equal(loss(Capsules(pose), ids), loss(pose.norm(dim=-1), ids))
    assert torch.equal(loss(Capsules(pose, LENGTHS), ids), loss(LENGTHS, ids))


def test_capsules_are_no_logits():
    with pytest.raises(TypeError, match=r"cross_entropy: logits must be \(B, J\), got Capsules; .* use margin_loss"):
        cross_entropy(Capsules(torch.rand(2, 3, 4)), torch.tensor([0, 2]))


@pytest.mark.parametrize("loss", [margin_loss, spread_loss, cross_entropy])
def test_poses_arrays_and_integers_are_no_lengths(loss):
    ids = torch.tensor([0, 2])
    with pytest.raises(
        ValueError, match=r"must be \(B, J\), one number .* got \(2, 3, 4\); .* Capsules\(poses\).activ"
    ):
        loss(torch.rand(2, 3, 4), ids)
    with pytest.raises(TypeError, match="must be a tensor, got ndarray"):
        loss(LENGTHS.numpy(), ids)
    with pytest.raises(TypeError, match=r"must hold floating-point numbers, got torch.int64; use .*.float\(\)"):
        loss(LENGTHS.long(), ids)


@pytest.mark.parametrize("loss", [margin_loss, spread_loss, cross_entropy])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_ids_of_any_integer_type(loss, dtype):
    ids = torch.tensor([2, 0])
    assert torch.equal(loss(LENGTHS, ids.to(dtype)), loss(LENGTHS, ids))


@pytest.mark.parametrize("loss", [margin_loss, spread_loss, cross_entropy])
def test_gradients_of_each_example_by_torch_func(loss):
    ids = torch.tensor([2, 0])
    each = torch.func.vmap(torch.func.grad(lambda lengths, target: loss(lengths[None], target[None]).sum()))
    together = torch.func.grad(lambda lengths: loss(lengths, ids).sum())
    assert torch.equal(each(LENGTHS, ids), together(LENGTHS))


@pytest.mark.parametrize("loss", [margin_loss, spread_loss, cross_entropy])
def test_the_checks_of_ids_compile_without_a_break(loss):
    ids = torch.tensor([2, 0])
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert torch.equal(compiled(LENGTHS, ids), loss(LENGTHS, ids))


def test_combine_names_a_missing_term():
    with pytest.raises(ValueError, match="the loss 'reconstruction' has a weight, but the terms are margin"):
        combine({"margin": torch.ones(2)}, {"margin": 1.0, "reconstruction": 0.1})


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


# Masks: two rows of two pixels, one of them ignored.
MASKS = torch.tensor([[[0, 1], [1, 255]]])
PRESENCE = torch.tensor([[[[0.2, 0.8], [0.5, 0.7]]]], dtype=torch.float64)
MASK_LOSSES = [mask_cross_entropy, dice_loss, mask_margin_loss]


@pytest.mark.parametrize("classes", [1, 3])
def test_mask_cross_entropy_of_logits_is_the_same_and_learns_from_certain_mistakes(classes):
    logits = torch.randn(2, classes, 3, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    masks = torch.arange(9).view(1, 3, 3).repeat(2, 1, 1) % max(2, classes)

    def of(logits):
        return logits.sigmoid() if classes == 1 else logits.softmax(1)

    loss = mask_cross_entropy(of(logits), masks, 2.0, logits)
    assert torch.allclose(loss, mask_cross_entropy(of(logits), masks, 2.0), atol=1e-5)
    certain = torch.full((1, classes, 1, 1), -60.0)
    certain[:, 0] = 60.0  # sure of one class (of the only one), where another (none) is
    certain.requires_grad_()
    mask = torch.full((1, 1, 1), 0 if classes == 1 else 2)
    (gradient,) = torch.autograd.grad(mask_cross_entropy(of(certain), mask, logits=certain).sum(), certain)
    assert gradient.abs().max() > 0.1
    (nothing,) = torch.autograd.grad(mask_cross_entropy(of(certain), mask).sum(), certain)
    assert nothing.abs().max() < 1e-6


def test_mask_cross_entropy_by_hand():
    # −log 0.8 − log 0.8 − log 0.5, of three pixels; then positives three times
    assert mask_cross_entropy(PRESENCE, MASKS).tolist() == pytest.approx([(2 * 0.223144 + 0.693147) / 3], abs=1e-5)
    expected = pytest.approx([(4 * 0.223144 + 3 * 0.693147) / 3], abs=1e-5)
    assert mask_cross_entropy(PRESENCE, MASKS, positive_weight=3.0).tolist() == expected


def test_dice_by_hand():
    # Σpt = 0.8 + 0.5, Σp = 0.2 + 0.8 + 0.5, Σt = 2
    assert dice_loss(PRESENCE, MASKS).tolist() == pytest.approx([1 - (2.6 + 1) / (1.5 + 2 + 1)])


def test_mask_margin_by_hand():
    # ½(0.2 − 0.1)² + (0.9 − 0.8)² + (0.9 − 0.5)², of three pixels
    assert mask_margin_loss(PRESENCE, MASKS).tolist() == pytest.approx([(0.005 + 0.01 + 0.16) / 3])
    hard = mask_margin_loss(PRESENCE, MASKS, present=1.0, absent=0.0, down_weight=1.0)
    assert hard.tolist() == pytest.approx([(0.04 + 0.04 + 0.25) / 3])


def test_masks_of_several_classes_by_hand():
    presence = torch.tensor([0.5, 0.25, 0.25, 0.1, 0.1, 0.8], dtype=torch.float64).view(1, 2, 3).permute(0, 2, 1)
    masks = torch.tensor([[[0, 2]]], dtype=torch.uint8)
    presence = presence.unsqueeze(2)  # (1, 3, 1, 2): pixels of classes 0 and 2
    log = [0.693147, 2 * 0.287682, 2 * 0.105361, 0.223144]  # −log 0.5, twice −log 0.75, twice −log 0.9, −log 0.8
    assert mask_cross_entropy(presence, masks).tolist() == pytest.approx([sum(log) / 6], abs=1e-5)
    each = [1 - 2 / 2.6, 1 - 1 / 1.35, 1 - 2.6 / 3.05]
    assert dice_loss(presence, masks).tolist() == pytest.approx([sum(each) / 3])
    # 0.4² + ½(0.15² + 0.15²), and 0.1² + 0: summed over classes, as in margin_loss
    assert mask_margin_loss(presence, masks).tolist() == pytest.approx([(0.1825 + 0.01) / 2])


def test_masked_reconstruction_by_hand():
    images = torch.full((1, 2, 2, 2), 0.5, dtype=torch.float64)
    reconstruction = torch.full_like(images, 0.25)
    reconstruction[0, 1] = 0.5
    # first channel: 0.25² at each of three pixels; second: 0.5² where black is wanted, 0 at the two others
    expected = pytest.approx([(3 * 0.0625 + 0.25) / 6])
    assert masked_reconstruction_loss(reconstruction, images, MASKS).tolist() == expected
    assert masked_reconstruction_loss(reconstruction, images, torch.tensor([[[0, 2], [7, 255]]])).tolist() == expected


@pytest.mark.parametrize("loss", MASK_LOSSES)
@pytest.mark.parametrize("K", [1, 3], ids="K{}".format)
def test_ignored_pixels_change_nothing(loss, K):
    masks = torch.randint(max(K, 2), (2, 4, 5))
    masks[:, :2] = 255
    presence = torch.rand(2, K, 4, 5)
    other = torch.cat([torch.rand(2, K, 2, 5), presence[:, :, 2:]], dim=2)
    assert torch.equal(loss(presence, masks), loss(other, masks))
    torch.testing.assert_close(loss(presence, masks), loss(presence[:, :, 2:], masks[:, 2:]))
    images = torch.rand(2, K, 4, 5)
    loss = masked_reconstruction_loss
    assert torch.equal(loss(presence, images, masks), loss(other, images, masks))


@pytest.mark.parametrize("loss", MASK_LOSSES)
def test_an_ignored_example_costs_nothing(loss):
    presence = torch.rand(2, 1, 3, 3, requires_grad=True)
    masks = torch.stack([torch.full((3, 3), 255), torch.ones(3, 3, dtype=torch.long)])
    values = [loss(presence, masks), masked_reconstruction_loss(presence, torch.rand(2, 1, 3, 3), masks)]
    for value in values:
        assert value[0] == 0
        assert value[1] > 0
    torch.stack(values).sum().backward()
    assert presence.grad.isfinite().all()
    assert loss(presence[:0], masks[:0]).shape == (0,)


@pytest.mark.parametrize("K", [1, 3], ids="K{}".format)
def test_perfect_and_worst_masks(K):
    masks = torch.randint(max(K, 2), (2, 8, 8))
    there = masks[:, None] == torch.arange(K).view(-1, 1, 1) if K > 1 else (masks > 0)[:, None]
    right, wrong = there.float().requires_grad_(), (~there).float().requires_grad_()
    for loss in MASK_LOSSES:
        assert (loss(right, masks) == 0).all()
    assert (dice_loss(wrong, masks) > 0.9).all()
    assert mask_cross_entropy(wrong, masks).tolist() == pytest.approx([13.8, 13.8], abs=0.1)  # −log 10⁻⁶
    expected = 0.81 * there + 0.405 * ~there  # (0.9 − 0)², and ½(1 − 0.1)²
    torch.testing.assert_close(mask_margin_loss(wrong, masks), expected.sum(1).mean((1, 2)))
    sum(loss(x, masks).sum() for loss in MASK_LOSSES for x in (right, wrong)).backward()
    assert right.grad.isfinite().all()
    assert wrong.grad.isfinite().all()
    assert (wrong.grad.abs() > 0).all()  # what is wholly wrong can still be learned from


@pytest.mark.parametrize("loss", MASK_LOSSES)
@pytest.mark.parametrize("K", [1, 3], ids="K{}".format)
def test_gradients_of_mask_losses(loss, K):
    masks = torch.tensor([[[0, 1, 2], [2, 255, 0]], [[255, 255, 255], [1, 0, 0]]])
    presence = torch.rand(2, K, 2, 3, dtype=torch.float64) * 0.75 + 0.12  # away from the margins, where it has kinks
    assert torch.autograd.gradcheck(lambda p: loss(p, masks), presence.requires_grad_())
    images = torch.rand(2, K, 2, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda p: masked_reconstruction_loss(p, images, masks), presence)


@pytest.mark.parametrize("loss", MASK_LOSSES)
def test_mask_losses_are_taken_in_float32(loss):
    masks = torch.randint(2, (2, 4, 5), dtype=torch.uint8)
    presence = torch.rand(2, 1, 4, 5).bfloat16()
    torch.testing.assert_close(loss(presence, masks), loss(presence.float(), masks))


@pytest.mark.parametrize("loss", MASK_LOSSES)
@pytest.mark.parametrize(
    ("presence", "masks"),
    [((2, 1, 4, 5), (1, 4, 5)), ((2, 1, 4, 5), (2, 1, 4, 5)), ((2, 1, 4, 5), (2, 5, 4)), ((2, 4, 5), (2, 4, 5))],
    ids=["batch", "channel", "size", "no-channel"],
)
def test_masks_that_do_not_fit_are_told(loss, presence, masks):
    with pytest.raises(
        ValueError, match=rf"{loss.__name__}: expected shapes \(B, channels, H, W\) and \(B, H, W\), got"
    ):
        loss(torch.rand(presence), torch.zeros(masks))
    with pytest.raises(ValueError, match="masked_reconstruction_loss: expected shapes"):
        masked_reconstruction_loss(torch.rand(presence), torch.rand(presence), torch.zeros(masks))
    with pytest.raises(ValueError, match="masked_reconstruction_loss: shapes differ"):
        masked_reconstruction_loss(torch.rand(presence), torch.rand(2, 3, 4, 5), torch.zeros(masks))


def test_adversarial_losses_by_hand():
    logits = torch.tensor([[[[0.0, 2.0]]], [[[-1.0, -1.0]]]])
    half, two = torch.tensor(2.0).log(), (1 + torch.tensor(-2.0).exp()).log()
    one = (1 + torch.tensor(1.0).exp()).log()
    assert adversarial_loss(logits, True).tolist() == pytest.approx([float(half + two) / 2, float(one)])
    assert adversarial_loss(logits, False).tolist() == pytest.approx([float(half + two + 2) / 2, float(one) - 1])
    # of the cross-entropy with a target of 0.9, a tenth of the logit is taken off the loss for 1
    assert adversarial_loss(logits, True, smoothing=0.1)[1].item() == pytest.approx(float(one) - 0.1)
    assert adversarial_loss(logits, True, kind="least_squares").tolist() == [1.0, 4.0]
    assert adversarial_loss(logits, False, kind="least_squares").tolist() == [2.0, 1.0]
    assert adversarial_loss(logits, True, kind="least_squares", smoothing=0.5)[1].item() == pytest.approx(2.25)
    with pytest.raises(ValueError, match="'hinge'"):
        adversarial_loss(logits, True, kind="hinge")


def test_every_layer_that_notices_counts_alike_however_many_maps_it_has():
    drawn = [torch.zeros(2, 1, 1, 2), torch.zeros(2, 3, 1, 1)]
    real = [torch.tensor([[[[1.0, -3.0]]], [[[0.0, 0.0]]]]), torch.ones(2, 3, 1, 1)]
    assert feature_loss(drawn, real).tolist() == [1.5, 0.5]


def test_the_distance_of_images_leaves_out_what_is_ignored():
    drawn, images = torch.zeros(2, 1, 1, 4), torch.tensor([[[[0.5, 1.0, 0.0, 0.9]]], [[[0.1, 0.2, 0.3, 0.4]]]])
    masks = torch.tensor([[[0, 1, 1, IGNORED]], [[0, 0, 0, 0]]])
    assert l1_loss(drawn, images, masks).tolist() == pytest.approx([0.5, 0.25])
    with pytest.raises(ValueError, match="shapes differ"):
        l1_loss(drawn[:, :, :, 1:], images, masks)
